"""Summaries of launches: what the whole record says, for the whole job, oldest first; what is kept is never trusted."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.job.events import Step, StepKind
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import ROOT
from suite.records import index as reading
from suite.records import store
from suite.records.index import CACHE, launches
from suite.records.record import RankOutcome
from suite.records.summary import LaunchSummary, loss_curve
from tests.support.record_halves import begin, end
from tests.support.starts import slowness
from tests.support.synthetic_records import write_records
from tests.support.timed_records import MEASURED, PREDICTED, record, scaled


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records of one run; to be copied before anything is changed."""
    directory = tmp_path_factory.mktemp("many")
    write_records(directory, 300, runs=1)
    return directory


@pytest.fixture
def results(many: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(many, tmp_path / "results"))


def files(results: Path) -> list[Path]:
    return sorted((results / "records" / "synthetic0").glob("*.json"))


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


def test_losses_of_a_summary_are_the_first_and_the_mean_of_the_last_three(many: Path) -> None:
    launch = launches(many)[0][0]
    assert (launch.first_loss, launch.last_loss) == (9.5, pytest.approx(9.5 - 28 / 20))


def step(number: int, loss: float) -> Step:
    return Step(number, StepKind.TIMED, loss, 1.0, float(number))


@pytest.mark.parametrize(("ranks", "losses"), [((), []), (((9.0, 8.0), (7.0, 6.0)), [9.0, 8.0]), (((),), [])])
def test_losses_are_those_of_rank_0_where_it_has_some(
    ranks: tuple[tuple[float, ...], ...], losses: list[float], tmp_path: Path
) -> None:
    first = begin()
    outcomes = [
        RankOutcome(rank=rank, steps=[step(number + 3, loss) for number, loss in enumerate(own)], last="finished")
        for rank, own in enumerate(ranks)
    ]
    written = store.Opened(store.records_directory(tmp_path, first.run), first)
    written.close(end(first.id, ranks=outcomes))
    ((launch,), bad) = launches(tmp_path)
    assert not bad
    assert (launch.first_loss, launch.last_loss) == ((9.0, 8.5) if losses else (None, None))
    assert loss_curve(store.end_of(written.path)) == list(enumerate(losses, start=3))


def test_files_that_are_no_records_are_passed_over_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin()
    written = store.Opened(store.records_directory(tmp_path, first.run), first)
    written.close(end(first.id))
    directory = written.path.parent
    for name in (".hidden.end.json", "notes.txt", "z.json"):
        (directory / name).write_text("no record", encoding="utf-8")
    listed = os.scandir

    def last(directory: str) -> Any:
        entries = list(listed(directory))
        return contextlib.nullcontext(sorted(entries, key=lambda entry: entry.name.startswith(first.id)))

    monkeypatch.setattr(os, "scandir", last)
    found: list[InputError] = []
    records = reading._record_files(str(directory), found)
    assert not found
    assert [identity for identity, *_ in records] == [first.id]


def test_what_was_kept_reads_as_the_records_do(results: Path) -> None:
    cold, _ = launches(results)
    assert (results / "records" / "synthetic0" / CACHE).exists()
    assert launches(results) == (cold, [])
    assert len(cold) == 300


def test_what_was_kept_is_read_instead_of_the_records(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches(results)
    read: list[str] = []
    monkeypatch.setattr(reading, "launch_summary", lambda *paths: read.append(paths[0]))
    assert len(launches(results)[0]) == 300
    assert not read


@pytest.mark.parametrize("half", ["begin", "end"])
@pytest.mark.parametrize("keeps_time", [True, False])
def test_a_record_that_changed_is_read_again(half: str, keeps_time: bool, results: Path) -> None:
    """One byte, the size kept; with the time of the last change put back, the time of the last status change tells."""
    launches(results)
    path = next(path for path in files(results) if half in path.name)
    before = path.stat()
    old, new = {"begin": (b'"seed": 3', b'"seed": 4'), "end": (b'"others_share": 0.01', b'"others_share": 0.03')}[half]
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    if keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    changed = launches(results)[0][0]
    assert {"begin": changed.seed == 4, "end": changed.others_share == 0.03}[half]


def test_a_record_that_came_or_went_since_it_was_kept_is_noticed(results: Path) -> None:
    first = launches(results)[0][0]
    for path in files(results)[:2]:
        path.unlink()
    again = launches(results)[0]
    assert first.id not in {launch.id for launch in again}
    assert len(again) == 299
    files(results)[1].unlink()
    assert launches(results)[0][0].status == "running"


def test_a_launch_that_ended_after_its_directory_was_listed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin()
    written = store.Opened(store.records_directory(tmp_path, first.run), first)

    def meanwhile(*_: object) -> str:
        written.close(end(first.id))
        return "crashed"  # its launcher is gone

    monkeypatch.setattr(reading, "status_without_end", meanwhile)
    assert [launch.status for launch in launches(tmp_path)[0]] == ["ok"]


def test_a_launch_whose_end_is_damaged_by_then_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.Opened(store.records_directory(tmp_path, begin().run), begin())

    def damaged(_: object) -> LaunchSummary:
        raise InputError("not a record", where="here")

    monkeypatch.setattr(reading, "_without_end", damaged)
    found, bad = launches(tmp_path)
    assert ([*found], [str(error) for error in bad]) == ([], ["here: not a record"])


@pytest.mark.parametrize("damage", ["cut", "empty", "one-bit", "other-code", "directory"])
def test_damaged_keepings_are_rebuilt_in_silence(damage: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold, _ = launches(results)
    kept = results / "records" / "synthetic0" / CACHE
    data = kept.read_bytes()
    if damage == "other-code":
        monkeypatch.setattr("suite.records.summary._version", lambda: b"another version")
    elif damage == "directory":
        kept.unlink()
        kept.mkdir()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        kept.write_bytes({"cut": data[:middle], "empty": b"", "one-bit": flipped}[damage])
    assert launches(results) == (cold, [])
    if damage != "directory":
        assert (kept.read_bytes() == data) is (damage != "other-code")
    assert [path.name for path in kept.parent.iterdir() if path.name.startswith(f"{CACHE}.")] == []


def test_few_records_keep_nothing_beside_them(tmp_path: Path) -> None:
    write_records(tmp_path, 20, runs=1)
    launches(tmp_path)
    assert not (tmp_path / "records" / "synthetic0" / CACHE).exists()


def test_many_processes_read_what_one_does(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files(results)[0]
    path.write_bytes(b"{")
    alone = launches(results)
    (results / "records" / "synthetic0" / CACHE).unlink()
    monkeypatch.setattr(reading, "_LEAST_SHARED", 100)
    monkeypatch.setattr(reading, "_BLOCK", 70)
    shared = launches(results)
    assert shared[0] == alone[0]
    assert [str(error) for error in shared[1]] == [str(error) for error in alone[1]]
    assert len(alone[1]) == 1


def test_reading_is_done_alone_where_no_process_starts(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LEAST_SHARED", 100)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/bin/false")
    assert len(launches(results)[0]) == 300


def test_what_processes_had_not_read_when_one_was_killed_is_read_alone(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledAfterTwoBlocks:
        def __init__(self, *_: object) -> None:
            pass

        def map(self, function: Any, blocks: list[Any]) -> Any:
            yield from map(function, blocks[:2])
            raise BrokenProcessPool

        def shutdown(self, **_: object) -> None:
            pass

    monkeypatch.setattr(reading, "_LEAST_SHARED", 100)
    monkeypatch.setattr(reading, "_BLOCK", 50)
    monkeypatch.setattr(reading, "ProcessPoolExecutor", KilledAfterTwoBlocks)
    found, bad = launches(results)
    assert (len(found), bad) == (300, [])


def test_a_launch_that_ends_while_its_directory_is_listed_has_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(node="00000000")
    opened = store.Opened(store.records_directory(tmp_path, "small"), first)
    listed = reading._record_files

    def end_afterwards(directory: str, bad: list) -> list:
        found = listed(directory, bad)
        opened.close(end(first.id))
        return found

    monkeypatch.setattr(reading, "_record_files", end_afterwards)
    assert [launch.status for launch in launches(tmp_path)[0]] == ["ok"]


def test_reading_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    launches(tmp_path)
    assert gc.isenabled()
    gc.disable()
    try:
        launches(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def cost(results: Path, repeats: int) -> float:
    """Processor seconds of reading everything, the least of several times."""

    def once() -> float:
        started = time.process_time()
        read: list[LaunchSummary] = launches(results)[0]
        assert read
        return time.process_time() - started

    return min(once() for _ in range(repeats))


def test_the_cost_of_a_record_does_not_grow_with_their_number(many: Path, tmp_path: Path) -> None:
    """Three times as many cost 3 times as much, 9 if every record looked at all others; between them, 5 is claimed."""
    write_records(tmp_path / "few", 100, runs=1)
    assert cost(many, 5) / cost(tmp_path / "few", 5) < 5


@pytest.mark.rare
@pytest.mark.timeout(1800)
def test_tables_of_100_000_records_take_10_s_and_1_gib(tmp_path: Path) -> None:
    """Of processor time, at the speed at which times are stated; once as they lie, once with what was kept.

    Without what was kept, two processes or more read: their time is divided by their number.
    """
    write_records(tmp_path, 100_000)
    command = [sys.executable, "-m", "suite", "report", "--no-page", "--results", str(tmp_path)]
    processes = min(8, len(os.sched_getaffinity(0)))
    written = []
    for cold in (True, False):
        slow = [slowness()]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        slow.append(slowness())
        seconds = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / fmean(slow)
        here = f"taken {fmean(slow):.2f} times"
        print(f"{'cold' if cold else 'warm'}: {seconds:.1f} s here {here}, {after.ru_maxrss / 2**20:.2f} GiB")
        assert seconds / (processes if cold else 1) <= 10
        assert after.ru_maxrss <= 2**20  # KiB, of the largest process
        written.append((tmp_path / "TABLES.md").read_bytes())
    assert written[0] == written[1]
