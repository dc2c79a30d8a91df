"""Which GPU a rank is: the one that an operator exchanges is named, not the rank that found it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from suite.acceptance.evidence import Health
from suite.records.battery import CheckFinding

_RANKS = re.compile(r"\brank (\d+)\b|\blink (\d+)-(\d+)\b")


def with_gpus(finding: CheckFinding, gpus_with_ranks: Sequence[int], health: Health | None) -> CheckFinding:
    """The finding, whose part names the GPU behind each rank: "rank 1 (GPU 5 at 0000:1b:00.0)".

    Args:
        gpus_with_ranks: see `Surroundings`.
    """
    addresses = {gpu.index: gpu.pci for gpu in (health.gpus if health else []) if gpu.pci}

    def gpu(rank: str) -> str:
        number = gpus_with_ranks[int(rank)]
        return f"GPU {number} at {addresses[number]}" if number in addresses else f"GPU {number}"

    def named(match: re.Match[str]) -> str:
        ranks = [rank for rank in match.groups() if rank is not None]
        if any(int(rank) >= len(gpus_with_ranks) for rank in ranks):
            return match[0]
        return f"{match[0]} ({', '.join(map(gpu, ranks))})"

    return msgspec.structs.replace(finding, part=_RANKS.sub(named, finding.part))
