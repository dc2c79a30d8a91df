"""Result of a run of the ladder, as it is stored, and its verdict."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from reference_runs.regular_file import file_bytes, json_of
from suite.ladder.judge import Gain, Interaction, Mark, PromiseCheck
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.rung import Rung, RungSetting
from suite.machine.fingerprint import Fingerprint
from suite.stored_words import LADDER, in_todays_words

DIRECTORY = "ladder"  # of stored results, below a results directory


class LadderVerdict(enum.StrEnum):
    """Verdict on a whole run of the ladder."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    EXECUTION_FAILED = "execution failed"
    INTERRUPTED = "interrupted"


class RungResult(msgspec.Struct, frozen=True, kw_only=True):
    """One rung, launched or not.

    Args:
        not_run: why it does not apply here; failed: how its launch ended where not well.
        below: name of the rung that it is compared with; empty for a baseline.
        expected: of the setting as launched; of an ablated rung, with the changes that are left out.
        share: its cost over the baseline's.
    """

    rung: Rung
    setting: RungSetting | None = None
    not_run: str = ""
    failed: str = ""
    below: str = ""
    expected: RungPrediction | None = None
    measured: RungMeasurement | None = None
    gain: Gain | None = None
    share: float | None = None
    checks: tuple[PromiseCheck, ...] = ()
    ablated: bool = False

    @property
    def title(self) -> str:
        """The rung's name, marked where it is ablated."""
        return self.rung.name + (" (ablated)" if self.ablated else "")


class LadderResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured, in the order of the rungs.

    Args:
        divisor: of the declared samples, so that the baseline fits into the device.
        leave_one_out_failed: how a launch of a top without one rung failed, by its label.
        whole: whether every rung was wanted, and none ablated.
        fingerprint: of the machine and its software; older results have none.
        suite: its version and commit.
    """

    run: str
    device: str
    rungs: list[RungResult]
    interactions: list[Interaction]
    leave_one_out_failed: dict[str, str] = {}
    profile: str
    sample_seconds: float
    interrupted: bool = False
    started: float = 0.0
    whole: bool = False
    divisor: int = 1
    fingerprint: Fingerprint | None = None
    suite: str = ""

    @property
    def where_and_when(self) -> str:
        """Hardware, node, the software that decides most, and the day, in words."""
        day = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if self.fingerprint is None:
            return f"{self.device} of a machine that was not recorded, {day}"
        facts, versions = self.fingerprint.hardware, self.fingerprint.software
        host = f"{facts.get('cpu', 'unknown CPU')}, {facts.get('cores', 'unknown')} cores"
        words = f"{facts.get('gpus', 'unknown')} ({host})" if self.device == "cuda" else host
        torch = versions.get("torch", "unknown")
        return f"{words}, node {self.fingerprint.node}, torch {torch}, suite {self.suite or 'unknown'}, {day}"


def read(path: Path) -> LadderResult:
    """The result in a file.

    Raises:
        OSError: it cannot be read.
        msgspec.MsgspecError: it is damaged.
    """
    return json_of(in_todays_words(file_bytes(path), LADDER), LadderResult)


def verdict(ladder: LadderResult) -> LadderVerdict:
    """The gravest that something in a result has; inconclusive too where nothing was launched."""
    marks = {check.mark for rung in ladder.rungs for check in rung.checks}
    rules = (
        (ladder.interrupted, LadderVerdict.INTERRUPTED),
        (ladder.leave_one_out_failed or any(rung.failed for rung in ladder.rungs), LadderVerdict.EXECUTION_FAILED),
        (Mark.FAIL in marks, LadderVerdict.FAIL),
        (Mark.INCONCLUSIVE in marks, LadderVerdict.INCONCLUSIVE),
        (not any(rung.measured for rung in ladder.rungs), LadderVerdict.INCONCLUSIVE),
    )
    return next((outcome for holds, outcome in rules if holds), LadderVerdict.PASS)


def failures(ladder: LadderResult) -> list[str]:
    """Every promise that was not kept, as RUNG: PROMISE: WORDS; and every launch that did not end well."""
    lines = [f"{result.rung.name}: {result.failed}" for result in ladder.rungs if result.failed]
    lines += [f"{label}: {words}" for label, words in ladder.leave_one_out_failed.items()]
    for result in ladder.rungs:
        lines += [
            f"{result.rung.name}: {check.name}: {check.says}" for check in result.checks if check.mark is Mark.FAIL
        ]
    return lines
