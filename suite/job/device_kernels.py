"""The kernels that a device executed in a step: how often and how long, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

MOST_KERNELS = 50  # names of a rank; what is shorter is added up
NAME_LENGTH = 200  # characters; names of templates run to thousands
OTHERS = "others: {} names"  # the name of what is added up: no kernel's has a space and a colon so


class DeviceKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Executions of one kernel, copy or fill in a step, mean over the profiled steps.

    Args:
        name: as the profiler says it, cut after `NAME_LENGTH` characters.
        calls: of a step.
        seconds: of a step, all calls together.
    """

    name: str
    calls: float
    seconds: float


def device_kernels(executed: Iterable[tuple[str, int]], *, steps: int) -> list[DeviceKernel]:
    """The kernels of a step, the longest first; the last entry adds up those beyond `MOST_KERNELS`.

    Args:
        executed: name and nanoseconds of every execution in all profiled steps.
        steps: that were profiled.
    """
    calls: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    for name, spent in executed:
        name = name[:NAME_LENGTH]
        calls[name] += 1
        nanoseconds[name] += spent
    found = [
        DeviceKernel(name=name, calls=calls[name] / steps, seconds=spent / 1e9 / steps)
        for name, spent in nanoseconds.most_common()
    ]
    kept, others = found[:MOST_KERNELS], found[MOST_KERNELS:]
    if others:
        seconds = sum(kernel.seconds for kernel in others)
        kept.append(
            DeviceKernel(name=OTHERS.format(len(others)), calls=sum(kernel.calls for kernel in others), seconds=seconds)
        )
    return kept
