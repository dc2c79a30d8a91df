"""ALiBi's slopes: how fast each head's attention falls off with distance."""

from __future__ import annotations


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head, for any head count.

    With n heads, n a power of two: 2^(-8 i / n) for i = 1 .. n. Otherwise the slopes of the power of two below n,
    followed by every other slope of the power of two above n, until there are n.

    Source: Press et al. 2022, arXiv 2108.12409, section 3, and the authors' attention_with_linear_biases (for other
    counts), which BLOOM's 112 heads use.
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    above = [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * below + 1, 2)]
    return slopes + above[: heads - below]
