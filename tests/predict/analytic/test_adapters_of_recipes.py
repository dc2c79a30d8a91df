"""With adapters of a recipe frozen weights have no gradients, no optimizer state and no traffic."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import layout_mistakes, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import AdapterTargets, Workload
from reference_runs.stack import NO_KEEPING
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.adapters import adapter_parameters
from suite.predict.analytic.flop import model_flop
from suite.predict.analytic.flop_conventions import frozen_flop, needed_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.parameters import parameter_counts, rank_parameters, trained_parameters
from suite.predict.analytic.stage_memory import memory_by_stage
from suite.predict.analytic.traffic import step_traffic
from suite.predict.recorded_run.prediction import prediction_without_layout

RUN = reference_run("llama2-70b")
ARCHITECTURE = RUN.architecture
LAYOUT = Layout(data_parallel=4, tensor_parallel=2, pipeline_stages=4, micro_batch=1, zero_stage=1)


def workload(targets: AdapterTargets | None, *, rank: int = 16) -> Workload:
    adapters = {} if targets is None else {"adapter_rank": rank, "adapter_targets": targets}
    return Workload(ARCHITECTURE, msgspec.structs.replace(RUN.recipe, **adapters), LAYOUT)


def test_ranks_share_the_adapters_that_peft_counts() -> None:
    """peft prints 207,093,760 trainable parameters of LLaMA-2 70B with rank 16 on all linear layers."""
    stages = range(LAYOUT.pipeline_stages)
    linear = sum(trained_parameters(workload(AdapterTargets.LINEAR), stage=stage).all for stage in stages)
    assert 2 * linear == adapter_parameters(ARCHITECTURE, rank=16) == 207_093_760
    attention = sum(trained_parameters(workload(AdapterTargets.ATTENTION), stage=stage).all for stage in stages)
    assert 2 * attention == 80 * 16 * (2 * (8192 + 8192) + 2 * (8192 + 1024))
    whole = sum(trained_parameters(workload(None), stage=stage).all for stage in stages)
    assert whole == sum(rank_parameters(ARCHITECTURE, LAYOUT, stage=stage).all for stage in stages)


def test_frozen_weights_take_two_thirds_of_the_flop_but_for_attention() -> None:
    recipe = workload(AdapterTargets.LINEAR).recipe
    counts = parameter_counts(ARCHITECTURE)
    norms = (2 * ARCHITECTURE.layers + 1) * ARCHITECTURE.hidden
    multiplied = sum(counts.values()) - counts["embedding"] - norms
    assert frozen_flop(ARCHITECTURE, recipe, samples=1) == 2 * multiplied * ARCHITECTURE.sequence
    assert frozen_flop(ARCHITECTURE, RUN.recipe, samples=1) == 0
    assert frozen_flop(ARCHITECTURE, recipe, samples=3) < model_flop(ARCHITECTURE, samples=3) / 3


def test_state_and_traffic_are_those_of_adapters_beside_16_bit_weights() -> None:
    adapted, whole = workload(AdapterTargets.ATTENTION), workload(None)
    memory = memory_by_stage(adapted, micro_batches=4, keeping=NO_KEEPING)[0]
    trained = trained_parameters(adapted, stage=0).all
    assert memory.weights == 2 * (rank_parameters(ARCHITECTURE, LAYOUT, stage=0).all + trained)
    assert memory.gradients == 4 * trained
    assert memory.moments + memory.master_weights == 12 * trained / LAYOUT.data_parallel
    of_replicas = [
        sum(entry.payload_bytes for entry in step_traffic(each, stage=0, micro_batches=4) if entry.axis == "dp")
        for each in (adapted, whole)
    ]
    assert of_replicas[0] / of_replicas[1] == pytest.approx(
        trained / rank_parameters(ARCHITECTURE, LAYOUT, stage=0).all, rel=1e-3
    )


def test_inputs_that_only_frozen_weights_read_are_not_kept() -> None:
    linear, attention = (
        layer_activation_bytes(workload(targets)) for targets in (AdapterTargets.LINEAR, AdapterTargets.ATTENTION)
    )
    assert linear.keys() - attention.keys() == {"feed-forward input", "contraction input"}
    assert linear == layer_activation_bytes(workload(None))


def test_products_of_adapters_pass_through_their_rank() -> None:
    products = layer_products(workload(AdapterTargets.ATTENTION, rank=8))
    tokens, inputs, outputs = ARCHITECTURE.sequence, 4 * 8192 // 2, (2 * 8192 + 2 * 1024) // 2
    assert products["adapter inputs"] == (1, tokens, 8, inputs)
    assert products["adapter outputs"] == (1, tokens, outputs, 8)


def test_what_is_not_described_is_one_line_that_names_the_trace() -> None:
    sharded = workload(AdapterTargets.LINEAR)._replace(layout=Layout(zero_stage=3, data_parallel=8))
    assert any("--lora" in str(each) for each in layout_mistakes(sharded, "here"))
    with pytest.raises(InputError, match="recipe.adapter_targets: missing, needed with adapters"):
        msgspec.structs.replace(RUN.recipe, adapter_rank=8).check("here")


def test_a_search_counts_the_mfu_of_adapters_as_a_prediction_does() -> None:
    run = reference_run("mlperf-llama2-70b-lora")
    needed = prediction_without_layout(run.architecture, run.recipe).model_flop
    assert needed_flop(run.architecture, run.recipe, convention=None) == needed
    assert needed < 0.75 * model_flop(run.architecture, samples=run.recipe.global_batch)
