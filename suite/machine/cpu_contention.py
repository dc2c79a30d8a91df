"""How ranks shared the processors: the times that each rank saw, and the shares of other processes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time while a rank worked, in seconds.

    Args:
        own: of this rank's process.
        busy, steal, whole: of all processors: in use, taken by other guests of the host, and the total.
    """

    own: float
    busy: float
    steal: float
    whole: float


def others_shares(of_ranks: Sequence[Shared | None]) -> tuple[float, float] | tuple[None, None]:
    """Shares of the processors that other processes, and other guests of the host, used in rank 0's time.

    None where the system does not report them.
    """
    reported = [shared for shared in of_ranks if shared is not None]
    if len(reported) < len(of_ranks) or not reported or not reported[0].whole:
        return None, None
    first = reported[0]
    ranks_seconds = sum(shared.own for shared in reported)
    return max(0.0, first.busy - ranks_seconds) / first.whole, first.steal / first.whole
