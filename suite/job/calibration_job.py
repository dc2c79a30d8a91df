"""The input of a calibration's ranks, and the events that they report."""

from __future__ import annotations

import msgspec

from suite.machine.cpu_contention import Shared
from suite.machine.cpu_speed import SpeedSample
from suite.machine.reference_step import ReferenceStep
from suite.machine.timing_tables import Subject
from suite.machine.timings import Positive, Repetitions

WEIGHTS_OF_BLOCK = 12  # two norms of two, four matrices with biases


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One subject to time at some sizes.

    Args:
        threads: arithmetic threads of each of the subject's ranks.
        sizes: one entry a point, each in the order of the operation's axes.
        point_seconds: for the repetitions of a point in a round.
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
        rounds: at most; a round times every task once.
        budget_seconds: rounds after the first one stop when it is spent, also in the middle of a round. The first round
            times everything, and hurries where it is late.
        collective_timeout_seconds: of the process group; a fallback for the launcher's hang guard.
        reference_steps: trained between the tasks.
        blocks: of a round; in each, every reference step is trained for a few steps.
        reference_seconds: of `budget_seconds`, reserved for the blocks; it limits the blocks of later rounds.
        moments: in the first round, at which ranks are compared; besides the budget.
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
    reference_steps: tuple[ReferenceStep, ...] = ()
    blocks: int = 0
    reference_seconds: float = 0.0
    moments: int = 0
    interface: str | None = None


class TimedTask(msgspec.Struct, frozen=True, tag="measured"):
    """One rank's timings of one task in one round, point by point. Only ranks that took part report it."""

    task: int
    round: int
    points: tuple[Repetitions, ...]
    time: float


class RankMoments(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank at the moments of a calibration at which ranks are compared.

    Args:
        turns: in which this rank computed while the others waited.
        processor: the hardware thread on which it took them; None where the system put it, as with several threads.
        highest_hertz: the highest clock of that one; None where the system does not say.
        fastest, middle: of each reference kernel, the 10 and 50 % quantile over turns of its fastest call in a turn.
        product: likewise, seconds of a 16-bit product, its 10 % quantile; None where the job has none.
        copy, triad: byte/s at each moment, while all ranks did the same; the median of the moment's calls.
    """

    turns: int
    processor: int | None = None
    highest_hertz: Positive | None = None
    fastest: SpeedSample
    middle: SpeedSample
    product: Positive | None = None
    copy: tuple[Positive, ...] = ()
    triad: tuple[Positive, ...] = ()


class ReferenceSteps(msgspec.Struct, frozen=True, tag="reference steps"):
    """Seconds of one block of a reference step on one rank that took part; `step` is its index in the job."""

    step: int
    seconds: tuple[Positive, ...]
    time: float


class Calibrated(msgspec.Struct, frozen=True, kw_only=True, tag="calibrated"):
    """A rank has measured everything.

    Args:
        shared: processor time in `seconds`, that of processes which the rank started included; None where the system
            does not report it.
        environment: device, libraries, and what is known of clocks and governor, as texts.
        gpus: samples of this rank's GPU.
        cpu_speed: of this rank, by the number of ranks that measured at once; empty on a GPU.
        moments: None where the job has none.
    """

    seconds: float
    shared: Shared | None
    environment: dict[str, str]
    gpus: list[dict[str, float | str]]
    time: float
    cpu_speed: dict[int, SpeedSample] = {}
    moments: RankMoments | None = None


CalibrationEvent = TimedTask | ReferenceSteps | Calibrated
