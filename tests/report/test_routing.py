from __future__ import annotations

from suite.job.events import RoutedLayer
from suite.report.routing import layers_of_all_ranks, routing_lines, routing_summary

FIRST = [RoutedLayer(1, [10, 0, 20, 10], 0, 2.5), RoutedLayer(2, [10, 10, 10, 10], 0, 2.0)]
SECOND = [RoutedLayer(1, [30, 0, 20, 10], 40, 3.5), RoutedLayer(2, [10, 10, 10, 10], 0, 2.0)]


def test_rows_of_all_ranks_are_added_up_and_losses_averaged() -> None:
    assert layers_of_all_ranks([FIRST, SECOND])[0] == RoutedLayer(1, [40, 0, 40, 20], 40, 3.0)
    stages = [[RoutedLayer(2, [1, 2], 0, 1.0)], [RoutedLayer(0, [2, 1], 0, 1.0)]]
    assert [layer.layer for layer in layers_of_all_ranks(stages)] == [0, 2]


def test_each_layer_has_a_line_of_shares_idle_experts_and_dropped_rows() -> None:
    assert list(routing_lines([FIRST, SECOND])) == [
        "experts of layer 1: 0.0% to 40.0% of the rows, equal 25.0%, 1 of 4 without any, 28.6% dropped, "
        "auxiliary loss 3",
        "experts of layer 2: 25.0% to 25.0% of the rows, equal 25.0%, none dropped, auxiliary loss 2",
    ]


def test_a_line_for_all_layers_and_none_without_experts() -> None:
    summary = "experts: 0.0% to 40.0% of a layer's rows (equal 25.0%), 40 dropped, auxiliary loss 2.5"
    assert list(routing_summary([FIRST, SECOND])) == [summary]
    assert list(routing_summary([[], []])) == []
    assert list(routing_lines([[]])) == []


def test_the_loss_of_sequences_stands_beside_the_auxiliary_one_where_there_is_one() -> None:
    ranks = [[RoutedLayer(1, [10, 30], 0, 2.5, 1.25)], [RoutedLayer(1, [10, 30], 0, 2.5, 1.75)]]
    assert next(iter(routing_lines(ranks))).endswith("auxiliary loss 2.5, of sequences 1.5")
    assert next(iter(routing_summary(ranks))).endswith("auxiliary loss 2.5, of sequences 1.5")
    assert "of sequences" not in next(iter(routing_summary([FIRST])))
