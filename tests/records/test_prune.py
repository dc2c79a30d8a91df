"""Records that may go, and how one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.records.prune import baseline_ids, removable, removable_damaged, remove, remove_leftovers
from suite.records.query import Selection
from tests.support.histories import launch_of

ONE, OTHER = "20261122T000001Z__node__00000001", "20261122T000002Z__node__0000000a"


def test_ids_of_baselines_are_all_that_their_files_name(tmp_path):
    deep = tmp_path / "baselines" / "run" / "deep"
    deep.mkdir(parents=True)
    (deep / "a.json").write_text(f'{{"launches": ["{ONE}", "{OTHER}"], "replaced": ["{ONE}x"]}}')
    (deep / "b.json").write_text("20261122T00001Z__node__00000001")  # a digit less
    assert baseline_ids(tmp_path) == {ONE, OTHER}
    assert baseline_ids(tmp_path / "none") == set()


def test_baselines_what_runs_and_what_may_run_elsewhere_stay():
    launches = [launch_of(n, 1.0, status=status) for n, status in enumerate(("ok", "running", "unknown", "crashed"))]
    every = removable(launches, Selection(), set())
    assert [launch.status for launch in every] == ["ok", "crashed"]
    asked = removable(launches, Selection(statuses=("unknown", "running")), set())
    assert [launch.status for launch in asked] == ["unknown"]
    assert removable(launches, Selection(), {launches[0].id, launches[3].id}) == []
    assert removable(launches, Selection(run="another"), set()) == []


def test_of_errors_the_first_halves_of_records_may_go_each_once():
    errors = [
        InputError("damaged", where=f"/r/{ONE}.end.json"),
        InputError("damaged", where=f"/r/{ONE}.begin.json"),
        InputError("damaged", where=f"/r/{OTHER}.begin.json"),
        InputError("damaged", where="/r/notes.json"),
        InputError("nowhere"),
    ]
    first, second = Path(f"/r/{ONE}.begin.json"), Path(f"/r/{OTHER}.begin.json")
    assert removable_damaged(errors, set()) == [first, second]
    assert removable_damaged(errors, {ONE}) == [second]


@pytest.mark.parametrize("halves", [("begin", "end"), ("begin",), ("end",), ()])
def test_a_record_goes_with_both_halves_and_leaves_no_hidden_name(halves, tmp_path):
    for half in halves:
        (tmp_path / f"{ONE}.{half}.json").touch()
    other = tmp_path / f"{OTHER}.begin.json"
    other.touch()
    remove(tmp_path / f"{ONE}.begin.json")
    assert [*tmp_path.iterdir()] == [other]


def test_what_a_killed_removal_left_is_finished(tmp_path, monkeypatch):
    run = tmp_path / "records" / "run"
    run.mkdir(parents=True)
    for half in ("begin", "end"):
        (run / f"{ONE}.{half}.json").touch()
    monkeypatch.setattr("suite.records.prune._finish", lambda _: None)  # killed here
    remove(run / f"{ONE}.begin.json")
    monkeypatch.undo()
    left = {path.name for path in run.iterdir()}
    assert f"{ONE}.begin.json" not in left
    assert len(left) == 2
    remove_leftovers(tmp_path)
    assert [*run.iterdir()] == []
