"""Bytes and messages of one rank in one step: handed to collectives, sent by them, and what leaves the node."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Precision, Recipe, Residual
from suite.predict.activations import kept_units
from suite.predict.elementwise import ceil_division, chosen, larger, smaller
from suite.predict.flop import recomputed_layers_from_input
from suite.predict.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES, group_elements, shard_elements
from suite.predict.parameters import layer_elements, outer_elements, rank_parameters, stage_layers

CROSS_ENTROPY_REDUCTIONS = 3  # maximum, the target's logit, sum of exponentials


class Traffic(NamedTuple):
    """What one rank hands to one kind of collective in one step."""

    axis: str
    operation: str
    payload_bytes: int
    messages: int


class FusedMessages(NamedTuple):
    """Messages that tensor fusion makes of many tensors: how many, their sizes, and bytes moved in memory by copies."""

    messages: int
    message_bytes: int
    last_message_bytes: int
    copied_bytes: int


def gradient_buckets(architecture: Architecture, *, bucket_bytes: int) -> list[int]:
    """Bytes of each bucket in which DistributedDataParallel all-reduces the whole model's fp32 gradients.

    See `stage_gradient_buckets`.
    """
    return stage_gradient_buckets(architecture, Layout(bucket_bytes=bucket_bytes), stage=0, element_bytes=FP32)


def stage_gradient_buckets(architecture: Architecture, layout: Layout, *, stage: int, element_bytes: int) -> list[int]:
    """Bytes of each bucket in which DistributedDataParallel all-reduces one rank's gradients, in the order of issue.

    Gradients become ready in the reverse of the order in which the forward pass read the parameters. A bucket is
    closed as soon as it holds `layout.bucket_bytes`. (A first bucket of 1 MiB belongs to the default cap alone; a cap
    that is given, as here, holds for all.) A tied embedding is the last gradient of the first stage; a last stage that
    is not the first has a copy of its own, the first gradient there.

    Only one layer is walked: what a layer closes, and what it leaves open, depends on nothing but what was open before
    it. After the first time that something is closed, what is open has been seen before after few layers, and the rest
    repeats.

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size and rebuild_buckets (from the second step on).
    """
    return _buckets(
        architecture,
        tensor_parallel=layout.tensor_parallel,
        layers=stage_layers(architecture, layout, stage=stage),
        first=stage == 0,
        last=stage == layout.pipeline_stages - 1,
        bucket_bytes=layout.bucket_bytes,
        element_bytes=element_bytes,
    )


def gradient_bucket_count(architecture: Architecture, layout: Layout, *, stage: int, element_bytes: int) -> int:
    """Messages in which DistributedDataParallel all-reduces one rank's gradients (see `stage_gradient_buckets`)."""
    last = stage == layout.pipeline_stages - 1
    counts: list[Any] = [layout.tensor_parallel, stage_layers(architecture, layout, stage=stage), stage == 0, last]
    counts.append(layout.bucket_bytes)
    if all(isinstance(count, (int, float)) for count in counts):
        return len(stage_gradient_buckets(architecture, layout, stage=stage, element_bytes=element_bytes))
    import numpy

    columns = numpy.broadcast_arrays(*counts)
    rows = list(zip(*(column.ravel().tolist() for column in columns), strict=True))
    messages = {
        row: len(
            _buckets(
                architecture,
                tensor_parallel=int(row[0]),
                layers=int(row[1]),
                first=row[2],
                last=row[3],
                bucket_bytes=row[4],
                element_bytes=element_bytes,
            )
        )
        for row in set(rows)
    }
    return cast(int, numpy.array([messages[row] for row in rows], dtype=float).reshape(columns[0].shape))


def _buckets(
    architecture: Architecture,
    *,
    tensor_parallel: int,
    layers: int,
    first: bool,
    last: bool,
    bucket_bytes: int,
    element_bytes: int,
) -> list[int]:
    before, behind = outer_elements(architecture, tensor_parallel=tensor_parallel)
    if architecture.tied_embeddings and not first:
        behind.append(before[0])
    layer = [element_bytes * elements for elements in layer_elements(architecture, tensor_parallel=tensor_parallel)]
    layer.reverse()
    layer_bytes = sum(layer)
    open_bytes = 0
    buckets: list[int] = []
    if last:
        open_bytes = _fill(
            buckets, [element_bytes * elements for elements in reversed(behind)], open_bytes, bucket_bytes
        )
    seen: dict[int, tuple[int, int]] = {}
    remaining = layers
    while remaining > 0:
        if open_bytes in seen:
            then_remaining, place = seen[open_bytes]
            period = then_remaining - remaining
            buckets += buckets[place:] * (remaining // period)
            remaining %= period
            seen.clear()
            continue
        seen[open_bytes] = remaining, len(buckets)
        whole = smaller(remaining, (bucket_bytes - 1 - open_bytes) // layer_bytes)
        if whole:
            open_bytes += whole * layer_bytes
            remaining -= whole
        else:
            open_bytes = _fill(buckets, layer, open_bytes, bucket_bytes)
            remaining -= 1
    if first:
        open_bytes = _fill(
            buckets, [element_bytes * elements for elements in reversed(before)], open_bytes, bucket_bytes
        )
    return [*buckets, open_bytes] if open_bytes else buckets


def _fill(buckets: list[int], tensors: list[int], open_bytes: int, bucket_bytes: int) -> int:
    """Append the buckets that `tensors` close to `buckets`; returns the bytes left open."""
    for tensor in tensors:
        open_bytes += tensor
        if open_bytes >= bucket_bytes:
            buckets.append(open_bytes)
            open_bytes = 0
    return open_bytes


def data_parallel_traffic(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[Traffic]:
    """What one rank hands to the data-parallel collectives of one step as executed here; empty on one rank.

        all_reduce    4 N bytes of fp32 gradients, in buckets, once a step (not once a micro-batch),
                      and the 4 bytes of the loss, to report its mean
        all_gather    from ZeRO-1 on: the new weights, one message for each optimizer group; its output is counted,
                      w n ceil(N / n) bytes with w bytes a weight

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 7.2.1 (2 Psi for stage 1, as for plain data
    parallelism; here the two halves differ in element size and the gradient is all-reduced whole, as BLOOM's
    BF16_Optimizer does, so ZeRO-1 adds an all-gather).
    """
    n = layout.data_parallel
    if n == 1:
        return []
    buckets = gradient_buckets(architecture, bucket_bytes=layout.bucket_bytes)
    traffic = [Traffic("dp", "all_reduce", sum(buckets) + FP32, len(buckets) + 1)]
    if layout.zero_stage >= 1:
        groups = group_elements(architecture, recipe)
        element = WEIGHT_ELEMENT_BYTES[recipe.precision]
        gathered = sum(element * n * shard_elements(elements, n) for elements in groups)
        traffic.append(Traffic("dp", "all_gather", gathered, len(groups)))
    return traffic


def step_traffic(
    architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int, micro_batches: int
) -> list[Traffic]:
    """What one rank of pipeline stage `stage` (from 0) hands to collectives in a step of `micro_batches`.

    One entry for each axis and operation; of plain numbers, entries without messages are left out.
        dp          `zero_traffic`: gradients and weights, over the data- and context-parallel ranks together
        tp          `tensor_parallel_traffic`
        cp          `context_parallel_traffic`
        pp          `pipeline_traffic`
        embedding   `tied_embedding_traffic`: between first and last stage

    Left out are scalars of a step: loss, gradient norm, overflow flag.
    """
    traffic = zero_traffic(architecture, recipe, layout, stage=stage, micro_batches=micro_batches)
    traffic += tensor_parallel_traffic(architecture, recipe, layout, stage=stage, micro_batches=micro_batches)
    traffic.append(context_parallel_traffic(architecture, recipe, layout, stage=stage, micro_batches=micro_batches))
    traffic.append(pipeline_traffic(architecture, recipe, layout, stage=stage, micro_batches=micro_batches))
    traffic.append(tied_embedding_traffic(architecture, recipe, layout, stage=stage))
    return [entry for entry in traffic if not isinstance(entry.messages, int) or entry.messages]


def reduced_gradient_element_bytes(precision: Precision) -> int:
    """Bytes of one gradient element as it is reduced: 4 where gradients are accumulated in fp32, 2 in fp16."""
    return int(BYTES_PER_PARAMETER[precision].gradients)


def zero_traffic(
    architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int, micro_batches: int
) -> list[Traffic]:
    """What one rank hands to collectives over its data-parallel group in a step, by ZeRO stage.

    With Psi parameters on the rank, g bytes a reduced gradient, w a weight, m micro-batches, n ranks of the group,
    Psi' = n ceil(Psi / n) for each optimizer group:
        stage 0   all_reduce       g Psi         once a step, in the buckets of DistributedDataParallel
        stage 1   all_reduce       g Psi         as stage 0 (BLOOM's BF16_Optimizer)
                  all_gather       w Psi'        new weights, a message for each optimizer group
        stage 2   reduce_scatter   m g Psi'      no rank keeps whole gradients, so those of a micro-batch are reduced
                                                 before the next one's backward pass; in buckets
                  all_gather       w Psi'        as stage 1
        stage 3   all_gather       2 m w Psi'    in forward and again in backward pass; m w Psi' where weights stay
                                                 gathered between them (reshard_after_forward = false)
                  reduce_scatter   m g Psi'      as stage 2; both in a message for each layer, and one for the tables
                                                 and norms outside
    Full recomputation finds the weights gathered for the backward pass. The group spans context parallelism too: its
    ranks have the same weights and see different tokens, so n = dp * cp.

    With g = w, m = 1 a ring sends 2 Psi, 3 Psi, 2 Psi, 3 Psi, each times (n - 1) / n.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277, section 3.
    Differs from 2 Psi of Rajbhandari's stage 1, and of Megatron-LM's distributed optimizer, by Psi: both reduce-scatter
    gradients, once a step, where BLOOM all-reduces them.
    """
    n = group_ranks(layout, "dp")
    several = n > 1
    rank = rank_parameters(architecture, layout, stage=stage)
    gradient = several * reduced_gradient_element_bytes(recipe.precision)
    weight = several * WEIGHT_ELEMENT_BYTES[recipe.precision]
    if recipe.decay_of_vectors:
        padded, groups = n * ceil_division(rank.all, n), 1
    else:
        padded = n * (ceil_division(rank.matrices, n) + ceil_division(rank.vectors, n))
        groups = (rank.matrices > 0) * 1 + (rank.vectors > 0) * 1
    if layout.zero_stage == 3:
        outside = (stage == 0) | (stage == layout.pipeline_stages - 1)
        units = several * micro_batches * (stage_layers(architecture, layout, stage=stage) + outside)
        gathers = 2 if layout.reshard_after_forward else 1
        return [
            Traffic("dp", "all_gather", gathers * micro_batches * weight * padded, gathers * units),
            Traffic("dp", "reduce_scatter", micro_batches * gradient * padded, units),
        ]
    buckets = several * gradient_bucket_count(
        architecture, layout, stage=stage, element_bytes=reduced_gradient_element_bytes(recipe.precision)
    )
    gathered = Traffic("dp", "all_gather", weight * padded, several * groups)
    if layout.zero_stage == 2:
        scattered = Traffic("dp", "reduce_scatter", micro_batches * gradient * padded, micro_batches * buckets)
        return [scattered, gathered]
    reduced = Traffic("dp", "all_reduce", gradient * rank.all, buckets)
    return [reduced, gathered] if layout.zero_stage == 1 else [reduced]


def activation_message_bytes(architecture: Architecture, recipe: Recipe, layout: Layout) -> int:
    """Bytes of one micro-batch's hidden states on a rank that has its share of the sequence: b s h e / c.

    With b samples a micro-batch, s positions, h hidden, e bytes an element (as a weight), c context-parallel ranks.
    """
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    tokens = layout.micro_batch * architecture.sequence
    return tokens * architecture.hidden * element // layout.context_parallel


def tensor_parallel_traffic(
    architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int, micro_batches: int
) -> list[Traffic]:
    """What one rank hands to collectives over its tensor-parallel group in a step.

    With a = b s h e / c bytes of hidden states, for each micro-batch:
        layer, forward      2 all-reduces of a (g: behind the row-parallel projection and contraction)
        layer, backward     2 all-reduces of a (f: before the column-parallel query, key, value and expansion)
        layer, recomputed   the forward ones again, for each repeated pass through the layer
        parallel residual   1 forward in place of 2, because attention and feed-forward are added before one g; 2
                            backward still, because two norms give their inputs, and each input has its f
        first stage         1 all-reduce of a: the vocabulary-parallel embedding, forward (g)
        last stage          1 all-reduce of a: gradient of the head's input (f)
                            3 all-reduces of 4 b s / c: cross-entropy's maximum, target logit, sum of exponentials

    With sequence parallelism each f is an all-gather forward and a reduce-scatter backward, which gathers its input
    once more for the weight's gradient; each g is a reduce-scatter forward and an all-gather backward. So with i f's
    and o g's a layer (2 and 2; parallel residual 2 and 1), F passes forward through it and 1 backward:
        all-gather          F i + i + o
        reduce-scatter      F o + i
    Once a step the gradients of all parameters that every rank stores are all-reduced in one message, because each
    rank saw its own positions.

    Further all-gathers of a, neither needed with sequence parallelism:
        partitioned checkpoints   the kept input of each unit of recomputation (`kept_units`), in the backward pass
        scatter-gather            each activation or gradient that another pipeline stage sent in shares

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2;
    Black et al. 2022, arXiv 2204.06745, section 2.1.2 (parallel residual, two norms); Rajbhandari et al. 2020, section
    6.1 (partitioned checkpoints); Narayanan et al. 2021, arXiv 2104.04473, section 4.1 (scatter-gather). In section 3.2
    the last gives 8 b s h (t - 1) / t elements a layer, which this is without recomputation.
    Differs from one all-reduce each way with a parallel residual by one backward: that needs one norm for both parts,
    or f before the norms, whose own gradients each rank would then have in part.
    PyTorch's recomputation stops early where there is no dropout and so leaves out the last g of each group: 1 in
    place of 2 for groups of one layer, 0 in place of 1 with a parallel residual.
    """
    a = activation_message_bytes(architecture, recipe, layout)
    several = layout.tensor_parallel > 1
    first, last = stage == 0, stage == layout.pipeline_stages - 1
    layers = stage_layers(architecture, layout, stage=stage)
    inputs = 2
    outputs = 1 if architecture.residual is Residual.PARALLEL else inputs
    passes = several * micro_batches
    forwards = layers + _recomputed_layers(layout.recomputation, layers)
    reduced = passes * (outputs * forwards + inputs * layers + first + last)
    losses = passes * (CROSS_ENTROPY_REDUCTIONS * last)
    loss_bytes = losses * (FP32 * layout.micro_batch * architecture.sequence // layout.context_parallel)
    if layout.sequence_parallel:
        replicated = several * rank_parameters(architecture, layout, stage=stage).replicated
        # the head gathers its input forward and for the weight's gradient; the embedding gathers its output's gradient
        gathered = passes * (inputs * (forwards + layers) + outputs * layers + first + 2 * last)
        gradient = reduced_gradient_element_bytes(recipe.precision)
        return [
            Traffic("tp", "all_reduce", loss_bytes + gradient * replicated, losses + several),
            Traffic("tp", "all_gather", gathered * a, gathered),
            Traffic("tp", "reduce_scatter", reduced * a, reduced),
        ]
    traffic = [Traffic("tp", "all_reduce", reduced * a + loss_bytes, reduced + losses)]
    gathered = 0 * reduced
    if layout.partitioned_checkpoints and layout.recomputation in (Recomputation.FULL, Recomputation.FROM_INPUT):
        gathered = gathered + passes * kept_units(layout, layers=layers)
    if layout.scatter_gather:
        # a rank receives as often as it sends: the end of the chain that it lacks forward, it lacks backward
        gathered = gathered + several * pipeline_messages(layout, stage=stage, micro_batches=micro_batches)
    traffic.append(Traffic("tp", "all_gather", gathered * a, gathered))
    return traffic


def _recomputed_layers(recomputation: Recomputation, layers: int) -> int:
    """Layer-forwards that the backward pass of `layers` layers repeats, whole layers only."""
    if recomputation is Recomputation.FULL:
        return layers
    return recomputed_layers_from_input(layers) if recomputation is Recomputation.FROM_INPUT else 0 * layers


def context_parallel_traffic(
    architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int, micro_batches: int
) -> Traffic:
    """What one rank sends round its context-parallel ring in a step (ring attention).

    Keys and values of a rank's share of the sequence are 2 b s k d e / (c t) bytes, with k key-value heads of size d,
    c ranks of the ring. For each layer and micro-batch, one message each:
        forward      c - 1   keys and values go round until every rank has seen every block
        backward     c - 1   keys and values again
                     c - 1   their gradients, gathered on the way home
        recomputed   c - 1   for each repeated pass, and with selective recomputation, which repeats the attention

    Source: Liu et al. 2023, arXiv 2310.01889, section 3 (a block is sent while the one before it is computed).
    c - 1 steps of each kind are Transformer Engine's: the backward ring starts at the block where the forward ring
    ended and turns the other way. Implementations that start at home send the gradients c times.
    Gradients of weights are reduced over dp and cp together (see `zero_traffic`).
    """
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    layers = stage_layers(architecture, layout, stage=stage)
    again = layers if layout.recomputation is Recomputation.SELECTIVE else 0
    forwards = layers + _recomputed_layers(layout.recomputation, layers) + again
    block = 2 * layout.micro_batch * architecture.sequence * architecture.kv_heads * architecture.head_dim * element
    block = block // (layout.context_parallel * layout.tensor_parallel)
    messages = micro_batches * (layout.context_parallel - 1) * (forwards + 2 * layers)
    return Traffic("cp", "send", messages * block, messages)


def pipeline_messages(layout: Layout, *, stage: int, micro_batches: int) -> int:
    """Messages that a rank of `stage` (from 0) sends to other stages in a step: m (2 v - [first] - [last]).

    Each of its v chunks of the model sends an activation forward, except the model's last one, and a gradient
    backward, except the model's first one. It receives as many. Over all stages: 2 m (p v - 1).

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2 (interleaving sends v times as much).
    """
    ends = (stage == 0) * 1 + (stage == layout.pipeline_stages - 1) * 1
    return (layout.pipeline_stages > 1) * micro_batches * (2 * layout.virtual_stages - ends)


def pipeline_traffic(
    architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int, micro_batches: int
) -> Traffic:
    """What one rank sends to other pipeline stages in a step: `pipeline_messages` of a = b s h e / c bytes each.

    Every tensor-parallel rank sends all of it, except with scatter_gather or sequence parallelism: a / t. With the
    first, the receivers gather it (see `tensor_parallel_traffic`); with the second, no rank has more.

    Source: Narayanan et al. 2021, arXiv 2104.04473, sections 3.2 and 4.1.
    """
    size = activation_message_bytes(architecture, recipe, layout)
    if layout.sequence_parallel or layout.scatter_gather:
        size = size // layout.tensor_parallel
    messages = pipeline_messages(layout, stage=stage, micro_batches=micro_batches)
    return Traffic("pp", "send", messages * size, messages)


def tied_embedding_traffic(architecture: Architecture, recipe: Recipe, layout: Layout, *, stage: int) -> Traffic:
    """What one rank hands to the all-reduce of the tied embedding's gradient between first and last stage in a step.

    g V h / t bytes in one message on the first and on the last of several stages; nothing elsewhere or untied.
    Counted whole under ZeRO-2 and 3 too, as in Megatron-LM.

    Source: Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM, core/distributed/finalize_model_grads.py.
    """
    ends = (stage == 0) | (stage == layout.pipeline_stages - 1)
    messages = (layout.pipeline_stages > 1) * ends * (1 if architecture.tied_embeddings else 0)
    table = architecture.padded_vocabulary * architecture.hidden // layout.tensor_parallel
    payload = messages * reduced_gradient_element_bytes(recipe.precision) * table
    return Traffic("embedding", "all_reduce", payload, messages)


def group_ranks(layout: Layout, axis: str) -> int:
    """Ranks of the group in which an axis communicates: dp * cp for "dp", 2 for "embedding", else the axis's size.

    Raises:
        KeyError: an unknown axis.
    """
    sizes = _axis_sizes(layout)
    return sizes["dp"] * sizes["cp"] if axis == "dp" else 2 if axis == "embedding" else sizes[axis]


def _axis_sizes(layout: Layout) -> dict[str, int]:
    return {
        "tp": layout.tensor_parallel,
        "cp": layout.context_parallel,
        "dp": layout.data_parallel,
        "pp": layout.pipeline_stages,
    }


_SPLIT = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
_WHOLE = ("broadcast", "send")


def _check_ring(operation: str, ranks: int) -> None:
    if isinstance(ranks, int) and ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if operation not in _SPLIT and operation not in _WHOLE:
        raise ValueError(f"no ring factor for {operation!r}; allowed: {', '.join((*_SPLIT, *_WHOLE))}")


def ring_factor(operation: str, *, ranks: int) -> float:
    """Bytes that leave a rank for each payload byte of a ring collective over `ranks`.

    all_reduce        2 (n - 1) / n   reduce-scatter, then all-gather: n - 1 chunks of S / n each
    all_gather        (n - 1) / n     of the output
    reduce_scatter    (n - 1) / n     of the input
    all_to_all        (n - 1) / n     of the input: a chunk to each other rank, in no ring
    broadcast, send   1               passed on once (the last of a broadcast's ring sends nothing); 0 for one rank

    Source: nccl-tests, doc/PERFORMANCE.md.
    Differs from the often quoted 2 S by (n - 1) / n: half at n = 2, 1.6 % at n = 64.

    Raises:
        ValueError: ranks < 1 (not checked in arrays) or an operation without a ring form here.
    """
    _check_ring(operation, ranks)
    return 1.0 * (ranks > 1) if operation in _WHOLE else _SPLIT[operation] * (ranks - 1) / ranks


def ring_sent_bytes(operation: str, *, payload_bytes: int, ranks: int) -> int:
    """Bytes that one rank sends for `payload_bytes` in collectives over `ranks`, to the nearest byte.

    The payload times `ring_factor`, exact for integers of any size.

    Raises:
        ValueError: as `ring_factor`.
    """
    _check_ring(operation, ranks)
    if operation in _WHOLE:
        return (ranks > 1) * payload_bytes
    return (2 * _SPLIT[operation] * payload_bytes * (ranks - 1) + ranks) // (2 * ranks)


def sent_bytes(traffic: Traffic, layout: Layout) -> int:
    """Bytes that one rank sends for `traffic` in rings over the group of its axis, to the nearest byte."""
    return ring_sent_bytes(
        traffic.operation, payload_bytes=traffic.payload_bytes, ranks=group_ranks(layout, traffic.axis)
    )


def fused_messages(total_bytes: int, *, bucket_bytes: int, copies: int) -> FusedMessages:
    """Messages of tensor fusion: `total_bytes` of gradients in buffers of `bucket_bytes`, each copied `copies` times.

        messages       ceil(S / B), all of B bytes except the last
        copied bytes   2 S copies: a copy reads and writes every byte

    copies is 2 where gradients are copied into the buffer and back, 0 where they are views into it
    (gradient_as_bucket_view).
    Source: Sergeev and Del Balso 2018, arXiv 1802.05799, section "Tensor Fusion"; Li et al. 2020,
    arXiv 2006.15704, section 3.2.3.
    Differs from `stage_gradient_buckets`, which never splits a tensor, so that its messages are B or more.
    """
    messages = ceil_division(total_bytes, bucket_bytes)
    return FusedMessages(
        messages,
        smaller(total_bytes, bucket_bytes),
        total_bytes - larger(messages - 1, 0) * bucket_bytes,
        2 * total_bytes * copies,
    )


def ranks_in_node(layout: Layout, axis: str, *, accelerators_per_node: int) -> int:
    """Ranks of a group of `axis` that stand in one node.

    min(max(node / stride, 1), size), where stride is the product of the axes before this one in layout.rank_order: the
    distance of neighbours. Exact where strides and node divide one another; otherwise some groups are cut further.
        dp          of its own and cp's, which the group spans
        embedding   2 where all stages stand in the node, else 1

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 3.2 (tensor parallelism inside a node first).

    Raises:
        KeyError: an unknown axis, or one that layout.rank_order lacks.
    """
    inside = axes_in_node(layout, accelerators_per_node=accelerators_per_node)
    return inside[axis]


def axes_in_node(layout: Layout, *, accelerators_per_node: int) -> dict[str, int]:
    """By axis, what `ranks_in_node` says of it."""
    sizes = _axis_sizes(layout)
    inside: dict[str, int] = {}
    stride = 1
    for name in layout.rank_order.split("-"):
        inside[name] = smaller(larger(accelerators_per_node // stride, 1), sizes[name])
        stride = stride * sizes[name]
    inside["embedding"] = 1 + (inside["pp"] == sizes["pp"]) * 1
    inside["dp"] = inside["dp"] * inside["cp"]
    return inside


def node_crossing_share(layout: Layout, axis: str, *, accelerators_per_node: int) -> float:
    """Share of the links of an axis's ring that leave the node: 1 / g with g ranks in a node, 0 where all stand in one.

    A ring of n ranks passes its n / g nodes one after the other, and leaves each once.
    Pipeline stages that do not interleave form a chain: of its p - 1 links p / g - 1 leave the node.
    """
    inside = ranks_in_node(layout, axis, accelerators_per_node=accelerators_per_node)
    return chosen(inside < group_ranks(layout, axis), 1 / inside, 0.0)
