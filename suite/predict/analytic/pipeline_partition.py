"""Which layers stand on which pipeline stage, and how often a stage is replicated."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple


class Stage(NamedTuple):
    """Layers `first_layer` to `last_layer`, both included and counted from 0, on `replicas` workers."""

    first_layer: int
    last_layer: int
    replicas: int


class Partition(NamedTuple):
    """Stages in the order of the forward pass, the seconds a micro-batch of the slowest stage or of the slowest
    transfer between stages, and the micro-batches in flight that each replica of the first stage admits.
    """

    stages: tuple[Stage, ...]
    slowest_stage_seconds: float
    in_flight_micro_batches: int


def replicated_stage_seconds(
    *, computation_seconds: float, weight_bytes: float, replicas: int, link_bytes_per_second: float
) -> float:
    """Seconds a micro-batch (the paper's minibatch) of a stage whose m replicas take micro-batches in turn.

    max(T, 2 (m - 1) w / B) / m, with B bytes a second on a link:
        T               forward and backward pass of all layers of the stage
        2 (m - 1) w / B synchronisation of its w bytes of weights, hidden behind the computation
        / m             m micro-batches are under way at a time

    Source: Narayanan et al. 2019 (PipeDream, SOSP), section 3.1, T(i -> j, m), with one level of the network.
    After the division by m it charges a whole ring all-reduce, 2 (m - 1) / m w / B, to each micro-batch.
    Differs from the preprint (Harlap et al. 2018, arXiv 1806.03377), whose term is 4 (m - 1) / m w / B: once for m
    micro-batches, each replica sends (m - 1) / m w of gradients to the others, which own a share of the weights each,
    receives as much, and again for the weights that come back. That is 2 / m of the term here: equal at m = 2, half
    at m = 4. A ring all-reduce once for m micro-batches, with both directions of a link at a time, would be 1 / m.
    """
    return max(computation_seconds, 2 * (replicas - 1) * weight_bytes / link_bytes_per_second) / replicas


def pipedream_partition(
    *,
    layer_seconds: Sequence[float],
    activation_bytes: Sequence[float],
    weight_bytes: Sequence[float],
    workers: int,
    link_bytes_per_second: float,
) -> Partition:
    """The pipeline over all `workers` whose slowest stage or transfer takes the fewest seconds a micro-batch.

    Layer l takes layer_seconds[l] forward and backward, hands on activation_bytes[l] and gets back as many bytes of
    gradient, and has weight_bytes[l]. A(j, m) is the least slowest time of layers up to j on m workers, the least of:
        T(0 -> j, m)                                      one stage, replicated
        max(A(i, m - k), 2 a_i / B, T(i + 1 -> j, k))     a cut after layer i < j, k < m replicas of the last stage
    with T from `replicated_stage_seconds`. 2 a_i / B is the activation forward and the gradient back over one link,
    not divided by replicas. The first stage admits ceil(workers / replicas of the first stage) micro-batches (NOAM).

    Exact for this cost. For L layers and m workers it compares L^2 m^2 / 4 candidates: a second or two at 96 layers
    on 64 workers. Every worker is used, as published, even where synchronisation makes fewer workers faster. Of
    equally fast pipelines one stage comes first, then the earliest last cut, then the fewest replicas after it.

    Source: Narayanan et al. 2019 (PipeDream, SOSP), section 3.1 (the recursion, on one level of the network) and
    section 3.2 (NOAM). Left out: memory of the stages, and latency.

    Raises:
        ValueError: no layers, lists of different lengths, a negative or infinite entry, workers < 1, or a bandwidth
            that is not above 0 (infinite is allowed: transfers and synchronisation are then free).
    """
    _check_layers(layer_seconds=layer_seconds, activation_bytes=activation_bytes, weight_bytes=weight_bytes)
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if not link_bytes_per_second > 0:
        raise ValueError(f"link_bytes_per_second must be above 0, got {link_bytes_per_second}")
    seconds_before = list(accumulate(layer_seconds, initial=0.0))
    weights_before = list(accumulate(weight_bytes, initial=0.0))

    def stage_seconds(first: int, end: int) -> list[float]:
        """Seconds of the stage of layers first to end - 1, for 1, 2, … replicas."""
        return [
            replicated_stage_seconds(
                computation_seconds=seconds_before[end] - seconds_before[first],
                weight_bytes=weights_before[end] - weights_before[first],
                replicas=replicas,
                link_bytes_per_second=link_bytes_per_second,
            )
            for replicas in range(1, workers + 1)
        ]

    transfers = [2 * size / link_bytes_per_second for size in activation_bytes]
    slowest, last_stages = _least_slowest(stage_seconds, transfers, workers)
    stages = _stages(last_stages, workers)
    return Partition(stages, slowest, -(-workers // stages[0].replicas))


def _check_layers(**lists: Sequence[float]) -> None:
    """Refuse lists without entries, of different lengths, or with an entry that is negative or infinite."""
    layers = len(lists["layer_seconds"])
    for name, values in lists.items():
        if not values or len(values) != layers:
            raise ValueError(
                f"{name} must have one entry a layer, at least 1 and as many as layer_seconds ({layers}), "
                f"got {len(values)}"
            )
        _refuse_negative_or_infinite(name, values)


def _least_slowest(
    stage_seconds: Callable[[int, int], list[float]], transfers: Sequence[float], workers: int
) -> tuple[float, list[list[tuple[int, int]]]]:
    """A(layers, workers); and by layers - 1 and workers - 1 the last stage's first layer and its replicas."""
    least: list[list[float]] = []
    last_stages: list[list[tuple[int, int]]] = []
    for end in range(1, len(transfers) + 1):
        slowest = stage_seconds(0, end)
        choices = [(0, replicas) for replicas in range(1, workers + 1)]
        for cut in range(1, end):
            before, last = least[cut - 1], stage_seconds(cut, end)
            for used in range(2, workers + 1):
                for replicas in range(1, used):
                    candidate = max(before[used - replicas - 1], transfers[cut - 1], last[replicas - 1])
                    if candidate < slowest[used - 1]:
                        slowest[used - 1], choices[used - 1] = candidate, (cut, replicas)
        least.append(slowest)
        last_stages.append(choices)
    return least[-1][-1], last_stages


def _stages(last_stages: list[list[tuple[int, int]]], workers: int) -> tuple[Stage, ...]:
    """The stages in order, from the last one backwards."""
    stages: list[Stage] = []
    end, left = len(last_stages), workers
    while end:
        first, replicas = last_stages[end - 1][left - 1]
        stages.append(Stage(first, end - 1, replicas))
        end, left = first, left - replicas
    return tuple(reversed(stages))


def balanced_partition(costs: Sequence[float], *, stages: int) -> tuple[int, ...]:
    """Layers on each stage of the contiguous split of `costs` whose most expensive stage costs least.

    The least possible cost of the most expensive stage is the sum of some run of layers, so a binary search among all
    L (L + 1) / 2 such sums finds it: a bound is wide enough when stages that take layers as long as they fit within it
    are no more than allowed. Costs L^2 log L. No stage is empty. Of the best splits, the one whose early stages take as
    many layers as fit within that cost.

    Differs from ceil(L / stages) layers a stage wherever the layers differ: 1, 1, 1, 3 on 2 stages is 3 + 1 layers of
    cost 3, not 2 + 2 of cost 4.
    Source: derived here.

    Raises:
        ValueError: a cost that is negative or infinite, or stages not from 1 to the number of layers.
    """
    layers = len(costs)
    _refuse_negative_or_infinite("costs", costs)
    if not 1 <= stages <= layers:
        raise ValueError(f"stages must be from 1 to the number of layers ({layers}), got {stages}")
    before = list(accumulate(costs, initial=0.0))

    def taken(bound: float) -> list[int]:
        """Layers that each stage takes within the bound, leaving one at least for every later stage."""
        counts: list[int] = []
        first = 0
        for later in reversed(range(stages)):
            end = first
            while end < layers - later and before[end + 1] - before[first] <= bound:
                end += 1
            counts.append(end - first)
            first = end
        return counts

    sums = sorted({before[end] - before[first] for end in range(1, layers + 1) for first in range(end)})
    index = bisect_left(sums, True, key=lambda bound: sum(taken(bound)) == layers)
    return tuple(taken(sums[index]))


def _refuse_negative_or_infinite(name: str, values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}[{index}] must be finite and at least 0, got {value}")
