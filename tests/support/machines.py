"""Random valid machines, and runs small enough that every stage can be walked."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule, StageAssignment
from reference_runs.run import Activation, Architecture, Mask, Position, Precision, Recipe, Residual
from suite.predict.analytic.gemm import EfficiencyTable, IntensityTable
from suite.predict.analytic.machine import Machine
from tests.support.strategies import BLOOM, shard_groups


def flat_efficiency(efficiency: float) -> EfficiencyTable:
    """The table of one efficiency for every shape."""
    return EfficiencyTable((1.0,), (1.0,), (1.0,), (((efficiency,),),))


A100 = Machine(
    peak_flop_per_second=312e12,
    memory_bytes=80 * 2**30,
    memory_bytes_per_second=2039e9,
    memory_efficiency=0.8,
    matrix_efficiency=flat_efficiency(0.75),
    fused_attention_efficiency=0.5,
    link_bytes_per_second=300e9,
    link_efficiency=0.8,
    link_latency_seconds=3e-6,
    network_bytes_per_second=50e9,  # BLOOM's four interfaces of 100 Gbit/s
    network_efficiency=0.8,
    network_latency_seconds=1e-5,
    accelerators_per_node=8,
    watts=400,
    power_share=0.85,
    overlap_share=0.5,
)


def at_peak(machine: Machine) -> Machine:
    """The machine whose arithmetic reaches its peak and whose memories and links take no time."""
    return msgspec.structs.replace(
        machine,
        matrix_efficiency=flat_efficiency(1.0),
        fused_attention_efficiency=1.0,
        memory_bytes_per_second=math.inf,
        link_bytes_per_second=math.inf,
        network_bytes_per_second=math.inf,
        link_latency_seconds=0.0,
        network_latency_seconds=0.0,
    )


def shares() -> st.SearchStrategy[float]:
    return st.floats(0.05, 1.0)


@st.composite
def increasing(draw: st.DrawFn, most: int = 4) -> tuple[float, ...]:
    """Points of a table; at least 1 % apart, so that a cell's width in log2 has digits left."""
    point = draw(st.floats(1.0, 1e4))
    points = [point]
    for _ in range(draw(st.integers(0, most - 1))):
        points.append(points[-1] * draw(st.floats(1.01, 50.0)))
    return tuple(points)


@st.composite
def shape_tables(draw: st.DrawFn) -> EfficiencyTable:
    rows, columns, depths = draw(increasing()), draw(increasing()), draw(increasing())
    return EfficiencyTable(
        rows, columns, depths, tuple(tuple(tuple(draw(shares()) for _ in depths) for _ in columns) for _ in rows)
    )


@st.composite
def intensity_tables(draw: st.DrawFn) -> IntensityTable:
    points = draw(increasing())
    return IntensityTable(points, tuple(draw(shares()) for _ in points))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Anything from a pocket calculator's arithmetic to a thousand times today's."""
    bandwidths = st.floats(1e6, 1e16)
    latencies = st.sampled_from([0.0, 1e-9, 1e-6, 1e-3])
    return Machine(
        peak_flop_per_second=draw(st.floats(1e6, 1e18)),
        memory_bytes=draw(st.floats(1e9, 1e12)),
        memory_bytes_per_second=draw(bandwidths),
        memory_efficiency=draw(shares()),
        matrix_efficiency=draw(shares().map(flat_efficiency) | shape_tables() | intensity_tables()),
        fused_attention_efficiency=draw(shares()),
        link_bytes_per_second=draw(bandwidths),
        link_efficiency=draw(shares()),
        link_latency_seconds=draw(latencies),
        network_bytes_per_second=draw(bandwidths),
        network_efficiency=draw(shares()),
        network_latency_seconds=draw(latencies),
        accelerators_per_node=draw(st.sampled_from([1, 2, 4, 8, 16])),
        watts=draw(st.none() | st.floats(1, 2000)),
        power_share=draw(shares()),
        overlap_share=draw(st.sampled_from([0.0, 1.0]) | shares()),
    )


class Case(NamedTuple):
    """A run that its layout divides evenly."""

    architecture: Architecture
    recipe: Recipe
    layout: Layout
    micro_batches: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tensor, context = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    stages, virtual = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (5, 1), (2, 2), (4, 3)]))
    layers = stages * virtual * draw(st.integers(1, 3)) if virtual > 1 else stages + draw(st.integers(0, 6))
    kv_heads, head_dim = tensor * draw(st.integers(1, 2)), draw(st.sampled_from([2, 8]))
    heads = kv_heads * draw(st.integers(1, 2))
    position = draw(st.sampled_from(Position))
    padded = 4 * draw(st.integers(1, 300))
    fused = draw(st.booleans())
    sequence = 8 * draw(st.integers(1, 16))
    architecture = msgspec.structs.replace(
        BLOOM.architecture,
        layers=layers,
        hidden=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        ffn_hidden=4 * draw(st.integers(1, 64)),
        vocabulary=padded,
        padded_vocabulary=padded,
        sequence=sequence,
        position=position,
        rotary_dim=2 if position is Position.ROTARY else None,
        activation=draw(st.sampled_from(Activation)),
        residual=draw(st.sampled_from(Residual)),
        mask=draw(st.sampled_from([Mask.CAUSAL, Mask.PREFIX])),
        biases=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
    )
    micro_batches = stages * draw(st.integers(1, 5))
    in_v = [Schedule.ZBV, Schedule.DUALPIPEV] if virtual == 2 and micro_batches >= 2 * stages else []
    schedules = [each for each in Schedule if not each.shape_of_v] if virtual == 1 else [Schedule.ONE_F_ONE_B, *in_v]
    replicas, zero_stage = draw(st.sampled_from([1, 2, 3, 16])), draw(st.integers(0, 3))
    groups = [None, *shard_groups(replicas, context)]
    described = [each for each in Recomputation if fused or each is not Recomputation.SELECTIVE_OP]
    layout = Layout(
        micro_batch=draw(st.integers(1, 3)),
        data_parallel=replicas,
        tensor_parallel=tensor,
        pipeline_stages=stages,
        context_parallel=context,
        sequence_parallel=draw(st.booleans()),
        zero_stage=zero_stage,
        shard_ranks=draw(st.sampled_from(groups)) if zero_stage >= 2 else None,
        reduce_scatter=draw(st.booleans()),
        virtual_stages=virtual,
        schedule=draw(st.sampled_from(schedules)),
        recomputation=draw(st.sampled_from(described)),
        bucket_bytes=10**6,
        rank_order=draw(st.sampled_from(["tp-cp-dp-pp", "pp-dp-cp-tp", "tp-pp-dp-cp"])),
        stage_assignment=draw(st.sampled_from(StageAssignment)) if virtual == 1 else StageAssignment.LAYERS,
        fused_attention=fused,
    )
    dropout = st.sampled_from([0.0, 0.1])
    recipe = msgspec.structs.replace(
        BLOOM.recipe,
        global_batch=layout.micro_batch * layout.data_parallel * micro_batches,
        precision=draw(st.sampled_from(Precision)),
        embedding_dropout=draw(dropout),
        hidden_dropout=draw(dropout),
        attention_dropout=draw(dropout),
    )
    return Case(architecture, recipe, layout, micro_batches)
