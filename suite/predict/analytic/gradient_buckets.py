"""Messages in which gradients travel: DistributedDataParallel's buckets, and buffers of tensor fusion."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import head_stage
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import by_row, ceil_division, larger, smaller
from suite.predict.analytic.parameters import ParameterTensor, layer_tensors, outer_tensors
from suite.predict.analytic.stage_layers import stage_layer_kinds, stage_layers


class FusedMessages(NamedTuple):
    """Messages that tensor fusion makes of many tensors: how many, their sizes, and bytes moved in memory by copies."""

    messages: int
    message_bytes: int
    last_message_bytes: int
    copied_bytes: int


def stage_gradient_buckets(architecture: Architecture, layout: Layout, *, stage: int, element_bytes: int) -> list[int]:
    """Bytes of each bucket in which DistributedDataParallel all-reduces one rank's gradients, in the order of issue.

    Gradients become ready in the reverse of the order in which the forward pass read the parameters. A bucket is
    closed as soon as it holds `layout.bucket_bytes`. (A first bucket of 1 MiB belongs to the default cap alone; a cap
    that is given, as here, holds for all.) All layers of the stage are one chunk (see `chunk_gradient_buckets`).

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size and rebuild_buckets (from the second step on).
    """
    return chunk_gradient_buckets(
        architecture,
        tensor_parallel=layout.tensor_parallel,
        layers=stage_layers(architecture, layout, stage=stage),
        dense_layers=_dense_layers(architecture, layout, stage=stage),
        first=stage == 0,
        last=stage == head_stage(layout),
        bucket_bytes=layout.bucket_bytes,
        element_bytes=element_bytes,
    )


def gradient_bucket_count(architecture: Architecture, layout: Layout, *, stage: int, element_bytes: int) -> int:
    """Messages in which DistributedDataParallel all-reduces one rank's gradients (see `stage_gradient_buckets`)."""

    def messages(
        tensor_parallel: float, layers: float, dense_layers: float, first: bool, last: bool, bucket_bytes: float
    ) -> int:
        buckets = chunk_gradient_buckets(
            architecture,
            tensor_parallel=int(tensor_parallel),
            layers=int(layers),
            dense_layers=int(dense_layers),
            first=first,
            last=last,
            bucket_bytes=int(bucket_bytes),
            element_bytes=element_bytes,
        )
        return len(buckets)

    layers, last = stage_layers(architecture, layout, stage=stage), stage == head_stage(layout)
    dense = _dense_layers(architecture, layout, stage=stage)
    return by_row(messages, layout.tensor_parallel, layers, dense, stage == 0, last, layout.bucket_bytes)


def _dense_layers(architecture: Architecture, layout: Layout, *, stage: int) -> int:
    """The layers of a stage that are of the model's first kind: without experts, or without linear attention."""
    return stage_layer_kinds(architecture, layout, stage=stage)[0].layers if architecture.first_kind_layers else 0


def chunk_gradient_buckets(
    architecture: Architecture,
    *,
    tensor_parallel: int,
    layers: int,
    dense_layers: int,
    first: bool,
    last: bool,
    bucket_bytes: int,
    element_bytes: int,
) -> list[int]:
    """Bytes of each bucket of one chunk of `layers` layers, which may be the first and the last of the model.

    `dense_layers` of them, the first ones, have no experts; those without linear attention are counted as if they were
    the first ones.

    A tied embedding is the last gradient of the first chunk; a last chunk that is not the first has a copy of its own,
    the first gradient there. A top-query layer's gradients come between those of the head and of the final norm.

    Only one layer is walked: what a layer closes, and what it leaves open, depends on nothing but what was open before
    it. After the first time that something is closed, what is open has been seen before after few layers, and the rest
    repeats.
    """
    before, after = outer_tensors(architecture, tensor_parallel=tensor_parallel)
    head = [tensor for tensor in after if tensor.name.startswith("head.")]
    after = after[: len(after) - len(head)]
    top_query = last and architecture.top_query_layer and layers > 0
    if top_query:
        after += layer_tensors(architecture, tensor_parallel=tensor_parallel, top_query=True)
    if architecture.tied_embeddings and not first:
        after.append(before[0])
    after += head

    def in_order(tensors: list[ParameterTensor]) -> list[int]:
        """Bytes of the gradients, in the order in which they become ready."""
        return [element_bytes * tensor.elements for tensor in reversed(tensors) if tensor.learned]

    open_bytes = 0
    buckets: list[int] = []
    if last:
        open_bytes = _fill(buckets, in_order(after), open_bytes, bucket_bytes)
    for kind, number in (
        (architecture.other_kind, layers - top_query - dense_layers),
        (architecture.first_kind, dense_layers),
    ):
        layer = in_order(layer_tensors(kind, tensor_parallel=tensor_parallel))
        open_bytes = _fill_layers(buckets, layer, number, open_bytes, bucket_bytes)
    if first:
        open_bytes = _fill(buckets, in_order(before), open_bytes, bucket_bytes)
    return [*buckets, open_bytes] if open_bytes else buckets


def _fill_layers(buckets: list[int], layer: list[int], layers: int, open_bytes: int, bucket_bytes: int) -> int:
    """`_fill` with the tensors of a `layer` so many times."""
    layer_bytes = sum(layer)
    seen: dict[int, tuple[int, int]] = {}
    remaining = layers
    while remaining > 0:
        if open_bytes in seen:
            then_remaining, start = seen[open_bytes]
            period = then_remaining - remaining
            buckets += buckets[start:] * (remaining // period)
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
    return open_bytes


def filled_buckets(tensors: list[int], bucket_bytes: int) -> list[int]:
    """Bytes of the buckets that gradients of so many bytes fill, in the order in which they become ready."""
    buckets: list[int] = []
    left = _fill(buckets, tensors, 0, bucket_bytes)
    return [*buckets, left] if left else buckets


def _fill(buckets: list[int], tensors: list[int], open_bytes: int, bucket_bytes: int) -> int:
    """Append the buckets that `tensors` close to `buckets`; returns the bytes left open."""
    for tensor in tensors:
        open_bytes += tensor
        if open_bytes >= bucket_bytes:
            buckets.append(open_bytes)
            open_bytes = 0
    return open_bytes


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
