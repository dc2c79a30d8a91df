"""Times of more ranks at once than the profile has are measured before the ladder, and predict their rung."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.__main__ import main
from suite.calibration.calibrate import CalibrationResult, with_ranks
from suite.calibration.density import Density
from suite.commands import exit_codes
from suite.commands import ladder as command
from suite.job.events import Status
from suite.ladder import extra_profiles
from suite.ladder.request import LadderRun, wanted
from suite.ladder.result import LadderResult
from suite.ladder.run import nothing_applies
from suite.ladder.rung import RUNGS, RungSetting
from suite.machine.cpu_speed import SpeedSample
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import Profile
from suite.machine.timing_tables import Subject
from tests.support.ladder_machine import CPU, TEXTS, ladder_run
from tests.support.launches import CORPUS
from tests.support.profiles import profile

FOUR = RungSetting(data_parallel=4, fully_sharded=True)
SPARSE = Density(
    ratio=1e9,
    coarse=1e9,
    sparse=1e9,
    unseen=1,
    point_seconds=1e-5,
    rounds=1,
    memory_bytes=1_000_000,
    dtypes=("fp32",),
    compiled=(),
)


def quiet(*_: object) -> None:
    pass


def measured(monkeypatch: pytest.MonkeyPatch, result: CalibrationResult) -> None:
    monkeypatch.setattr(extra_profiles, "with_ranks", lambda *_args, **_options: result)


def with_four(**conditions: Any) -> Profile:
    return msgspec.structs.replace(
        profile(), conditions=msgspec.structs.replace(profile().conditions, ranks=4, **conditions)
    )


def test_the_most_ranks_of_what_is_run_are_missing_where_the_profile_has_fewer() -> None:
    assert extra_profiles.ranks_missing(ladder_run("fsdp-4")) == 4
    assert extra_profiles.ranks_missing(ladder_run(*(rung.name for rung in RUNGS))) == 4
    assert extra_profiles.ranks_missing(ladder_run("fsdp-4", profile=with_four())) is None
    assert extra_profiles.ranks_missing(ladder_run("fsdp-2", "ddp", "offline")) is None
    assert extra_profiles.ranks_missing(ladder_run("fsdp-4", profile=None, profile_source="none")) is None


def test_only_what_has_more_ranks_is_predicted_by_the_second_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, CalibrationResult(status=Status.OK, message="", profile=with_four()))
    found = extra_profiles.with_more_ranks(ladder_run("fsdp-4"), 4, quiet)
    assert found.profile_for(FOUR) == (with_four(), "stored, 4 ranks at once timed apart")
    assert found.profile_for(RungSetting(data_parallel=2)) == (profile(), "stored")
    assert ladder_run("fsdp-4").profile_for(FOUR) == (profile(), "stored")


def test_ranks_that_cannot_be_timed_leave_their_rung_unpredicted_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> CalibrationResult:
        raise OSError(errno.ENOSPC, "No space left on device")

    crashed = CalibrationResult(status=Status.CRASHED, message="rank 3: MemoryError")
    disturbed = CalibrationResult(status=Status.OK, message="", profile=with_four(others_share=0.3))
    others = "measured while other processes took 30% and other guests 0% of the processors"
    for timed, why in (
        (lambda *_args, **_options: crashed, "4 ranks at once could not be timed: crashed: rank 3: MemoryError"),
        (lambda *_args, **_options: disturbed, f"4 ranks at once were timed while others ran: {others}"),
        (full, "4 ranks at once could not be timed: No space left on device"),
    ):
        monkeypatch.setattr(extra_profiles, "with_ranks", timed)
        found = extra_profiles.with_more_ranks(ladder_run("fsdp-4"), 4, quiet)
        assert found.profile_for(FOUR) == (None, why)
        assert found.profile_for(RungSetting()) == (profile(), "stored")


def test_an_interrupt_while_ranks_are_timed_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, CalibrationResult(status=Status.INTERRUPTED, message="interrupted by the user"))
    with pytest.raises(KeyboardInterrupt):
        extra_profiles.with_more_ranks(ladder_run("fsdp-4"), 4, quiet)


def test_ranks_on_hosts_of_their_own_are_not_timed_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    one = msgspec.structs.replace(profile(), conditions=msgspec.structs.replace(profile().conditions, ranks=1))
    found = msgspec.structs.replace(
        ladder_run("ddp-hosts", profile=one), target=msgspec.structs.replace(CPU, host_names=("a", "b"))
    )
    rungs, applicable = wanted(found)
    assert extra_profiles.ranks_missing(found) == 2  # of ddp, which it is compared with
    alone = [rung for rung in rungs if rung.name == "ddp-hosts"]
    monkeypatch.setattr(extra_profiles, "wanted", lambda _ladder_run: (alone, applicable))
    assert extra_profiles.ranks_missing(found) is None


def test_the_command_times_the_ranks_that_are_missing_unless_told_not_to_calibrate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    sources: list[str] = []

    def more(ladder_run: LadderRun, ranks: int, _on_event: object) -> LadderRun:
        asked.append(ranks)
        return msgspec.structs.replace(ladder_run, more_ranks=with_four(), more_ranks_source="timed")

    def ladder(ladder_run: LadderRun, *_: object) -> LadderResult | None:
        sources.append(ladder_run.profile_for(FOUR)[1])
        return nothing_applies(CPU, frozenset({"pinned"}))

    monkeypatch.setattr(command, "tokenised_documents", lambda *_args, **_options: (CORPUS, TEXTS))
    monkeypatch.setattr(command, "profile_for", lambda *_args, **_options: (profile(), "stored"))
    monkeypatch.setattr(command, "sample_seconds", lambda *_args, **_options: 0.01)
    monkeypatch.setattr(command, "with_more_ranks", more)
    monkeypatch.setattr(command, "run_ladder", ladder)
    line = ["ladder", "gpt2-mini", "--device", "cpu", "--results", str(tmp_path), "--rungs"]
    for rungs, whether in (("fsdp-4", "--calibrate"), ("fsdp-4", "--no-calibrate"), ("fsdp-2", "--calibrate")):
        assert main([*line, rungs, whether]) == exit_codes.INCONCLUSIVE
    assert (asked, sources) == ([4], ["timed", "stored", "stored"])


@pytest.mark.rare
@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("cores", "had", "computing"), [(2, 2, set()), (4, 2, {3}), (2, 1, {2})])
def test_three_ranks_at_once_are_added_and_what_they_compute_where_they_have_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, had: int, computing: set[int]
) -> None:
    """On fewer cores they take turns: messages are added, and one rank for each core where the profile has fewer."""
    monkeypatch.setattr("suite.calibration.calibrate.usable_cores", lambda: cores)
    paces = dict.fromkeys(range(1, had + 1), SpeedSample(host=1e-6, product=1e-6, elementwise=1e-6, memory=1e-6))
    conditions = msgspec.structs.replace(profile().conditions, ranks=had, cpu_speed=paces)
    before = msgspec.structs.replace(profile(), conditions=conditions)
    found = with_ranks(before, 3, on_event=quiet, density=SPARSE)
    assert found.status is Status.OK, found.message
    assert found.profile is not None
    assert found.profile.tables[: len(before.tables)] == before.tables
    assert {table.subject.ranks for table in found.profile.tables[len(before.tables) :]} == computing
    added = [line.subject for line in found.profile.lines[len(before.lines) :]]
    assert {(one.ranks, one.operation in COLLECTIVES) for one in added} == {(3, True)} | {(n, False) for n in computing}
    assert found.profile.line(Subject(operation="all_gather", ranks=3)).units_per_second > 0
    assert found.profile.conditions.ranks == 3
    assert set(found.profile.conditions.threads) == set(before.conditions.threads) | {3} | computing
    # what ranks that take turns compute was timed at another pace than their messages, unless it is timed now
    assert (found.profile.cpu_speed(ranks=3) is None) == (not computing)
    assert {count: found.profile.conditions.cpu_speed[count] for count in paces} == paces
