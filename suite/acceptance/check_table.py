"""The checks of a node: number, name, formula, expected value and thresholds of each."""

from __future__ import annotations

import enum

import msgspec


class Sense(enum.StrEnum):
    """Which side of the expected value is bad."""

    HIGHER_IS_BETTER = "higher is better"
    LOWER_IS_BETTER = "lower is better"
    EXACT = "exact"


class AcceptanceCheck(msgspec.Struct, frozen=True):
    """One row of the table.

    Args:
        expects: where its expected value comes from.
        warn, fail: thresholds of the ratio measured / expected, or of the figure itself where nothing is expected;
            None where any deviation at all counts.
    """

    number: int
    name: str
    formula: str
    expects: str
    sense: Sense = Sense.EXACT
    warn: float | None = None
    fail: float | None = None
    unit: str = ""

    @property
    def bad_side(self) -> int:
        """-1 where values below the expected one are bad, 1 where those above it are."""
        return -1 if self.sense is Sense.HIGHER_IS_BETTER else 1


ENVIRONMENT, MATRIX, SPREAD, MEMORY, HOST_DEVICE, PEER, ALL_REDUCE, EXACT_FIGURES, STEP_TIME = range(9)
ATTRIBUTION, JITTER, STRAGGLER, THROTTLE, ERRORS, REPLAYS, SOAK, LOSS_CURVE, HANG_GUARD = range(9, 18)

_PAST = "this node's accepted batteries, other nodes of the fleet"
_GPU = "known GPUs: "
_HIGHER, _LOWER = Sense.HIGHER_IS_BETTER, Sense.LOWER_IS_BETTER
_Limits = tuple[Sense, float | None, float | None, str]
_EXACT: _Limits = (Sense.EXACT, None, None, "")

# sense, warn, fail and unit of checks that rest on clocks
_LIMITS: dict[int, _Limits] = {
    MATRIX: (_HIGHER, 0.965, 0.93, "flop/s"),
    SPREAD: (_HIGHER, 0.97, 0.93, ""),
    MEMORY: (_HIGHER, 0.97, 0.93, "byte/s"),
    HOST_DEVICE: (_HIGHER, 0.80, 0.76, "byte/s"),
    PEER: (_HIGHER, 0.97, 0.93, "byte/s"),
    ALL_REDUCE: (_HIGHER, 0.97, 0.93, "byte/s"),
    STEP_TIME: (_LOWER, None, None, ""),
    ATTRIBUTION: (_LOWER, 0.05, 0.10, ""),
    JITTER: (_LOWER, 0.02, 0.05, ""),
    STRAGGLER: (_HIGHER, 0.97, 0.93, ""),
}

# name, formula, and where the expected value comes from
_TEXTS: dict[int, tuple[str, str, str]] = {
    ENVIRONMENT: (
        "environment",
        "devices as asked for; GPUs of one model, ECC on, MIG off, default power limit, PCIe at its maximum "
        "under load; other processes and guests take less of the processors than --others",
        "what the node itself says is its maximum",
    ),
    MATRIX: (
        "matrix rate",
        "2 M N K / t of the fastest 16-bit product, all ranks at once, the slowest rank",
        _GPU + "floors; CPUs: 0.70 of clock x vector width, which only warns; " + _PAST,
    ),
    SPREAD: (
        "spread over ranks",
        "slowest rank / median rank of check 1; on GPUs also of copies; on a CPU also each rank alone, by turns, over "
        "the median of the others",
        "the ranks themselves",
    ),
    MEMORY: (
        "memory copy and triad",
        "2 S / t and 3 S / t beyond every cache, all ranks at once, the slowest rank; on a CPU also the mean of all",
        _GPU + "floors; " + _PAST,
    ),
    HOST_DEVICE: (
        "host-device copy",
        "S / t, pinned, 512 MiB, each direction",
        _GPU + "0.80 of the link's data sheet, which only warns; " + _PAST,
    ),
    PEER: (
        "peer to peer",
        "S / t of every pair of ranks, contents checked; against the median pair and the past",
        "the other pairs; " + _GPU + "0.78 of the link, which only warns; " + _PAST,
    ),
    ALL_REDUCE: (
        "all-reduce",
        "busbw = S / t * 2 (n - 1) / n by number of ranks n; results checked to the bit",
        "the exact sum; " + _GPU + "floors of as many, by the library's choice, a ring, the switch; " + _PAST,
    ),
    EXACT_FIGURES: (
        "exact figures",
        "parameters, flop, state bytes, payload bytes and messages by axis: measured = predicted",
        "arithmetic (suite/predict)",
    ),
    STEP_TIME: (
        "step time",
        "r = measured / predicted seconds of a launch's median step, over launches: non-inferior; on a CPU "
        "CPU speed too",
        "prediction from this node's own micro-measurements (of checks 1 and 3, and collectives); its bias "
        "from accepted batteries and from other nodes of the fleet",
    ),
    ATTRIBUTION: ("attribution", "measured - predicted seconds by term; share of the step in no term", "0"),
    JITTER: (
        "jitter",
        "over 200 steps or more of one launch: standard deviation / mean; 99 % quantile / median",
        "a steady machine",
    ),
    STRAGGLER: (
        "straggler",
        "compute seconds (forward, backward, optimizer) of the best rank / of each rank, median over launches; "
        "of each pipeline stage apart: stages do different work",
        "the best rank of the stage",
    ),
    THROTTLE: (
        "throttling",
        "clock-event reasons under load: thermal, hardware slowdown, power brake in 3 consecutive samples; SM clock "
        "where neither power nor heat holds it down; temperatures",
        "none; the highest clock; the node's other GPUs, and the memory's limit",
    ),
    ERRORS: (
        "hardware errors",
        "ECC, remapped rows, XIDs, NVLinks, PCIe, host memory, network cards, disks, kernel log: counters after - "
        "before, errors before the battery, active links, health of the fabric",
        "no difference, nothing pending; what other parts of the same kind have",
    ),
    REPLAYS: (
        "bitwise replays",
        "3 replays of the same training on every rank alone: hashes of loss, gradients, parameters each step; "
        "then a vote over ranks",
        "the hash that most replays have",
    ),
    SOAK: (
        "soak",
        "products and copies between buffers with known patterns, every byte verified; flop/s of these products; "
        "products of each format (bf16, FP8, TF32, FP64; on a CPU bf16, fp32) and all-reduces at once, in pulses",
        "the patterns; " + _GPU + "floors at the power limit; " + _PAST,
    ),
    LOSS_CURVE: (
        "loss curve",
        "same software, seed and layout: losses equal to the bit where training is deterministic (on a CPU); "
        "finite; falling from 20 steps on",
        "the first launch, and accepted batteries with the same software",
    ),
    HANG_GUARD: (
        "hang guard",
        "each phase: a rank silent for 10 times its longest step (20 s at least) hangs; 5 times the predicted "
        "seconds of the phase are its budget",
        "prediction of the phase",
    ),
}

CHECKS = tuple(
    AcceptanceCheck(number, name, formula, expects, *_LIMITS.get(number, _EXACT))
    for number, (name, formula, expects) in _TEXTS.items()
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
# The second half of the soak: how fast its verified products were, one after another. A GPU at its power limit
VERIFIED_PRODUCTS = msgspec.structs.replace(
    CHECKS[SOAK],
    formula="2 M N K / t of verified bf16 products, one after another for 10 s or more, all ranks at once, the slowest",
    sense=_HIGHER,
    warn=0.965,
    fail=0.80,
    unit="flop/s",
)
BETWEEN_RANKS = frozenset({SPREAD, STRAGGLER})  # each rank is held to the others
NOISY = frozenset(_LIMITS)  # they rest on clocks: a failure needs a re-run that fails too
