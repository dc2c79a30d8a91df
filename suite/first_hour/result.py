"""Results of the parts: each has a file of its own, written when it begins and when it has ended."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from reference_runs.regular_file import json_file
from suite.first_hour.part import HourPart
from suite.paths import whole_file

DIRECTORY = "first_hour"  # below the results
MOST_ATTEMPTS = 3  # at a part that fails or takes too long


class PartStatus(enum.StrEnum):
    """End of the last attempt at a part."""

    DONE = "done"
    RUNNING = "running"  # or its first-hour was killed
    FAILED = "failed"
    TOO_LONG = "too long"
    CUT_OFF = "cut off"  # by the end of the time for the whole
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"  # something is missing here


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt at a part.

    Args:
        setting: fingerprint of the part and the machine, see `suite.first_hour.part.HourPart.setting`.
        attempts: so far, this one included.
        exit_code: of its command; None where it was ended from outside.
        says: what it found, in a line.
        differences: what it measured and was expected to be otherwise, a line each.
        next_steps: what to do about these, or about a part that failed: a line each, which ends in the next command.
    """

    part: str
    setting: str
    status: PartStatus
    attempts: int
    started: float
    seconds: float = 0.0
    exit_code: int | None = None
    says: str = ""
    differences: list[str] = []
    next_steps: list[str] = []
    command: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its command ran to an end of its own, or cannot run here."""
        return self.status in (PartStatus.DONE, PartStatus.FAILED, PartStatus.TOO_LONG, PartStatus.NOT_RUN)

    @property
    def is_final(self) -> bool:
        """Whether the part is not tried again by itself."""
        is_failure = self.status in (PartStatus.FAILED, PartStatus.TOO_LONG)
        return self.status is PartStatus.DONE or (is_failure and self.attempts >= MOST_ATTEMPTS)


def path_of(results: Path, part: HourPart, suffix: str = ".json") -> Path:
    """Path of a part's result; with other suffixes, of its command's output."""
    return results / DIRECTORY / f"{part.name.replace(' ', '_').replace(',', '_')}{suffix}"


def stored(results: Path, part: HourPart) -> PartResult | None:
    """The last attempt at a part; None without one, or where its file is damaged: then it is done again."""
    try:
        return json_file(path_of(results, part), PartResult)
    except (OSError, msgspec.MsgspecError):
        return None


def store(results: Path, part: HourPart, result: PartResult) -> None:
    """Write the result of a part, whole or not at all, in place of the one before."""
    path = path_of(results, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
