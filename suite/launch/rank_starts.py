"""How long ranks take to start on a few processors, and how many never would before they are taken for a hang."""

from __future__ import annotations

import math

from reference_runs.errors import InputError
from suite.launch.rank_events import START_SECONDS
from suite.machine.devices import usable_cores
from suite.machine.free_memory import free_bytes

# Of a rank until its first event, nearly all of it PyTorch's import: at least, so that only what is certain is refused.
# 2.0 s of an idle AMD EPYC's core, 3.4 s of a loaded Intel Xeon's (virtual, 2026-11-26), there with 229 MiB of its own.
RANK_CORE_SECONDS = 2.0
RANK_BYTES = 220 * 2**20
SAID_FROM_SECONDS = 20.0  # a start that takes less is not worth a line


def start_seconds(ranks: int, cores: int) -> float:
    """Seconds until all ranks of a CPU have started."""
    return ranks * RANK_CORE_SECONDS / min(cores, ranks)


def check_rank_starts(ranks: int, device: str, where: str = "--ranks") -> str:
    """Check that so many ranks can start on this machine's processors; a line says how long, where that takes long.

    Raises:
        InputError: they cannot: they need more memory than is free, or longer than the launcher waits for a rank.
    """
    if device != "cpu":
        return ""
    cores, free = usable_cores(), free_bytes()
    seconds = start_seconds(ranks, cores)
    most = min(math.floor(START_SECONDS / RANK_CORE_SECONDS * cores), free // RANK_BYTES)
    if ranks > max(most, cores):
        why = f"to start them would take {seconds:,.0f} s and {ranks * RANK_BYTES / 2**30:,.0f} GiB"
        here = f"at most {max(most, cores)} on {cores} processors with {free / 2**30:.0f} GiB free"
        raise InputError(f"too many ranks for this machine: {why}", got=ranks, allowed=here, where=where)
    if seconds < SAID_FROM_SECONDS:
        return ""
    return f"{ranks} ranks on {cores} processors: about {seconds:.0f} s until all have started, and they take turns"
