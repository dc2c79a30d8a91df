"""Messages of balancing to context-parallel ranks: laws; tests/end_to_end/layouts counts them in launches."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Balancing, Recipe, Workload
from suite.predict.simulation.expert_traffic import context_balancing_traffic
from tests.support.examples import examples
from tests.support.strategies import recipes, routed_architectures


@examples(40)
@given(routed_architectures(), recipes(), st.integers(1, 3), st.sampled_from([None, 0.1]))
def test_every_layer_with_experts_sends_the_rows_of_each_expert_once_a_micro_batch(
    architecture: Architecture, recipe: Recipe, accumulation: int, sequence_loss: float | None
) -> None:
    architecture = msgspec.structs.replace(architecture, sequence_loss_weight=sequence_loss)
    recipe = msgspec.structs.replace(recipe, global_batch=2 * accumulation)
    layout = Layout(context_parallel=2, micro_batch=2)
    traffic = context_balancing_traffic(Workload(architecture, recipe, layout), stage=0)
    mixtures, experts = architecture.layers - architecture.dense_layers, architecture.experts or 0
    sizes = [4 * experts] * (architecture.balancing is Balancing.AUXILIARY_LOSS)
    sizes += [4 * 2 * experts] * (sequence_loss is not None)
    assert traffic.messages == accumulation * mixtures * len(sizes)
    assert traffic.payload_bytes == accumulation * mixtures * sum(sizes)
    alone = msgspec.structs.replace(layout, context_parallel=1)
    assert context_balancing_traffic(Workload(architecture, recipe, alone), stage=0).messages == 0
    if architecture.layers > 1:
        stages = msgspec.structs.replace(layout, pipeline_stages=2)
        both = [context_balancing_traffic(Workload(architecture, recipe, stages), stage=stage) for stage in range(2)]
        assert sum(each.payload_bytes for each in both) == traffic.payload_bytes
