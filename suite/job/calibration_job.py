"""What a calibration's ranks are told to time, and what they tell back: the data that both sides share."""

from __future__ import annotations

import msgspec

from suite.machine.cpu_speed import SpeedSample
from suite.machine.reference_step import ReferenceStep
from suite.machine.timing_tables import Subject
from suite.machine.timings import Positive, Repetitions

WEIGHTS_OF_BLOCK = 12  # two norms of two, four matrices with biases


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One subject at some sizes.

    Args:
        threads: arithmetic threads of each of the subject's ranks.
        sizes: one entry a point, each in the order of the operation's axes.
        point_seconds: that a point is repeated for in a round.
    """

    subject: Subject
    threads: int
    sizes: tuple[tuple[int, ...], ...]
    point_seconds: float


class CalibrationJob(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration, as its ranks read it.

    Args:
        directory: where every rank writes its events.
        threads: of a rank when all measure at once, for "cpu".
        rounds: how often all tasks are gone through at most.
        budget_seconds: rounds behind the first one end by then, in the middle where it is over; the first one hurries
            where it falls behind, but times everything.
        collective_timeout_seconds: the process group's own bound, a fallback behind the launcher's hang guard.
        trials: that are trained between the tasks.
        bursts: in which they are trained in a round, a few steps each.
        trial_seconds: kept free of `budget_seconds` for them: of later rounds as many bursts as fit into it.
        interface: network interface of hosts that have a rank each; None: whichever the library chooses.
    """

    directory: str
    device: str
    ranks: int
    threads: int
    tasks: tuple[Task, ...]
    rounds: int
    budget_seconds: float
    collective_timeout_seconds: float
    trials: tuple[ReferenceStep, ...] = ()
    bursts: int = 0
    trial_seconds: float = 0.0
    interface: str | None = None


class TimedTask(msgspec.Struct, frozen=True, tag="measured"):
    """What a rank timed of one task in one round, point by point; only ranks that took part report it."""

    task: int
    round: int
    points: tuple[Repetitions, ...]
    time: float


class ReferenceSteps(msgspec.Struct, frozen=True, tag="trial-steps"):
    """Seconds of some steps of a trial, as a rank that took part saw them."""

    trial: int
    seconds: tuple[Positive, ...]
    time: float


class Calibrated(msgspec.Struct, frozen=True, kw_only=True, tag="calibrated"):
    """A rank has measured everything.

    Args:
        cpu_seconds: processor time of this rank, and of all that it started, in `seconds`.
        busy_seconds, steal_seconds, all_seconds: of all processors in that time; None where the system does not tell.
        environment: device, libraries, and what is known of clocks and governor, as texts.
        gpus: samples of this rank's GPU.
        pace: of its processors, by the number of ranks that measured at once; empty on a GPU.
    """

    seconds: float
    cpu_seconds: float
    busy_seconds: float | None
    steal_seconds: float | None
    all_seconds: float | None
    environment: dict[str, str]
    gpus: list[dict[str, float | str]]
    time: float
    pace: dict[int, SpeedSample] = {}
