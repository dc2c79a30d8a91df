"""A part of the first hour: a command, its bound, and the step that is expected of it."""

from __future__ import annotations

import enum

import msgspec

from suite.machine.fingerprint import digest

LEAST_SHARE = 1 / 3  # of its bound that must be left for a part to begin: parts usually take that long


class PartKind(enum.StrEnum):
    """Kind of a part's output, which decides how it is read."""

    ENVIRONMENT = "environment"
    RATES = "rates"
    TESTS = "tests"
    KERNELS = "kernels"
    CALIBRATE = "calibrate"
    REPRODUCE = "reproduce"
    ACCEPT = "accept"
    LADDER = "ladder"


class StepOnPaper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step as it was expected before it was measured.

    Args:
        milliseconds: of a step on one H100 SXM at 700 W.
        bound_by: what an optimization saves, or most of a step is, in words.
    """

    milliseconds: float
    bound_by: str


class HourPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the first hour.

    Args:
        shows: what is known after it.
        arguments: of `python -m`; RESULTS stands for the results directory.
        seconds: after which it is ended.
        modules: packages without which it does not run.
        needs_cuda: whether it says nothing on a CPU.
        asked_mfu: share of the device's dense peak that it should reach; None: nothing is asked.
        expected: of its step, written down before; None: nothing is.
        may_be_refused: whether its command's refusal (exit code 2) says what is missing here, and is no failure.
    """

    name: str
    kind: PartKind
    shows: str
    arguments: tuple[str, ...]
    seconds: float
    modules: tuple[str, ...] = ()
    needs_cuda: bool = False
    asked_mfu: float | None = None
    expected: StepOnPaper | None = None
    may_be_refused: bool = False

    @property
    def least_seconds(self) -> float:
        """Seconds that must be left for it to begin."""
        return LEAST_SHARE * self.seconds

    def setting(self, machine: dict[str, str]) -> str:
        """The fingerprint of its command and of what it runs on: what was done for another is no result of this."""
        return digest([self.name, self.arguments, machine])


RESULTS = "RESULTS"  # in a part's arguments: the results directory
