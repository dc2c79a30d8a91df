from __future__ import annotations

from typing import Any

import msgspec
import numpy
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.run import Workload
from suite.predict.analytic.activations import activation_bytes, kept_units, micro_batch_bytes, working_bytes
from suite.predict.analytic.elementwise import by_row, ceil_division, chosen, larger, smaller
from suite.predict.analytic.flop import executed_flop, model_flop, rank_executed_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.parameters import parameter_counts, rank_parameters
from suite.predict.analytic.process_groups import axes_in_node, nearest_in_node, sent_bytes
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.analytic.traffic import step_traffic
from tests.support.examples import examples
from tests.support.machines import Case, cases

NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, NUMBERS)
def test_numbers_come_back_as_they_are(a: float, b: float) -> None:
    assert larger(a, b) is (a if a >= b else b)
    assert smaller(a, b) is (a if a <= b else b)
    assert chosen(a < b, a, b) is (a if a < b else b)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=9))
def test_arrays_give_what_each_number_gives(pairs: list[tuple[float, float]]) -> None:
    a, b = (numpy.array(column) for column in zip(*pairs, strict=True))
    assert list(larger(a, b)) == [larger(x, y) for x, y in pairs]
    assert list(smaller(a, b)) == [smaller(x, y) for x, y in pairs]
    assert list(chosen(a < b, a, 2.0)) == [chosen(x < y, x, 2.0) for x, y in pairs]


@given(st.integers(0, 10**30), st.integers(1, 10**15))
def test_ceil_division_is_the_least_integer_not_below_the_quotient(a: int, b: int) -> None:
    quotient = ceil_division(a, b)
    assert quotient * b >= a > (quotient - 1) * b


def test_rows_of_columns_are_counted_one_by_one_and_equal_ones_once() -> None:
    counted = []

    def product(a: float, b: float) -> int:
        counted.append((a, b))
        return int(a * b)

    assert by_row(product, 2, 3) == 6
    found: Any = by_row(product, numpy.array([[1.0, 2.0], [1.0, 4.0]]), 5)
    assert found.tolist() == [[5.0, 10.0], [5.0, 20.0]]
    assert sorted(counted[1:]) == [(1.0, 5), (2.0, 5), (4.0, 5)]


def whole(*numbers: object) -> bool:
    return all(number.__class__ is int for number in numbers)


@examples(40)
@given(cases())
def test_counts_of_whole_numbers_are_whole(case: Case) -> None:
    architecture, recipe, layout, micro_batches = case
    workload = Workload(architecture, recipe, layout)
    assert whole(*parameter_counts(architecture).values())
    assert whole(*(size for sizes in layer_products(workload).values() for size in sizes))
    for axes in (axes_in_node, nearest_in_node):
        assert whole(*axes(layout, accelerators_per_node=8).values())
    unit = micro_batch_bytes(workload)
    assert whole(*unit)
    for stage in {0, 1 % layout.pipeline_stages, layout.pipeline_stages - 1}:
        assert whole(*rank_parameters(architecture, layout, stage=stage))
        assert whole(activation_bytes(workload, stage=stage))
        for traffic in step_traffic(workload, stage=stage, micro_batches=micro_batches):
            assert whole(traffic.payload_bytes, traffic.messages, sent_bytes(traffic, layout))
        assert whole(rank_executed_flop(workload, stage=stage, samples=layout.micro_batch))
    for layers in (0, 1, 5):
        assert whole(kept_units(layout, layers=layers), working_bytes(unit, layout, layers=layers))
    assert whole(model_flop(architecture, samples=3), executed_flop(workload, samples=3 * layout.micro_batch))


@examples(20)
@given(cases())
def test_a_state_that_nothing_shards_is_of_whole_bytes(case: Case) -> None:
    layout = msgspec.structs.replace(case.layout, zero_stage=0, shard_ranks=None)
    memory = stage_memory(Workload(case.architecture, case.recipe, layout), stage=0, micro_batches=case.micro_batches)
    assert whole(*memory[:5], memory.logits, memory.working, memory.temporary)
