"""Mixtures of experts: what their layers compute, keep and send, where the router keeps all experts equally busy.

Symbols: T tokens of a micro-batch on a rank, h hidden, E experts of width f, k of them a token, n expert-parallel and
t tensor-parallel ranks, u = t with sequence parallelism and 1 otherwise, e bytes of an element, g = 2 for a gated
activation and 1 otherwise. Balance: each expert takes k / E of all tokens. With a capacity factor below 1 it takes
that part of them, and the others pass it by; from 1 on nothing is dropped, and no place stays empty. What is executed
computes empty places too (see `flop.redundant_flop`).
"""

from __future__ import annotations

from fractions import Fraction

from reference_runs.run import Architecture, Workload
from suite.predict.analytic.elementwise import ceil_division, larger, smaller

FP32 = 4


def chosen_experts(architecture: Architecture) -> Fraction:
    """Experts that compute a token, on average: k, less where their capacity is below an equal share."""
    return (architecture.experts_per_token or 0) * min(Fraction(architecture.capacity_factor or 1), Fraction(1))


def dispatched_tokens(architecture: Architecture, *, tokens: int) -> int:
    """Tokens that a rank sends to experts, once for each that computes one: T k; as many come to its own experts."""
    chosen = chosen_experts(architecture)
    return ceil_division(tokens * chosen.numerator, chosen.denominator)


def node_copies_share(architecture: Architecture, *, nodes: float) -> float:
    """Copies of a token that leave for other nodes where each node gets one, over those where each expert does.

    N (1 - (1 - 1 / N)^k) / k of k experts that lie anywhere on N nodes. Where a token's experts are of g of G groups,
    N is at most g max(N / G, 1).
    Source: derived here; DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.2 (at most 4 nodes).
    """
    k = float(chosen_experts(architecture))
    if architecture.expert_groups and architecture.groups_per_token:
        nodes = smaller(nodes, architecture.groups_per_token * larger(nodes / architecture.expert_groups, 1.0))
    share: float = nodes * (1 - (1 - 1 / nodes) ** k) / k
    return smaller(share, 1.0)


def expert_forward_flop(architecture: Architecture, *, tokens: int) -> dict[str, int]:
    """Flop of matrix products of one layer's router and experts in the forward pass of `tokens` tokens, by part.

    router          2 T h E
    shared gate     2 T h, where the shared experts have one
    feed-forward    2 (g + 1) T h f k, and f' in place of f k for the shared experts: what a token passes

    Differs from 2 T for each stored parameter by the E - k experts that a token does not pass.
    """
    a, products = architecture, 3 if architecture.activation.gated else 2
    passed = (a.experts_per_token or 0) + a.shared_experts
    return {
        "router": 2 * tokens * a.hidden * (a.experts or 0),
        **({"shared gate": 2 * tokens * a.hidden} if a.shared_gate else {}),
        "feed-forward": 2 * products * tokens * a.hidden * a.expert_width * passed,
    }


def expert_products(workload: Workload, *, tokens: int) -> dict[str, tuple[int, int, int, int]]:
    """Matrix products of one rank's forward pass through one layer's experts: how many, M, N and K, by part.

        router                 T / u x h by h x E
        expansion              E / n of T k n / E x h by h x g f / t    (whole experts: E / (n t), and t = 1)
        contraction            E / n of T k n / E x f / t by f / t x h
        shared expansion       T x h by h x g f' / t
        shared contraction     T x f' / t by f' / t x h
        shared gate            T / u x h by h x 1

    The mean of T k n / E tokens is rounded up. Summed over the ranks, their flop are then those of
    `expert_forward_flop`, where nothing is dropped and each rank has its part of the router's tokens.
    """
    architecture, layout = workload.architecture, workload.layout
    h, t, n = architecture.hidden, layout.tensor_parallel, layout.expert_parallel
    experts, gate = architecture.experts or 0, 2 if architecture.activation.gated else 1
    mean = ceil_division(dispatched_tokens(architecture, tokens=tokens) * n, experts)
    own, width = experts // layout.expert_ranks, architecture.expert_width // layout.expert_splits
    products: dict[str, tuple[int, int, int, int]] = {
        "router": (1, tokens // (t if layout.sequence_parallel else 1), experts, h),
        "expansion": (own, mean, gate * width, h),
        "contraction": (own, mean, h, width),
    }
    if architecture.shared_experts:
        shared = architecture.shared_experts * (architecture.expert_width // t)
        products["shared expansion"] = (1, tokens, gate * shared, h)
        products["shared contraction"] = (1, tokens, h, shared)
    if architecture.shared_gate:
        products["shared gate"] = (1, tokens // (t if layout.sequence_parallel else 1), 1, h)
    return products


def weighed_bias_bytes(workload: Workload, *, tokens: int, element: int) -> tuple[int, int]:
    """Bytes by which the bias of each expert's output, times the router's weights, is added; forward and backward.

    In kernels of PyTorch for each expert, in fp32 as the weights are, for each of the T k h / u elements:
        forward     8 + 2 (4 + e)     bias times weight, the sum,
                    8 + (4 + e)       all experts' sums put together, and converted
        backward    2 (4 + e)         the gradient converted to fp32, and back for the output's
                    24 + 2 e          gradients of weights and of bias, and those of the outputs put together
    Counted on the code in PyTorch: 28 and 40 bytes with e = 2.

    Source: Megatron-Core 0.15 and 0.16.1, core/transformer/moe/experts.py, TEGroupedMLP._apply_bias.
    """
    architecture, layout = workload.architecture, workload.layout
    u = layout.tensor_parallel if layout.sequence_parallel else 1
    elements = dispatched_tokens(architecture, tokens=tokens) * architecture.hidden // u
    return elements * (24 + 2 * element), elements * (32 + 4 * element)


def expert_operator_bytes(workload: Workload, *, tokens: int, element: int) -> dict[str, int]:
    """Least bytes of the memory-bound operators of one layer's experts in the forward pass, by operator.

    activation    (g + 1) e T (k f + f') / t
    dispatch      2 e T k h / u      into the order of the experts
    sort          4 e T k h / u      rows that came from n > 1 ranks into the order of several own experts, and back
    combine       e T (k + 1) h / u  weighed and added up in the order of the tokens
    router        8 T E / u          softmax or sigmoid of its scores in fp32
    shared gate   2 e T h / u        what it weighs, where there is one
    """
    architecture, layout = workload.architecture, workload.layout
    t, u = layout.tensor_parallel, layout.tensor_parallel if layout.sequence_parallel else 1
    sent, width = dispatched_tokens(architecture, tokens=tokens), architecture.expert_width
    sorts = (layout.expert_ranks > 1) & (layout.expert_ranks < (architecture.experts or 0))
    columns = (sent + tokens * architecture.shared_experts) * width
    return {
        "activation": (3 if architecture.activation.gated else 2) * element * columns // t,
        "dispatch": 2 * element * sent * architecture.hidden // u,
        "sort": sorts * 4 * element * sent * architecture.hidden // u,
        "combine": element * (sent + tokens) * architecture.hidden // u,
        "router": 2 * FP32 * tokens * (architecture.experts or 0) // u,
        **({"shared gate": 2 * element * tokens * architecture.hidden // u} if architecture.shared_gate else {}),
    }
