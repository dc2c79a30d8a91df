"""Random valid architectures, recipes and layouts, small enough to train."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import (
    Activation,
    Architecture,
    Balancing,
    Gate,
    Mask,
    Norm,
    Position,
    Precision,
    QueryKeyNorm,
    Recipe,
    Residual,
)
from suite.predict.analytic.parameters import ParameterTensor, chunk_tensors

BLOOM = reference_run("bloom-176b")


@st.composite
def architectures(draw: st.DrawFn, *, positions: Sequence[Position] = tuple(Position)) -> Architecture:
    """Shapes that can be executed here."""
    heads, head_dim = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 4, 8]))
    vocabulary = draw(st.integers(2, 40))
    position = draw(st.sampled_from([p for p in positions if p is not Position.ROTARY or head_dim > 1]))
    rotates = position is Position.ROTARY
    return Architecture(
        layers=draw(st.integers(1, 3)),
        hidden=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        kv_heads=heads,
        ffn_hidden=draw(st.integers(1, 24)),
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary + draw(st.integers(0, 7)),
        sequence=draw(st.integers(1, 9)),
        position=position,
        norm=Norm.PRE_LAYER_NORM,
        norm_epsilon=1e-5,
        embedding_norm=draw(st.booleans()),
        activation=draw(st.sampled_from([a for a in Activation if not a.gated])),
        residual=draw(st.sampled_from(Residual)),
        mask=Mask.CAUSAL,
        biases=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        extra_positions=draw(st.integers(0, 2)),
        rotary_dim=2 * draw(st.integers(1, head_dim // 2)) if rotates else None,
        rotary_base=draw(st.sampled_from([100.0, 10000.0])) if rotates else None,
    )


@st.composite
def described_architectures(draw: st.DrawFn, *, tensor_parallel: int = 1) -> Architecture:
    """Any shape that a run file can describe, divisible by `tensor_parallel`."""
    t = tensor_parallel
    kv_heads, group, head_dim = t * draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 4))
    heads = kv_heads * group
    vocabulary = t * draw(st.integers(2, 40))
    position = draw(st.sampled_from(Position))
    return Architecture(
        layers=draw(st.integers(1, 9)),
        hidden=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        ffn_hidden=t * draw(st.integers(1, 24)),
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary,
        sequence=t * draw(st.integers(1, 9)),
        position=position,
        norm=draw(st.sampled_from(Norm)),
        norm_epsilon=1e-5,
        embedding_norm=draw(st.booleans()),
        activation=draw(st.sampled_from(Activation)),
        residual=draw(st.sampled_from(Residual)),
        mask=draw(st.sampled_from([Mask.CAUSAL, Mask.PREFIX])),
        biases=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        extra_positions=draw(st.integers(0, 2)),
        rotary_dim=head_dim if position is Position.ROTARY else None,
        rotary_base=10000.0 if position is Position.ROTARY else None,
        top_query_layer=draw(st.booleans()),
    )


@st.composite
def varied_architectures(draw: st.DrawFn, *, tensor_parallel: int = 1) -> Architecture:
    """As `described_architectures`, with what families of models vary besides: head size, biases, norms, windows."""
    base = draw(described_architectures(tensor_parallel=tensor_parallel))
    biases, gains = st.none() | st.booleans(), draw(st.booleans())
    parallel = base.residual is Residual.PARALLEL and base.norm not in (Norm.DEEP_NORM, Norm.OUTPUT_RMS_NORM)
    # a norm over whole projections cannot be split
    norms = [norm for norm in QueryKeyNorm if norm is not QueryKeyNorm.PROJECTION or tensor_parallel == 1]
    architecture = msgspec.structs.replace(
        base,
        hidden=draw(st.sampled_from([base.hidden, tensor_parallel * draw(st.integers(1, 40))])),
        attention_bias=draw(biases),
        projection_bias=draw(biases),
        feed_forward_bias=draw(biases),
        norm_bias=draw(biases) if gains and base.norm not in (Norm.PRE_RMS_NORM, Norm.OUTPUT_RMS_NORM) else None,
        head_bias=draw(st.booleans()),
        norm_gain=gains,
        shared_norm=parallel and draw(st.booleans()),
        query_key_norm=draw(st.sampled_from(norms)),
        scaled_embedding=draw(st.booleans()),
        sliding_window=draw(st.none() | st.integers(1, 12)) if base.mask is Mask.CAUSAL else None,
    )
    architecture.check("drawn")
    return architecture


@st.composite
def routed_architectures(draw: st.DrawFn, *, tensor_parallel: int = 1, expert_parallel: int = 1) -> Architecture:
    """Mixtures of experts over grouped or latent attention, divisible by both."""
    base = draw(varied_architectures(tensor_parallel=tensor_parallel))
    groups = draw(st.integers(1, 3))
    experts = expert_parallel * groups * draw(st.integers(1, 3))
    balancing = draw(st.sampled_from(Balancing))
    of_token = draw(st.integers(1, groups))
    latent = draw(st.booleans())
    architecture = msgspec.structs.replace(
        base,
        layers=draw(st.integers(2, 9)),
        top_query_layer=False,
        feed_forward_bias=False,
        experts=experts,
        experts_per_token=draw(st.integers(1, experts // groups * of_token)),
        expert_ffn_hidden=draw(st.none() | st.integers(1, 12).map(lambda width: width * tensor_parallel)),
        shared_experts=(shared := draw(st.integers(0, 2))),
        shared_gate=bool(shared) and draw(st.booleans()),
        dense_layers=draw(st.integers(0, 1)),
        gate=draw(st.sampled_from(Gate)),
        gate_scale=draw(st.none() | st.just(2.5)),
        balancing=balancing,
        auxiliary_loss_weight=0.01 if balancing is Balancing.AUXILIARY_LOSS else None,
        balancing_rate=0.001 if balancing is Balancing.BIAS else None,
        sequence_loss_weight=draw(st.sampled_from([None, 0.0001])),
        expert_groups=groups,
        groups_per_token=of_token,
    )
    if latent:
        architecture = msgspec.structs.replace(
            architecture,
            kv_heads=architecture.heads,
            head_dim=architecture.head_dim + 2,
            position=Position.ROTARY,
            rotary_dim=2,
            rotary_base=10000.0,
            query_rank=draw(st.none() | st.integers(1, 9)),
            key_value_rank=draw(st.integers(1, 9)),
            value_head_dim=draw(st.integers(1, 9)),
            attention_bias=False,
            projection_bias=False,
            query_key_norm=QueryKeyNorm.NONE,
        )
    architecture.check("drawn")
    return architecture


def dropouts() -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, 0.1, 0.5])


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """BLOOM's recipe with another batch, precision, decay, dropout and initialisation."""
    return msgspec.structs.replace(
        BLOOM.recipe,
        global_batch=draw(st.integers(1, 12)),
        precision=draw(st.sampled_from([Precision.FP32, Precision.BF16])),
        decay_of_vectors=draw(st.booleans()),
        init_std=draw(st.floats(0.01, 0.2)),
        residual_init_scaled=draw(st.booleans()),
        embedding_dropout=draw(dropouts()),
        hidden_dropout=draw(dropouts()),
        attention_dropout=draw(dropouts()),
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout that the command line's grammar can write."""
    counts = st.integers(1, 64)
    pipeline_stages, zero_stage = draw(counts), draw(st.integers(0, 3))
    return Layout(
        micro_batch=draw(counts),
        checkpoint_layers=draw(counts),
        fused_attention=draw(st.booleans()),
        data_parallel=draw(counts),
        tensor_parallel=draw(counts),
        pipeline_stages=pipeline_stages,
        context_parallel=draw(counts),
        sequence_parallel=draw(st.booleans()),
        zero_stage=zero_stage,
        # the text says how gradients are reduced only where there is a choice
        reduce_scatter=zero_stage == 1 and draw(st.booleans()),
        shard_ranks=draw(st.none() | counts),
        virtual_stages=draw(counts),
        # the text of a layout names the schedule only where there are stages to order
        schedule=draw(st.sampled_from(Schedule)) if pipeline_stages > 1 else Schedule.ONE_F_ONE_B,
        recomputation=draw(st.sampled_from(Recomputation)),
        accumulation=draw(st.none() | counts),
        bucket_bytes=draw(st.just(Layout().bucket_bytes) | st.integers(1, 2000).map(lambda number: number * 10**6)),
    )


def shard_groups(data_parallel: int, context_parallel: int = 1) -> list[int]:
    """Every number of ranks that a group of hybrid sharding may have."""
    samples = [number for number in range(1, data_parallel + 1) if data_parallel % number == 0]
    return [context_parallel * number for number in samples if context_parallel * number > 1]


def data_parallel_layouts(most_ranks: int = 16) -> st.SearchStrategy[Layout]:
    """Data parallelism alone, optimizer state whole or sharded, buckets that small models fill."""
    return st.builds(
        Layout,
        data_parallel=st.integers(1, most_ranks),
        zero_stage=st.integers(0, 1),
        bucket_bytes=st.integers(1, 20_000),
    )


def parameter_tensors(architecture: Architecture) -> list[ParameterTensor]:
    """Every parameter tensor in the order in which the forward pass reads it first; tied tensors appear once."""
    return chunk_tensors(architecture, Layout(), chunk=0)
