"""What others took of the processors is what all computed, less what the ranks did."""

from __future__ import annotations

import pytest

from suite.machine.cpu_contention import Shared, others_shares


def shared(own, busy=8.0, steal=1.0, whole=20.0):
    return Shared(own=own, busy=busy, steal=steal, whole=whole)


@pytest.mark.parametrize(
    ("of_ranks", "expected"),
    [
        ([shared(3.0), shared(3.0)], (0.1, 0.05)),
        ([shared(5.0), shared(5.0)], (0.0, 0.05)),  # clocks of processes and of the system differ a little
        ([shared(3.0), None], (None, None)),
        ([], (None, None)),
        ([shared(3.0, whole=0.0)], (None, None)),
    ],
)
def test_shares_are_of_rank_0s_time_and_need_every_rank(of_ranks, expected):
    assert others_shares(of_ranks) == pytest.approx(expected)
