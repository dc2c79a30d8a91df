"""The finding of a check whose measurement did not end well."""

from __future__ import annotations

from suite.acceptance.evidence import Launched, Micro, Probing
from suite.acceptance.verdicts import Finding, Verdict
from suite.job import Status


def broken(check: int, ended: Micro | Launched | Probing) -> Finding:
    """What a check says of a measurement that hung, crashed, ran out of memory or became NaN; its ranks at fault."""
    ranks = [] if isinstance(ended, Micro) else ended.ranks_at_fault
    where = f"; record {ended.record}" if isinstance(ended, Launched) else ""
    return Finding(
        check=check,
        subject=ended.run if isinstance(ended, Launched) else "",
        verdict=Verdict.HANG if ended.status is Status.HANG else Verdict.FAIL,
        status=ended.status,
        part=", ".join(f"rank {rank}" for rank in ranks),
        evidence=f"{ended.status.value}: {ended.message}{where}",
    )
