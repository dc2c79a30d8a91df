"""Check 12: what holds a GPU's clocks down under load, and its temperatures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Sequence

from suite.acceptance.check_table import THROTTLE
from suite.acceptance.findings import joined_evidence, not_run
from suite.acceptance.gpu_evidence import GpuHealth, GpuSample
from suite.acceptance.judge.causes import Cause, bad, finding_of, minor
from suite.acceptance.nvml import IDLE
from suite.records.battery import CheckFinding, RecoveryAction

CONSECUTIVE = 3  # samples with a reason, from which it is throttling
BAD_REASONS = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake")
POWER_CAP = "software power cap"
SETTINGS = {"application clocks", "sync boost", "display clocks"}  # reasons that somebody chose
LEAST_CLOCK = 0.97  # of the multiprocessors' highest, as of the memory's in check 0
WARMER = 15.0  # degrees above the median of the other GPUs; judgement: those behind others in the air differ by 10
NEAR_LIMIT = 5.0  # degrees below the highest temperature of memory, from which it warns; judgement


def clock_finding(gpu: GpuHealth, gpus: Sequence[GpuHealth], loaded: Collection[int]) -> CheckFinding:
    """Check 12 of one GPU.

    Args:
        gpus: all of the node; those in `loaded` had a load, and are compared with each other.
    """
    samples = [sample for sample in gpu.samples if sample.reasons is not None]
    name = f"GPU {gpu.index}"
    if len(samples) < CONSECUTIVE:
        unanswered = f"no answer to {', '.join(gpu.unanswered)}" if gpu.unanswered else ""
        return not_run(THROTTLE, joined_evidence(f"{len(samples)} samples under load", unanswered), name)
    longest = {reason: longest_run([reason in (sample.reasons or []) for sample in samples]) for reason in BAD_REASONS}
    long = {reason: length for reason, length in longest.items() if length >= CONSECUTIVE}
    slowed = [
        bad(f"{reason} in {length} consecutive samples", RecoveryAction.RESEAT) for reason, length in long.items()
    ]
    capped = _capped(gpu, samples) if gpu.index in loaded and not slowed else []
    others = [other for other in gpus if other.index != gpu.index and other.index in loaded]
    warm = _temperatures(gpu, others) if gpu.index in loaded else []
    parts = [*long, *(cause.words.partition(":")[0] for cause in (*capped, *warm))]
    return finding_of(
        THROTTLE,
        name,
        [*slowed, *capped, *warm],
        part=f"clocks of {name}: {', '.join(parts)}" if slowed or capped else f"cooling of {name}",
        fine="",
        also=_extremes(samples),
    )


def _extremes(samples: Sequence[GpuSample]) -> str:
    capped = sum(POWER_CAP in (sample.reasons or []) for sample in samples)
    slowest = min((sample.mhz for sample in samples if sample.mhz is not None), default=None)
    hottest, hottest_memory = _hottest(samples, "celsius"), _hottest(samples, "memory_celsius")
    return joined_evidence(
        f"{len(samples)} samples",
        f"{POWER_CAP} in {capped}",
        "" if hottest is None else f"at most {hottest:.0f} C",
        "" if hottest_memory is None else f"memory at most {hottest_memory:.0f} C",
        "" if slowest is None else f"at least {slowest:.0f} MHz",
    )


def _capped(gpu: GpuHealth, samples: Sequence[GpuSample]) -> list[Cause]:
    """A clock that stays below its maximum under load though neither power nor heat holds it down: it warns.

    Somebody may have chosen it: application clocks (nvidia-smi -ac) or locked clocks (nvidia-smi -lgc).
    """
    most = gpu.before.most_mhz
    held = {*BAD_REASONS, POWER_CAP, IDLE}
    free = [sample for sample in samples if sample.mhz is not None and not held & set(sample.reasons or [])]
    highest = max((sample.mhz for sample in free if sample.mhz is not None), default=None)
    if most is None or highest is None or len(free) < CONSECUTIVE or highest >= LEAST_CLOCK * most:
        return []
    named = sorted(SETTINGS & {reason for sample in free for reason in sample.reasons or []})
    setting = ", ".join(named) or "no reason reported, perhaps locked clocks"
    words = (
        f"SM clock at most {highest:.0f} of {most:.0f} MHz: {setting}, in {len(free)} samples that neither power nor "
        "heat held down (nvidia-smi -rac and -rgc reset it)"
    )
    return [minor(words, RecoveryAction.FIX_SETTING)]


def _temperatures(gpu: GpuHealth, others: Sequence[GpuHealth]) -> list[Cause]:
    """The hottest sample against the other GPUs, and that of the memory against its limit."""
    causes = []
    hottest = _hottest(gpu.samples, "celsius")
    of_others = [celsius for other in others if (celsius := _hottest(other.samples, "celsius")) is not None]
    if hottest is not None and of_others and hottest > statistics.median(of_others) + WARMER:
        usual = statistics.median(of_others)
        causes.append(minor(f"hotter than its siblings: {hottest:.0f} C, median {usual:.0f} C", RecoveryAction.RESEAT))
    memory, limit = _hottest(gpu.samples, "memory_celsius"), gpu.before.most_memory_celsius
    if memory is not None and limit and memory > limit - NEAR_LIMIT:
        words = f"memory temperature: {memory:.0f} C, its limit is {limit:.0f} C"
        causes.append((bad if memory > limit else minor)(words, RecoveryAction.RESEAT))
    return causes


def _hottest(samples: Sequence[GpuSample], field: str) -> float | None:
    return max((getattr(sample, field) for sample in samples if getattr(sample, field) is not None), default=None)


def longest_run(flags: Sequence[bool]) -> int:
    """The most consecutive true values."""
    return max((len(list(group)) for value, group in itertools.groupby(flags) if value), default=0)
