"""The finding of a check whose measurement did not end well."""

from __future__ import annotations

from collections.abc import Iterable

from suite.acceptance.evidence import Launched, Micro, Probing
from suite.acceptance.findings import Finding, Verdict
from suite.job.events import Status


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Each rank by its number; empty without any."""
    return ", ".join(f"rank {rank}" for rank in ranks)


def broken(check: int, ended: Micro | Launched | Probing) -> Finding:
    """What a check says of a measurement that hung, crashed, ran out of memory or became NaN; its ranks at fault."""
    where = f"; record {ended.record}" if isinstance(ended, Launched) else ""
    return Finding(
        check=check,
        subject=ended.run if isinstance(ended, Launched) else "",
        verdict=Verdict.HANG if ended.status is Status.HANG else Verdict.FAIL,
        status=ended.status,
        part=ranks_in_words(ended.ranks_at_fault),
        evidence=f"{ended.status.value}: {ended.message}{where}",
    )
