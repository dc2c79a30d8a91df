from __future__ import annotations

from suite.job.events import StoreWork
from suite.report.staleness import staleness_lines


def work(ahead: list[int], delays: list[int], *, slept: float = 0.0) -> StoreWork:
    seconds = [0.5] * len(ahead)
    return StoreWork(
        computed_seconds=seconds,
        slept_seconds=[slept] * len(ahead),
        waited_seconds=seconds,
        ahead=ahead,
        delays=delays,
        updates=5,
    )


def test_staleness_is_counted_over_all_workers() -> None:
    lines = list(staleness_lines([work([0, 1, 2], [0, 0, 1]), work([0, 0, 0], [3, 0, 0], slept=0.25)]))
    assert lines == [
        "staleness: at most 2 steps ahead of the slowest worker, mean 0.5 (0: 4, 1: 1, 2: 1)",
        "updates: 5 of 6 gradients; at most 3 gradients of delay, mean 0.67 (0: 4, 1: 1, 3: 1)",
        "seconds of each worker: waited 1.5, 1.5; slept to be slow 0, 0.75",
    ]


def test_a_long_histogram_ends_with_how_many_are_left() -> None:
    first, *_ = staleness_lines([work([*range(9)], [0] * 9)])
    assert first.endswith("(0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, more: 3)")


def test_a_launch_without_a_store_has_no_line() -> None:
    assert list(staleness_lines([None, None])) == []
