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
from suite.predict.analytic.memory import bytes_per_parameter, shard_elements, state_bytes, zero_bytes_per_parameter
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
