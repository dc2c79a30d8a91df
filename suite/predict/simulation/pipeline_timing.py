"""How long the passes of a pipeline take, and when they run."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from suite.job.pipeline_passes import Pass


class PassDurations(Protocol):
    """How long passes take."""

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole model."""

    def of(self, done: Pass) -> float:
        """How long a pass takes."""


class TimedPass(NamedTuple):
    """A pass, and from when to when it runs."""

    done: Pass
    start: float
    end: float
