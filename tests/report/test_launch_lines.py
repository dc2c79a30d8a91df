"""Reports of ranks besides figures, in sentences."""

from __future__ import annotations

from suite.job.events import PackedDocuments, RoutedLayer, StoreWork
from suite.report.launch_lines import (
    layers_of_all_ranks,
    packing_lines,
    routing_lines,
    routing_summary,
    staleness_lines,
)

FIRST = [RoutedLayer(1, [10, 0, 20, 10], 0, 2.5), RoutedLayer(2, [10, 10, 10, 10], 0, 2.0)]
SECOND = [RoutedLayer(1, [30, 0, 20, 10], 40, 3.5), RoutedLayer(2, [10, 10, 10, 10], 0, 2.0)]


def test_rows_of_all_ranks_are_added_up_and_losses_averaged() -> None:
    assert layers_of_all_ranks([FIRST, SECOND])[0] == RoutedLayer(1, [40, 0, 40, 20], 40, 3.0)
    stages = [[RoutedLayer(2, [1, 2], 0, 1.0)], [RoutedLayer(0, [2, 1], 0, 1.0)]]
    assert [layer.layer for layer in layers_of_all_ranks(stages)] == [0, 2]


def test_shares_idle_experts_and_dropped_rows_have_a_line_a_layer_and_one_in_all() -> None:
    assert list(routing_lines([FIRST, SECOND])) == [
        "experts of layer 1: 0.0% to 40.0% of the rows, equal 25.0%, 1 of 4 without any, 28.6% dropped, "
        "auxiliary loss 3",
        "experts of layer 2: 25.0% to 25.0% of the rows, equal 25.0%, none dropped, auxiliary loss 2",
    ]
    summary = "experts: 0.0% to 40.0% of a layer's rows (equal 25.0%), 40 dropped, auxiliary loss 2.5"
    assert list(routing_summary([FIRST, SECOND])) == [summary]


def test_the_loss_of_sequences_stands_beside_the_auxiliary_one_where_there_is_one() -> None:
    ranks = [[RoutedLayer(1, [10, 30], 0, 2.5, 1.25)], [RoutedLayer(1, [10, 30], 0, 2.5, 1.75)]]
    for (line,) in (routing_lines(ranks), routing_summary(ranks)):
        assert line.endswith("auxiliary loss 2.5, of sequences 1.5")


def test_documents_and_their_share_of_the_square_are_those_of_all_ranks() -> None:
    one = PackedDocuments(sequences=1, tokens=4, documents=1, attended=10)  # half of the square, and of its diagonal
    two = PackedDocuments(sequences=1, tokens=4, documents=2, attended=6)  # two of two tokens: a quarter
    lines = [*packing_lines([one]), *packing_lines([two, one])]
    assert lines == [
        "documents: 1.0 a sequence, which attend to 50.0% of its square (without: 50.0%)",
        "documents: 1.5 a sequence, which attend to 37.5% of its square (without: 50.0%)",
    ]


def work(ahead: list[int], delays: list[int], *, slept: float = 0.0) -> StoreWork:
    seconds, asleep = [0.5] * len(ahead), [slept] * len(ahead)
    return StoreWork(
        computed_seconds=seconds, slept_seconds=asleep, waited_seconds=seconds, ahead=ahead, delays=delays, updates=5
    )


def test_staleness_is_counted_over_all_workers() -> None:
    assert list(staleness_lines([work([0, 1, 2], [0, 0, 1]), work([0, 0, 0], [3, 0, 0], slept=0.25)])) == [
        "staleness: at most 2 steps ahead of the slowest worker, mean 0.5 (0: 4, 1: 1, 2: 1)",
        "updates: 5 of 6 gradients; at most 3 gradients of delay, mean 0.67 (0: 4, 1: 1, 3: 1)",
        "seconds of each worker: waited 1.5, 1.5; slept to be slow 0, 0.75",
    ]
    first, *_ = staleness_lines([work([*range(9)], [0] * 9)])
    assert first.endswith("(0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, more: 3)")


def test_without_experts_documents_or_a_store_there_is_no_line() -> None:
    nothing = [*routing_lines([[]]), *routing_summary([[], []]), *packing_lines([None]), *staleness_lines([None, None])]
    assert nothing == []
