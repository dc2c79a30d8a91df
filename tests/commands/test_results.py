"""The commands on records: what they choose, compare, export, take over, and never remove."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

from suite.__main__ import main
from suite.commands.results import NAMES
from suite.job.events import Status
from suite.metrics.figures import Figure, Quantity
from suite.records import store
from suite.records.index import launches
from suite.records.record import SCHEMA
from tests.support.record_halves import begin, contents, end
from tests.support.timed_records import MEASURED, record, scaled


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two launches that ended well, one that crashed."""
    root = tmp_path / "results"
    record(root, measured=MEASURED, started=1000.0)
    record(root, measured=scaled(2.0), started=86400.0 * 366)
    record(root, measured=MEASURED, started=86400.0 * 400, status=Status.CRASHED)
    return root


def everything(results: Path) -> dict[str, bytes]:
    return {str(path.relative_to(results)): path.read_bytes() for path in results.rglob("*") if path.is_file()}


def ids(results: Path) -> list[str]:
    return [launch.id for launch in launches(results)[0]]


@pytest.fixture
def run(capsys):
    """A function that runs `results`: exit code, and what is on stdout and stderr."""

    def ran(*arguments):
        code = main(["results", *map(str, arguments)])
        return code, *capsys.readouterr()

    return ran


def test_list_chooses_and_for_people_has_a_line_a_launch_below_the_titles(results, run):
    table = {
        "": (0, 1, 2),
        "--status ok --since 1971-01-02": (1,),
        "--limit 1 --machine 'cores, gpus: '": (2,),
        "--run large": (),
    }
    found, known = {}, ids(results)
    for options in table:
        code, out, _ = run("list", "--json", "--results", results, *shlex.split(options))
        found[options] = tuple(known.index(json.loads(line)["id"]) for line in out.splitlines())
        assert code == (0 if found[options] else 3)
    assert found == table
    code, out, err = run("list", "--results", results)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["id", *(identity[-8:] for identity in known)]


def test_a_record_is_shown_whole_and_what_means_none_is_refused(results, run):
    launch = launches(results)[0][1]
    code, out, _ = run("show", launch.id[-8:], "--json", "--results", results)
    shown, whole = json.loads(out), store.read(Path(launch.path))
    assert (code, shown["begin"]["id"]) == (0, launch.id)
    for half in ("begin", "end"):
        assert shown[half] == json.loads(msgspec.json.encode(getattr(whole, half)))
    for text, words in (("2", "several records; got '2'"), ("nothing", "no such record"), ("", "no such record")):
        code, out, err = run("show", text, "--results", results)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def two_records(results: Path, *figures: list[Figure], **changes: object) -> list[str]:
    for place, own in enumerate(figures):
        first = begin(**(changes if place else {}))
        opened = store.Opened(store.records_directory(results, "small"), first)
        opened.close(msgspec.structs.replace(end(first.id), figures=own))
    return [launch.id for launch in launches(results)[0]]


def test_diff_fails_on_one_message_more_of_one_rank_and_names_the_fact_that_changed(tmp_path, run):
    same = [Figure(quantity=Quantity.MESSAGES, value=7), Figure(quantity=Quantity.MESSAGES, value=7, rank=0)]
    other = [same[0], msgspec.structs.replace(same[1], value=8)]
    software = begin().software | {"torch": "9.9"}
    left, right = two_records(tmp_path, same, other, software=software)
    code, out, _ = run("diff", left, right, "--json", "--results", tmp_path)
    reported = json.loads(out)
    assert (code, reported["agree"]) == (1, False)
    assert [fact["name"] for fact in reported["facts"]] == ["software.torch"]
    assert reported["facts"][0]["right"] == "9.9"
    assert [(row["rank"], row["difference"]) for row in reported["figures"]] == [(None, 0), (0, 1)]
    assert run("diff", left, left, "--results", tmp_path)[0] == 0
    code, out, _ = run("diff", left, right, "--results", tmp_path)
    assert (code, "rank 0" in out, "software.torch" in out) == (1, True, True)


def test_diff_shows_times_and_judges_them_not(tmp_path, run):
    seconds = [[Figure(quantity=Quantity.STEP_SECONDS, value=value)] for value in (1.0, 2.0)]
    left, right = two_records(tmp_path, *seconds)
    code, out, _ = run("diff", left, right, "--results", tmp_path)
    assert (code, "100.0 % slower" in out) == (0, True)
    assert run("diff", left, right, "--quantity", "messages", "--results", tmp_path)[0] == 3
    assert run("diff", left, right, "--quantity", "speed", "--results", tmp_path)[0] == 2


def test_csv_and_parquet_hold_what_was_recorded(results, run):
    out = results / "launches.csv"
    assert run("export", "--out", out, "--results", results)[0] == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ids(results)
    assert [row["measured.step_seconds"] for row in rows] == ["0.8", "1.6", "0.8"]
    assert rows[0]["predicted.step_seconds.backward"] == "0.5"
    parquet = pytest.importorskip("pyarrow.parquet")
    out = results / "launches.parquet"
    assert run("export", "--format", "parquet", "--out", out, "--results", results)[0] == 0
    table = parquet.read_table(out).to_pydict()
    assert table["id"] == ids(results)
    assert table["measured.step_seconds"] == [pytest.approx(0.8), pytest.approx(1.6), pytest.approx(0.8)]
    assert table["compiled"] == [False] * 3


def test_parquet_without_pyarrow_is_refused_in_one_line(results, monkeypatch, run):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    out = results / "launches.parquet"
    code, _, err = run("export", "--format", "parquet", "--out", out, "--results", results)
    assert (code, out.exists()) == (2, False)
    assert err.count("\n") == 1
    assert err.endswith("[tables]'\n")


def test_merging_adds_what_is_missing_and_merging_again_changes_nothing(results, tmp_path, run):
    here = tmp_path / "here"
    record(here, measured=scaled(3.0), started=500.0)
    own = everything(here)
    code, out, _ = run("merge", results, "--results", here, "--json")
    assert (code, json.loads(out)["added"]) == (0, 3)
    merged = everything(here)
    assert merged == own | everything(results)
    code, out, _ = run("merge", results, "--results", here, "--json")
    assert (code, json.loads(out)["same"]) == (0, 3)
    assert everything(here) == merged


def test_merging_brings_the_end_of_a_launch_that_was_merged_while_it_ran(results, tmp_path, run):
    here = Path(shutil.copytree(results, tmp_path / "here"))
    next((here / "records" / "small").glob("*.end.json")).unlink()
    code, out, _ = run("merge", results, "--results", here, "--json")
    reported = json.loads(out)
    assert (code, reported["added"], reported["ended"], reported["same"]) == (0, 0, 1, 2)
    assert everything(here) == everything(results)


@pytest.mark.parametrize("minor", [1, 99])
@pytest.mark.parametrize("half", ["begin", "end"])
def test_merging_names_an_id_of_two_contents_and_keeps_both(half, minor, results, tmp_path, run):
    here = Path(shutil.copytree(results, tmp_path / "here"))
    path = next((here / "records" / "small").glob(f"*.{half}.json"))
    path.write_bytes(path.read_bytes().replace(f'"schema": "{SCHEMA}"'.encode(), f'"schema": "1.{minor}"'.encode()))
    before, there = everything(here), everything(results)
    code, out, err = run("merge", results, "--results", here, "--json")
    assert (code, len(json.loads(out)["conflicts"]), json.loads(out)["same"]) == (1, 1, 2)
    assert f"another content than {here}" in err
    assert (everything(here), everything(results)) == (before, there)


def test_merging_takes_no_damaged_record_over(results, tmp_path, run):
    path = next((results / "records" / "small").glob("*.end.json"))
    path.write_bytes(path.read_bytes()[:99])
    code, out, err = run("merge", results, "--results", tmp_path / "here", "--json")
    assert (code, json.loads(out)["added"]) == (2, 2)
    assert f"left out: {path}" in err
    assert launches(tmp_path / "here")[1] == []


def test_prune_removes_nothing_without_yes(results, run):
    before = everything(results)
    for options in (("--older-than", "30"), ("--status", "crashed"), ("--status", "ok")):
        code, out, err = run("prune", *options, "--results", results)
        assert (code, "would remove " in out) == (0, True)
        assert "nothing is removed without --yes" in err
    assert everything(results) == before


def test_prune_removes_what_fits_all_options_but_no_baseline_and_nothing_that_runs(results, run):
    directory = results / "records" / "small"
    store.Opened(directory, running := begin(started=2000.0))
    store.Opened(directory, elsewhere := begin(started=3000.0, node="00000000"))
    first, second, crashed = (launch.id for launch in launches(results)[0] if launch.status in ("ok", "crashed"))
    (results / "baselines").mkdir()
    (results / "baselines" / "mine.json").write_text(json.dumps({"launches": [first]}), encoding="utf-8")
    assert run("prune", "--older-than", "1", "--status", "ok", "--yes", "--results", results)[0] == 0
    assert ids(results) == [first, running.id, elsewhere.id, crashed]
    assert run("prune", "--older-than", "1", "--yes", "--results", results)[0] == 0
    assert ids(results) == [first, running.id, elsewhere.id]
    assert run("prune", "--older-than", "1", "--yes", "--results", results)[0] == 3
    assert run("prune", "--status", "unknown", "--yes", "--results", results)[0] == 0
    assert ids(results) == [first, running.id]
    assert second not in "".join(contents(directory))


def test_prune_asks_what_to_remove(results, run):
    for options in ((), ("--damaged", "--status", "ok"), ("--older-than", "-1"), ("--status", "bad")):
        code, out, err = run("prune", *options, "--yes", "--results", results)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert len(ids(results)) == 3


def test_every_command_takes_results_and_json_and_shows_an_example(run):
    wrong = []
    for name in NAMES:
        code, out, _ = run(name, "--help")
        words = ("--results", "--json", f"Example: python -m suite results {name}", "Exit codes:")
        if code or not all(each in " ".join(out.split()) for each in words):
            wrong.append(name)
    assert wrong == []


def test_a_good_copy_beside_a_damaged_end_says_which_file_is_damaged_and_what_to_do(results, tmp_path, run):
    copy = Path(shutil.copytree(results, tmp_path / "copy"))
    end_path = store.end_of(Path(launches(results)[0][0].path))
    end_path.write_bytes(end_path.read_bytes()[:100])
    code, _, err = run("merge", copy, "--results", results)
    assert code == 1
    assert f"its copy here is damaged, {end_path}: `results prune --damaged --yes`" in err
    begin_path = end_path.with_name(end_path.name.replace(".end.", ".begin."))
    code, out, _ = run("prune", "--damaged", "--yes", "--results", results)
    assert (code, out) == (0, f"removed {begin_path} and {end_path}\n")
    code, out, _ = run("merge", copy, "--results", results)
    assert (code, out.split(",")[0]) == (0, "1 added")
    assert everything(results) == everything(copy)


def test_show_says_the_verdict_with_the_predictions_of_counts(results, run):
    """The record of this test counts nothing: each exact figure that is expected is missing, and named."""
    code, out, _ = run("show", ids(results)[0], "--results", results)
    assert code == 0
    parameters = next(line for line in out.splitlines() if line.startswith("parameters "))
    assert "fail" in parameters
    assert "verdict: fail" in out
