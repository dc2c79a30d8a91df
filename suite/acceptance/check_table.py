"""The checks of a node: number, name, formula, expected value and thresholds of each."""

from __future__ import annotations

import enum

import msgspec


class Sense(enum.StrEnum):
    """Which side of the expected value is bad."""

    HIGHER_IS_BETTER = "higher is better"
    LOWER_IS_BETTER = "lower is better"
    EXACT = "exact"


class AcceptanceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Args:
        warn, fail: thresholds of the ratio measured / expected, or of the figure itself where nothing is expected;
            None where any deviation at all counts.
        noisy: it rests on clocks, so that a failure needs a re-run that fails too.
        expects: where its expected value comes from.
    """

    number: int
    name: str
    formula: str
    expects: str
    sense: Sense = Sense.EXACT
    warn: float | None = None
    fail: float | None = None
    unit: str = ""
    noisy: bool = False


ENVIRONMENT, MATRIX, SPREAD, MEMORY, HOST_DEVICE, PEER, ALL_REDUCE, EXACT_FIGURES, STEP_TIME = range(9)
ATTRIBUTION, JITTER, STRAGGLER, THROTTLE, ERRORS, REPLAYS, SOAK, LOSS_CURVE, HANG_GUARD = range(9, 18)

_PAST = "this node's accepted batteries, other nodes of the fleet"
_GPU = "known GPUs: "
_HIGHER, _LOWER = Sense.HIGHER_IS_BETTER, Sense.LOWER_IS_BETTER

CHECKS: tuple[AcceptanceCheck, ...] = (
    AcceptanceCheck(
        number=ENVIRONMENT,
        name="environment",
        formula="devices as asked for; GPUs of one model, ECC on, MIG off, default power limit, PCIe at its maximum "
        "under load; other processes and guests take less of the processors than --others",
        expects="what the node itself says is its maximum",
    ),
    AcceptanceCheck(
        number=MATRIX,
        name="matrix rate",
        formula="2 M N K / t of the fastest 16-bit product, all ranks at once, the slowest rank",
        expects=_GPU + "what good ones sustain; other GPUs and CPUs: 0.70 of the dense peak; " + _PAST,
        sense=_HIGHER,
        warn=0.965,
        fail=0.93,
        unit="flop/s",
        noisy=True,
    ),
    AcceptanceCheck(
        number=SPREAD,
        name="spread over ranks",
        formula="slowest rank / median rank of check 1",
        expects="the ranks themselves",
        sense=_HIGHER,
        warn=0.97,
        fail=0.93,
        noisy=True,
    ),
    AcceptanceCheck(
        number=MEMORY,
        name="memory copy and triad",
        formula="2 S / t and 3 S / t beyond every cache, all ranks at once, the slowest rank",
        expects=_GPU + "copy 0.74 and 0.70, triad 0.85 and 0.80 of the data sheet; " + _PAST,
        sense=_HIGHER,
        warn=0.97,
        fail=0.93,
        unit="byte/s",
        noisy=True,
    ),
    AcceptanceCheck(
        number=HOST_DEVICE,
        name="host-device copy",
        formula="S / t, pinned, 512 MiB, each direction",
        expects=_GPU + "0.80 of the link's data sheet, which only warns; " + _PAST,
        sense=_HIGHER,
        warn=0.80,
        fail=0.76,
        unit="byte/s",
        noisy=True,
    ),
    AcceptanceCheck(
        number=PEER,
        name="peer to peer",
        formula="S / t of every pair of ranks, contents checked; against the median pair and the past",
        expects="the other pairs; " + _GPU + "0.78 of the link, which only warns; " + _PAST,
        sense=_HIGHER,
        warn=0.97,
        fail=0.93,
        unit="byte/s",
        noisy=True,
    ),
    AcceptanceCheck(
        number=ALL_REDUCE,
        name="all-reduce",
        formula="busbw = S / t * 2 (n - 1) / n by number of ranks n; results checked to the bit",
        expects="the exact sum; 8 H200: a ring's bandwidth; " + _PAST,
        sense=_HIGHER,
        warn=0.97,
        fail=0.93,
        unit="byte/s",
        noisy=True,
    ),
    AcceptanceCheck(
        number=EXACT_FIGURES,
        name="exact figures",
        formula="parameters, flop, state bytes, payload bytes and messages by axis: measured = predicted",
        expects="arithmetic (suite/predict)",
    ),
    AcceptanceCheck(
        number=STEP_TIME,
        name="step time",
        formula="r = measured / predicted seconds of a launch's median step, over launches: non-inferior; on a CPU "
        "CPU speed too",
        expects="prediction from this node's own micro-measurements (of checks 1 and 3, and collectives); its bias "
        "from accepted batteries and from other nodes of the fleet",
        sense=_LOWER,
        noisy=True,
    ),
    AcceptanceCheck(
        number=ATTRIBUTION,
        name="attribution",
        formula="measured - predicted seconds by term; share of the step in no term",
        expects="0",
        sense=_LOWER,
        warn=0.05,
        fail=0.10,
        noisy=True,
    ),
    AcceptanceCheck(
        number=JITTER,
        name="jitter",
        formula="over 200 steps or more of one launch: standard deviation / mean; 99 % quantile / median",
        expects="a steady machine",
        sense=_LOWER,
        warn=0.02,
        fail=0.05,
        noisy=True,
    ),
    AcceptanceCheck(
        number=STRAGGLER,
        name="straggler",
        formula="compute seconds (forward, backward, optimizer) of the best rank / of each rank, median over launches; "
        "of each pipeline stage apart: stages do different work",
        expects="the best rank of the stage",
        sense=_HIGHER,
        warn=0.97,
        fail=0.93,
        noisy=True,
    ),
    AcceptanceCheck(
        number=THROTTLE,
        name="throttling",
        formula="clock-event reasons under load: thermal, hardware slowdown, power brake in 3 consecutive samples",
        expects="none",
    ),
    AcceptanceCheck(
        number=ERRORS,
        name="ECC, remapped rows, XID",
        formula="counters after - before, read under load too",
        expects="no difference, nothing pending",
    ),
    AcceptanceCheck(
        number=REPLAYS,
        name="bitwise replays",
        formula="3 replays of the same training on every rank alone: hashes of loss, gradients, parameters each step; "
        "then a vote over ranks",
        expects="the hash that most replays have",
    ),
    AcceptanceCheck(
        number=SOAK,
        name="soak",
        formula="products and copies between buffers with known patterns, every byte verified",
        expects="the patterns",
    ),
    AcceptanceCheck(
        number=LOSS_CURVE,
        name="loss curve",
        formula="same software, seed and layout: losses equal to the bit where training is deterministic (on a CPU); "
        "finite; falling from 20 steps on",
        expects="the first launch, and accepted batteries with the same software",
    ),
    AcceptanceCheck(
        number=HANG_GUARD,
        name="hang guard",
        formula="each phase: a rank silent for 10 times its longest step (20 s at least) hangs; 5 times the predicted "
        "seconds of the phase are its budget",
        expects="prediction of the phase",
    ),
)
# The second half of the check of step times: whether the CPU kept its speed while steps were timed
CPU_SPEED = msgspec.structs.replace(
    CHECKS[STEP_TIME],
    formula="seconds of reference kernels between the micro-measurements' points, over those between timed steps",
    sense=_HIGHER,
    warn=0.97,
    fail=0.93,
    unit="of the speed before",
)
NOISY = frozenset(check.number for check in CHECKS if check.noisy)
