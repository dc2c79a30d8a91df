from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.predict.analytic.pipeline_partition import (
    Partition,
    Stage,
    balanced_partition,
    pipedream_partition,
    replicated_stage_seconds,
)

# Inputs are small integers, whose sums are exact; a stage's cost is then rounded by its two divisions, by 2**-53 each,
# and the least and the largest of costs are no further off than the costs.
ROUNDED = 2**-52


class Case(NamedTuple):
    layer_seconds: list[int]
    activation_bytes: list[int]
    weight_bytes: list[int]
    workers: int
    link_bytes_per_second: int

    def partition(self) -> Partition:
        return pipedream_partition(**self._asdict())


@st.composite
def cases(draw: st.DrawFn, layers: int = 5, workers: int = 5) -> Case:
    count = draw(st.integers(1, layers))
    seconds, activations, weights = (
        draw(st.lists(st.integers(0, most), min_size=count, max_size=count)) for most in (30, 30, 60)
    )
    return Case(seconds, activations, weights, draw(st.integers(1, workers)), draw(st.integers(1, 20)))


def splits(total: int) -> Iterator[list[int]]:
    """Every list of positive integers with this sum."""
    for bits in range(2 ** (total - 1)):
        parts = [1]
        for place in range(total - 1):
            if bits >> place & 1:
                parts.append(1)
            else:
                parts[-1] += 1
        yield parts


def slowest(case: Case, stages: list[Stage]) -> Fraction:
    """Exact seconds of the slowest stage or transfer, from the stages alone."""
    costs = []
    for first, last, replicas in stages:
        layers = range(first, last + 1)
        computation = Fraction(sum(case.layer_seconds[layer] for layer in layers))
        synchronised = 2 * (replicas - 1) * sum(case.weight_bytes[layer] for layer in layers)
        costs.append(max(computation, Fraction(synchronised, case.link_bytes_per_second)) / replicas)
        if last + 1 < len(case.layer_seconds):
            costs.append(Fraction(2 * case.activation_bytes[last], case.link_bytes_per_second))
    return max(costs)


def every_pipeline(layers: int, workers: int) -> Iterator[list[Stage]]:
    for counts in splits(layers):
        for replicas in splits(workers):
            if len(counts) == len(replicas):
                ends = [sum(counts[: place + 1]) for place in range(len(counts))]
                yield [Stage(end - count, end - 1, own) for count, end, own in zip(counts, ends, replicas, strict=True)]


@given(cases())
def test_no_partition_and_replication_beats_the_dynamic_program(case: Case) -> None:
    best = min(slowest(case, stages) for stages in every_pipeline(len(case.layer_seconds), case.workers))
    assert case.partition().slowest_stage_seconds == pytest.approx(float(best), rel=ROUNDED, abs=0)


@given(cases(layers=9, workers=9))
def test_the_stages_cost_what_is_reported_and_use_every_layer_and_worker_once(case: Case) -> None:
    stages, seconds, in_flight = case.partition()
    assert seconds == pytest.approx(float(slowest(case, list(stages))), rel=ROUNDED, abs=0)
    covered = [layer for stage in stages for layer in range(stage.first_layer, stage.last_layer + 1)]
    assert covered == list(range(len(case.layer_seconds)))
    assert sum(stage.replicas for stage in stages) == case.workers
    assert min(stage.replicas for stage in stages) >= 1
    assert (in_flight - 1) * stages[0].replicas < case.workers <= in_flight * stages[0].replicas


@given(cases(layers=7, workers=7))
def test_a_free_link_makes_data_parallelism_with_one_stage_best(case: Case) -> None:
    stages, seconds, in_flight = pipedream_partition(**{**case._asdict(), "link_bytes_per_second": math.inf})
    assert stages == (Stage(0, len(case.layer_seconds) - 1, case.workers),)
    assert seconds == pytest.approx(sum(case.layer_seconds) / case.workers, rel=ROUNDED, abs=0)
    assert in_flight == 1


def test_known_partitions() -> None:
    straight = tuple(Stage(layer, layer, 1) for layer in range(4))
    known = [
        # large activations, small weights, as in convolutions: 4 * 3 s over 4 workers; synchronisation 2 * 3 * 4 / 10 s
        # is hidden, a cut costs 2 * 100 / 10 s
        (Case([3] * 4, [100] * 4, [1] * 4, 4, 10), Partition((Stage(0, 3, 4),), 3, 1)),
        # large weights: two replicas of one layer cost 2 * 1 * 1000 / 10 / 2 = 100 s, a cut 2 * 1 / 10 s
        (Case([3] * 4, [1] * 4, [1000] * 4, 4, 10), Partition(straight, 3, 4)),
        # VGG's shape: 15 of 16 workers for the convolutions, one for the dense layers, whose weights stay where they
        # are: 30 s / 15 and 2 s; one stage would synchronise 2 * 15 * 510 / 10 / 16 = 95.6 s
        (
            Case([10, 10, 10, 1, 1], [50, 50, 5, 1, 1], [2, 4, 4, 300, 200], 16, 10),
            Partition((Stage(0, 2, 15), Stage(3, 4, 1)), 2, 2),
        ),
        # one stage: 8 s / 5; the straight pipeline of two layers would leave three workers without work
        (Case([6, 2], [1, 1], [9, 1], 5, 1000), Partition((Stage(0, 1, 5),), 1.6, 1)),
        # of equally fast ones one stage comes first, then the earliest cut: the middle layer is free on either side of
        # it; replicas would cost 2 * 1 * 300 / 2 s
        (Case([0, 0], [0, 0], [0, 0], 2, 1), Partition((Stage(0, 1, 2),), 0, 1)),
        (Case([2, 0, 2], [0, 0, 0], [100] * 3, 2, 1), Partition((Stage(0, 0, 1), Stage(1, 2, 1)), 2, 2)),
        # every worker is used where fewer are faster: one layer of 1 s with 4 replicas 2 * 3 * 10 / 10 / 4 s
        (Case([1], [0], [10], 4, 10), Partition((Stage(0, 0, 4),), 1.5, 1)),
        (Case([1], [0], [10], 1, 10), Partition((Stage(0, 0, 1),), 1, 1)),
    ]
    assert [case.partition() for case, _ in known] == [partition for _, partition in known]


@pytest.mark.parametrize(("replicas", "ratio"), [(2, Fraction(1)), (4, Fraction(1, 2)), (8, Fraction(1, 4))])
def test_the_preprints_parameter_server_costs_two_mth_of_the_synchronisation(replicas: int, ratio: Fraction) -> None:
    # bytes through one replica's link for m micro-batches: it owns one of m shards, takes in the gradients of the
    # others for it, sends them theirs, and the same for the new weights
    weights, link = 8 * 60, 5
    shard, others = weights // replicas, replicas - 1
    gradients = shard * others + shard * others
    server = Fraction(2 * gradients, link) / replicas
    here = replicated_stage_seconds(
        computation_seconds=0, weight_bytes=weights, replicas=replicas, link_bytes_per_second=link
    )
    assert server == ratio * Fraction(here)


REFUSED = [
    ({"layer_seconds": []}, r"layer_seconds must have one entry a layer, at least 1 .*, got 0"),
    ({"weight_bytes": [1]}, r"weight_bytes must have one entry a layer, .* as layer_seconds \(2\), got 1"),
    ({"activation_bytes": [1, 2, 3]}, r"activation_bytes must have one entry a layer, .*, got 3"),
    ({"layer_seconds": [1, -2]}, r"layer_seconds\[1\] must be finite and at least 0, got -2"),
    ({"activation_bytes": [math.nan, 1]}, r"activation_bytes\[0\] must be finite and at least 0, got nan"),
    ({"weight_bytes": [1, math.inf]}, r"weight_bytes\[1\] must be finite and at least 0, got inf"),
    ({"workers": 0}, "workers must be at least 1, got 0"),
    ({"link_bytes_per_second": 0}, "link_bytes_per_second must be above 0, got 0"),
    ({"link_bytes_per_second": math.nan}, "link_bytes_per_second must be above 0, got nan"),
]


def test_nonsense_is_refused_with_what_is_allowed() -> None:
    case = Case([1, 1], [1, 1], [1, 1], 2, 1)._asdict()
    for change, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            pipedream_partition(**(case | change))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
def test_no_contiguous_split_beats_the_balanced_one(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    def largest(counts: list[int]) -> int:
        return max(sum(costs[sum(counts[:place]) :][:count]) for place, count in enumerate(counts))

    counts = list(balanced_partition(costs, stages=stages))
    assert len(counts) == stages
    assert sum(counts) == len(costs)
    assert min(counts) >= 1
    assert largest(counts) == min(largest(other) for other in splits(len(costs)) if len(other) == stages)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.data())
def test_a_split_of_real_costs_is_whole_and_below_the_mean_and_one_layer(
    costs: list[float], data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    counts = balanced_partition(costs, stages=stages)
    ends = [sum(counts[: place + 1]) for place in range(stages)]
    assert ends[-1] == len(costs)
    assert min(counts) >= 1
    largest = max(sum(costs[end - count : end]) for count, end in zip(counts, ends, strict=True))
    # filling stages up to the mean and at most one layer beyond it needs no more stages than there are;
    # 30 additions round by 2**-53 of the total each, on both sides
    assert largest <= sum(costs) / stages + max(costs) + 60 * 2**-53 * sum(costs)


def test_balanced_splits_of_known_costs() -> None:
    known = [
        ([1, 1, 1, 3], (3, 1)),
        ([1] * 7, (3, 3, 1)),
        ([5, 0, 0], (1, 1, 1)),
        ([0, 0, 0], (2, 1)),
        ([0.1, 0.2, 0.3, 0.6], (3, 1)),
        ([4], (1,)),
    ]
    assert [balanced_partition(costs, stages=len(counts)) for costs, counts in known] == [counts for _, counts in known]


def test_an_impossible_number_of_stages_and_a_negative_cost_are_refused() -> None:
    for stages in (0, -1, 4):
        with pytest.raises(ValueError, match=rf"stages must be from 1 to the number of layers \(3\), got {stages}"):
            balanced_partition([1, 2, 3], stages=stages)
    with pytest.raises(ValueError, match=r"costs\[1\] must be finite and at least 0, got -1"):
        balanced_partition([1, -1], stages=1)
