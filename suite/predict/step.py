"""Seconds of one training step, as a sum of terms: what computes, what communicates, and what waits.

A plain model: peak times a stated efficiency, least bytes over an achievable bandwidth, and nothing hidden but a share
of the data-parallel traffic. Left out: launches (small models wait for the host), imbalance, and what a framework adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload, Recomputation
from reference_runs.run import Architecture, Mask, Recipe
from suite.predict.collectives import Group, collective_seconds, group
from suite.predict.elementwise import chosen, larger, smaller
from suite.predict.flop import recomputed_layers_from_input
from suite.predict.gemm import product_seconds
from suite.predict.machine import Machine
from suite.predict.memory import WEIGHT_ELEMENT_BYTES, optimizer_shards
from suite.predict.operators import (
    BACKWARD,
    embedding_bytes,
    layer_operator_bytes,
    loss_bytes,
    score_operator_bytes,
    update_element_bytes,
)
from suite.predict.parameters import rank_parameters, stage_layers
from suite.predict.rings import axes_in_node, group_ranks
from suite.predict.schedule import NO_FLUSH

RankTraffic = Sequence[tuple[str, str, int, int]]  # suite.predict.traffic.Traffic: axis, operation, bytes, messages


class StepTime(NamedTuple):
    """Seconds of one step by what they are spent on, of the stage that takes longest; they add up to the step.

    Args:
        forward_seconds: matrix products of the forward passes.
        backward_seconds: matrix products of the backward passes, without recomputation.
        recomputation_seconds: matrix products that the backward passes repeat.
        operator_seconds: memory-bound operators, recomputed ones included.
        tensor_parallel_seconds: none of it hidden.
        context_parallel_seconds: none of it hidden.
        pipeline_seconds: sending activations and their gradients to the neighbouring stages, none of it hidden.
        bubble_seconds: waiting for other stages.
        data_parallel_seconds: the exposed part.
        tied_embedding_seconds: adding up the gradients of an embedding that first and last stage store.
        optimizer_seconds: clipping and update.
    """

    forward_seconds: float
    backward_seconds: float
    recomputation_seconds: float
    operator_seconds: float
    tensor_parallel_seconds: float
    context_parallel_seconds: float
    pipeline_seconds: float
    bubble_seconds: float
    data_parallel_seconds: float
    tied_embedding_seconds: float
    optimizer_seconds: float

    @property
    def total_seconds(self) -> float:
        """Seconds of the step."""
        return sum(self)

    @property
    def matrix_seconds(self) -> float:
        """Seconds of all matrix products, those of recomputation included."""
        return self.forward_seconds + self.backward_seconds + self.recomputation_seconds


class LayerTime(NamedTuple):
    """Seconds of one micro-batch in one layer on one rank; of attention, what selective recomputation repeats.

    Operators are those of the forward pass; their backward pass takes twice as long.
    """

    forward_seconds: float
    backward_seconds: float
    attention_seconds: float
    operator_seconds: float
    attention_operator_seconds: float


def timed_stages(layout: Layout) -> tuple[int, ...]:
    """Pipeline stages among which the slowest is: the first, the second, the last, each once.

    All others have no more layers than the second and, like it, neither embedding nor head. Where the number of stages
    is an array, three entries, of which some may name the same stage.
    """
    stages: Any = layout.pipeline_stages
    if isinstance(stages, int):
        return tuple(range(stages)) if stages < 3 else (0, 1, stages - 1)
    return (0 * stages, smaller(1, stages - 1), stages - 1)


def layer_products(architecture: Architecture, layout: Layout) -> dict[str, tuple[int, int, int, int]]:
    """Matrix products of one rank's forward pass of one micro-batch through one layer: how many, M, N and K, by part.

    With T = b s / c tokens, t tensor-parallel ranks, g = 2 for a gated activation and 1 otherwise, an M x K by K x N
    product is:
        query, key, value      T x h by h x (h + 2 k d) / t
        attention scores       b a / t of s / c x d by d x s
        attention context      b a / t of s / c x s by s x d
        projection             T x h / t by h / t x h
        expansion              T x h by h x g f / t
        contraction            T x f / t by f / t x h

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3 (split by columns, then by rows). Summed over the ranks,
    their flop are those of `suite.predict.flop.layer_forward_flop`.
    """
    h, s, t = architecture.hidden, architecture.sequence, layout.tensor_parallel
    rows = s // layout.context_parallel
    tokens = layout.micro_batch * rows
    heads = layout.micro_batch * architecture.heads // t
    width, inner = h // t, architecture.ffn_hidden // t
    return {
        "query, key, value": (1, tokens, (h + 2 * architecture.kv_heads * architecture.head_dim) // t, h),
        "attention scores": (heads, rows, s, architecture.head_dim),
        "attention context": (heads, rows, architecture.head_dim, s),
        "projection": (1, tokens, h, width),
        "expansion": (1, tokens, (2 if architecture.activation.gated else 1) * inner, h),
        "contraction": (1, tokens, h, inner),
    }


def fused_attention_seconds(
    architecture: Architecture, recipe: Recipe, layout: Layout, machine: Machine
) -> tuple[float, float]:
    """Seconds of one rank's forward and backward pass of one micro-batch through a layer's attention kernel.

    forward     max(4 T s h / t u / (e P), w (2 T h + 2 T c k d) / t / B)
    backward    2.5 times the flop, twice the bytes

    With T = b s / c tokens on c context-parallel ranks, u = 1/2 under a causal mask (the other half is skipped) and 1
    otherwise; the bytes are queries and output, and the keys and values of the whole sequence. The backward pass has
    five products for the forward pass's two, as it computes the scores again.

    Source: Dao 2023, arXiv 2307.08691, sections 3.1 and 4.1.
    """
    s, t = architecture.sequence, layout.tensor_parallel
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    tokens = layout.micro_batch * s // layout.context_parallel
    computed = 0.5 if architecture.mask is Mask.CAUSAL else 1.0
    flop = computed * (4 * tokens * s * architecture.hidden / t)
    keys = architecture.kv_heads * architecture.head_dim * layout.context_parallel
    moved = 2 * w * tokens * (architecture.hidden + keys) / t / machine.achievable_memory_bytes_per_second
    arithmetic = flop / (machine.fused_attention_efficiency * machine.peak_flop_per_second)
    return larger(arithmetic, moved), larger(2.5 * arithmetic, 2 * moved)


def layer_time(architecture: Architecture, recipe: Recipe, layout: Layout, machine: Machine) -> LayerTime:
    """Seconds of one micro-batch in one layer on one rank, without communication."""
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    bandwidth = machine.achievable_memory_bytes_per_second
    forward = backward = attention_forward = attention_backward = 0.0
    for part, (products, rows, columns, depth) in layer_products(architecture, layout).items():
        in_attention = part.startswith("attention")
        if in_attention and layout.fused_attention:
            continue
        once, twice = product_seconds(
            M=rows,
            N=columns,
            K=depth,
            element_bytes=w,
            table=machine.matrix_efficiency,
            peak_flop_per_second=machine.peak_flop_per_second,
            memory_bytes_per_second=bandwidth,
        )
        if in_attention:
            attention_forward = attention_forward + products * once
            attention_backward = attention_backward + products * twice
        else:
            forward = forward + products * once
            backward = backward + products * twice
    if layout.fused_attention:
        attention_forward, attention_backward = fused_attention_seconds(architecture, recipe, layout, machine)
    return LayerTime(
        forward + attention_forward,
        backward + attention_backward,
        attention_forward,
        sum(layer_operator_bytes(architecture, recipe, layout).values()) / bandwidth,
        sum(score_operator_bytes(architecture, recipe, layout).values()) / bandwidth,
    )


def head_seconds(architecture: Architecture, recipe: Recipe, layout: Layout, machine: Machine) -> tuple[float, float]:
    """Seconds of one rank's forward and backward pass of one micro-batch through the head: T x h by h x V / t."""
    return product_seconds(
        M=layout.micro_batch * architecture.sequence // layout.context_parallel,
        N=architecture.padded_vocabulary // layout.tensor_parallel,
        K=architecture.hidden,
        element_bytes=WEIGHT_ELEMENT_BYTES[recipe.precision],
        table=machine.matrix_efficiency,
        peak_flop_per_second=machine.peak_flop_per_second,
        memory_bytes_per_second=machine.achievable_memory_bytes_per_second,
    )


def exposed_data_parallel_seconds(
    layout: Layout,
    *,
    reduction_seconds: float,
    gather_seconds: float,
    backward_seconds: float,
    computation_seconds: float,
    micro_batches: int,
    overlap_share: float,
) -> float:
    """Seconds of a step's data-parallel traffic that computation does not hide, at overlap share o.

    stage 0, 1    max(reduction - o backward, 0) + gathers          backward pass of the last micro-batch
    stage 2       max(reduction - o m backward, 0) + gathers        every micro-batch reduces
    stage 3       max(reduction + gathers - o m computation, 0)     every layer gathers and reduces

    Below stage 3 the gathers bring the new weights behind the update, where there is nothing to hide them.
    `backward_seconds` and `computation_seconds` (forward and backward) are those of one micro-batch.
    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; Rajbhandari et al. 2020, arXiv 1910.02054, section 7.
    """
    if layout.zero_stage == 3:
        hidden = overlap_share * micro_batches * computation_seconds
        return larger(reduction_seconds + gather_seconds - hidden, 0.0)
    hidden = overlap_share * backward_seconds * (micro_batches if layout.zero_stage == 2 else 1)
    return larger(reduction_seconds - hidden, 0.0) + gather_seconds


def step_time(
    architecture: Architecture,
    recipe: Recipe,
    layout: Layout,
    machine: Machine,
    *,
    micro_batches: int,
    traffic: Sequence[RankTraffic],
) -> StepTime:
    """Seconds of one step, by term, of the pipeline stage that takes longest.

    Of a stage with l layers, m micro-batches, p stages, v virtual stages a rank:
        busy       m (l layers, embedding, head, recomputation) + its tensor-, context- and pipeline-parallel traffic
        bubble     (p - 1) / (v m) of busy: waiting for others as if they were as slow; 0 without flush
        after      exposed data-parallel traffic, the tied embedding's gradient, the optimizer step

    Equal stages wait for `suite.predict.schedule.bubble_fraction` of busy and bubble.
    Differs for unequal stages: the exact fill is the sum of the other stages' times over v, which is less.
    Source: Narayanan et al. 2021, arXiv 2104.04473, sections 2.2 and 3.

    Args:
        traffic: of one rank of each of `timed_stages(layout)`, what `suite.predict.traffic.step_traffic` returns.

    Raises:
        InputError: the layout keeps state in the host's memory; its transfers have no time here.
    """
    if layout.offload is not Offload.NONE:
        raise InputError("layout.offload: no time is predicted", got=layout.offload.value, allowed=Offload.NONE.value)
    bandwidth = machine.achievable_memory_bytes_per_second
    layer = layer_time(architecture, recipe, layout, machine)
    head = head_seconds(architecture, recipe, layout, machine)
    before = embedding_bytes(architecture, recipe, layout) / bandwidth
    behind = loss_bytes(architecture, recipe, layout) / bandwidth
    update = update_element_bytes(recipe.precision) / optimizer_shards(layout) / bandwidth
    stages = timed_stages(layout)
    groups = axis_groups(layout, machine)
    times: list[StepTime] = []
    for stage, entries in zip(stages, traffic, strict=True):
        layers = stage_layers(architecture, layout, stage=stage)
        first, last = stage == 0, stage == layout.pipeline_stages - 1
        forward = layers * layer.forward_seconds + last * head[0]
        backward = layers * layer.backward_seconds + last * head[1]
        operators = layers * layer.operator_seconds + first * before + last * behind
        again, operators_again = _recomputed(layout.recomputation, layer, layers)
        backward_pass = backward + again + BACKWARD * operators + operators_again
        seconds = {"tp": 0.0, "cp": 0.0, "pp": 0.0, "embedding": 0.0, "reduction": 0.0, "gather": 0.0}
        for axis, operation, payload, messages in entries:
            spent = collective_seconds(operation, groups[axis], payload_bytes=payload, messages=messages)
            key = axis if axis != "dp" else "gather" if operation == "all_gather" else "reduction"
            seconds[key] = seconds[key] + spent
        computation = forward + operators + backward_pass
        busy = micro_batches * computation + seconds["tp"] + seconds["cp"] + seconds["pp"]
        waiting = 0 if layout.schedule in NO_FLUSH else layout.pipeline_stages - 1
        times.append(
            StepTime(
                forward_seconds=micro_batches * forward,
                backward_seconds=micro_batches * backward,
                recomputation_seconds=micro_batches * again,
                operator_seconds=micro_batches * ((1 + BACKWARD) * operators + operators_again),
                tensor_parallel_seconds=seconds["tp"],
                context_parallel_seconds=seconds["cp"],
                pipeline_seconds=seconds["pp"],
                bubble_seconds=waiting / (layout.virtual_stages * micro_batches) * busy,
                data_parallel_seconds=exposed_data_parallel_seconds(
                    layout,
                    reduction_seconds=seconds["reduction"],
                    gather_seconds=seconds["gather"],
                    backward_seconds=backward_pass,
                    computation_seconds=computation,
                    micro_batches=micro_batches,
                    overlap_share=machine.overlap_share,
                ),
                tied_embedding_seconds=seconds["embedding"],
                optimizer_seconds=update * rank_parameters(architecture, layout, stage=stage).all,
            )
        )
    return reduce(_slower, times)


def axis_groups(layout: Layout, machine: Machine) -> dict[str, Group]:
    """By axis, the ranks that it joins and the link that limits them.

    The two stages that store a tied embedding are neighbours in a node only where all stages are; otherwise the group
    is as far apart as the pipeline.
    """
    inside = axes_in_node(layout, accelerators_per_node=machine.accelerators_per_node)
    return {
        axis: group(machine, ranks=group_ranks(layout, axis), ranks_in_node=ranks) for axis, ranks in inside.items()
    }


def _recomputed(recomputation: Recomputation, layer: LayerTime, layers: int) -> tuple[float, float]:
    """Seconds of matrix products and of operators that one micro-batch's backward pass through `layers` repeats."""
    if recomputation is Recomputation.NONE:
        return 0.0 * layers, 0.0 * layers
    if recomputation is Recomputation.SELECTIVE:
        return layers * layer.attention_seconds, layers * layer.attention_operator_seconds
    forwards = layers if recomputation is Recomputation.FULL else recomputed_layers_from_input(layers)
    return forwards * layer.forward_seconds, forwards * layer.operator_seconds


def _slower(a: StepTime, b: StepTime) -> StepTime:
    """The one of two stages that takes longer; the first where both take as long."""
    longer: Any = b.total_seconds > a.total_seconds
    if isinstance(longer, bool):
        return b if longer else a
    return StepTime(*(chosen(longer, of_b, of_a) for of_a, of_b in zip(a, b, strict=True)))
