"""Which layouts are executed, and which of the others the simulation of a step describes all the same."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import CORE_ATTENTION, Offload, Recomputation, stages_word
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Mask, Position, Workload
from suite.predict.analytic.pipeline_schedule import halves_backward, least_micro_batches


class LayoutLimit(NamedTuple):
    """A kind of layout that is not executed.

    Args:
        name: as messages have it.
        applies: whether a workload's layout is of that kind.
        described: whether the simulation describes it all the same.
    """

    name: str
    applies: bool
    described: bool = False


def unexecuted_parts(architecture: Architecture) -> list[str]:
    """Words for the parts of a model that formulas describe, and neither the model nor its simulation has."""
    parts = {
        "attention sinks": architecture.attention_sinks,
        "biases of experts": architecture.expert_bias,
        "linear attention": architecture.linear_heads is not None,
        "a gate of attention": architecture.attention_gate,
        "attention without positions": architecture.position is Position.NONE,
        "windows of some layers alone": architecture.full_every is not None and architecture.linear_heads is None,
    }
    return [name for name, applies in parts.items() if applies]


_NOT_EXECUTED = (Recomputation.FROM_INPUT, Recomputation.SELECTIVE_OP)


def layout_limits(workload: Workload) -> tuple[LayoutLimit, ...]:
    """Every limit, in the order in which they are reported."""
    architecture, recipe, layout = workload
    split, stages = layout.tensor_parallel > 1, layout.pipeline_stages
    micro_batches, fused = accumulation(recipe, layout), layout.fused_attention
    offload_is_sharded = layout.offload is Offload.STATE and layout.zero_stage >= 2
    contexts, splits = layout.context_parallel, layout.context_parallel > 1
    local_length = architecture.sequence // contexts
    return (
        LayoutLimit(
            f"cp{contexts} of {architecture.sequence} positions, no multiple of {2 * contexts}",
            splits and architecture.sequence % (2 * contexts) > 0,
        ),
        LayoutLimit(f"cp{contexts} with a prefix mask", splits and architecture.mask is Mask.PREFIX),
        LayoutLimit(f"cp{contexts} with a mask of documents", splits and architecture.mask is Mask.DOCUMENTS),
        LayoutLimit(f"cp{contexts} with a top-query layer", splits and architecture.top_query_layer),
        LayoutLimit(
            f"sp with tp{layout.tensor_parallel}, cp{contexts} and {architecture.sequence} positions",
            splits and layout.sequence_parallel and local_length % layout.tensor_parallel > 0,
        ),
        LayoutLimit(
            f"tp{layout.tensor_parallel} with {recipe.product_format} products", split and recipe.product_format.casts
        ),
        *_of_halves(workload),
        LayoutLimit(f"sp with tp{layout.tensor_parallel}", layout.sequence_parallel and not split, described=True),
        LayoutLimit(
            f"recompute-{'+'.join(layout.recomputed_modules) or layout.recomputation}",
            layout.recomputation in _NOT_EXECUTED or not layout.recomputed <= CORE_ATTENTION,
        ),
        *_without_flush(workload),
        # PyTorch's schedules accumulate whole gradients over the micro-batches where stages are fully sharded
        LayoutLimit(f"zero{layout.zero_stage} with pp{stages}", layout.zero_stage > 1 and stages > 1),
        # PyTorch's kernels that never store the scores know a causal mask and no bias of the scores
        LayoutLimit("fused attention with ALiBi", fused and architecture.position is Position.ALIBI),
        LayoutLimit("fused attention with a mask of documents", fused and architecture.mask is Mask.DOCUMENTS),
        LayoutLimit("fused attention with a prefix mask", fused and architecture.mask is Mask.PREFIX),
        LayoutLimit(
            f"fused attention with a sliding window of {architecture.sliding_window}",
            fused and (architecture.sliding_window or architecture.sequence) < architecture.sequence,
        ),
        LayoutLimit("whole experts on tensor-parallel ranks", layout.whole_experts and split),
        LayoutLimit("partitioned checkpoints", layout.partitioned_checkpoints and split),
        LayoutLimit("scatter-gather", layout.scatter_gather and split, described=stages == 1),
        LayoutLimit(
            f"{micro_batches} micro-batches, {layout.schedule}, pp{stages}",
            micro_batches < least_micro_batches(layout),
            described=layout.flushes,
        ),
        LayoutLimit(f"interleave{layout.virtual_stages} without pp", layout.virtual_stages > 1 and stages == 1),
        LayoutLimit(
            "a top-query layer apart from the head",
            architecture.top_query_layer and not chunk_layers(architecture.layers, layout)[-1],
        ),
        LayoutLimit(
            f"offload {layout.offload} with zero{layout.zero_stage}",
            layout.offload is not Offload.NONE and not offload_is_sharded,
        ),
    )


def _of_halves(workload: Workload) -> list[LayoutLimit]:
    """Limits where a backward pass finds the gradients of inputs first, and those of weights later.

    Each half is a pass of autograd of its own, and the second one is many: one for each operator with weights.
    Source: torch/distributed/pipelining/_backward.py.
    """
    architecture, recipe, layout = workload
    replicas = f"{layout.state_ranks} ranks with the same weights and no zero1,reduce-scatter"
    others = {
        # each of these passes computes everything of a layer again; attention's core has no weights
        f"recompute-{layout.recomputation}": layout.recomputation not in (Recomputation.NONE, Recomputation.SELECTIVE),
        # the router's weights and an expert's inputs are found through each other: products are computed twice
        "experts": architecture.experts is not None,
        f"{recipe.product_format} products": recipe.product_format.casts,
        # DistributedDataParallel waits for gradients that autograd accumulates itself
        replicas: layout.state_ranks > 1 and not layout.scatters_gradients,
    }
    halved = halves_backward(layout)
    return [LayoutLimit(f"{layout.schedule} with {name}", halved and applies) for name, applies in others.items()]


def _without_flush(workload: Workload) -> list[LayoutLimit]:
    """Limits where stages update their weights at times of their own."""
    architecture, recipe, layout = workload
    axes = {"tp": layout.tensor_parallel, "cp": layout.context_parallel}
    unequal = layout.stage_replicas
    replicas = f"dp{layout.data_parallel}" if unequal is None else stages_word("replicas", unequal)
    others = {
        f"{replicas} and zero{layout.zero_stage}": layout.dealt_to > 1 and layout.zero_stage > 0,
        **{f"{axis}{ranks}": ranks > 1 for axis, ranks in axes.items()},
        f"ep{layout.expert_parallel}": layout.expert_parallel > 1,
        # routers' statistics are those of a step's micro-batches, and a stage has begun the next step's
        "experts": architecture.experts is not None,
        # an overflow on one stage would have to take back updates of the others
        f"the loss scale of {recipe.precision}": recipe.precision.scaled,
    }
    overlaps = not layout.flushes
    return [LayoutLimit(f"{layout.schedule} with {name}", overlaps and applies) for name, applies in others.items()]


def describes_ranks(workload: Workload) -> bool:
    """Whether the simulation knows how this layout is executed."""
    return not any(limit.applies and not limit.described for limit in layout_limits(workload))
