"""llm-analysis (Cheng Li) 0.2.2 and ours: parameters, flop, activations, state; docs/trust.md says who is right."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Position, Precision, Workload
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.flop import forward_flop, model_flop
from suite.predict.analytic.memory import zero_bytes_per_parameter
from suite.predict.analytic.parameters import parameter_count
from tests.predict.analytic.test_activations import SIXTEEN_BIT, gpt_shapes


def analysis(a: Architecture, *, tensor_parallel: int = 1, data_parallel: int = 1) -> Any:
    """Theirs, of a model of these sizes; the accelerator's numbers have no part in what is compared."""
    model = ModelConfig(
        name="compared",
        num_layers=a.layers,
        n_head=a.heads,
        num_key_value_heads=a.kv_heads,
        hidden_dim=a.hidden,
        ffn_embed_dim=a.ffn_hidden,
        expansion_ratio=Fraction(a.ffn_hidden, a.hidden),
        vocab_size=a.padded_vocabulary,
        max_seq_len=a.sequence,
    )
    gpu = GPUConfig("any", 80, 2000, 300, 0, 312)
    return LLMAnalysis(
        model,
        gpu,
        parallelism_config=ParallelismConfig(tp_size=tensor_parallel, dp_size=data_parallel),
        flops_efficiency=0.5,
    )


@given(gpt_shapes())
def test_it_leaves_biases_position_vectors_and_a_norm_of_the_embedding_out(a: Architecture) -> None:
    of_products = a.layers * (3 * a.hidden + a.hidden + a.ffn_hidden + a.hidden)
    of_norms = a.layers * 2 * a.hidden + a.hidden
    positions = a.sequence * a.hidden if a.position is Position.LEARNED else 0
    norm = 2 * a.hidden if a.embedding_norm else 0
    assert parameter_count(a) - analysis(a).get_num_params_total() == of_products + of_norms + positions + norm


@given(gpt_shapes(), st.integers(1, 8))
def test_its_flop_are_ours_where_the_feed_forward_part_is_four_times_as_wide(a: Architecture, samples: int) -> None:
    theirs = analysis(a)
    forward = theirs.get_num_flops_fwd_total(samples, a.sequence)
    assert forward == sum(forward_flop(a, samples=samples).values())
    assert forward + theirs.get_num_flops_bwd_total(samples, a.sequence) == model_flop(a, samples=samples)


@given(gpt_shapes(), st.integers(1, 8), st.integers(1, 100))
def test_its_flop_of_any_other_feed_forward_part_are_those_of_four_times_the_width(
    a: Architecture, samples: int, width: int
) -> None:
    wide = msgspec.structs.replace(a, ffn_hidden=width)
    tokens = samples * a.sequence
    theirs = analysis(wide).get_num_flops_fwd_total(samples, a.sequence)
    ours = sum(forward_flop(wide, samples=samples).values())
    assert ours - theirs == a.layers * (4 * tokens * a.hidden * width - 16 * tokens * a.hidden**2)


@given(gpt_shapes(tensor_parallel=4), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_its_activations_of_a_layer_lack_the_dropout_mask_after_the_feed_forward_part(
    a: Architecture, b: int, t: int
) -> None:
    layout = Layout(micro_batch=b, tensor_parallel=t, sequence_parallel=True)
    ours = sum(layer_activation_bytes(Workload(a, SIXTEEN_BIT, layout)).values())
    theirs = analysis(a, tensor_parallel=t).get_activation_memory_per_layer(
        b,
        a.sequence,
        is_inference=False,
        activation_recomputation=ActivationRecomputation.NONE,
        layernorm_dtype_bytes=2,
        flash_attn=False,
        softmax_dropout=True,
    )
    assert ours - theirs == pytest.approx(Fraction(a.sequence * b * a.hidden, t), rel=1e-12)


@given(gpt_shapes(), st.integers(1, 4096), st.sampled_from([0, 1, 2]))
def test_its_optimizer_and_gradients_are_ours_of_bf16(a: Architecture, ranks: int, stage: int) -> None:
    theirs = analysis(a, data_parallel=ranks)
    optimizer, gradients = theirs.get_memory_optimizer_state_and_gradient_per_layer(ds_zero=DSZeRO(stage))
    a_parameter = (optimizer + gradients) / theirs.get_num_params_per_layer()
    ours = zero_bytes_per_parameter(Precision.BF16, zero_stage=stage, ranks=ranks) - 2  # the 16-bit weights
    assert a_parameter == pytest.approx(ours, rel=1e-9)
