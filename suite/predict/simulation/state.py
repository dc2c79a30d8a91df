"""State that a rank stores as it is executed here: plain, its optimizer's in flat shards, or by fully_shard."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import coordinates, stage_chunks
from reference_runs.run import Architecture, Precision, Workload
from suite.job.options import TrainingOptions, Update
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import (
    BYTES_PER_PARAMETER,
    FP32,
    STEP_COUNTER_BYTES,
    WEIGHT_ELEMENT_BYTES,
    optimizer_shards,
    shard_elements,
)
from suite.predict.analytic.parameters import ParameterTensor, Spread, chunk_tensors, total_elements
from suite.predict.analytic.process_groups import group_ranks
from suite.predict.simulation.weight_versions import stored_versions


class RankPosition(NamedTuple):
    """Position that sets a rank's sizes apart: its pipeline stage, and its index among those with the same weights."""

    stage: int
    replica: int


def rank_position(layout: Layout, rank: int) -> RankPosition:
    """The position of the first rank that executes the same as `rank`.

    Ranks with the same weights are alike, except where these are fully sharded: their shards have different sizes then.
    And where stages differ in replicas, which then take micro-batches in turns that differ.
    """
    index = coordinates(layout, rank)
    if layout.stage_replicas is not None:
        return RankPosition(index["pp"], index["dp"])
    replica = index["dp"] * layout.context_parallel + index["cp"]
    if layout.expert_parallel > 1:
        sizes = {"dp": layout.data_parallel, "ep": layout.expert_parallel}
        outer, inner = (axis for axis in reversed(layout.axis_order) if axis in sizes)
        replica = (index[outer] * sizes[inner] + index[inner]) * layout.context_parallel + index["cp"]
    return RankPosition(index["pp"], replica % layout.sharding_ranks if layout.zero_stage >= 2 else 0)


class Shard(NamedTuple):
    """Over how many ranks fully_shard shards a tensor, and this rank's number among them."""

    ranks: int
    number: int


def shard_of(tensor: ParameterTensor, layout: Layout, *, replica: int) -> Shard:
    """Shard of the rank at index `replica` of those with the same weights; of experts that ranks share out, among those
    with the same ones."""
    if not is_shared_out(tensor, layout):
        return Shard(layout.sharding_ranks, replica)
    order, ranks = layout.axis_order, layout.data_parallel
    dp_is_inner = order.index("dp") < order.index("ep")
    sample, part = divmod(replica, layout.context_parallel)
    number = sample % ranks if dp_is_inner else sample // layout.expert_parallel
    return Shard(group_ranks(layout, "edp"), number * layout.context_parallel + part)


class OptimizerGroup(NamedTuple):
    """Parameters that a rank updates together.

    Args:
        elements: of its weights, all chunks together.
        axis: of the ranks that have the same.
        shards: in which these have its state; with reduce-scatter its gradients too.
    """

    elements: int
    axis: str
    shards: int

    @property
    def share(self) -> int:
        """Elements of one shard."""
        return shard_elements(self.elements, self.shards)

    @property
    def padded(self) -> int:
        """Elements of all of them."""
        return self.shards * self.share


class ExecutedState(NamedTuple):
    """Stored state of one rank: elements of its parameters without padding, and bytes of those that are learned."""

    parameters: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


def executed_state(workload: Workload, *, stage: int, replica: int, update: Update = Update.FUSED) -> ExecutedState:
    """State of one rank of pipeline stage `stage`, at index `replica` of the ranks with the same weights.

    ZeRO-0 and 1, and every stage where no other rank has them, with N elements in an optimizer group of the rank, all
    its chunks together, and n shards (1 with ZeRO-0; of experts that ranks share out as many as have the same ones):
        weights      w n ceil(N / n)   w of `WEIGHT_ELEMENT_BYTES`; w N for each of `stored_versions`
        gradients    g N               g of `BYTES_PER_PARAMETER`; g n ceil(N / n) where they are reduce-scattered
        optimizer    ceil(N / n) elements of moments, masters and gradient copies
                     4                 a step counter for each group; with n = 1 for each tensor

    ZeRO-2 and 3 over several ranks (fully_shard), with R rows of C columns in a tensor over n ranks (of experts that
    ranks share out, those with the same ones), k = ceil(R / n), of which this rank has r = min(max(R - i k, 0), k) at
    index i among the n that shard:
        weights      s k C         they are the fp32 masters, s = 4; s = 2 where no master is kept
        gradients    s k C
        optimizer    8 r C         moments; 4 r C more where a copy of the gradients is kept
                     4             a step counter for each tensor, whether or not the rank has a part of it

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param (padding to the largest chunk of
    torch.chunk); Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1.
    Differs from `stage_memory` with ZeRO-2 and 3, which shard flat groups as DeepSpeed does: fully_shard
    pads each tensor, and its stored weights are the masters, which DeepSpeed keeps in addition to 16-bit weights.
    """
    architecture, recipe, layout = workload
    each = BYTES_PER_PARAMETER[recipe.precision]
    tensors = parameter_tensors_of_rank(architecture, layout, stage=stage)
    unlearned = total_elements(unlearned_tensors_of_rank(architecture, layout, stage=stage))
    if not layout.fully_sharded:
        groups = optimizer_groups(workload, stage=stage)
        parameters, padded = sum(group.elements for group in groups), sum(group.padded for group in groups)
        weight = WEIGHT_ELEMENT_BYTES[recipe.precision]
        element = int(each.gradient_copy + each.master_weights)
        gradient_bytes = int(each.gradients) * (padded if layout.scatters_gradients else parameters)
        if update is Update.ADAFACTOR:
            moments = sum(FP32 * adafactor_elements(tensor) for tensor in tensors)
            optimizer_bytes = element * parameters + moments + STEP_COUNTER_BYTES * len(tensors)
            return ExecutedState(parameters + unlearned, weight * parameters, gradient_bytes, optimizer_bytes)
        counters = STEP_COUNTER_BYTES * len(groups if optimizer_shards(layout) > 1 else tensors)
        optimizer_bytes = (element + int(each.moments)) * sum(group.share for group in groups) + counters
        stored = padded if layout.flushes else _of_all_versions(workload, stage=stage)
        return ExecutedState(parameters + unlearned, weight * stored, gradient_bytes, optimizer_bytes)
    elements = rank_shard_elements(tensors, layout, replica=replica)
    padded = sum(padded_shard_elements(t, shard_of(t, layout, replica=replica).ranks) for t in tensors)
    stored = stored_element_bytes(recipe.precision)
    element_bytes = int(each.gradient_copy + each.moments)
    return ExecutedState(
        elements + unlearned,
        stored * padded,
        stored * padded,
        element_bytes * elements + STEP_COUNTER_BYTES * len(tensors),
    )


def _of_all_versions(workload: Workload, *, stage: int) -> int:
    """Elements of all versions of a stage's weights; a table may have fewer than the others."""
    architecture, layout = workload.architecture, workload.layout
    versions = stored_versions(workload, stage=stage)
    table = shared_table(workload)
    return sum(
        tensor.elements * (versions.table if tensor.name in table else versions.own)
        for tensor in parameter_tensors_of_rank(architecture, layout, stage=stage)
    )


def shared_table(workload: Workload) -> set[str]:
    """Names of the table that first and last stage of a pipeline without flush update together; none untied."""
    return {"embedding.weight", "head.weight"} if workload.architecture.tied_embeddings else set()


def adafactor_elements(tensor: ParameterTensor) -> int:
    """Elements of Adafactor's second moment of a tensor: R + C of a matrix of R rows and C columns, N of a vector.

    Source: Shazeer and Stern 2018, arXiv 1804.04235, section 3; torch/optim/_adafactor.py, _init_group.
    """
    return tensor.rows + tensor.elements // tensor.rows if tensor.matrix else tensor.elements


def parameter_tensors_of_rank(architecture: Architecture, layout: Layout, *, stage: int) -> list[ParameterTensor]:
    """The learned parameter tensors of every chunk of a rank of `stage`, chunk by chunk; before sharding over dp."""
    return [tensor for tensor in _all_tensors_of_rank(architecture, layout, stage=stage) if tensor.learned]


def unlearned_tensors_of_rank(architecture: Architecture, layout: Layout, *, stage: int) -> list[ParameterTensor]:
    """The others: biases of routers, fp32, which no layout shards."""
    return [tensor for tensor in _all_tensors_of_rank(architecture, layout, stage=stage) if not tensor.learned]


def _all_tensors_of_rank(architecture: Architecture, layout: Layout, *, stage: int) -> list[ParameterTensor]:
    chunks = stage_chunks(layout, stage=stage)
    return [tensor for chunk in chunks for tensor in chunk_tensors(architecture, layout, chunk=chunk)]


def is_shared_out(tensor: ParameterTensor, layout: Layout) -> bool:
    """Whether ranks have different parts of a matrix of experts."""
    return layout.expert_parallel > 1 and tensor.spread is Spread.EXPERTS


def optimizer_groups(workload: Workload, *, stage: int) -> list[OptimizerGroup]:
    """The groups of a rank of `stage`: of what decays, with experts that ranks share out after the rest, then of what
    does not; empty ones left out.
    """
    architecture, recipe, layout = workload
    sizes: dict[tuple[bool, bool], int] = dict.fromkeys(itertools.product((True, False), (False, True)), 0)
    for tensor in parameter_tensors_of_rank(architecture, layout, stage=stage):
        sizes[tensor.matrix or recipe.decay_of_vectors, is_shared_out(tensor, layout)] += tensor.elements
    axes = {apart: "edp" if apart else "dp" for apart in (False, True)}
    shards = {apart: group_ranks(layout, axis) if layout.zero_stage >= 1 else 1 for apart, axis in axes.items()}
    return [OptimizerGroup(size, axes[apart], shards[apart]) for (_, apart), size in sizes.items() if size]


def stored_element_bytes(precision: Precision) -> int:
    """Bytes of one element of a weight that fully_shard stores: 4, as it is the master itself; 2 where none is kept."""
    return 2 if precision in (Precision.FP16_NO_MASTER, Precision.BF16_PURE) else FP32


def timed_dtype(element_bytes: int) -> str:
    """The dtype under which a calibration times operators on gradients and masters of so many bytes an element."""
    return "fp32" if element_bytes == FP32 else "fp16"


def padded_shard_elements(tensor: ParameterTensor, ranks: int) -> int:
    """Elements of every rank's shard of a tensor that is split by rows over `ranks`, padding included."""
    return ceil_division(tensor.rows, ranks) * (tensor.elements // tensor.rows)


def local_shard_elements(tensor: ParameterTensor, ranks: int, *, replica: int) -> int:
    """Elements of the rank at index `replica` of a tensor that is split by rows over `ranks`, without padding.

    Groups of `ranks` follow each other.
    """
    most = ceil_division(tensor.rows, ranks)
    rows = min(max(tensor.rows - replica % ranks * most, 0), most)
    return rows * (tensor.elements // tensor.rows)


def rank_shard_elements(tensors: Iterable[ParameterTensor], layout: Layout, *, replica: int) -> int:
    """Elements of the shards that the rank at index `replica` has of all `tensors`, without padding."""
    return sum(
        local_shard_elements(tensor, ranks, replica=number)
        for tensor in tensors
        for ranks, number in [shard_of(tensor, layout, replica=replica)]
    )


class ShardedUnits(NamedTuple):
    """Elements that a rank's padded shards have of all layers, each a unit of fully_shard, without experts that ranks
    share out; of these, in so many layers, each of whose is a unit too; and of the unit outside the layers."""

    layers: int
    experts: int
    layers_of_experts: int
    outside: int


def sharded_units(architecture: Architecture, layout: Layout) -> ShardedUnits:
    """The units of a rank of the only stage."""
    outside = layers = experts = 0
    of_experts: set[str] = set()
    for tensor in parameter_tensors_of_rank(architecture, layout, stage=0):
        elements = padded_shard_elements(tensor, shard_of(tensor, layout, replica=0).ranks)
        if is_shared_out(tensor, layout):
            experts += elements
            of_experts.add(tensor.name.split(".")[1])
        elif tensor.name.startswith("blocks."):
            layers += elements
        else:
            outside += elements
    return ShardedUnits(layers, experts, len(of_experts), outside)


def update_bytes(workload: Workload, training: TrainingOptions, *, stage: int) -> list[int]:
    """Bytes of each thing that the update holds in addition to state and gradients, in fp32; one after the other.

    With N_g elements in the largest group of weight decay, and N_t in the largest tensor:
        foreach      4 N_g       square roots of the second moments of all tensors of a group
        loop         8 N_t       a tensor's square roots, and their quotient by the bias correction
        fused        0
        adafactor    4 N_t       a tensor's second moment, made of its factors; then the update, in its place
        logged norm  4 N_t       a tensor's squares, before they are summed

    Source: torch/optim/adam.py, _multi_tensor_adam, _single_tensor_adam; _adafactor.py, _single_tensor_adafactor.
    """
    tensors = parameter_tensors_of_rank(workload.architecture, workload.layout, stage=stage)
    largest = max(tensor.elements for tensor in tensors)
    sizes = []
    if training.synchronises:
        sizes.append(FP32 * largest)
    if training.update is Update.FOREACH:
        sizes.append(FP32 * max(group.elements for group in optimizer_groups(workload, stage=stage)))
    elif training.update is Update.LOOP:
        sizes.append(2 * FP32 * largest)
    elif training.update is Update.ADAFACTOR:
        sizes.append(FP32 * largest)
    return sizes
