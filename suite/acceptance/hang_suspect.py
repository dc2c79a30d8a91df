"""The GPU at which a hung launch hangs: the one out of step with the others by utilisation, power or clock.

In a collective, ranks that wait keep their GPUs busy: NCCL's kernels spin. The GPU whose rank does not come is idle.
Where a GPU itself stands still in a kernel, it is busy and the others, whose ranks wait on the host, are idle. Either
way one differs from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from suite.acceptance.gpu_evidence import GpuSample

FEWEST = 3  # GPUs: of two, none is out of step with the others


class HangQuantity(NamedTuple):
    """A quantity of a GPU, and by how much one must differ: in its unit, and as a share of the others' median."""

    field: str
    word: str
    unit: str
    least: float
    share: float


# Distances are a judgement, not measured: far more than GPUs of one model that do the same differ
QUANTITIES = (
    HangQuantity("utilisation", "utilisation", "%", 50.0, 0.0),
    HangQuantity("watts", "power", "W", 30.0, 0.2),
    HangQuantity("mhz", "SM clock", "MHz", 200.0, 0.2),
)
TIMES_SPREAD = 3.0  # and by so many times as much as all others differ among themselves


class HangSuspect(NamedTuple):
    """The finding of a hang's readings.

    Args:
        gpu: number of the GPU that stands out, as the driver counts; None: none does.
        words: for people; which GPU stands out, or that none does, with what each quantity was.
    """

    gpu: int | None
    words: str


def hang_suspect(samples: Mapping[int, Sequence[GpuSample]]) -> HangSuspect | None:
    """The one GPU that differs clearly from all others; None where nothing was read.

    Every quantity is each GPU's median over the samples. A quantity names a GPU where its value is apart from the
    nearest other one by the least distance of `QUANTITIES`, and by three times as much as the others spread. Where
    quantities name different GPUs, or none names any, no GPU stands out.

    Args:
        samples: by number of each GPU on which a rank ran, while the launch hung.
    """
    medians = {quantity: _medians(samples, quantity.field) for quantity in QUANTITIES}
    answering = {gpu for of_gpus in medians.values() for gpu in of_gpus}
    silent = [gpu for gpu in samples if gpu not in answering]
    if not answering:
        return None
    if len(silent) == 1 and len(samples) >= FEWEST:
        return HangSuspect(silent[0], f"GPU {silent[0]} stands out: it alone does not answer the driver's library")
    read = {quantity: of_gpus for quantity, of_gpus in medians.items() if len(of_gpus) == len(samples)}
    odd = {
        quantity: gpu
        for quantity, of_gpus in read.items()
        if (gpu := _odd(of_gpus, quantity.least, quantity.share)) is not None
    }
    if len(set(odd.values())) != 1:
        ranges = ", ".join(f"{one.word} {_range(of_gpus.values())} {one.unit}" for one, of_gpus in read.items())
        several = ", ".join(f"GPU {gpu} by {one.word}" for one, gpu in odd.items())
        return HangSuspect(None, f"no GPU stands out{f' alone: {several}' if several else ''}: {ranges}")
    gpu = next(iter(odd.values()))
    apart = "; ".join(
        f"{one.word} {read[one][gpu]:.0f} {one.unit}, others "
        f"{_range(value for other, value in read[one].items() if other != gpu)} {one.unit}"
        for one in odd
    )
    return HangSuspect(gpu, f"GPU {gpu} stands out: {apart}")


def _medians(samples: Mapping[int, Sequence[GpuSample]], field: str) -> dict[int, float]:
    """The median of a quantity over the samples of each GPU that answered."""
    known = {
        gpu: [value for one in of_gpu if (value := getattr(one, field)) is not None] for gpu, of_gpu in samples.items()
    }
    return {gpu: median(of_gpu) for gpu, of_gpu in known.items() if of_gpu}


def _odd(values: Mapping[int, float], least: float, share: float) -> int | None:
    """The GPU that is clearly apart from all others; None where none or more than one is."""
    if len(values) < FEWEST:
        return None
    found = []
    for gpu, value in values.items():
        others = [other for number, other in values.items() if number != gpu]
        distance = min(abs(value - other) for other in others)
        needed = max(least, share * median(others), TIMES_SPREAD * (max(others) - min(others)))
        if distance >= needed:
            found.append(gpu)
    return found[0] if len(found) == 1 else None


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = (f"{value:.0f}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"
