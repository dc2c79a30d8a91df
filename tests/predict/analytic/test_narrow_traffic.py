"""Data-parallel messages in fewer bytes than the tensors have: gradients in 16 bits, new weights in 8."""

from __future__ import annotations

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Precision, ProductFormat, Workload
from reference_runs.stack import Stack, stack
from suite.predict.analytic.machine import PLAIN
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.narrow_traffic import gathers_share, reductions_share, weight_casts_share
from suite.predict.analytic.parameters import rank_parameters
from tests.support.machines import Case, cases

GPT3 = reference_run("gpt3-175b")
OF_WHOLE_TENSORS = (ProductFormat.FP8_DELAYED, ProductFormat.FP8_CURRENT)


def casting(**switches: object) -> Stack:
    return msgspec.structs.replace(PLAIN, gathers_in_format=True, **switches)


def in_format(product_format: ProductFormat, layout: Layout) -> Workload:
    recipe = msgspec.structs.replace(GPT3.recipe, precision=Precision.BF16, product_format=product_format)
    return Workload(GPT3.architecture, recipe, layout)


@pytest.mark.parametrize("stage", [0, 3, 7])
def test_layers_are_gathered_in_8_bits_and_all_else_in_16(stage: int) -> None:
    layout = Layout(data_parallel=16, tensor_parallel=4, pipeline_stages=8, zero_stage=1, reduce_scatter=True)
    workload = in_format(ProductFormat.FP8_DELAYED, layout)
    h = GPT3.architecture.hidden
    matrices = GPT3.architecture.layers // 8 * 12 * h * h // 4  # of a layer 12 h^2, shared out over 4 ranks
    parameters = rank_parameters(GPT3.architecture, layout, stage=stage).all
    expected = (matrices + 2 * (parameters - matrices)) / (2 * parameters)
    assert gathers_share(workload, casting(), stage=stage, axis="dp") == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(0.5, abs=0.02)


@given(cases(), st.sampled_from(ProductFormat), st.booleans())
def test_only_a_cast_with_one_scale_a_tensor_makes_gathers_narrower(
    case: Case, product_format: ProductFormat, casts: bool
) -> None:
    recipe = msgspec.structs.replace(case.recipe, product_format=product_format)
    workload = Workload(case.architecture, recipe, case.layout)
    switches = msgspec.structs.replace(PLAIN, gathers_in_format=casts)
    narrower = casts and product_format in OF_WHOLE_TENSORS and case.layout.zero_stage >= 1
    narrower = narrower and case.layout.sharding_ranks > 1
    narrow = 1 / WEIGHT_ELEMENT_BYTES[recipe.precision]
    for stage in range(case.layout.pipeline_stages):
        share = gathers_share(workload, switches, stage=stage, axis="dp")
        assert narrow <= share <= 1
        assert narrower or share == 1
    assert gathers_share(workload, switches, stage=0, axis="edp") == (narrow if narrower else 1)


def test_weights_that_nobody_gathers_are_cast_from_16_bits() -> None:
    one_replica = Layout(tensor_parallel=8, pipeline_stages=2, zero_stage=2)
    for layout in (Layout(data_parallel=2), Layout(zero_stage=1), one_replica):
        workload = in_format(ProductFormat.FP8_DELAYED, layout)
        assert weight_casts_share(workload, casting()) == 1
        assert gathers_share(workload, casting(), stage=0, axis="dp") == 1
        assert gathers_share(workload, casting(), stage=0, axis="edp") == 1


def test_weights_that_arrive_cast_are_only_transposed() -> None:
    """2 bytes an element in place of 4: read and written in 8 bits, not read in 16 and written twice."""

    def share(ranks: object) -> object:
        layout = msgspec.structs.replace(Layout(zero_stage=1), data_parallel=ranks)
        return weight_casts_share(in_format(ProductFormat.FP8_DELAYED, layout), casting())

    each = [share(ranks) for ranks in (1, 2, 16)]
    assert numpy.asarray(share(numpy.array([1, 2, 16]))).tolist() == each == [1, 0.5, 0.5]
    gathered = in_format(ProductFormat.FP8_DELAYED, Layout(data_parallel=2, zero_stage=1))
    assert weight_casts_share(gathered, PLAIN) == 1


def test_weights_that_each_pass_gathers_are_transposed_for_one_of_two() -> None:
    """Current scales are found by reading twice: 2 of 6 bytes an element, in ZeRO-3's backward passes alone."""
    once = in_format(ProductFormat.FP8_CURRENT, Layout(data_parallel=8, zero_stage=1))
    assert weight_casts_share(once, casting()) == pytest.approx(1 / 3, rel=1e-12)
    each_pass = in_format(ProductFormat.FP8_CURRENT, Layout(data_parallel=8, zero_stage=3))
    assert weight_casts_share(each_pass, casting()) == pytest.approx(1 / 6, rel=1e-12)
    kept = in_format(ProductFormat.FP8_CURRENT, Layout(data_parallel=8, zero_stage=3, reshard_after_forward=False))
    assert weight_casts_share(kept, casting()) == pytest.approx(1 / 3, rel=1e-12)


def test_gradients_are_reduced_as_narrow_as_weights_where_the_stack_says_so() -> None:
    for precision in Precision:
        recipe = msgspec.structs.replace(GPT3.recipe, precision=precision)
        workload = Workload(GPT3.architecture, recipe, Layout())
        expected = WEIGHT_ELEMENT_BYTES[precision] / BYTES_PER_PARAMETER[precision].gradients
        assert reductions_share(workload, casting(reduces_in_16_bit=True), stage=0, axis="dp") == expected
        assert reductions_share(workload, casting(), stage=0, axis="dp") == 1


def test_nemo_casts_before_it_gathers_from_its_recipes_of_2_0_on_and_megatron_lm_does_not() -> None:
    expected = {"NeMo 23.09": False, "NeMo 24.07": False, "NeMo 24.09": True, "NeMo": True, "Megatron-Bridge": True}
    expected |= dict.fromkeys(("Megatron-Core", "Megatron-LM 2024", "Transformer Engine"), False)
    assert {name: stack(name).switches.gathers_in_format for name in expected} == expected
