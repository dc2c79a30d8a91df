"""Summaries of launches: what the whole record says, for the whole job, oldest first, as it lies on disk now."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.job.events import Step, StepKind
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import ROOT
from suite.records import in_processes, store
from suite.records import index as reading
from suite.records.index import launches
from suite.records.record import RankOutcome
from suite.records.summary import loss_curve
from tests.support.record_halves import begin, end
from tests.support.synthetic_records import write_records
from tests.support.timed_records import MEASURED, PREDICTED, record, scaled


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records of one run; to be copied before anything is changed."""
    directory = tmp_path_factory.mktemp("many")
    write_records(directory, 300, runs=1)
    return directory


@pytest.fixture
def opened(tmp_path: Path) -> store.Opened:
    """A launch without an end, of another machine."""
    return store.Opened(store.records_directory(tmp_path, "small"), begin(node="00000000"))


def identity_of(opened: store.Opened) -> str:
    return store.read(opened.path).begin.id


def test_the_summary_of_a_launch_says_what_its_whole_record_says(tmp_path: Path) -> None:
    record(tmp_path, measured=scaled(2.0), started=2000.0)
    record(tmp_path, measured=MEASURED, started=1000.0)
    (first, second), bad = launches(tmp_path)
    assert not bad
    assert (first.started, second.started) == (1000.0, 2000.0)
    whole = store.read(Path(first.path))
    assert whole.end is not None
    begin, end = whole.begin, whole.end
    assert (first.id, first.run, first.node, first.status) == (begin.id, begin.run, begin.node, whole.status)
    assert (first.hardware, first.software, first.policy) == (begin.hardware, begin.software, begin.policy)
    assert (first.hashes, first.suite) == (begin.hashes, begin.software["suite"])
    assert (first.ranks, first.layout) == (2, layout_text(begin.job.layout))
    assert (first.steps, first.seed, first.compiled) == (begin.job.steps, begin.job.seed, begin.job.compiled)
    assert first.others_share == end.others_share
    own = {f.key: f.value for f in end.figures if f.rank is None}
    assert {(q, a, o, None, None, t): value for (q, a, o, t), value in first.measured.items()} == own
    assert first.predicted.of(Quantity.STEP_SECONDS, term="backward") == PREDICTED[StepTerm.BACKWARD]
    assert first.measured.of(Quantity.STEP_SECONDS, term="no such term") is None


def test_records_of_every_earlier_minor_schema_are_read_whole_and_in_short() -> None:
    """Real ones, of the versions that wrote them (paths of their machine replaced)."""
    results = ROOT / "tests" / "records" / "earlier_records"
    found, bad = launches(results)
    assert not bad
    wholes = [store.read(Path(launch.path)) for launch in found]
    assert [whole.begin.schema for whole in wholes] == ["1.0", "1.1"]
    for launch, whole in zip(found, wholes, strict=True):
        assert whole.end is not None
        (seconds,) = (f.value for f in whole.end.figures if f.quantity is Quantity.STEP_SECONDS and f.term is None)
        assert (launch.status, launch.ranks, launch.measured.of(Quantity.STEP_SECONDS)) == ("ok", 1, seconds)
        assert launch.measured.of(Quantity.PARAMETERS) == 4_200_576
        assert launch.first_loss == pytest.approx(whole.end.ranks[0].steps[0].loss)


@pytest.mark.parametrize(
    ("of_ranks", "losses", "last"),
    [((), [], None), (((9.0, 8.0, 6.0, 1.0), (7.0,)), [9.0, 8.0, 6.0, 1.0], 5.0), (((),), [], None)],
)
def test_losses_are_those_of_rank_0_and_the_last_is_the_mean_of_three(
    of_ranks: tuple[tuple[float, ...], ...], losses: list[float], last: float | None, tmp_path: Path
) -> None:
    outcomes = [
        RankOutcome(
            rank=rank,
            steps=[Step(number, StepKind.TIMED, loss, 1.0, float(number)) for number, loss in enumerate(own, start=3)],
            last="finished",
        )
        for rank, own in enumerate(of_ranks)
    ]
    first = begin()
    written = store.Opened(store.records_directory(tmp_path, first.run), first)
    written.close(end(first.id, ranks=outcomes))
    ((launch,), bad) = launches(tmp_path)
    assert not bad
    assert (launch.first_loss, launch.last_loss) == (losses[0] if losses else None, last)
    assert loss_curve(store.end_of(written.path)) == list(enumerate(losses, start=3))


def test_files_that_are_no_records_are_passed_over(opened: store.Opened, tmp_path: Path) -> None:
    for name in (".hidden.end.json", ".launches", "notes.txt", "z.json"):
        (opened.path.parent / name).write_text("no record", encoding="utf-8")
    found, bad = launches(tmp_path)
    assert ([launch.id for launch in found], bad) == ([identity_of(opened)], [])


def test_a_launch_that_ends_while_records_are_read_has_its_status(
    opened: store.Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = reading._record_files

    def end_afterwards(directory: str, bad: list[InputError]) -> list[reading.RecordFiles]:
        found = listed(directory, bad)
        opened.close(end(identity_of(opened)))
        return found

    assert [launch.status for launch in launches(tmp_path)[0]] == ["unknown"]
    monkeypatch.setattr(reading, "_record_files", end_afterwards)
    assert [launch.status for launch in launches(tmp_path)[0]] == ["ok"]


def test_a_launch_that_begins_or_goes_while_its_directory_is_listed_is_no_damage(
    opened: store.Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.close(end(identity_of(opened)))
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: [name for name in listed(place) if name != opened.path.name])
    found, bad = launches(tmp_path)
    assert ([launch.status for launch in found], bad) == (["ok"], [])
    hidden = opened.path.with_name(f".{identity_of(opened)}.pruned")
    names = listed(opened.path.parent)
    monkeypatch.setattr(os, "listdir", lambda _: names)
    opened.path.rename(hidden)
    assert launches(tmp_path) == ([], [])


def test_a_launch_whose_end_is_damaged_by_then_is_named(
    opened: store.Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = store.end_of(opened.path)
    monkeypatch.setattr(reading, "status_without_end", lambda *_: (written.write_bytes(b"{"), "crashed")[1])
    found, bad = launches(tmp_path)
    assert (found, [error.where for error in bad]) == ([], [str(written)])


class KilledAfterTwoBlocks:
    """A pool of which a process is killed."""

    def __init__(self, *_: object) -> None:
        pass

    def map(self, function: Any, blocks: list[Any]) -> Any:
        yield from map(function, blocks[:2])
        raise BrokenProcessPool

    def shutdown(self, **_: object) -> None:
        pass


def test_many_processes_read_what_one_does_also_where_none_starts_or_one_is_killed(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Path(shutil.copytree(many, tmp_path / "results"))
    next((results / "records" / "synthetic0").glob("*.begin.json")).write_bytes(b"{")
    alone, bad = launches(results)
    assert (len(alone), len(bad)) == (299, 1)
    monkeypatch.setattr(reading, "_LEAST_SHARED", 100)
    monkeypatch.setattr(reading, "_BLOCK", 70)
    cases: dict[str, tuple[Any, str, object]] = {
        "processes": (reading, "_BLOCK", 70),
        "one is killed": (in_processes, "ProcessPoolExecutor", KilledAfterTwoBlocks),
        "none starts": (multiprocessing.spawn, "_python_exe", b"/bin/false"),
    }
    for case, patched in cases.items():
        with monkeypatch.context() as patch:
            patch.setattr(*patched)
            found, errors = launches(results)
        assert (found, [*map(str, errors)]) == (alone, [*map(str, bad)]), case


def test_reading_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    launches(tmp_path)
    assert gc.isenabled()
    gc.disable()
    try:
        launches(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def calls(results: Path) -> int:
    """Calls of functions, Python's and C's, while everything is read."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        read, _ = launches(results)
    finally:
        sys.setprofile(None)
    assert read
    return count


def test_the_cost_of_a_record_does_not_grow_with_their_number(many: Path, tmp_path: Path) -> None:
    """Three times as many records take 3 times as many calls, and 9 times if every record looked at all others."""
    write_records(tmp_path / "few", 100, runs=1)
    assert calls(many) / calls(tmp_path / "few") < 3.3


@pytest.mark.rare
@pytest.mark.timeout(1800)
def test_tables_of_100_000_records_take_1_gib(tmp_path: Path) -> None:
    write_records(tmp_path, 100_000)
    command = [sys.executable, "-m", "suite", "report", "--no-page", "--results", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest <= 2**20  # KiB, of the largest process
