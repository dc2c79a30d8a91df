"""Starts of a battery, and the seconds that each is stated to take: the budgets of its phases follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.acceptance.context import BatteryPhase, LaunchesPhase


class StatedSeconds(NamedTuple):
    """Stated seconds of the parts of phases on one kind of device.

    Args:
        question: which devices torch can use; asked once.
        surroundings: other processes, records of other batteries.
        tokenising: the corpus of a miniature that was never launched here.
        launch: of ranks until they train, and their end.
        step: of a miniature that nothing predicts; steps that count take longer, together as long as `counting_steps`.
        compilation: of a miniature that was not compiled before; `compiled_again` in each further launch.
        probe: until its first part; `replayed_step`; `exchange_start` of all exchanges together; `factors`
            until the first of the large products is verified by the host.
        rates: products and copies of the micro-measurements once more, without what predictions need.
    """

    question: float
    surroundings: float
    tokenising: float
    launch: float
    step: float
    counting_steps: float
    compilation: float
    compiled_again: float
    probe: float
    replayed_step: float
    exchange_start: float
    factors: float
    rates: float


STATED = {
    # Seven miniatures with 6 steps each on 2 cores of a Zen 4 (2026-11-23): a launch took 6.0 to 7.7 s more than its
    # steps, these took as long as 7 to 10 timed ones, and a timed one at most 0.9 s. 15 probes of one or more parts on
    # the same machine (2026-11-24): 5.2 s before the soak, 0.1 s a replayed step, 2.5 to 4 s of exchanges, of which two
    # may go on for 2 s each. A corpus took 14 to 16 s on 2 cores of an EPYC with AVX2 alone (2026-11-27).
    "cpu": StatedSeconds(
        question=0.0,
        surroundings=3.0,
        tokenising=16.0,
        launch=8.0,
        step=0.9,
        counting_steps=4.0,
        compilation=0.0,
        compiled_again=0.0,
        probe=5.5,
        replayed_step=0.15,
        exchange_start=1.0,
        factors=0.0,
        rates=33.0,  # 21 and 23 s on 2 cores of a Xeon, beside tests (2026-11-27), and 10 s to compare ranks
    ),
    # Assumed of a node with 8 GPUs and 12 cores for each; none was measured. A launch: torchrun 3 s, imports 4 s, the
    # context of CUDA 1 s, NCCL's communicators 3 s, the end 1 s. Two matrices of 8192 x 8192 and the check of two
    # products took a busy core of a Zen 5 13 s (2026-11-25).
    "cuda": StatedSeconds(
        question=6.0,
        surroundings=3.0,
        tokenising=16.0,
        launch=12.0,
        step=0.1,
        counting_steps=4.0,
        compilation=40.0,
        compiled_again=8.0,
        probe=12.0,
        replayed_step=0.15,
        exchange_start=1.0,
        factors=13.0,
        rates=30.0,  # assumed
    ),
}


def stated_launches(
    device: str, launches: int, steps: int, step_seconds: float | None, *, compiled: bool, tokenised: bool
) -> float:
    """Seconds of so many launches of one miniature.

    Args:
        tokenised: whether its corpus is.
        step_seconds: predicted; None: not known.
        compiled: before its steps; once anew, then from PyTorch's cache.
    """
    stated = STATED[device]
    seconds = launches * (stated.launch + (steps + stated.counting_steps) * (step_seconds or stated.step))
    seconds += 0.0 if tokenised else stated.tokenising
    return seconds + (stated.compilation + (launches - 1) * stated.compiled_again if compiled else 0.0)


def starts(phases: Sequence[BatteryPhase]) -> str:
    """Starts of the phases, in words, with the seconds that all take together."""
    of_miniatures = [phase for phase in phases if isinstance(phase, LaunchesPhase)]
    launches = sum(phase.launches for phase in of_miniatures)
    compiled = sum(phase.compiled for phase in of_miniatures)
    seconds = sum(phase.predicted_seconds for phase in phases)
    others = ", ".join(phase.name for phase in phases if not isinstance(phase, LaunchesPhase))
    made = f"{launches} launches of {len(of_miniatures)} miniatures, {compiled} of them compiled"
    return f"{others}, {made}: about {seconds:.0f} s"
