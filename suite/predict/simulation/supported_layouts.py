"""Which layouts the simulation of a step describes."""

from __future__ import annotations

from reference_runs.layout import Layout, Offload, Recomputation
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Mask, Position
from suite.predict.analytic.pipeline_schedule import NO_FLUSH


def describes_ranks(architecture: Architecture, layout: Layout) -> bool:
    """Whether `rank_figures` knows how this layout is executed.

    Not known: context parallelism, recomputation from a stage's input, fused attention with ALiBi or a prefix,
    offloading except of fully sharded state, schedules without flush, sharded gradients in a pipeline, messages and
    checkpoints in shares of the tensor-parallel ranks; a top-query layer apart from the head's chunk, which has its
    table.
    """
    several, stages = layout.tensor_parallel > 1, layout.pipeline_stages > 1
    unknown = (
        layout.context_parallel > 1,
        layout.recomputation is Recomputation.FROM_INPUT,
        layout.fused_attention and (architecture.mask is Mask.PREFIX or architecture.position is Position.ALIBI),
        layout.offload is Offload.OPTIMIZER or (layout.offload is Offload.STATE and layout.zero_stage < 2),
        stages and layout.schedule in NO_FLUSH,
        stages and layout.zero_stage >= 2,
        not stages and layout.virtual_stages > 1,
        stages and several and layout.scatter_gather,
        several and layout.partitioned_checkpoints,
        architecture.top_query_layer and not chunk_layers(architecture.layers, layout)[-1],
    )
    return not any(unknown)
