"""Every message of a rank's step, one after the other, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Precision, Recipe, Residual
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.process_groups import group_ranks
from suite.predict.analytic.stage_layers import stage_layers
from tests.support.gradient_buckets import walked_buckets

LOSS = 4  # bytes of the loss, whose mean is reported


Message = tuple[str, str, int]  # axis, operation, payload bytes


def ring_attention_sends(ranks: int) -> tuple[int, int, int]:
    """Blocks that each rank sends forward, backward, and gradients of blocks backward, from a ring played through."""
    held = list(range(ranks))
    seen = [{block} for block in held]
    forward = 0
    for _ in range(ranks - 1):
        held = [held[rank - 1] for rank in range(ranks)]
        forward += 1
        for rank in range(ranks):
            seen[rank].add(held[rank])
    assert all(blocks == set(range(ranks)) for blocks in seen)
    # the other way round, from where the forward ring ended; contributions to a block's gradient travel along
    contributions = [{rank} for rank in range(ranks)]
    backward = gradients = 0
    for _ in range(ranks - 1):
        held = [held[(rank + 1) % ranks] for rank in range(ranks)]
        backward += 1
        contributions = [contributions[(rank + 1) % ranks] | {rank} for rank in range(ranks)]
        gradients += 1
    assert held == list(range(ranks))
    assert all(ranks_seen == set(range(ranks)) for ranks_seen in contributions)
    return forward, backward, gradients


def messages_of_step(
    architecture: Architecture, recipe: Recipe, layout: Layout, stage: int, micro_batches: int
) -> Iterator[Message]:
    """Every message of one rank of `stage` in one step, one after the other."""
    t, c, p, v = layout.tensor_parallel, layout.context_parallel, layout.pipeline_stages, layout.virtual_stages
    h, element = architecture.hidden, 4 if recipe.precision is Precision.FP32 else 2
    gradient = 4 if recipe.precision in (Precision.FP32, Precision.BF16) else 2
    hidden_states = element * layout.micro_batch * (architecture.sequence // c) * h
    keys_and_values = (
        element * 2 * layout.micro_batch * (architecture.sequence // c) * max(architecture.kv_heads // t, 1)
    ) * architecture.head_dim
    first, last = stage == 0, stage == p - 1
    layers = stage_layers(architecture, layout, stage=stage)
    norms = ["attention and feed-forward"] if architecture.shared_norm else ["attention", "feed-forward"]
    is_parallel = architecture.residual is Residual.PARALLEL
    sums = ["attention and feed-forward"] if is_parallel else ["attention", "feed-forward"]
    ring_forward, ring_backward, ring_gradients = ring_attention_sends(c)
    sequence_parallel = layout.sequence_parallel

    def joined(operation: str) -> Iterator[Message]:
        yield "tp", operation, hidden_states

    def ring(blocks: int) -> Iterator[Message]:
        for _ in range(blocks):
            yield "cp", "send", keys_and_values

    def of_layer(layer: int, parts: list[str]) -> list[str]:
        mixers = (architecture.layer_pattern or "").replace("-", "")
        return parts[:1] if mixers[layer : layer + 1] == "*" else parts  # of one stage alone

    def forward(layer: int, *, attends: bool = True) -> Iterator[Message]:
        for _ in of_layer(layer, norms) if sequence_parallel else []:
            yield from joined("all_gather")  # what a norm hands to a column-parallel layer
        for _ in of_layer(layer, sums):
            yield from joined("reduce_scatter" if sequence_parallel else "all_reduce")
        yield from ring(ring_forward if attends else 0)

    def backward(layer: int) -> Iterator[Message]:
        for _ in of_layer(layer, sums) if sequence_parallel else []:
            yield from joined("all_gather")  # gradient of the output
        for _ in of_layer(layer, norms):
            if sequence_parallel:
                yield from joined("all_gather")  # the input, for the weight's gradient
            yield from joined("reduce_scatter" if sequence_parallel else "all_reduce")  # gradient of the input
        yield from ring(ring_backward + ring_gradients)

    def transfer() -> Iterator[Message]:
        yield "pp", "send", hidden_states // t if sequence_parallel or layout.scatter_gather else hidden_states

    if t > architecture.kv_heads:
        # gradients of the key and value heads that several ranks have
        yield "kv", "all_reduce", gradient * layers * 2 * architecture.head_dim * (h + architecture.bias.attention)
    for _ in range(micro_batches):
        for chunk in range(p * v):
            # chunk `chunk` sends to the next one, and its gradient to the one before
            if p > 1 and chunk % p == stage:
                if chunk < p * v - 1:
                    yield from transfer()
                    if layout.scatter_gather and not sequence_parallel:
                        yield from joined("all_gather")  # the gradient that comes back
                if chunk > 0:
                    yield from transfer()
                    if layout.scatter_gather and not sequence_parallel:
                        yield from joined("all_gather")  # the activation that came
        if first:
            yield from joined("reduce_scatter" if sequence_parallel else "all_reduce")
            if sequence_parallel:
                yield from joined("all_gather")
        for layer in range(layers):
            yield from forward(layer)
        if last:
            if sequence_parallel:
                for operation in ("all_gather", "all_gather", "reduce_scatter"):
                    yield from joined(operation)
            else:
                yield from joined("all_reduce")
            for _ in ("maximum", "target's logit", "sum of exponentials"):
                yield "tp", "all_reduce", 4 * layout.micro_batch * (architecture.sequence // c)
        kept = 0
        for layer in reversed(range(layers)):
            if layout.recomputation is Recomputation.FULL:
                yield from forward(layer)
            elif layout.recomputation is Recomputation.FROM_INPUT:
                for again in range(layer + 1):
                    yield from forward(again)
            elif layout.recomputation is Recomputation.SELECTIVE_OP:
                yield from forward(layer, attends=False)
            elif layout.recomputation is Recomputation.SELECTIVE:
                yield from ring(ring_forward)
            yield from backward(layer)
        for _ in range(v):
            # every chunk counts as the fullest one
            for layer in range(-(-layers // v)):
                kept += layout.recomputation is Recomputation.FULL and layer % layout.checkpoint_layers == 0
                kept += layout.recomputation is Recomputation.FROM_INPUT and layer == 0
        if layout.partitioned_checkpoints and not sequence_parallel:
            for _ in range(kept):
                yield from joined("all_gather")
    if sequence_parallel:
        yield "tp", "all_reduce", gradient * rank_parameters(architecture, layout, stage=stage).replicated
    if architecture.tied_embeddings and p > 1 and (first or last):
        yield "embedding", "all_reduce", gradient * (architecture.padded_vocabulary // t) * h
    yield from gradient_messages(architecture, recipe, layout, stage, micro_batches)


def gradient_messages(
    architecture: Architecture, recipe: Recipe, layout: Layout, stage: int, micro_batches: int
) -> Iterator[Message]:
    """Every message of data parallelism; what comes in several messages of unequal size is listed whole."""
    n = layout.data_parallel * layout.context_parallel
    element = 4 if recipe.precision is Precision.FP32 else 2
    gradient = 4 if recipe.precision in (Precision.FP32, Precision.BF16) else 2
    rank = rank_parameters(architecture, layout, stage=stage)
    groups = [rank.all] if recipe.decay_of_vectors else [rank.matrices, rank.vectors]
    padded = [elements + -elements % n for elements in groups if elements]
    scatters = layout.zero_stage == 1 and layout.reduce_scatter
    axis = "dp"
    if layout.zero_stage >= 2 and layout.shard_ranks not in (None, n):
        axis, n = "shard", layout.shard_ranks
        padded = [elements + -elements % n for elements in groups if elements]
        yield "replicate", "all_reduce", gradient * sum(padded) // n
    if scatters:
        left = gradient * sum(padded)
        while left > 0:
            size = min(left, layout.bucket_bytes)
            yield "dp", "reduce_scatter", size
            left -= size
    elif layout.zero_stage <= 1:
        for bucket in walked_buckets(architecture, layout, stage, gradient):
            yield "dp", "all_reduce", bucket
    if layout.zero_stage in (1, 2):
        for elements in padded:
            yield axis, "all_gather", element * elements
    for _ in range(micro_batches if layout.zero_stage >= 2 else 0):
        yield axis, "reduce_scatter", gradient * sum(padded)
        if layout.zero_stage == 3:
            for _ in ("forward", "backward") if layout.reshard_after_forward else ("forward",):
                yield axis, "all_gather", element * sum(padded)


def listed(messages: Iterator[Message], layout: Layout) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Payload bytes and messages by axis and operation; one rank has none, nor has a stage without weights."""
    payload: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for axis, operation, size in messages:
        if (axis == "kv" or group_ranks(layout, axis) > 1) and size:
            payload[axis, operation] += size
            count[axis, operation] += 1
    return payload, count
