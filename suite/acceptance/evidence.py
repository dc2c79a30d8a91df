"""Measurements of a battery, phase by phase: the data that checks judge and that its record stores."""

from __future__ import annotations

import enum

import msgspec

from suite.acceptance.gpu_evidence import HangReadings, Health
from suite.job.calibration_job import RankMoments
from suite.job.events import Status
from suite.job.probe_job import PulsedCounts
from suite.machine.cpu_contention import Competitor
from suite.machine.host_state import HostState

ALL_TO_ALL = "all-to-all"
SLOW, ENDED_BY_LIMIT, NOT_BEGUN = "slow", "ended by the limit", "not begun"
OVER_THE_LIMIT = (ENDED_BY_LIMIT, NOT_BEGUN)  # outcomes of a phase
LEFT_OUT = "left out"  # of a phase that measures no more than others have, and would need time that decisions need


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, tag="surroundings"):
    """The node before anything runs.

    Args:
        devices: GPUs that torch can use, or processor cores.
        driver_gpus: GPUs that the driver's library knows and that answer it; None: there is no such library.
        why_fewer: what hides GPUs of the driver from torch; empty where nothing is known to.
        why_gone: why no GPU is there, where the node is to blame for it.
        busy_gpus: numbers of the GPUs, as the driver counts, that others use: nothing is executed then.
        gpus: their models, comma-separated; empty on a CPU.
        gpus_with_ranks: by rank, the number of its GPU as the driver counts; empty on a CPU, and where it is not known.
        gpus_before: where the node has none and nobody asked for the CPU: those that it had or has, and `seen_by` what
            says so.
        devices_expected: that the operator asked for; None: not said.
        others_share: of all processors, what other processes used while nothing of ours ran; None: not known.
        competitors: the busiest of them first.
        host: what the host is set to; `cores` that this process may use.
        now: seconds since 1970; `newest_past` the latest end of a battery of this node. 0: not known.
        fleet_problems: records of the fleet that were left out, and why; `past_problems` of this node.
    """

    device: str
    ranks: int
    devices: int
    devices_expected: int | None
    others_share: float | None
    competitors: list[Competitor]
    fleet_problems: list[str] = []
    past_problems: list[str] = []
    gpus: str = ""
    gpus_before: str = ""
    seen_by: str = "an earlier battery of this node"
    driver_gpus: int | None = None
    why_fewer: str = ""
    why_gone: str = ""
    busy_gpus: list[int] = []
    gpus_with_ranks: list[int] = []
    host: HostState | None = None
    cores: int = 0
    now: float = 0.0
    newest_past: float = 0.0


class MicroMeasurements(msgspec.Struct, frozen=True, kw_only=True, tag="micro"):
    """This node's own micro-measurements, all ranks at once.

    Args:
        matrix: fastest 16-bit product of each rank, in flop/s.
        copy, triad: byte/s of each rank, beyond every cache.
        host_device: byte/s by direction; empty without a GPU.
        peak: dense peak of one rank's processor, flop/s, and `peak_source`; None: not known, or a GPU.
        virtual: whether it is that of a virtual machine's processors, which may be half a core each.
        profile: file of the machine profile; `points` of its tables of 16-bit products on all ranks at once.
        wrong_products: verified products that were not as they must be, in words.
        numa_nodes: by rank, the one that it was bound to, or why to none; empty on a CPU.
        moments: by rank, what it measured at the moments at which ranks are compared; empty on a GPU, and in records
            before 8.2.
        set_aside: not judged: other processes disturbed them, and they were repeated.
        stacks: Python stacks and log of a calibration that did not end well.
    """

    status: Status
    message: str
    seconds: float
    matrix: list[float] = []
    copy: list[float] = []
    triad: list[float] = []
    host_device: dict[str, float] = {}
    peak: float | None = None
    peak_source: str = ""
    virtual: bool = False
    profile: str = ""
    points: int = 0
    wrong_products: list[str] = []
    numa_nodes: list[str] = []
    moments: list[RankMoments] = []
    others_share: float | None = None
    steal_share: float | None = None
    set_aside: bool = False
    ranks_at_fault: list[int] = []
    stacks: str = ""


class LaunchPurpose(enum.StrEnum):
    """Purpose of a launch of a miniature: its step time, the spread of its steps, or its exact figures alone."""

    TIMES = "times"
    JITTER = "jitter"
    EXACT = "exact"


class MiniatureLaunch(msgspec.Struct, frozen=True, kw_only=True, tag="launched"):
    """One launch of a miniature; figures only where it ended well.

    Args:
        exact: number of exact figures that are equal; `unequal` describes those that differ.
        step_seconds: median of the timed steps; `predicted_seconds` None without a prediction.
        cpu_slowdown: predicted seconds of the step at the CPU speed between its timed steps, over those at the speed of
            the micro-measurements; None on a GPU. `cpu_slowdowns` of each reference kernel.
        points: see `MicroMeasurements`, of the profile that the prediction rests on; 0: none.
        measured_terms, predicted_terms: seconds of the step by term.
        compute_seconds: of a timed step, by rank; `stages` the pipeline stage of each, empty where there is one alone.
        timed: seconds of each timed step, of its slowest rank.
        stack: hash of all that decides losses to the bit: software, policy, processor, steps, seed and corpus.
        deterministic: whether that policy has deterministic algorithms alone.
        set_aside: figures and losses are judged, clocks are not: other processes disturbed it, and it was repeated.
        stacks: Python stacks and log of a launch that did not end well.
    """

    run: str
    purpose: LaunchPurpose
    status: Status
    message: str
    ranks_at_fault: list[int]
    record: str
    seconds: float
    exact: int = 0
    unequal: list[str] = []
    step_seconds: float | None = None
    predicted_seconds: float | None = None
    points: int = 0
    cpu_slowdown: float | None = None
    cpu_slowdowns: dict[str, float] = {}
    measured_terms: dict[str, float] = {}
    predicted_terms: dict[str, float] = {}
    compute_seconds: list[float] = []
    stages: list[int] = []
    timed: list[float] = []
    losses: list[float] = []
    learns: bool = True
    stack: str = ""
    deterministic: bool = False
    others_share: float | None = None
    steal_share: float | None = None
    set_aside: bool = False
    stacks: str = ""


class ReplayHashes(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of one step of one replay on one rank."""

    rank: int
    replay: int
    step: int
    loss: str
    gradients: str
    parameters: str


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one rank received from a peer, or (peer None) in collectives of all ranks.

    Args:
        bytes: of one message; of an all-to-all, what the rank sends to all others together.
        operation: "all-to-all"; empty for a message, and for an all-reduce.
        algorithm: of an all-reduce, "ring" or "nvls" (sums in the switch); empty where the library chose.
    """

    rank: int
    peer: int | None
    bytes_per_second: float
    wrong: int
    first: str
    bytes: int = 0
    operation: str = ""
    algorithm: str = ""


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and products that one rank verified.

    Args:
        products: large ones, one after another for `product_seconds`; 0 where only memory was verified.
        product_flop_per_second: of the median second of their later half; None where they were not timed.
        undelayed_flop_per_second: the most that it would be if the host had never waited for a processor.
        burst_flop_per_second: of the fastest few of them; `fp8_flop_per_second` of the fastest few in FP8.
    """

    rank: int
    bytes: int
    passes: int
    wrong: int
    first: str
    product_flop_per_second: float | None = None
    product_seconds: float = 0.0
    products: int = 0
    burst_flop_per_second: float | None = None
    undelayed_flop_per_second: float | None = None
    fp8_flop_per_second: float | None = None


class PulsedLoad(PulsedCounts, frozen=True, kw_only=True):
    """Counts of `rank`."""

    rank: int


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, tag="probing"):
    """Replays, exchanges and soak of all ranks, in one launch.

    Args:
        others_share: of the processors, used by other processes during the exchanges; `steal_share` by other guests of
            the host. None without exchanges, and where the system does not report it.
        asked: the fields below that it was to fill; empty in records before 8.4: those that are not empty.
        finished: those of them that are whole although it did not end well; "messages" of pairs of ranks alone.
    """

    status: Status
    message: str
    ranks_at_fault: list[int]
    seconds: float
    replays: list[ReplayHashes] = []
    exchanges: list[Exchange] = []
    soaks: list[SoakResult] = []
    loads: list[PulsedLoad] = []
    soak_seconds: float = 0.0
    stacks: str = ""
    others_share: float | None = None
    steal_share: float | None = None
    asked: list[str] = []
    finished: list[str] = []

    def has(self, part: str) -> bool:
        """Whether the part is whole."""
        return self.status is Status.OK or part in self.finished


class NicLoopback(msgspec.Struct, frozen=True, kw_only=True, tag="nic loopback"):
    """Exchanges of all ranks through the node's network cards; its status, and why they were not made.

    Args:
        gbits: of all active ports together.
    """

    status: Status = Status.OK
    message: str = ""
    why_not: str = ""
    ranks_at_fault: list[int] = []
    seconds: float = 0.0
    exchanges: list[Exchange] = []
    ports: list[str] = []
    gbits: float = 0.0
    stacks: str = ""


class PhaseTiming(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """Budget of a phase, the time it took, and how it ended.

    Args:
        outcome: ok, hang, slow (over budget, but making progress), failed, `LEFT_OUT`, or one of
            `OVER_THE_LIMIT`.
        checks: that were asked for and that it serves; `subject` the miniature that it launches, if it does. Both only
            of a phase that is slow, that was left out, that the battery's limit ended, or that had no time to begin.
    """

    phase: str
    predicted_seconds: float
    budget_seconds: float
    seconds: float
    outcome: str
    message: str = ""
    stacks: str = ""
    ranks_at_fault: list[int] = []
    checks: list[int] = []
    subject: str = ""


Timed = MicroMeasurements | MiniatureLaunch
Load = Timed | ProbeResult  # what keeps the node busy
Evidence = Surroundings | Load | NicLoopback | Health | HangReadings | PhaseTiming


def made_for_times(measurement: Timed) -> bool:
    """Whether clocks of the measurement are judged: not those of a launch for exact figures alone."""
    return isinstance(measurement, MicroMeasurements) or measurement.purpose is not LaunchPurpose.EXACT
