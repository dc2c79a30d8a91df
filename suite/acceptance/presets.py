"""How much a battery does: quick, accept, soak."""

from __future__ import annotations

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.check_table import CHECKS
from suite.acceptance.judge.noninferiority import LOOKS
from suite.calibration.calibrate import USUAL_SECONDS
from suite.calibration.density import DENSITIES, QUICK_DENSITY, QUICK_GPU_DENSITY, Density

MINIATURES = ("bloom-mini", "opt-mini", "glm-mini", "codegeex-mini", "gpt-neox-mini", "mt-nlg-mini", "gpt2-mini")
EXACT_STEPS = 6  # the fewest that count everything
TIMED_STEPS = 10  # 5 before the timed ones, 3 timed, 2 profiled
JITTER_STEPS = 207  # 200 of them timed
MIB = 2**20


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of work of a profile.

    Args:
        micro_seconds: by device, how long the micro-measurements should take.
        limit_seconds: after which no optional work starts: no further look, no re-run.
        miniatures: whose exact figures are judged.
        timed: those of them whose step time is judged, after as many launches as `looks` says.
        compiled: whether launches for times are compiled on a GPU.
        jitter: the miniature with 200 timed steps; None: none.
        exchanges: of each pair of ranks, and of all ranks by each collective and algorithm, at least; all pairs
            together, and each of the others, go on for `exchange_seconds`.
        soak_seconds: by device, of verified memory; before that `product_seconds` of verified bf16 products of
            matrices [product_size, product_size]: a GPU's power limit shows from 10 s on.
        load_seconds: by device, of products [load_size, load_size] in every format and all-reduces at once, in pulses
            of half of `pulse_seconds`, all devices in step.
        soak_bytes: of a rank on a CPU at most; None: 90 % of what is free when the soak begins, divided over the ranks.
    """

    limit_seconds: float
    densities: dict[str, Density]
    micro_seconds: dict[str, float]
    miniatures: tuple[str, ...]
    timed: tuple[str, ...]
    compiled: bool
    looks: tuple[int, ...]
    jitter: str | None
    replays: int
    replay_steps: int
    exchanges: int
    exchange_seconds: float
    exchange_bytes: dict[str, int]
    soak_seconds: dict[str, float]
    soak_bytes: int | None
    product_seconds: dict[str, float]
    product_size: int
    load_seconds: dict[str, float]
    load_size: dict[str, int]
    pulse_seconds: float


# bloom-mini executes neither fp16 nor compiled operators on a CPU, and in `quick` nowhere.
_ACCEPT = Effort(
    limit_seconds=1800.0,
    densities=DENSITIES,
    # of 8 GPUs: 52 s of repetitions in 3 rounds, at most as much between them, 48 compilations; assumed, not measured
    micro_seconds={"cpu": USUAL_SECONDS, "cuda": 200.0},
    miniatures=MINIATURES,
    timed=("bloom-mini", "gpt2-mini", "mt-nlg-mini"),
    compiled=True,
    looks=LOOKS,
    jitter="gpt2-mini",
    replays=3,
    replay_steps=20,
    exchanges=10,
    exchange_seconds=4.0,
    exchange_bytes={"cpu": 64 * MIB, "cuda": 1024 * MIB},
    soak_seconds={"cpu": 180.0, "cuda": 60.0},
    soak_bytes=None,
    product_seconds={"cpu": 0.0, "cuda": 75.0},
    product_size=8192,
    load_seconds={"cpu": 20.0, "cuda": 45.0},
    load_size={"cpu": 256, "cuda": 4096},
    pulse_seconds=1.0,
)
EFFORTS = {
    "quick": msgspec.structs.replace(
        _ACCEPT,
        limit_seconds=300.0,
        densities={"cpu": QUICK_DENSITY, "cuda": QUICK_GPU_DENSITY},
        # 36 s on 2 cores of a Zen 5 (2026-11-24), and 10 s to compare ranks; of 8 GPUs: 22 s of repetitions, as much
        # between them, and a start
        micro_seconds={"cpu": 55.0, "cuda": 58.0},
        # those of opt, mt-nlg and codegeex differ from gpt2's in ReLU, one GELU and one layer. One takes up to 28 s
        # on a busy host (2 cores of a Xeon, 2026-11-26): after seven, no time was left for links and replays
        miniatures=("bloom-mini", "glm-mini", "gpt-neox-mini", "gpt2-mini"),
        timed=("bloom-mini",),
        compiled=False,
        looks=(LOOKS[0], 8),  # at 19 s a launch (2 cores of a Xeon, 2026-11-27) 5 more end beyond the limit
        jitter=None,
        replay_steps=3,
        exchanges=5,
        exchange_seconds=2.0,
        exchange_bytes={"cpu": 16 * MIB, "cuda": 1024 * MIB},
        soak_seconds={"cpu": 4.0, "cuda": 4.0},
        soak_bytes=256 * MIB,
        product_seconds={"cpu": 0.0, "cuda": 35.0},
        load_seconds={"cpu": 4.0, "cuda": 10.0},
    ),
    "accept": _ACCEPT,
    "soak": msgspec.structs.replace(
        _ACCEPT,
        limit_seconds=9000.0,
        timed=MINIATURES,
        jitter="bloom-mini",
        replays=30,
        exchanges=50,
        exchange_seconds=20.0,
        soak_seconds={"cpu": 6000.0, "cuda": 3300.0},
        product_seconds={"cpu": 0.0, "cuda": 1650.0},
        load_seconds={"cpu": 600.0, "cuda": 1650.0},
    ),
}


def effort(profile: str) -> Effort:
    """The amount of work of the profile of that name.

    Raises:
        InputError: there is none.
    """
    if profile not in EFFORTS:
        raise InputError("unknown profile", got=repr(profile), allowed=", ".join(EFFORTS), where="--profile")
    return EFFORTS[profile]


def selected_miniatures(names: str | None, chosen: Effort) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The miniatures to launch, and those of them to time: the named ones, if some are named.

    Raises:
        InputError: an unknown one.
    """
    if not names:
        return chosen.miniatures, chosen.timed
    named = tuple(name.strip() for name in names.split(","))
    for name in named:
        if name not in MINIATURES:
            raise InputError("unknown miniature", got=repr(name), allowed=", ".join(MINIATURES), where="--miniatures")
    return named, named


def selected_checks(only: str | None, skip: str | None) -> frozenset[int]:
    """Numbers of the checks that are asked for: comma-separated numbers or names.

    Raises:
        InputError: an unknown check, or none left.
    """
    chosen = _numbers(only, "--only") if only else frozenset(check.number for check in CHECKS)
    left = chosen - (_numbers(skip, "--skip") if skip else frozenset())
    if not left:
        raise InputError("no check is left", got=f"--only {only} --skip {skip}", where="--skip")
    return left


def _numbers(words: str, where: str) -> frozenset[int]:
    known = {word: check.number for check in CHECKS for word in (check.name, str(check.number))}
    asked = [word.strip() for word in words.split(",")]
    for word in asked:
        if word not in known:
            allowed = ", ".join(f"{check.number} {check.name}" for check in CHECKS)
            raise InputError("unknown check", got=repr(word), allowed=allowed, where=where)
    return frozenset(known[word] for word in asked)
