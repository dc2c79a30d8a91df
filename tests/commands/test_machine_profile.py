"""`reproduce` measures a machine that it does not know, once, and never lets a calibration decide over the run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.calibration import needs
from suite.calibration.calibrate import CalibrationResult, stored
from suite.calibration.plan import Calibration
from suite.commands import machine_profile
from suite.commands.machine_profile import profile_for
from suite.job.events import Status
from suite.machine.cpu_contention import Competitor
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import Profile, current_profile, encode, machines_directory
from suite.metrics.comparison import Verdict, compare
from suite.metrics.figures import Figure, Quantity
from suite.report.terminal.tables import console
from suite.reproduce.reproduce import LaunchResult
from tests.support.launches import launch_result, small_plan
from tests.support.profiles import SPARSE, profile
from tests.support.run_file import run_file

HERE = fingerprint("cpu")
INTERRUPTED = "interrupted while calibrating: no profile is stored, nothing is reproduced"


def made_up(results: Path, **changes: Any) -> Path:
    """A profile of this machine below `results`, with `changes`; its path."""
    directory = machines_directory(results)
    directory.mkdir(parents=True, exist_ok=True)
    return stored(profile(**({"fingerprint": HERE} | changes)), directory / "made_up.json")


class Suite:
    """`reproduce` with launches and calibrations that are made up."""

    def __init__(self, results: Path, patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str]) -> None:
        self.results = results
        self.requests: list[Calibration] = []
        self.reproduced: list[tuple[Profile | None, str]] = []
        self.verdict = Verdict.PASS
        self.calibrated: Callable[[], CalibrationResult] = self.measured
        self._output = output
        patch.setattr(machine_profile, "usable_cores", lambda: 2)
        patch.setattr(machine_profile, "competitors", lambda _: ([], 0.0))
        patch.setattr(machine_profile, "calibrate", self._calibrate)
        patch.setattr("suite.commands.reproduce.corpus_for", lambda *_: None)
        patch.setattr("suite.commands.reproduce.reproduce", self._reproduce)

    def measured(self) -> CalibrationResult:
        path = made_up(self.results)
        return CalibrationResult(status=Status.OK, message="", profile=profile(fingerprint=HERE), path=str(path))

    def _calibrate(self, planned: Calibration, _: object) -> CalibrationResult:
        self.requests.append(planned)
        return self.calibrated()

    def _reproduce(self, *_: Any, profile: Profile | None, profile_source: str) -> LaunchResult:
        self.reproduced.append((profile, profile_source))
        took = [Figure(quantity=Quantity.STEP_SECONDS, value=2.0)]
        expected = [] if profile is None else took
        rows = compare(expected, took, left_name="predicted", right_name="measured", judge=True)
        return launch_result(verdict=self.verdict, rows=rows, losses=[8.0, 7.0], profile=profile_source)

    def run(self, *options: str) -> tuple[int, str, list[str]]:
        """Exit code, output, and the lines on stderr but the first, which names the run."""
        code = main(["reproduce", "bloom-mini", "--device", "cpu", "--results", str(self.results), *options])
        out, err = self._output.readouterr()
        return code, out, err.splitlines()[1:]


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Suite:
    monkeypatch.delenv("SUITE_CALIBRATE")
    return Suite(tmp_path, monkeypatch, capsys)


def test_an_unknown_machine_is_calibrated_once_before_all_launches(suite):
    code, out, err = suite.run("--launches", "3", "--json")
    machines = suite.results / "machines"
    assert code == 0
    (planned,) = suite.requests
    assert (planned.device, planned.ranks, planned.results, planned.partial) == ("cpu", 2, suite.results, True)
    assert err == [f"calibrating first, about 25 s: no valid machine profile in {machines}: calibrate makes one"]
    assert suite.reproduced == [(profile(fingerprint=HERE), str(machines / "made_up.json"))] * 3
    reported = [json.loads(line) for line in out.splitlines()[:3]]
    assert [launch["profile"] for launch in reported] == [str(machines / "made_up.json")] * 3


@pytest.mark.parametrize("option", [[], ["--no-calibrate"]])
def test_a_valid_profile_is_used_as_it_is(option, suite):
    path = made_up(suite.results)
    code, out, err = suite.run(*option, "--all")
    assert (code, suite.requests, err) == (0, [], [])
    assert suite.reproduced == [(profile(fingerprint=HERE), str(path))]
    assert f"machine profile {path}\n" in out


def with_other(part: str, **facts: str) -> dict[str, Any]:
    return {"fingerprint": msgspec.structs.replace(HERE, **{part: getattr(HERE, part) | facts})}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"fingerprint": msgspec.structs.replace(HERE, node="other")}, "a machine profile of another machine; got"),
        ({"fingerprint": msgspec.structs.replace(HERE, device="cuda")}, "a stale machine profile: device has chan"),
        (with_other("hardware", cores="64"), "a stale machine profile: cores has changed; got 64"),
        (with_other("software", torch="1.0"), "a stale machine profile: torch has changed; got 1.0"),
        ({"ranks": 1}, "measured with 1 ranks at once, 2 are needed"),
        ({"others_share": 0.85}, "measured while other processes took 85% and other guests 0% of the processors"),
        ({"others_share": 0.06, "steal_share": 0.05}, "other processes took 6% and other guests 5% of the process"),
        (None, "damaged machine profile, truncated perhaps"),
    ],
)
def test_a_profile_that_does_not_hold_is_measured_anew_and_the_line_says_why(spoil, reason, suite):
    if spoil is None:
        machines_directory(suite.results).mkdir()
        (machines_directory(suite.results) / "cut.json").write_bytes(encode(profile(fingerprint=HERE))[:-100])
    else:
        made_up(suite.results, **spoil)
    before = {path: path.read_bytes() for path in machines_directory(suite.results).iterdir()}
    code, _, (line,) = suite.run("--ranks", "2")
    assert (code, len(suite.requests)) == (0, 1)
    assert line.startswith("calibrating first, about 25 s: no valid machine profile")
    assert reason in line
    assert all(path.read_bytes() == data for path, data in before.items())
    assert suite.reproduced[0][0] == profile(fingerprint=HERE)


@pytest.mark.parametrize(
    ("variable", "options", "calibrates"),
    [
        (None, [], True),
        (None, ["--no-calibrate"], False),
        ("0", [], False),
        ("1", [], True),
        ("0", ["--calibrate"], True),
        ("1", ["--no-calibrate"], False),
    ],
)
def test_option_before_variable_before_default(variable, options, calibrates, suite, monkeypatch):
    if variable is not None:
        monkeypatch.setenv("SUITE_CALIBRATE", variable)
    code, out, err = suite.run(*options)
    assert (code, len(suite.requests), len(err)) == (0, calibrates, calibrates)
    missing = f"step time is not predicted: no valid machine profile in {suite.results / 'machines'}"
    assert (out.count(missing), suite.reproduced[0][0] is None) == (not calibrates, not calibrates)


def test_a_variable_that_says_neither_is_refused(suite, monkeypatch, capsys):
    monkeypatch.setenv("SUITE_CALIBRATE", "perhaps")
    assert main(["reproduce", "bloom-mini", "--results", str(suite.results)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "SUITE_CALIBRATE" in line
    assert "perhaps" in line
    assert suite.reproduced == []


def test_a_calibration_that_fails_is_one_line_and_the_exit_code_is_the_runs_own(suite):
    crash = CalibrationResult(status=Status.CRASHED, message="rank 1 killed by SIGKILL")
    read_only = InputError("cannot write to the results directory: Read-only file system", where="--results")
    table: dict[str, Any] = {
        "crashed: rank 1 killed by SIGKILL": crash,
        "No space left on device: /some/where": OSError(28, "No space left on device", "/some/where"),
        "No space left on device": OSError(28, "No space left on device"),
        "--results: cannot write to the results directory: Read-only file system": read_only,
    }
    verdicts = [(Verdict.PASS, 0), (Verdict.FAIL, 1)]
    for (reason, failure), (suite.verdict, code) in zip(table.items(), verdicts * 2, strict=True):

        def calibrated(failure=failure):
            if isinstance(failure, Exception):
                raise failure
            return failure

        suite.calibrated = calibrated
        ended, out, err = suite.run()
        line = f"the calibration failed: {reason}; no profile is stored"
        assert (ended, err[1:]) == (code, [])  # the reason stands where the step time would
        assert suite.reproduced.pop() == (None, line)
        assert f"step time is not predicted: {line}\n" in out


def test_a_directory_for_profiles_that_cannot_be_written_is_one_line_and_the_run_goes_on(suite):
    machines_directory(suite.results).write_text("a file")
    code, out, err = suite.run()
    assert (code, err, suite.requests) == (0, [], [])
    ((_, line),) = suite.reproduced
    assert out.count(line) == 1
    assert line.startswith("the calibration failed: --results: cannot write to the results directory: File exists")


def interrupted_in_time() -> CalibrationResult:
    return CalibrationResult(status=Status.INTERRUPTED, message="interrupted by the user")


def interrupted_before_the_ranks() -> CalibrationResult:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [interrupted_in_time, interrupted_before_the_ranks])
def test_an_interrupted_calibration_ends_all_with_130(end, suite):
    suite.calibrated = end
    code, out, err = suite.run("--json")
    assert (code, out, suite.reproduced) == (130, "", [])
    assert INTERRUPTED in err
    assert list(machines_directory(suite.results).iterdir()) == []


def test_a_calibration_beside_other_work_is_stored_and_not_used(suite):
    busy = profile(fingerprint=HERE, others_share=0.5)
    suite.calibrated = lambda: CalibrationResult(status=Status.OK, message="", profile=busy, path="busy.json")
    code, out, err = suite.run()
    why = "measured while other processes took 50% and other guests 0% of the processors"
    line = f"the calibration is not used: busy.json: {why}"
    assert (code, err[1:], suite.reproduced) == (0, [], [(None, line)])
    assert f"step time is not predicted: {line}\n" in out


def test_nothing_is_calibrated_on_busy_processors(suite, monkeypatch):
    others = [Competitor(pid=7, name="stress", cores=1.2)]
    monkeypatch.setattr(machine_profile, "competitors", lambda _: (others, 0.6))
    code, out, err = suite.run()
    line = "not calibrated: others take 60% of the processors now: stress (7)"
    assert (code, suite.requests, err, suite.reproduced) == (0, [], [], [(None, line)])
    assert out.count("not calibrated") == 1
    assert suite.run("--json")[2] == suite.run("--launches", "2")[2] == [line]
    monkeypatch.setattr(machine_profile, "competitors", lambda _: (others, 0.08))
    assert suite.run()[0] == 0
    assert len(suite.requests) == 1


def test_work_beside_a_gpu_makes_no_profile_useless(suite):
    here = msgspec.structs.replace(fingerprint("cpu"), device="cuda")
    path = made_up(suite.results, fingerprint=here, others_share=0.85)
    assert current_profile(suite.results, here)[1] == str(path)


def test_more_ranks_than_cores_are_not_calibrated_without_being_asked(suite):
    code, out, err = suite.run("--ranks", "4")
    assert (code, suite.requests, err) == (0, [], [])
    assert "for 4 ranks on 2 cores only by hand: calibrate --ranks 4\n" in out
    path = made_up(suite.results, ranks=4)
    suite.run("--ranks", "4")
    assert suite.reproduced[-1] == (profile(fingerprint=HERE, ranks=4), str(path))


@pytest.mark.parametrize(("device", "ranks", "asked"), [("cpu", 1, 2), ("cpu", 2, 2), ("cuda", 2, None)])
def test_a_whole_calibration_has_two_ranks_at_least_and_all_gpus(device, ranks, asked, suite, monkeypatch):
    requests: list[tuple[Path, str, int | None]] = []

    def planned(results: Path, *, device: str, ranks: int | None) -> Calibration:
        requests.append((results, device, ranks))
        return Calibration(device="cpu", ranks=2, results=suite.results, planned=[], rounds=1)

    monkeypatch.setattr(machine_profile, "planned_calibration", planned)
    plan = msgspec.structs.replace(small_plan(ranks=ranks), device=device)
    profile_for(plan, suite.results, may_calibrate=True, messages=console(stderr=True), whole=True)
    assert requests == [(suite.results, device, asked)]


def test_a_partial_profile_serves_the_runs_that_it_covers_and_is_extended_for_another(suite):
    made_up(suite.results, partial=True)  # of products and one all-reduce alone
    suite.run()
    (planned,) = suite.requests
    assert planned.extends == profile(fingerprint=HERE, partial=True)
    timed = {entry.task.subject.operation for entry in planned.planned}
    assert {"product", "softmax", "view", "all_gather"} <= timed


def test_a_step_that_is_not_predicted_takes_a_whole_calibration(suite):
    suite.run("--gradient-compression", "powersgd")
    (planned,) = suite.requests
    assert not planned.partial


def test_of_two_commands_at_once_one_measures_and_the_other_waits_for_its_profile(suite, capsys):
    def slowly() -> CalibrationResult:
        time.sleep(0.5)
        return suite.measured()

    suite.calibrated = slowly
    plan, found = small_plan(ranks=2), []

    def choose() -> None:
        found.append(profile_for(plan, suite.results, may_calibrate=True, messages=console(stderr=True)))

    threads = [threading.Thread(target=choose) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = str(machines_directory(suite.results) / "made_up.json")
    assert len(suite.requests) == 1
    assert found == [(profile(fingerprint=HERE), path)] * 3
    assert capsys.readouterr().err.count("waiting for another calibration to end\n") == 2


@pytest.mark.ranks
@pytest.mark.rare
def test_a_run_on_an_unknown_machine_measures_it_and_a_second_one_does_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(needs, "DENSITIES", {"cpu": SPARSE._replace(dtypes=("fp32", "bf16"))})
    results = tmp_path / "results"
    run = ["reproduce", str(run_file(tmp_path / "tiny.toml", data_parallel=1, accumulation=4)), "--steps", "6"]
    run += ["--device", "cpu", "--json", "--calibrate", "--results", str(results)]
    assert main(run) == 0
    first = capsys.readouterr()
    assert first.err.count("calibrating first") == 1
    (path,) = (str(path) for path in machines_directory(results).iterdir())
    assert json.loads(first.out)["profile"] == path
    assert current_profile(results, HERE, ranks=1)[0] is None  # for whatever else is asked
    assert main(run) == 0
    second = capsys.readouterr()
    assert "calibrating first" not in second.err
    reported = json.loads(second.out)
    assert reported["profile"] == path
    times = [row for row in reported["figures"] if row["quantity"] == "step_seconds" and row["term"] is None]
    assert [row["left"] is not None and row["left"] > 0 for row in times] == [True]
