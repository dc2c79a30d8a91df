"""Megatron-LM's report of theoretical memory, as NVIDIA's Megatron Bridge ships it, and ours.

docs/trust.md says where they disagree, who is right, and why.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import Activation, Architecture, Norm, Position, Precision, Workload
from suite.predict.analytic.memory import zero_bytes_per_parameter
from suite.predict.analytic.parameters import parameter_count, rank_parameters
from suite.predict.analytic.stage_memory import stage_memory
from tests.end_to_end.opinions.installed import function_of
from tests.predict.analytic.test_activations import SIXTEEN_BIT, gpt_shapes

REPORT = ("megatron.bridge", "training/utils/theoretical_memory_utils.py")
BYTES = 18  # of a parameter, without the distributed optimizer

vocabulary = function_of(*REPORT, "_get_vocab_size")
state_bytes = function_of(*REPORT, "compute_weight_and_optimizer_memory", F=functional, _get_vocab_size=vocabulary)
activation_bytes = function_of(*REPORT, "compute_activation_memory", math=math, _get_vocab_size=vocabulary)


def configured(a: Architecture, layout: Layout, *, sharded: bool = False, ranks: int = 1) -> Any:
    """Their configuration of a model and its layout."""
    model = SimpleNamespace(
        num_layers=a.layers,
        hidden_size=a.hidden,
        kv_channels=a.head_dim,
        num_attention_heads=a.heads,
        num_query_groups=a.kv_heads,
        ffn_hidden_size=a.ffn_hidden,
        gated_linear_unit=a.activation.gated,
        activation_func=functional.silu if a.activation is Activation.SWIGLU else functional.gelu,
        num_moe_experts=None,
        vocab_size=a.padded_vocabulary,
        should_pad_vocab=False,
        share_embeddings_and_output_weights=a.tied_embeddings,
        seq_length=a.sequence,
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_stages,
        virtual_pipeline_model_parallel_size=layout.virtual_stages if layout.virtual_stages > 1 else None,
    )
    return SimpleNamespace(
        model=model,
        train=SimpleNamespace(micro_batch_size=layout.micro_batch),
        optimizer=SimpleNamespace(use_distributed_optimizer=sharded),
        data_parallel_size=ranks,
    )


def parameters(a: Architecture, layout: Layout) -> int:
    """Number of parameters of their most loaded rank."""
    return round(state_bytes(configured(a, layout)) / BYTES)


@st.composite
def pipelines(draw: st.DrawFn, *, virtual: int = 1) -> tuple[Architecture, Layout]:
    """A GPT of whole layers on each stage, with tensor and sequence parallelism and selective recomputation."""
    t, p = draw(st.sampled_from([1, 2, 4])), draw(st.integers(2, 4))
    shape = draw(gpt_shapes(tensor_parallel=4))
    layout = Layout(
        micro_batch=draw(st.integers(1, 8)),
        tensor_parallel=t,
        pipeline_stages=p,
        virtual_stages=virtual,
        schedule=Schedule.ONE_F_ONE_B,
        sequence_parallel=True,
        recomputation=Recomputation.SELECTIVE,
    )
    return msgspec.structs.replace(shape, layers=p * virtual * draw(st.integers(1, 3))), layout


@given(gpt_shapes())
def test_it_leaves_biases_of_products_position_vectors_and_a_norm_of_the_embedding_out(a: Architecture) -> None:
    biases = a.layers * (3 * a.hidden + a.hidden + a.ffn_hidden + a.hidden)
    positions = a.sequence * a.hidden if a.position is Position.LEARNED else 0
    norm = 2 * a.hidden if a.embedding_norm else 0
    assert parameter_count(a) - parameters(a, Layout()) == biases + positions + norm


def test_it_counts_a_bias_of_each_rms_norm_of_llama_2_70b() -> None:
    a = reference_run("llama2-70b").architecture
    assert a.norm is Norm.PRE_RMS_NORM
    assert parameters(a, Layout()) - parameter_count(a) == (2 * a.layers + 1) * a.hidden


@given(gpt_shapes(), st.integers(1, 4096))
def test_its_bytes_of_state_are_ours_of_bf16(a: Architecture, ranks: int) -> None:
    for stage, sharded in ((0, False), (1, True)):
        ours = zero_bytes_per_parameter(Precision.BF16, zero_stage=stage, ranks=ranks)
        theirs = state_bytes(configured(a, Layout(), sharded=sharded, ranks=ranks))
        assert theirs == pytest.approx(ours * parameters(a, Layout()), rel=1e-12)


@given(pipelines())
def test_of_the_first_stage_it_shares_what_is_whole_on_every_rank_and_adds_a_share_of_the_last_norm(
    pipeline: tuple[Architecture, Layout],
) -> None:
    a, layout = pipeline
    t, p, layers = layout.tensor_parallel, layout.pipeline_stages, a.layers // layout.pipeline_stages
    biases = layers * (Fraction(3 * a.hidden + a.ffn_hidden, t) + 2 * a.hidden)  # those of sums are whole
    norms = layers * 4 * a.hidden * (1 - Fraction(1, t))
    outer = 2 * a.hidden * a.embedding_norm + a.sequence * a.hidden * (a.position is Position.LEARNED)
    ours = rank_parameters(a, layout, stage=0)
    theirs = state_bytes(configured(a, layout)) / BYTES
    last_norm = Fraction(2 * a.hidden, p * t)
    assert ours.matrices + ours.vectors - theirs == pytest.approx(float(biases + norms + outer - last_norm), abs=1e-6)


@given(gpt_shapes(tensor_parallel=4), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_its_activations_are_ours_with_a_share_of_the_ids_and_without_a_norm_of_the_embedding(
    a: Architecture, b: int, t: int
) -> None:
    layout = Layout(micro_batch=b, tensor_parallel=t, sequence_parallel=True, recomputation=Recomputation.SELECTIVE)
    memory = stage_memory(Workload(a, SIXTEEN_BIT, layout), stage=0, micro_batches=1)
    ids, norm = 8 * a.sequence * b / t, 2 * a.sequence * b * a.hidden * a.embedding_norm / t
    theirs = activation_bytes(configured(a, layout), 1)
    assert memory.activations + memory.logits - theirs == pytest.approx(norm - ids, rel=1e-9)


@given(pipelines(), st.integers(1, 9))
def test_in_a_pipeline_its_first_stage_has_as_many_micro_batches_in_flight(
    pipeline: tuple[Architecture, Layout], micro_batches: int
) -> None:
    a, layout = pipeline
    _activations_agree(a, layout, micro_batches, in_flight=min(micro_batches, layout.pipeline_stages))


@given(pipelines(virtual=3))
def test_interleaved_stages_keep_more_by_its_factor(pipeline: tuple[Architecture, Layout]) -> None:
    """1 + (p - 1) / (p v) of p micro-batches."""
    a, layout = pipeline
    p, v = layout.pipeline_stages, layout.virtual_stages
    _activations_agree(a, layout, 10 * p, in_flight=p + (p - 1) / v)


def _activations_agree(a: Architecture, layout: Layout, micro_batches: int, *, in_flight: float) -> None:
    memory = stage_memory(Workload(a, SIXTEEN_BIT, layout), stage=0, micro_batches=micro_batches)
    theirs = activation_bytes(configured(a, layout), micro_batches)
    share = in_flight * a.sequence * layout.micro_batch / layout.tensor_parallel
    assert memory.activations - theirs == pytest.approx(share * (2 * a.hidden * a.embedding_norm - 8), rel=1e-9)
