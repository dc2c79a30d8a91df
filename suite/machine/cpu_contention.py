"""With whom ranks shared the processors: what each saw, and what others took of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time while a rank worked, in seconds.

    Args:
        own: of this rank's process.
        busy, steal, whole: of all processors: computing, taken by other guests of the host, and all there is.
    """

    own: float
    busy: float
    steal: float
    whole: float


def others_shares(of_ranks: Sequence[Shared | None]) -> tuple[float, float] | tuple[None, None]:
    """What other processes, and other guests of the host, took of the processors in rank 0's time.

    None where the system does not tell.
    """
    told = [shared for shared in of_ranks if shared is not None]
    if len(told) < len(of_ranks) or not told or not told[0].whole:
        return None, None
    first = told[0]
    return max(0.0, first.busy - sum(one.own for one in told)) / first.whole, first.steal / first.whole
