"""A calibration measures what it planned and stores it whole; one that goes wrong ends in time and stores nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.calibration import calibrate as calibration
from suite.calibration.calibrate import calibrate, planned_calibration
from suite.calibration.plan import REFERENCE_ROUNDS
from suite.execute.calibrate.reference_step import STEPS
from suite.execute.calibrate.stopwatch import BRIEF_WARM_UP, MOST_PAGED
from suite.job.calibration_job import TimedTask
from suite.job.events import Event, Phase, Started, Status
from suite.job.training_job import WARM_UP_STEPS
from suite.launch import rank_events
from suite.machine import reference_step
from suite.machine.fingerprint import fingerprint
from suite.machine.half_precision import kernels_for
from suite.machine.operations import COLLECTIVES
from suite.machine.processes import LAUNCH_VARIABLE
from suite.machine.profile import REPEATED, UNSEEN, Profile, current_profile, disturbed, read
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import Subject
from suite.metrics.figures import Quantity, of_job
from suite.paths import ROOT
from suite.predict.simulation.step_correction import step_correction
from suite.report.terminal.machine_profile import print_profile
from suite.report.terminal.progress import calibration_progress
from suite.report.terminal.tables import console
from suite.reproduce.plan import plan as planned_run
from suite.reproduce.request import Request as RunRequest
from suite.reproduce.step_time import predicted_times
from tests.support.profiles import SPARSE, profile

START_SECONDS = 180.0  # imports of torch on a busy machine
END_SECONDS = 45.0


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of `calibrate --json`, and the place of its profile."""
    results = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "DENSITIES", {"cpu": SPARSE})
        lines: list[str] = []
        patch.setattr(sys.stdout, "write", lines.append)
        code = main(["calibrate", "--device", "cpu", "--ranks", "2", "--results", str(results), "--json"])
    assert code == 0
    answer: dict[str, Any] = json.loads("".join(lines))
    return answer | {"results": results}


@pytest.fixture(scope="module")
def measured(reported: dict[str, Any]) -> Profile:
    return read(Path(reported["path"]))


@pytest.mark.always
@pytest.mark.ranks
def test_the_stored_profile_is_the_printed_one_and_the_current_one_here(
    reported: dict[str, Any], measured: Profile
) -> None:
    assert reported["status"] == "ok"
    assert msgspec.convert(reported["profile"], Profile, str_keys=True) == measured
    assert [path.name for path in (reported["results"] / "machines").iterdir()] == [Path(reported["path"]).name]
    here = fingerprint("cpu")
    assert Path(reported["path"]).name == f"{here.node}__{here.hash}.json"
    if why := disturbed(measured):  # by what else this machine does: then it says so, and is not used
        assert current_profile(reported["results"], here, ranks=2)[0] is None
        assert why in current_profile(reported["results"], here, ranks=2)[1]
    else:
        assert current_profile(reported["results"], here, ranks=2) == (measured, reported["path"])
    assert current_profile(reported["results"], here, ranks=3)[0] is None


@pytest.mark.ranks
def test_everything_is_measured_by_one_rank_and_by_two_at_once(measured: Profile) -> None:
    subjects = [entry.subject for entry in measured.tables] + [entry.subject for entry in measured.lines]
    alone = {msgspec.structs.replace(s, ranks=0) for s in subjects if s.ranks == 1}
    together = {
        msgspec.structs.replace(s, ranks=0) for s in subjects if s.ranks == 2 and s.operation not in COLLECTIVES
    }
    assert alone == together
    assert {s.operation for s in subjects if s.ranks == 2} >= set(COLLECTIVES)
    assert {s.variant for s in alone if s.operation == "product"} == {"NN", "NT", "TN"}


@pytest.mark.ranks
def test_every_timing_is_of_several_calls_and_has_their_spread(measured: Profile) -> None:
    timings = [t for table in measured.tables for t in table.timings] + [t for li in measured.lines for t in li.timings]
    assert len(timings) > 200
    assert all(t.repetitions >= 3 and t.low <= t.high and t.warm_up >= 0 for t in timings)
    alone = [t for table in measured.tables if table.subject.ranks == 1 for t in table.timings]
    assert all(t.low <= t.median <= t.high and t.seconds <= 2 * t.median for t in alone)


@pytest.mark.ranks
def test_an_all_reduce_takes_what_its_line_says_within_a_factor_of_its_worst_residual(measured: Profile) -> None:
    for line in measured.lines:
        if line.subject.operation != "all_reduce":
            continue
        for size, timing in zip(line.sizes, line.timings, strict=True):
            off = abs((line.fixed_seconds + line.seconds_per_unit * size) / timing.seconds - 1)
            assert off <= line.worst * 1.0001
        # 16 MB take longer than 256 bytes, and the line's bandwidth is one that a loopback can have
        assert line.timings[-1].seconds > line.timings[0].seconds
        assert 1e7 < line.units_per_second < 1e12


@pytest.mark.ranks
def test_the_largest_product_takes_longer_than_the_smallest(measured: Profile) -> None:
    for table in measured.tables:
        if table.subject.operation == "product" and table.subject.ranks == 2:
            points = product(*(axis.points for axis in table.axes))
            seconds = {2 * m * n * k: timing.seconds for (m, n, k), timing in zip(points, table.timings, strict=True)}
            assert seconds[min(seconds)] < seconds[max(seconds)]
            assert 1e8 < max(seconds) / seconds[max(seconds)] < 1e15  # a clock that counts milliseconds is off by 1000


@pytest.mark.ranks
def test_a_repeated_point_stands_beside_its_table_s_own_timing_of_it(measured: Profile) -> None:
    assert {check.kind for check in measured.checks} == {UNSEEN, REPEATED}
    timed: dict[tuple[Subject, tuple[float, ...]], set[float]] = {}
    for table in measured.tables:
        for sizes, timing in zip(product(*(axis.points for axis in table.axes)), table.timings, strict=True):
            timed.setdefault((table.subject, sizes), set()).add(timing.seconds)
    for check in measured.checks:
        if check.kind == REPEATED:
            assert check.predicted_seconds in timed[check.subject, check.sizes]
        else:
            assert (check.subject, check.sizes) not in timed


@pytest.mark.ranks
def test_the_conditions_say_how_much_others_disturbed(measured: Profile) -> None:
    conditions = measured.conditions
    assert (conditions.ranks, conditions.gpus) == (2, [])
    assert conditions.threads[2] <= conditions.threads[1]
    assert 1 < conditions.seconds < 90
    assert set(conditions.cpu_speed) == {1, 2}
    for share in (conditions.others_share, conditions.steal_share):
        assert share is None or 0 <= share <= 1
    assert conditions.facts.keys() >= {"torch", "governor", "bf16_products", "rounds"}


@pytest.mark.rare
@pytest.mark.ranks
def test_reference_steps_are_trained_by_one_rank_and_by_two_and_predictions_take_their_factor_times_as_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    density = SPARSE._replace(dtypes=("fp32", "bf16"), rounds=1)  # the first round has all blocks of reference steps
    planned = planned_calibration(tmp_path, device="cpu", ranks=2, density=density)
    profile = calibrate(planned, lambda _rank, _event: None).profile
    assert profile is not None
    one, two = profile.reference_steps
    assert [timed.step.layout.ranks for timed in profile.reference_steps] == [1, 2]
    for timed in profile.reference_steps:
        assert timed.timing.low <= timed.timing.median == timed.timing.seconds <= timed.timing.high
        blocks, left = divmod(timed.timing.repetitions, STEPS)
        assert (blocks >= REFERENCE_ROUNDS, left) == (True, 0)
        assert timed.timing.warm_up == WARM_UP_STEPS + blocks
        factor = step_correction(profile, timed, kernels=kernels_for(timed.step.recipe.precision, "cpu")).factor
        assert 0.3 < factor < 10, "a step takes about as long as its parts"
    print_profile(console(), profile)
    assert re.search(r"\nreference step +ranks .*\neager +1 .*\neager +2 ", capsys.readouterr().out)
    plan = planned_run(RunRequest(name="mt-nlg-mini", results=tmp_path, ranks=2, device="cpu"))
    times = predicted_times(plan, profile)
    slower = TimedReferenceStep(
        step=two.step, timing=msgspec.structs.replace(two.timing, seconds=2 * two.timing.seconds)
    )
    twice = predicted_times(plan, msgspec.structs.replace(profile, reference_steps=[one, slower]))
    alone = predicted_times(plan, msgspec.structs.replace(profile, reference_steps=[]))
    step, longer, parts = (of_job(figures, Quantity.STEP_SECONDS) for figures in (times, twice, alone))
    assert step is not None
    assert parts is not None
    assert longer == pytest.approx(2 * step)
    factor = step_correction(profile, two, kernels=kernels_for(two.step.recipe.precision, "cpu")).factor
    assert step == pytest.approx(factor * parts)
    assert f"measured-over-modelled correction factor {factor:.2f}" in next(
        figure.why for figure in times if figure.quantity == Quantity.STEP_SECONDS and figure.term is None
    )


@pytest.mark.rare
@pytest.mark.ranks
def test_ranks_without_a_core_of_their_own_wait_while_the_others_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "usable_cores", lambda: 2)
    shape = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 2, "ffn_hidden": 64}
    small = msgspec.structs.replace(reference_step.ARCHITECTURE, **shape)
    monkeypatch.setattr(reference_step, "ARCHITECTURE", small)
    density = SPARSE._replace(ratio=1e9, coarse=1e9, sparse=1e9, dtypes=("bf16",))
    # everything is timed briefly, and only the first round
    planned = msgspec.structs.replace(
        planned_calibration(tmp_path, device="cpu", ranks=3, density=density), budget_seconds=0.01
    )
    found = calibrate(planned, lambda _rank, _event: None)
    assert found.status is Status.OK, found.message
    assert found.profile is not None
    assert [timed.step.layout.ranks for timed in found.profile.reference_steps] == [1, 2]
    assert [timed.timing.repetitions for timed in found.profile.reference_steps] == [REFERENCE_ROUNDS * STEPS] * 2


@pytest.mark.rare
@pytest.mark.ranks
def test_a_first_round_that_falls_behind_hurries_times_everything_and_says_so(
    measured: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # everything is timed briefly, and only the first round
    planned = msgspec.structs.replace(
        planned_calibration(tmp_path, device="cpu", ranks=2, density=SPARSE), budget_seconds=0.01
    )
    hurried = calibrate(planned, lambda _rank, _event: None).profile
    assert hurried is not None
    assert [table.subject for table in hurried.tables] == [table.subject for table in measured.tables]
    assert [line.subject for line in hurried.lines] == [line.subject for line in measured.lines]
    assert len(hurried.checks) == len(measured.checks)
    count = f"{len(planned.planned)} of {len(planned.planned)} operations of the first round were timed briefly"
    assert hurried.conditions.facts["hurried"].startswith(count)
    assert hurried.conditions.facts["over_budget"].startswith("the first round took ")
    assert hurried.conditions.facts["rounds"] == "1.0"
    warm_ups = [timing.warm_up for table in hurried.tables for timing in table.timings]
    assert set(warm_ups) <= {*range(1, MOST_PAGED)}, "three calls, or one long one; and more that wait for pages"
    assert warm_ups.count(BRIEF_WARM_UP) + warm_ups.count(1) > 0.9 * len(warm_ups)
    assert warm_ups.count(BRIEF_WARM_UP) > warm_ups.count(1) > 0
    print_profile(console(), hurried)
    text = " ".join(capsys.readouterr().out.split())  # long lines fold
    assert count in text
    assert "s where 0 s were planned" in text
    assert not {"hurried", "over_budget"} & measured.conditions.facts.keys()


@pytest.mark.ranks
def test_the_tables_show_every_operation_its_spread_and_every_residual(
    measured: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    print_profile(console(), measured)
    text = " ".join(capsys.readouterr().out.split())  # long lines fold
    all_reduce = next(line for line in measured.lines if line.subject.operation == "all_reduce")
    words = (*COLLECTIVES, "product TN fp32", "triad", "softmax backward fp32", "adam_tensors", "unseen", "repeat")
    assert [word for word in (*words, f"{all_reduce.residual:.0%}") if word not in text] == []
    assert "other processes took" in text or sys.platform != "linux"


def test_a_second_profile_of_a_machine_is_stored_beside_the_first_even_in_the_same_second(tmp_path: Path) -> None:
    path = tmp_path / "node__print.json"
    assert calibration.stored(profile(measured=0.0), path) == path
    later = calibration.stored(profile(measured=86400.0), path)
    assert later.name == "node__print__19700102T000000Z.json"
    assert (read(path).measured, read(later).measured) == (0.0, 86400.0)
    paths = {calibration.stored(profile(ranks=ranks, measured=86400.0), path) for ranks in (2, 3, 4)}
    assert set(tmp_path.iterdir()) == {path, later, *paths}
    assert {read(one).conditions.ranks for one in paths} == {2, 3, 4}


def test_bad_input_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        (["--ranks", "0"], "error: --ranks: ranks; got 0, allowed: 1 or more\n"),
        (["--device", "tpu"], "error: --device: unknown device; got 'tpu', allowed: auto, cpu, cuda\n"),
    ):
        assert main(["calibrate", "--device", "cpu", "--results", str(tmp_path), *arguments]) == 2
        assert capsys.readouterr().err == line
        assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_a_calibration_says_every_ten_seconds_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = planned_calibration(tmp_path, device="cpu", ranks=1, density=SPARSE)
    with calibration_progress(planned, console(stderr=True)) as live:
        for second, name in (
            (100.0, "product NT"),
            (109.9, "copy"),
            (110.0, "triad"),
            (119.0, "calls"),
            (121.0, "adam"),
        ):
            live(0, Phase(name, second))
            live(1, Phase("of another rank", second + 50))
    most = 2 * len(planned.planned)
    lines = [
        f"calibrating, {n} of at most {most}: {name}" for n, name in ((1, "product NT"), (3, "triad"), (5, "adam"))
    ]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_results_directory_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    planned = planned_calibration(blocked, device="cpu", ranks=1, density=SPARSE)
    with pytest.raises(InputError, match="cannot write to the results directory"):
        calibrate(planned, lambda _rank, _event: pytest.fail("a rank was started"))


class Running:
    """One `calibrate` as a user starts it, with everything it writes below one directory."""

    def __init__(self, directory: Path) -> None:
        self.results, self.scratch = directory / "results", directory / "scratch"
        self.scratch.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "suite", "calibrate", "--device", "cpu", "--ranks", "2", "--results", self.results],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def pids(self) -> list[int]:
        """Process numbers of both ranks, once both have measured something."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None
            data = [
                b"".join(path.read_bytes() for path in self.scratch.glob(f"suite-*/rank{rank}.jsonl"))
                for rank in (0, 1)
            ]
            if b'"measured"' in data[0] and data[1].count(b'"phase"') >= 2:
                return [json.loads(lines.partition(b"\n")[0])["pid"] for lines in data]
            time.sleep(0.05)
        pytest.fail("no rank measured anything")

    def assert_nothing_left(self) -> None:
        """No process, no profile, no temporary file."""
        mark, place = f"{LAUNCH_VARIABLE}=".encode(), f"TMPDIR={self.scratch}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                variables = path.read_bytes().split(b"\0")
                assert not (place in variables and any(variable.startswith(mark) for variable in variables))
        assert list((self.results / "machines").iterdir()) == []
        assert list(self.scratch.glob("suite-*")) == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    started = Running(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
    started.process.communicate(timeout=END_SECONDS)


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: finds ranks in /proc, which Linux has")
@pytest.mark.parametrize("end", ["killed", "interrupted"])
def test_a_calibration_that_is_killed_or_interrupted_says_so_and_leaves_no_profile(end: str, running: Running) -> None:
    pids = running.pids()
    if end == "killed":
        os.kill(pids[1], signal.SIGKILL)
    else:
        running.process.send_signal(signal.SIGINT)
    out, _ = running.process.communicate(timeout=END_SECONDS)
    code, words = {
        "killed": (4, "crashed: rank 1 killed by SIGKILL"),
        "interrupted": (130, "interrupted: interrupted by the user"),
    }[end]
    assert running.process.returncode == code
    assert out == f"calibration: {words}; no profile is stored\n"
    running.assert_nothing_left()


@pytest.mark.ranks
@pytest.mark.rare
@pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: tells stopped processes by /proc, which Linux has")
def test_a_stopped_rank_ends_the_calibration_as_a_hang_and_leaves_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_events, "START_SECONDS", 25.0)
    pids: dict[int, int] = {}

    def stop(rank: int, event: Event) -> None:
        if isinstance(event, Started):
            pids[rank] = event.pid
        if isinstance(event, TimedTask) and rank == 0 and event.task == event.round == 0:
            os.kill(pids[1], signal.SIGSTOP)

    planned = planned_calibration(tmp_path, device="cpu", ranks=2, density=SPARSE)
    result = calibrate(planned, stop)
    assert (result.status, result.profile, result.path) == (Status.HANG, None, "")
    assert result.message.startswith("rank 1 stopped (process state T)")
    assert list((tmp_path / "machines").iterdir()) == []
