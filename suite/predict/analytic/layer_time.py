"""Seconds of one micro-batch in one layer, and in the head: products, attention and memory-bound operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reference_runs.layout import CORE_ATTENTION, Layout, Recomputation
from reference_runs.run import Mask, Workload
from reference_runs.stack import Stack
from suite.predict.analytic.elementwise import chosen, larger
from suite.predict.analytic.experts import dispatched_tokens, weighed_bias_bytes
from suite.predict.analytic.flop import recomputed_share, selective_op_share
from suite.predict.analytic.flop_conventions import attended_share, attended_shares
from suite.predict.analytic.gemm import gemm_bytes, gemm_flop, product_seconds
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.linear_attention import linear_forward_flop, linear_rule_bytes
from suite.predict.analytic.machine import Machine, head_share
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import (
    MASK_BYTES,
    RESIDUAL_OPERATORS,
    ROW_OPERATORS,
    backward_operator_bytes,
    layer_operator_bytes,
    score_operator_bytes,
)
from suite.predict.analytic.micro_batch import micro_batch_tokens
from suite.predict.analytic.process_groups import key_width
from suite.predict.analytic.product_formats import (
    AFTER_NORMS,
    SUMMED,
    factor_element_bytes,
    layer_casts,
    products_in_format,
)
from suite.predict.analytic.ring_attention import ring_work

ALIGNED = 8  # 16-bit elements in the 16 bytes that a thread loads at once
FUSED_BACKWARD = 2.5  # flop of fused attention's backward pass over those of its forward pass
ROUTED = ("expansion", "contraction")  # of a layer with experts, the products that its router shares out
UNFUSED_ROTARY = 5  # times a tensor passes: two products, halves exchanged, one negated, a sum


class LayerTime(NamedTuple):
    """Seconds of one micro-batch in one layer on one rank.

    `selective_seconds` are the forward products that selective recomputation repeats, attention's by default, and
    `repeated_seconds` those of other recomputation (`_repeated_share`).
    Casts are those of `layer_casts`: of inputs in each forward pass, of gradients in the backward pass, of weights.
    """

    forward_seconds: float
    backward_seconds: float
    attention_seconds: float
    operator_seconds: float
    attention_operator_seconds: float
    operator_backward_seconds: float
    input_cast_seconds: float = 0.0
    gradient_cast_seconds: float = 0.0
    weight_cast_seconds: float = 0.0
    repeated_seconds: float = 0.0
    selective_seconds: float = 0.0


class ProductTime(NamedTuple):
    """Matrix products of one part of a layer, forward, on one rank and of one micro-batch.

    Args:
        products: how many of M x K by K x N; the attention kernel is one, without sizes.
        flop: of all of them; `least_bytes` what they read and write at least.
        forward_seconds: of all of them; `backward_seconds` those of the backward pass.
        peak_flop_per_second: in the format that they are computed in.
    """

    products: int
    sizes: tuple[int, int, int] | None
    flop: float
    least_bytes: float
    forward_seconds: float
    backward_seconds: float
    peak_flop_per_second: float


class AttentionWork(NamedTuple):
    """Work of one layer's attention kernel in one rank's forward pass of one micro-batch."""

    flop: float
    least_bytes: float


def fused_attention_seconds(workload: Workload, machine: Machine) -> tuple[float, float]:
    """Seconds of one rank's forward and backward pass of one micro-batch through a layer's attention kernel.

    forward     max(4 T s a d / t u / (e P), w (2 T a d + 2 T c k d) / t / B); values of latent attention have
                another size than d, of which then the mean of both counts
    backward    2.5 times the flop, twice the bytes

    With T = b s / c tokens on c context-parallel ranks, u = 1/2 under a causal mask (the other half is skipped), less
    with a sliding window (see `attended_share`), and 1 otherwise; k / t is at least 1. Where some layers alone have a
    window, the seconds are the mean over all layers. The bytes are queries and output, and the keys and values of the
    whole sequence. The backward pass has five products for the forward pass's two, as it computes the scores again.
    Context-parallel ranks may have `ring_work` besides.

    Source: Dao 2023, arXiv 2307.08691, sections 3.1 and 4.1.
    """
    flop, least_bytes = attention_work(workload)
    ring, bandwidth = ring_work(workload, machine.stack), machine.achievable_memory_bytes_per_second
    moved = least_bytes / bandwidth
    share = machine.fused_attention_efficiency * head_share(workload.architecture, machine.exponential_flop)
    mean = ring.imbalance * flop / (share * machine.peak_flop_per_second)
    forward, backward = ring.forward_bytes / bandwidth, ring.backward_bytes / bandwidth
    for layers, share in _of_mean_attention(workload):
        arithmetic = share * mean
        forward = forward + layers * larger(arithmetic, moved)
        backward = backward + layers * larger(FUSED_BACKWARD * arithmetic, 2 * moved)
    return forward, backward


def _of_mean_attention(workload: Workload) -> list[tuple[float, float]]:
    """Part of the layers, and their attention's flop over the mean of all; several with windows of some layers."""
    shares, mean = attended_shares(workload.architecture), attended_share(workload.architecture)
    return [(1.0, 1.0)] if len(shares) == 1 else [(float(part), float(share / mean)) for part, share in shares]


def attention_work(workload: Workload) -> AttentionWork:
    """Flop and bytes of `fused_attention_seconds`, forward; of linear attention its products, and what they read and
    write. Its kernels are taken to reach the same share of the peak as those of other attention: not measured.
    """
    architecture, recipe, layout = workload
    s, t = architecture.sequence, layout.tensor_parallel
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    tokens = micro_batch_tokens(workload)
    if architecture.linear:
        flop = sum(linear_forward_flop(architecture, samples=layout.micro_batch).values()) / t
        return AttentionWork(flop, linear_rule_bytes(architecture, tokens=tokens, element=w) / t)
    computed = float(attended_share(architecture)) if architecture.mask is not Mask.PREFIX else 1.0
    widths = architecture.query_width + architecture.context_width
    keys = key_width(architecture, tensor_parallel=t) * layout.context_parallel
    values = keys * (architecture.value_head_dim or architecture.head_dim) / architecture.head_dim
    return AttentionWork(computed * (2 * tokens * s * widths / t), w * tokens * (widths / t + keys + values))


def product_times(workload: Workload, machine: Machine) -> dict[str, ProductTime]:
    """The products that `layer_time` and `head_seconds` add up, by part; those of `layer_products`, and the head's."""
    element_bytes = WEIGHT_ELEMENT_BYTES[workload.recipe.precision]
    in_format = products_in_format(workload)
    found: dict[str, ProductTime] = {}
    for part, (products, rows, columns, depth) in layer_products(workload).items():
        in_attention = part.startswith("attention")
        if in_attention and workload.layout.fused_attention:
            continue
        cast = part in in_format
        seconds = _part_seconds(workload, machine, part, (rows, columns, depth), in_format=cast)
        factors = factor_element_bytes(workload.recipe.product_format) if cast else element_bytes
        found[part] = ProductTime(
            products,
            (rows, columns, depth),
            products * gemm_flop(M=rows, N=columns, K=depth),
            products * (factors * (rows * depth + depth * columns) + element_bytes * rows * columns),
            products * seconds[0],
            products * seconds[1],
            (machine.product_peak_flop_per_second if cast else None) or machine.peak_flop_per_second,
        )
    if workload.layout.fused_attention:
        work = attention_work(workload)
        passes = fused_attention_seconds(workload, machine)
        found["attention"] = ProductTime(1, None, *work, *passes, machine.peak_flop_per_second)
    return found | {"head": _head_time(workload, machine)}


def _head_time(workload: Workload, machine: Machine) -> ProductTime:
    architecture, layout = workload.architecture, workload.layout
    rows, columns, depth = (
        micro_batch_tokens(workload),
        architecture.padded_vocabulary // layout.tensor_parallel,
        architecture.hidden,
    )
    size = WEIGHT_ELEMENT_BYTES[workload.recipe.precision]
    flop, least = (gemm_flop(M=rows, N=columns, K=depth), gemm_bytes(M=rows, N=columns, K=depth, element_bytes=size))
    seconds = head_seconds(workload, machine)
    return ProductTime(1, (rows, columns, depth), flop, least, *seconds, machine.peak_flop_per_second)


def _part_seconds(
    workload: Workload, machine: Machine, part: str, sizes: tuple[int, int, int], *, in_format: bool
) -> tuple[float, float]:
    overlap = machine.score_product_overlap if part.startswith("attention") else machine.product_overlap
    rows, columns, depth = sizes
    once, twice = _product_seconds(workload, machine, M=rows, N=columns, K=depth, overlap=overlap, in_format=in_format)
    if workload.recipe.adapter_rank is not None and not part.startswith(("attention", "adapter")):
        twice = twice / 2  # frozen weights have no gradient
    forward_pieces, gradient_pieces = product_pieces(workload, machine, part)

    def in_pieces(pieces: int, N: int, K: int) -> float:
        piece = larger(rows // pieces, 1)
        seconds, _ = _product_seconds(workload, machine, M=piece, N=N, K=K, overlap=overlap, in_format=in_format)
        return pieces * seconds

    if forward_pieces is not None:
        once = in_pieces(forward_pieces, columns, depth)
    if gradient_pieces is not None:
        twice = twice + in_pieces(gradient_pieces, depth, columns) - in_pieces(1, depth, columns)
    if workload.architecture.experts is not None and part in ROUTED:
        from suite.predict.analytic.expert_time import adding_seconds  # dense models are predicted without it

        slowed = machine.expert_slowdown * workload.recipe.imbalance
        return slowed * once, slowed * (twice + adding_seconds(workload, machine, sizes, in_format=in_format))
    return once, twice


def product_pieces(workload: Workload, machine: Machine, part: str) -> tuple[int | None, int | None]:
    """Pieces by rows in which a product of the forward pass, and that of its input's gradient, is computed.

    None: whole. Each piece reads the whole weight. With Transformer Engine's layers, messages that go in pieces between
    t ranks (`sent_in_pieces`), and a stack that cuts them into c > 1:
        after norms    t forward: rows are multiplied as they come in; the gradient is whole
        summed         c forward: outputs are sent as they are ready; t of the gradient, whose rows come in

    Source: as `exposed_tensor_parallel_shares`; Transformer Engine, common/comm_gemm_overlap.cpp, split_overlap_ag and
    split_overlap_rs (known code).
    """
    layout, stack = workload.layout, machine.stack
    cuts = (stack.transformer_engine or stack.keeping.titan) and stack.tensor_parallel_chunks > 1
    if not cuts or workload.architecture.experts is not None:
        return None, None
    in_pieces = sent_in_pieces(layout, machine)
    ranks = chosen(in_pieces, layout.tensor_parallel, 1)
    chunks = chosen(in_pieces & (layout.tensor_parallel > 1), stack.tensor_parallel_chunks, 1)
    if part in AFTER_NORMS:
        return ranks, None
    return (chunks, ranks) if part in SUMMED else (None, None)


def sent_in_pieces(layout: Layout, machine: Machine) -> Any:
    """Whether a stack that cuts tensor-parallel messages into pieces can do so.

    They are gathers and scatters, so that sequence parallelism is needed, inside a node whose ranks write into each
    other's memory: over NVLink or the like, and not over PCIe.

    Source: Transformer Engine, common/comm_gemm_overlap/userbuffers (known code).
    """
    inside = layout.tensor_parallel <= machine.accelerators_per_node
    return inside & layout.sequence_parallel & machine.direct_link


def layer_time(workload: Workload, machine: Machine) -> LayerTime:
    """Seconds of one micro-batch in one layer on one rank, without communication and launches."""
    layout, bandwidth = workload.layout, machine.achievable_memory_bytes_per_second
    forward = backward = attention_forward = attention_backward = repeated = selective = 0.0
    in_format = products_in_format(workload)
    for part, (products, rows, columns, depth) in layer_products(workload).items():
        in_attention = part.startswith("attention")
        if in_attention and layout.fused_attention:
            continue
        once, twice = _part_seconds(workload, machine, part, (rows, columns, depth), in_format=part in in_format)
        if in_attention:
            attention_forward = attention_forward + products * once
            attention_backward = attention_backward + products * twice
        else:
            forward = forward + products * once
            backward = backward + products * twice
            repeated = repeated + _repeated_share(workload, machine.stack, part) * (products * once)
            share = recomputed_share(workload.architecture, part, layout.recomputed)
            selective = selective + float(share) * (products * once)
    if layout.fused_attention:
        attention_forward, attention_backward = fused_attention_seconds(workload, machine)
    by_operator = layout.recomputation is Recomputation.SELECTIVE_OP
    least_forward, least_backward = _operator_bytes(workload, machine.stack)
    score_seconds = machine.score_passes * least_forward.scores / bandwidth
    casts = layer_casts(
        workload, transformer_engine=machine.stack.transformer_engine, fused_chains=machine.stack.keeping.fused_chains
    )
    return LayerTime(
        forward + attention_forward,
        backward + attention_backward,
        attention_forward,
        _moved(machine, least_forward) / bandwidth,
        score_seconds,
        _moved(machine, least_backward) / bandwidth,
        casts.inputs / bandwidth,
        casts.gradients / bandwidth,
        casts.weights / bandwidth,
        repeated if by_operator else repeated + attention_forward,
        selective + attention_forward * (layout.recomputed >= CORE_ATTENTION),
    )


def _repeated_share(workload: Workload, stack: Stack, part: str) -> float:
    """Share of a part's forward products, attention's left out, that recomputation repeats.

    selective-op    see `selective_op_share`
    full            all; where torch.utils.checkpoint recomputes, not the contraction, as `groups_stopped_early` has it

    Source: torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    architecture, layout = workload.architecture, workload.layout
    if layout.recomputation is Recomputation.FULL:
        stops = stack.keeping.titan and layout.checkpoint_layers == 1
        return 0.0 if part == "contraction" and stops else 1.0
    if layout.recomputation is not Recomputation.SELECTIVE_OP:
        return 1.0
    return float(selective_op_share(architecture, part))


def split_product_seconds(workload: Workload, machine: Machine) -> dict[str, tuple[float, float]]:
    """Seconds of one micro-batch in both passes of a layer's products beside tensor parallelism's messages, by part."""
    in_format, found = products_in_format(workload), {}
    for part, (products, *sizes) in layer_products(workload).items():
        if part in (*AFTER_NORMS, *SUMMED):
            rows, columns, depth = sizes
            once, twice = _part_seconds(workload, machine, part, (rows, columns, depth), in_format=part in in_format)
            found[part] = (products * once, products * twice)
    return found


class _OperatorBytes(NamedTuple):
    """Bytes of a layer's operators: on hidden states, inside the layer's two parts, on stored scores, moving rows."""

    residual: float
    inner: float
    scores: float
    rows: float


def _moved(machine: Machine, least: _OperatorBytes) -> float:
    moved = machine.residual_passes * least.residual + machine.inner_passes * least.inner
    return moved + machine.score_passes * least.scores + least.rows


def _operator_bytes(workload: Workload, stack: Stack) -> tuple[_OperatorBytes, _OperatorBytes]:
    """Least bytes of a layer's operators, forward and backward.

    With T tokens, t tensor-parallel ranks, w bytes an element, those of `layer_operator_bytes`, but
        fused dropout       1 / (2 w + 1) of dropout's forward: the mask; the rest is read and written anyway
        separate bias       2 w T g f / t more: the expansion's bias in a kernel of its own, g = 2 where it is gated;
                            of k experts of width x a token 2 w T k g x / t
        separate rotation   5 times rotary's, and 2 w T (a + k) d / t more: whole heads are put together again
    """
    architecture, recipe, layout = workload
    w, t = WEIGHT_ELEMENT_BYTES[recipe.precision], layout.tensor_parallel
    tokens = micro_batch_tokens(workload)
    operators: dict[str, float] = {**layer_operator_bytes(workload)}
    if not stack.fused_bias and (architecture.bias.feed_forward or architecture.expert_bias):
        sent = dispatched_tokens(architecture, tokens=tokens) * architecture.expert_width
        elements = sent if architecture.expert_bias else tokens * architecture.ffn_hidden
        operators["bias"] = operators["bias"] + 2 * w * (2 if architecture.activation.gated else 1) * elements / t
    backward_alone: dict[str, float] = {}
    if stack.transformer_engine and architecture.expert_bias:
        moved = weighed_bias_bytes(workload, tokens=tokens, element=w)
        operators["expert bias"], backward_alone["expert bias"] = moved
    if not stack.fused_rotary and "rotary" in operators:
        columns = architecture.query_width / t + key_width(architecture, tensor_parallel=t)
        operators["rotary"] = UNFUSED_ROTARY * operators["rotary"] + 2 * w * tokens * columns
    backward = {**backward_operator_bytes(workload, operators), **backward_alone}
    if stack.keeping.fused_dropout:
        for name in ("dropout", "attention dropout"):
            if name in operators:
                operators[name] = operators[name] * MASK_BYTES / (2 * w + MASK_BYTES)
    return _by_place(operators, workload), _by_place(backward, workload)


def _by_place(operators: Mapping[str, float], workload: Workload) -> _OperatorBytes:
    scores = score_operator_bytes(workload)
    of_scores = sum(moved for name, moved in operators.items() if name in scores)
    residual = sum(moved for name, moved in operators.items() if name in RESIDUAL_OPERATORS)
    rows = sum(moved for name, moved in operators.items() if name in ROW_OPERATORS)
    return _OperatorBytes(residual, sum(operators.values()) - residual - of_scores - rows, of_scores, rows)


def head_seconds(workload: Workload, machine: Machine) -> tuple[float, float]:
    """Seconds of one rank's forward and backward pass of one micro-batch through the head: T x h by h x V / t.

    Times the machine's `misalignment` where V / t is no multiple of 8.
    """
    architecture, layout = workload.architecture, workload.layout
    rows = architecture.padded_vocabulary // layout.tensor_parallel
    slowed: float = chosen(rows % ALIGNED > 0, machine.misalignment, 1.0)
    tokens = micro_batch_tokens(workload)
    forward, backward = _product_seconds(
        workload, machine, M=tokens, N=rows, K=architecture.hidden, overlap=machine.product_overlap
    )
    return slowed * forward, slowed * backward / (1 if workload.recipe.adapter_rank is None else 2)


def _product_seconds(
    workload: Workload, machine: Machine, *, M: int, N: int, K: int, overlap: float = 1.0, in_format: bool = False
) -> tuple[float, float]:
    return product_seconds(
        M=M,
        N=N,
        K=K,
        element_bytes=WEIGHT_ELEMENT_BYTES[workload.recipe.precision],
        table=machine.matrix_efficiency,
        peak_flop_per_second=machine.product_rate(in_format=in_format),
        memory_bytes_per_second=machine.achievable_memory_bytes_per_second,
        saturation=machine.matrix_saturation,
        overlap=overlap,
        factor_bytes=factor_element_bytes(workload.recipe.product_format) if in_format else None,
    )
