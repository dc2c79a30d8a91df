"""When 1-bit Adam's warm-up ends, and when it makes exact steps again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settled:
    """End the warm-up once the second moment v of the compressed parameters has settled.

    That is at step t if ||v(t - window)||_1 >= share ||v(t)||_1 on all ranks, checked every tenth of a window.

    Args:
        window: steps; None: 1 / (1 - beta2), v's memory.
        at_least: steps, for instance the warm-up of the learning rate.

    Raises:
        ValueError: a share or window out of range.

    Source: Tang et al. 2021, arXiv 2102.02888, section 7.1 (0.96 and 1 / (1 - beta2)).
    """

    share: float = 0.96
    window: int | None = None
    at_least: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: allowed above 0 up to 1, got {self.share}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: allowed 1 or more, got {self.window}")


@dataclass(frozen=True)
class Renewal:
    """Make exact steps again now and then, so that the frozen second moment v does not grow stale.

    With T steps of warm-up, the steps t with T factor^k < t <= T factor^k + steps are exact, k = 1, 2, ...: of S steps
    about steps log(S / T) / log(factor).

    Args:
        steps: of each renewal; None: 1 / (1 - beta2), v's memory.

    Raises:
        ValueError: a factor or number out of range.

    Source: after Lu et al. 2022, arXiv 2202.06009 (0/1 Adam), whose intervals between updates of v grow exponentially
    too. Differs: consecutive steps of exact Adam instead of single updates of v.
    """

    factor: float = 2.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ValueError(f"factor: allowed above 1, got {self.factor}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps: allowed 1 or more, got {self.steps}")

    def is_exact(self, step: int, *, warm_up: int, beta2: float) -> bool:
        """Whether the step of that number, from 1, after the warm-up is exact."""
        begin = warm_up * self.factor
        while begin * self.factor < step:
            begin *= self.factor
        return begin < step <= begin + (self.steps or round(1 / (1 - beta2)))
