"""Counts of bytes, parameters and flop are whole numbers of Python, exact at any size, and no fractions of a byte."""

from __future__ import annotations

import msgspec
from hypothesis import given

from reference_runs.run import Workload
from suite.predict.analytic.activations import activation_bytes, kept_units, micro_batch_bytes, recomputed_bytes
from suite.predict.analytic.flop import executed_flop, model_flop, rank_executed_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.parameters import parameter_counts, rank_parameters
from suite.predict.analytic.process_groups import axes_in_node, nearest_in_node, sent_bytes
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.analytic.traffic import step_traffic
from tests.support.examples import examples
from tests.support.machines import Case, cases


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
        assert whole(kept_units(layout, layers=layers), recomputed_bytes(unit, layout, layers=layers))
    assert whole(model_flop(architecture, samples=3), executed_flop(workload, samples=3 * layout.micro_batch))


@examples(20)
@given(cases())
def test_a_state_that_nothing_shards_is_of_whole_bytes(case: Case) -> None:
    layout = msgspec.structs.replace(case.layout, zero_stage=0, shard_ranks=None)
    memory = stage_memory(Workload(case.architecture, case.recipe, layout), stage=0, micro_batches=case.micro_batches)
    assert whole(*memory[:5], memory.logits, memory.recomputed, memory.temporary)
