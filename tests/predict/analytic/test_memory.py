"""State of a model and its optimizer: tensors on the meta device, the textbooks' bytes a parameter, worked examples."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Moments, Precision, Recipe
from suite.execute.model.decoder import Decoder
from suite.predict.analytic.activations import approximate_activation_bytes, forty_s_h_l_bytes
from suite.predict.analytic.memory import (
    bytes_per_parameter,
    shard_elements,
    state_bytes,
    zero_bytes_per_parameter,
    zero_saving,
)
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight
from tests.support.state_bytes import PRECISE, state_of
from tests.support.strategies import BLOOM, architectures, recipes


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_shards_are_the_shortest_equal_runs_that_cover_the_elements(elements: int, shards: int) -> None:
    each = shard_elements(elements, shards)
    assert shards * each >= elements
    assert elements == 0 or shards * (each - 1) < elements


def test_blooms_checkpoint_is_its_weights_and_optimizer_state() -> None:
    memory = state_of(BLOOM.architecture, BLOOM.recipe, Layout(data_parallel=1))
    written = memory.weights + memory.gradient_copy + memory.master_weights + memory.moments
    # the chronicles print a checkpoint of 2.3 TB, to 0.05 TB, which in their TB = TiB or 10^12 spans 2.25 to 2.59 e12
    assert 2.25e12 <= written <= 2.35 * 2**40
    assert written == 14 * 176_247_271_424


@given(architectures(), recipes(), st.sampled_from(Precision))
def test_state_equals_the_tensors_of_a_model_and_its_adamw_on_the_meta_device(
    architecture: Architecture, recipe: Recipe, precision: Precision
) -> None:
    recipe = msgspec.structs.replace(recipe, precision=precision)
    kept = PRECISE[precision]
    with torch.device("meta"):
        model = Decoder(architecture, recipe).to(kept.weights)
    weights = list(model.parameters())
    gradients = [torch.empty_like(weight, dtype=kept.gradients) for weight in weights]
    updated = [torch.nn.Parameter(torch.empty_like(weight, dtype=kept.moments)) for weight in weights]
    for parameter in updated:
        parameter.grad = torch.empty_like(parameter)
    adamw = torch.optim.AdamW(updated, foreach=False)
    adamw.step()
    moments = [state[name] for state in adamw.state.values() for name in ("exp_avg", "exp_avg_sq")]
    memory = state_of(architecture, recipe, Layout())
    assert memory.weights == sum(tensor.nbytes for tensor in weights)
    assert memory.gradients == sum(tensor.nbytes for tensor in gradients)
    assert memory.moments == sum(tensor.nbytes for tensor in moments)
    assert memory.master_weights == sum(tensor.nbytes for tensor in updated) * kept.master
    assert memory.gradient_copy == sum(tensor.nbytes for tensor in updated) * kept.gradient_copy


def test_bytes_a_parameter_by_precision() -> None:
    expected = {"fp32": 16, "bf16": 18, "fp16": 16, "fp16-gradient-copy": 20, "fp16-no-master": 12, "bf16-pure": 8}
    assert {precision.value: bytes_per_parameter(precision) for precision in Precision} == expected


@given(st.integers(1, 10**6))
def test_zero_keeps_the_textbook_bytes_a_parameter(n: int) -> None:
    def each(precision: Precision) -> list[float]:
        return [zero_bytes_per_parameter(precision, zero_stage=stage, ranks=n) for stage in range(4)]

    # sums of at most three quotients in double precision
    assert each(Precision.FP16) == pytest.approx([16, 4 + 12 / n, 2 + 14 / n, 16 / n], rel=1e-15)
    assert each(Precision.BF16) == pytest.approx([18, 6 + 12 / n, 2 + 16 / n, 18 / n], rel=1e-15)
    assert each(Precision.FP32) == pytest.approx([16, 8 + 8 / n, 4 + 12 / n, 16 / n], rel=1e-15)


def test_zero_saves_4_8_and_64_times_over_64_ranks() -> None:
    savings = [zero_saving(Precision.FP16, zero_stage=stage, ranks=64) for stage in (1, 2, 3)]
    # worked example, printed to three decimals; its 4 and 8 are the limits
    assert savings == pytest.approx([3.821, 7.211, 64], abs=5e-4)
    assert [zero_saving(Precision.FP16, zero_stage=stage, ranks=10**12) for stage in (1, 2)] == pytest.approx([4, 8])


@given(precision=st.sampled_from(Precision), parameters=st.integers(0, 10**12), shards=st.integers(1, 4096))
def test_narrow_moments_alone_take_less(precision: Precision, parameters: int, shards: int) -> None:
    share = -(-parameters // shards)
    wide, narrow, least, none = (
        state_bytes(parameters, precision, optimizer=share, moments=moments) for moments in Moments
    )
    assert wide == state_bytes(parameters, precision, optimizer=share)
    elements = torch.empty(1, dtype=torch.bfloat16).element_size()
    assert narrow.moments == 2 * elements * share
    assert narrow._replace(moments=wide.moments) == wide
    assert least == wide._replace(moments=2 * torch.empty(1, dtype=torch.float8_e4m3fn).element_size() * share)
    assert none == wide._replace(moments=0)


def test_worked_examples_of_state() -> None:
    """Sums that published introductions print for models of 13, 70 and 175 billion parameters."""
    assert state_bytes(13e9, Precision.BF16).all == 234e9
    parts = state_bytes(70e9, Precision.FP16)
    assert (parts.weights, parts.gradients, parts.master_weights + parts.moments) == (140e9, 140e9, 840e9)
    fp32 = state_bytes(175e9, Precision.FP32)
    assert (fp32.weights, fp32.weights + fp32.moments, fp32.all) == (700e9, 2100e9, 2.8e12)


def test_worked_examples_of_13b_in_a_pipeline() -> None:
    """13 billion parameters in bf16 and 34 GB of activations, one sequence of 4096: 1F1B's stages one by one."""
    activations = 34e9
    assert forty_s_h_l_bytes(sequence=4096, hidden=5120, layers=40) == pytest.approx(activations, rel=0.014)

    def stages(pp: int, zero: int) -> list[float]:
        in_flight = [micro_batches_in_flight(Layout(pipeline_stages=pp), micro_batches=64, stage=k) for k in range(pp)]
        state = state_bytes(13e9 / pp, Precision.BF16, optimizer=13e9 / (pp * zero)).all
        return [state + count * activations / pp for count in in_flight]

    assert stages(4, 1) == [92.5e9, 84.0e9, 75.5e9, 67.0e9]
    assert stages(4, 2) == [73e9, 64.5e9, 56e9, 47.5e9]
    assert stages(8, 1)[0] == 63.25e9


def test_worked_example_of_llama_2_70b() -> None:
    activations = approximate_activation_bytes(sequence=4096, micro_batch=8, hidden=8192, layers=80)
    total = state_bytes(70e9, Precision.FP16).all + activations
    # printed as 1850 GB from parts rounded to 10 GB
    assert total == pytest.approx(1850e9, abs=1e9)
    assert -(-total // 80e9) == 24
    assert -(-total // 24e9) == 78
