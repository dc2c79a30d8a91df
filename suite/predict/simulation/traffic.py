"""Bytes and messages that one rank hands to collectives in one step as it is executed here, by axis and operation."""

from __future__ import annotations

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Recomputation
from reference_runs.placement import chunk_layers, head_stage, stage_chunk_layers, stage_chunks
from reference_runs.run import Workload
from suite.job.options import DEFAULT_STEP, Averaging, StepOptions
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.flop import groups_stopped_early
from suite.predict.analytic.gradient_buckets import chunk_gradient_buckets, filled_buckets
from suite.predict.analytic.latent_attention import more_attention_inputs
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.parameters import ParameterTensor, chunk_tensors, total_elements
from suite.predict.analytic.process_groups import Traffic, group_ranks, key_width
from suite.predict.analytic.traffic import (
    CROSS_ENTROPY_REDUCTIONS,
    activation_message_bytes,
    pipeline_traffic,
    reduced_gradient_element_bytes,
    tied_embedding_traffic,
)
from suite.predict.simulation.expert_traffic import (
    balancing_traffic,
    context_balancing_traffic,
    executed_expert_traffic,
)
from suite.predict.simulation.gradient_averaging import averaging_traffic, replica_traffic
from suite.predict.simulation.state import (
    is_shared_out,
    local_shard_elements,
    optimizer_groups,
    parameter_tensors_of_rank,
    rank_shard_elements,
    sharded_units,
    stored_element_bytes,
)


def executed_traffic(
    workload: Workload, options: StepOptions = DEFAULT_STEP, *, stage: int, replica: int
) -> list[Traffic]:
    """Collectives of one rank of `stage`, at index `replica` of those with its weights, in a step.

    One entry for each axis and operation that has messages:
        dp           `executed_gradient_traffic`, over data- and context-parallel ranks together; with hybrid sharding
                     on axes shard and replicate
        edp          the same of experts that ranks share out
        ep           `executed_expert_traffic`
        tp           `executed_tensor_traffic`
        kv           `copied_head_traffic`
        cp           `executed_context_traffic`, `context_balancing_traffic`
        pp           `pipeline_traffic`
        embedding    `tied_embedding_traffic`
        dp           `balancing_traffic`
        tp, ep, pp, dp   `scalar_traffic`
    """
    return _summed([entry for _, entry in _typed_traffic(workload, options, stage=stage, replica=replica)])


def executed_traffic_of_dtypes(
    workload: Workload, options: StepOptions = DEFAULT_STEP, *, stage: int, replica: int
) -> dict[str, list[Traffic]]:
    """`executed_traffic` by the element type that a collective is given: fp32, bf16 or fp16.

    hidden states, keys, weights    that of the arithmetic
    gradients                       fp32 where they accumulate in it, else as the weights; of norms and learned
                                    positions that of the shard, with ZeRO-2 and 3
    loss, scalars                   fp32
    rows of experts                 int32, which are as long: fp32
    """
    typed = _typed_traffic(workload, options, stage=stage, replica=replica)
    return {
        dtype: _summed([entry for of, entry in typed if of == dtype]) for dtype in sorted({dtype for dtype, _ in typed})
    }


def _typed_traffic(workload: Workload, options: StepOptions, *, stage: int, replica: int) -> list[tuple[str, Traffic]]:
    """Every entry with its element type; of gradients that are not averaged exactly, the type before compression."""
    workload = workload.at_stage(stage)
    recipe, layout = workload.recipe, workload.layout
    weights = WORK_DTYPES[recipe.precision]
    gradients = "fp32" if reduced_gradient_element_bytes(recipe.precision) == FP32 else weights
    of_gradients = executed_gradient_traffic(workload, stage=stage, averaging=options.averaging)
    micro_batches = accumulation(recipe, layout)
    return [
        *((weights if entry.operation == "all_gather" else gradients, entry) for entry in of_gradients),
        *executed_expert_traffic(workload, stage=stage),
        *executed_tensor_traffic(workload, stage=stage, replica=replica, compiled=options.compiled),
        copied_head_traffic(workload, stage=stage, replica=replica),
        *((weights, entry) for entry in executed_context_traffic(workload, stage=stage)),
        (weights, pipeline_traffic(workload, stage=stage, micro_batches=micro_batches)),
        (gradients, tied_embedding_traffic(workload, stage=stage)),
        ("fp32", balancing_traffic(workload, stage=stage)),
        ("fp32", context_balancing_traffic(workload, stage=stage)),
        *(("fp32", entry) for entry in scalar_traffic(layout, options.averaging)),
    ]


def _summed(entries: list[Traffic]) -> list[Traffic]:
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for axis, operation, payload, messages in entries:
        if messages:
            so_far = sums.get((axis, operation), (0, 0))
            sums[axis, operation] = (so_far[0] + payload, so_far[1] + messages)
    return [Traffic(*key, *counts) for key, counts in sums.items()]


def scalar_traffic(layout: Layout, averaging: Averaging = Averaging.EXACT) -> list[Traffic]:
    """The fp32 scalars that a rank all-reduces once a step, one message over each axis of several ranks.

    tp    squared gradient norm
    ep    likewise, without reduce-scattered gradients and with ZeRO-0 and 1
    pp    loss, squared gradient norm
    dp    loss; with ZeRO-2 and 3 and reduce-scattered gradients squared gradient norm too, as each rank has a shard of
          the gradients, and with 1-bit Adam, as each has its own
    """
    differs = layout.zero_stage >= 2 or layout.scatters_gradients or averaging is Averaging.ONE_BIT
    scalars = {
        "tp": (layout.tensor_parallel, 1),
        "pp": (layout.pipeline_stages, 2),
        "ep": (1 if layout.scatters_gradients or layout.zero_stage >= 2 else layout.expert_parallel, 1),
        "dp": (layout.state_ranks, 2 if differs else 1),
    }
    return [Traffic(axis, "all_reduce", FP32 * numbers, 1) for axis, (ranks, numbers) in scalars.items() if ranks > 1]


def executed_gradient_traffic(
    workload: Workload, *, stage: int, averaging: Averaging = Averaging.EXACT
) -> list[Traffic]:
    """Collectives of one rank over the group of ranks with its weights in a step, scalars left out.

    With n ranks, m micro-batches, g bytes a reduced gradient, w a weight:
        stage 0   all_reduce       g N    once a step, in the buckets of each chunk's DistributedDataParallel;
                  `averaging_traffic` has the other ways, `replica_traffic` those of stages without flush
        stage 1   all_reduce       g N    as stage 0
                  all_gather       w n ceil(N / n) for each optimizer group of the rank, a message each
                  with reduce_scatter, in place of the all-reduce, after the last backward pass:
                  reduce_scatter   g n ceil(N / n) for each optimizer group of the rank, a message each
        stage 2   all_gather       w n P           once a step: gathered weights stay until its last backward pass
                  reduce_scatter   m g n P         a message for each unit and micro-batch
        stage 3   all_gather       2 m w n P       of layers, forward and backward
                                   m w n P         of the unit outside them, which stays gathered; of all units where
                                                   weights are not dropped after the forward pass
                  reduce_scatter   m g n P         as stage 2
        hybrid    the same over the n ranks of a group, axis "shard"; over all groups, axis "replicate":
                  all_reduce       g P             once a step, a message for each unit: what m micro-batches summed up

    Of experts that ranks share out, N_e elements in all their matrices, over the dp x cp ranks with the same, "edp":
        stage 0   all_reduce       g N_e  once a step, a message a matrix, after the backward pass
        stage 1   all_gather       w n ceil(N_e / n)    over these n, in a message
                  reduce_scatter   g n ceil(N_e / n)    with reduce_scatter, in place of the all-reduce

    Stages 2 and 3 are fully_shard's: each layer is a unit, and all tensors outside the layers are one; P are the
    elements of its padded shards on a rank (see `sharded_units`).
    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 7.2; torch/distributed/fsdp/_fully_shard/_fully_shard.py
    (reshard_after_forward).
    Differs from `zero_traffic` with stages 2 and 3 by the padding of each tensor, by messages for each layer with
    stage 2, and by one gather of the outer unit with stage 3.
    """
    architecture, recipe, layout = workload
    n = layout.state_ranks
    if n == 1:
        return []
    gradient, weight = reduced_gradient_element_bytes(recipe.precision), WEIGHT_ELEMENT_BYTES[recipe.precision]
    if layout.zero_stage <= 1:
        groups = optimizer_groups(workload, stage=stage)
        if not layout.flushes:
            return replica_traffic(workload, stage=stage, element_bytes=gradient)
        if layout.scatters_gradients:
            several = [group for group in groups if group.shards > 1]
            traffic = [Traffic(group.axis, "reduce_scatter", gradient * group.padded, 1) for group in several]
        else:
            buckets = _stage_buckets(workload, stage=stage, element_bytes=gradient)
            traffic = averaging_traffic(
                workload, stage=stage, averaging=averaging, buckets=buckets, element_bytes=gradient
            )
        for group in groups:
            if group.shards > 1:
                traffic.append(Traffic(group.axis, "all_gather", weight * group.padded, 1))
        if group_ranks(layout, "edp") > 1 and not layout.scatters_gradients:
            tensors = parameter_tensors_of_rank(architecture, layout, stage=stage)
            shared = [gradient * tensor.elements for tensor in tensors if is_shared_out(tensor, layout)]
            traffic.append(Traffic("edp", "all_reduce", sum(shared), len(shared)))
        return traffic
    layers, micro_batches = architecture.layers, accumulation(recipe, layout)
    in_layers, of_experts, layers_of_experts, outside = sharded_units(architecture, layout)
    n, axis = layout.sharding_ranks, "dp" if layout.shard_copies == 1 else "shard"
    of_layers = of_outside = 1
    if layout.zero_stage == 3:
        of_layers, of_outside = (2 if layout.reshard_after_forward else 1) * micro_batches, micro_batches
    gathered = weight * n * (of_layers * in_layers + of_outside * outside)
    scattered = gradient * n * micro_batches * (in_layers + outside)
    traffic = [
        Traffic(axis, "all_gather", gathered, of_layers * layers + of_outside),
        Traffic(axis, "reduce_scatter", scattered, micro_batches * (layers + 1)),
    ]
    n = group_ranks(layout, "edp")
    if of_experts and n > 1:
        gathered, scattered = weight * n * of_layers * of_experts, gradient * n * micro_batches * of_experts
        traffic.append(Traffic("edp", "all_gather", gathered, of_layers * layers_of_experts))
        traffic.append(Traffic("edp", "reduce_scatter", scattered, micro_batches * layers_of_experts))
    if layout.shard_copies > 1:
        traffic.append(Traffic("replicate", "all_reduce", gradient * (in_layers + outside), layers + 1))
    return traffic


def _stage_buckets(workload: Workload, *, stage: int, element_bytes: int) -> list[int]:
    """Buckets of every chunk of a rank of `stage`: each chunk has a reducer of its own.

    Layers are walked one by one where they differ, or where the reducer leaves experts alone.
    """
    architecture, _, layout = workload
    if architecture.experts is not None:
        buckets: list[int] = []
        for chunk in stage_chunks(layout, stage=stage):
            tensors = chunk_tensors(architecture, layout, chunk=chunk)
            reduced = [each for each in reversed(tensors) if each.learned and not is_shared_out(each, layout)]
            buckets += filled_buckets([element_bytes * each.elements for each in reduced], layout.bucket_bytes)
        return buckets
    dealt = chunk_layers(architecture.layers, layout)
    return [
        bucket
        for chunk in stage_chunks(layout, stage=stage)
        for bucket in chunk_gradient_buckets(
            architecture,
            tensor_parallel=layout.tensor_parallel,
            layers=len(dealt[chunk]),
            dense_layers=sum(layer < architecture.dense_layers for layer in dealt[chunk]),
            first=chunk == 0,
            last=chunk == len(dealt) - 1,
            bucket_bytes=layout.bucket_bytes,
            element_bytes=element_bytes,
        )
    ]


def executed_tensor_traffic(
    workload: Workload, *, stage: int, replica: int, compiled: bool = False
) -> list[tuple[str, Traffic]]:
    """Collectives of one rank over its tensor-parallel group in a step by element type, scalars left out.

    With a = b s h e / c bytes of hidden states, l layers in the rank's chunks, [first] and [last] where it has the
    embedding and the head, for each micro-batch:
        o = 2 l + [first]    outputs to sum forward: of projections and contractions, of the embedding
        i = 2 l + [last]     inputs of split columns, whose gradients are summed backward: of query, key, value and
                             expansion, of the head
        r = 2 l - e          outputs to sum again in full recomputation, e groups of which stop before their last sum;
                             none of compiled blocks, which are computed again as a whole
        [last]               all_reduce of the gradient of a top-query layer's queries, with sequence parallelism too
        3 [last]             all_reduces of 4 b s / c bytes for the loss: maximum, target's logit, sum of exponentials

    all_reduce             (o + i + r) a
    with sequence parallelism, whose ranks keep the gathered inputs for the weights' gradients:
        all_gather         (o + i + 2 l) a, the last with full recomputation alone
        reduce_scatter     (o + i + r) a
        all_reduce         once a step, in one message, the gradients of norms, of the learned positions and of latent
                           attention's compression, of which each rank saw its own positions, and of routers; without
                           sequence parallelism those of norms of queries and keys, which see the rank's heads, and of
                           routers, which see what its parts of experts give

    Latent attention's input is several narrower ones (see `more_attention_inputs`).

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2;
    `groups_stopped_early` for e.
    Differs from `tensor_parallel_traffic`: a parallel residual sums twice, not once; e; gathered inputs are kept, not
    gathered again (2 l + [last] gathers fewer); biases after a sum need no reduction, as every rank has whole
    gradients of them.
    """
    architecture, recipe, layout = workload
    t, last = layout.tensor_parallel, stage == head_stage(layout)
    if t == 1:
        return []
    micro_batches, a = accumulation(recipe, layout), activation_message_bytes(workload)
    layers = again = stopped = 0
    for chunk in stage_chunk_layers(architecture.layers, layout, stage=stage):
        layers += len(chunk)
        if not compiled:
            stopped += groups_stopped_early(workload, layers=len(chunk))
    if layout.recomputation is Recomputation.FULL:
        again = 2 * layers
    both = micro_batches * (2 * layers + (stage == 0) + 2 * layers + last)
    summed = both + micro_batches * (again - stopped)
    queries = micro_batches * (last and architecture.top_query_layer)
    losses = micro_batches * CROSS_ENTROPY_REDUCTIONS * last
    loss_bytes = losses * FP32 * layout.micro_batch * architecture.sequence // layout.context_parallel
    hidden, loss = WORK_DTYPES[recipe.precision], ("fp32", Traffic("tp", "all_reduce", loss_bytes, losses))
    if not layout.sequence_parallel:
        return [
            (hidden, Traffic("tp", "all_reduce", (summed + queries) * a, summed + queries)),
            (hidden, _more_inputs(workload, "all_reduce", layers=micro_batches * layers)),
            loss,
            _partial_gradients(workload, stage=stage, replica=replica),
        ]
    gathered = both + micro_batches * again
    forwards = micro_batches * (layers + again // 2)
    return [
        (hidden, Traffic("tp", "all_reduce", queries * a, queries)),
        loss,
        _partial_gradients(workload, stage=stage, replica=replica),
        (hidden, Traffic("tp", "all_gather", gathered * a, gathered)),
        (hidden, _more_inputs(workload, "all_gather", layers=forwards)),
        (hidden, Traffic("tp", "reduce_scatter", summed * a, summed)),
        (hidden, _more_inputs(workload, "reduce_scatter", layers=micro_batches * layers)),
    ]


def _more_inputs(workload: Workload, operation: str, *, layers: int) -> Traffic:
    """Bytes and messages that `more_attention_inputs` adds to those of hidden states."""
    architecture = workload.architecture
    columns, messages = more_attention_inputs(architecture)
    each = activation_message_bytes(workload) // architecture.hidden
    return Traffic("tp", operation, layers * columns * each, layers * messages)


def executed_context_traffic(workload: Workload, *, stage: int) -> list[Traffic]:
    """Collectives of one rank over its context-parallel group in a step.

    Keys are b s k d e / t bytes, with k key-value heads of size d, and values as many (of latent
    attention, of their own size). For each of the rank's layers
    and each micro-batch, a message each for keys and values:
        all_gather        forward, and again in full recomputation
        reduce_scatter    backward, of their gradients

    Source: Llama team 2024, arXiv 2407.21783, section 3.3.2 (all-gather of keys and values).
    Differs from `context_parallel_traffic`, a ring: keys and values stay gathered for the backward pass and selective
    recomputation. Over c ranks it sends as much forward, (c - 1) / c of the payload, and half as much backward.
    """
    architecture, recipe, layout = workload
    if layout.context_parallel == 1:
        return []
    layers = sum(map(len, stage_chunk_layers(architecture.layers, layout, stage=stage)))
    keys = key_width(architecture, tensor_parallel=layout.tensor_parallel)
    values = keys * (architecture.value_head_dim or architecture.head_dim) // architecture.head_dim
    both = layout.micro_batch * architecture.sequence * (keys + values) * WEIGHT_ELEMENT_BYTES[recipe.precision]
    scattered = 2 * layers * accumulation(recipe, layout)
    gathered = (2 if layout.recomputation is Recomputation.FULL else 1) * scattered
    return [
        Traffic("cp", "all_gather", gathered * both // 2, gathered),
        Traffic("cp", "reduce_scatter", scattered * both // 2, scattered),
    ]


def _partial_gradients(workload: Workload, *, stage: int, replica: int) -> tuple[str, Traffic]:
    """The gradients of which ranks have parts, on a rank, of its shards with ZeRO-2 and 3; one message, if any."""
    architecture, _, layout = workload
    is_partial = _by_positions if layout.sequence_parallel else _by_parts
    tensors = [tensor for tensor in parameter_tensors_of_rank(architecture, layout, stage=stage) if is_partial(tensor)]
    elements = total_elements(tensors)
    if layout.fully_sharded:
        elements = rank_shard_elements(tensors, layout, replica=replica)
    return _summed_gradients("tp", elements, 1 if tensors else 0, workload)


def copied_head_traffic(workload: Workload, *, stage: int, replica: int) -> tuple[str, Traffic]:
    """The gradients of the one key-value head that a rank has a copy of, which it sums with the others' once a step.

    2 d (h + [bias]) elements a layer, with heads of size d, in one message over the t / k ranks that store a head. With
    ZeRO-2 and 3 those of its shards: a head's key and value are the last rows of the fused projection.
    """
    architecture, _, layout = workload
    shards, index = (layout.sharding_ranks, replica % layout.sharding_ranks) if layout.fully_sharded else (1, 0)
    elements = 0
    for tensor in parameter_tensors_of_rank(architecture, layout, stage=stage):
        if ".attention.query_key_value." in tensor.name or ".attention.key_value." in tensor.name:
            first = index * ceil_division(tensor.rows, shards)
            row = tensor.elements // tensor.rows
            end = first + local_shard_elements(tensor, shards, replica=index) // row
            elements += row * max(end - max(first, tensor.rows - 2 * architecture.head_dim), 0)
    has_copies = layout.tensor_parallel > architecture.kv_heads
    return _summed_gradients("kv", has_copies * elements, 1 if has_copies else 0, workload)


def _summed_gradients(axis: str, elements: int, messages: int, workload: Workload) -> tuple[str, Traffic]:
    """The message in which so many elements of a rank's gradients are summed with the other ranks' of an axis."""
    precision, sharded = workload.recipe.precision, workload.layout.fully_sharded
    element = stored_element_bytes(precision) if sharded else reduced_gradient_element_bytes(precision)
    dtype = "fp32" if element == FP32 else WORK_DTYPES[precision]
    return dtype, Traffic(axis, "all_reduce", element * elements, messages)


def _by_positions(tensor: ParameterTensor) -> bool:
    """Whether each rank has its gradient of its own positions alone, of a norm, a learned position or
    latent attention's compression; or a router's."""
    owner = tensor.name.split(".")[-2]
    return owner in ("position", "router", "shared_gate") or owner.endswith(("norm", "compression"))


def _by_parts(tensor: ParameterTensor) -> bool:
    """Whether each rank has its gradient of its own heads alone, of a norm of queries or keys; or of its parts of
    experts, of a router."""
    return tensor.name.split(".")[-2] in ("query_norm", "key_norm", "router", "shared_gate")
