"""A mixture's rows where no number says which expert gets them: every expert gets as many as every other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch import Tensor

from suite.execute.model import experts
from suite.execute.parallel import expert_parallel


def even_ends(experts: int, rows: int) -> list[int]:
    """The row after each expert's last one: shares of `rows` that differ by one where they do not divide.

    Example: even_ends(4, 10) == [2, 5, 7, 10]
    """
    return [rows * number // experts for number in range(1, experts + 1)]


@contextmanager
def even_routing() -> Iterator[None]:
    """Within this Python reads even shares, whatever a router chose: of experts, and of the ranks that have them."""

    def ends(ends_E: Tensor, rows: int) -> list[int]:
        return even_ends(len(ends_E), rows)

    def exchanged(by_rank_2GE: Tensor, rows: int) -> tuple[list[int], list[int]]:
        ranks = by_rank_2GE.shape[1]
        share, rest = divmod(rows, ranks)
        assert rest == 0, f"{rows} rows of {ranks} ranks"  # refused before
        return [share] * ranks, [share] * ranks

    with (
        mock.patch.object(experts, "ends_on_host", ends),
        mock.patch.object(expert_parallel, "exchanged_on_host", exchanged),
    ):
        yield
