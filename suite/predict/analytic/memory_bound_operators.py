"""Least bytes of the operators that memory bandwidth limits: each input read once, each output written once.

Those of a layer have their own counts for the backward pass, `backward_operator_bytes`. Embedding and loss move twice
the bytes of their forward pass there.
"""

from __future__ import annotations

from collections.abc import Mapping

from reference_runs.run import Moments, Position, Precision, QueryKeyNorm, Residual, Workload
from suite.predict.analytic.experts import chosen_experts, expert_operator_bytes
from suite.predict.analytic.latent_attention import compressed_width
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.linear_attention import linear_operator_bytes
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES, moment_bytes
from suite.predict.analytic.micro_batch import hidden_elements, micro_batch_tokens
from suite.predict.analytic.process_groups import key_width

MASK_BYTES = 1  # a dropout mask is kept as one byte an element
RESIDUAL_OPERATORS = ("norm", "residual add", "dropout")  # on hidden states, which only sequence parallelism splits
ROW_OPERATORS = ("dispatch", "sort", "combine", "expert bias")  # on rows of hidden states that go to experts and back
BACKWARD = 2  # bytes of a backward pass over those of the forward pass, of embedding and loss

# Tensors that the backward pass moves over those of the forward pass. Norm: x, dy, dx over x, y. Residual add: the
# gradients of both ways, and their sum. Dropout and what moves rows: as forward. Activation: x, dy, dx over x, y; of a
# gated one both halves, dy and two gradients over both halves and y. Softmax: y, dy, dx over x, y.
BACKWARD_SHARES = {
    "norm": 3 / 2,
    "residual add": 1.0,
    "dropout": 1.0,
    "activation": 3 / 2,
    "bias": 1.0,
    "query, key norm": 3 / 2,
    "rotary": 1.0,
    "compression norm": 3 / 2,
    "convolution": 3 / 2,
    "gated norm": 5 / 3,
    "attention gate": 5 / 3,
    "adapter add": 1.0,
    "dispatch": 1.0,
    "sort": 1.0,
    "router": 3 / 2,
    "shared gate": 3 / 2,
    "softmax": 3 / 2,
    "attention dropout": 1.0,
}


def layer_operator_bytes(workload: Workload) -> dict[str, int]:
    """Least bytes that one rank moves in the forward pass of one micro-batch through one layer, by operator.

    With T = b s / c tokens on c context-parallel ranks, t tensor-parallel ranks, w bytes an element, r = t where
    sequence parallelism splits what tensor parallelism replicates and 1 otherwise:
        norm                 2 * 2 w T h / r         two norms read and write; one where both branches share it, or
                                                     where there is no feed-forward part, which halves two more
        residual add         2 * 3 w T h / r         two inputs and the sum; parallel branches: 4 w T h / r in all
        dropout              2 (2 w + 1) T h / r     and a mask, where hidden_dropout > 0
        activation           2 w T f / t             3 w T f / t where it is gated: two inputs
        bias                 w ((a + 2 k) d + g f) / t + 2 w h   read by the product that adds it, where it has one;
                             w E (g x / t + h) / n of E experts of width x on n ranks
        query, key norm      2 w T (a + k) d / t     where there are such norms
        rotary               2 w T (a + k) d' / t    d' rotated dimensions of each query and key head
        compression norm     2 w T (q + c) / r       latent attention's, of ranks q and c; its keys share one rotation
        attention gate       3 w T a d / t           where a gate weighs the context
        linear attention     `linear_operator_bytes` in place of norm, rotation and scores
        adapter add          3 w T m / t             matrices with adapters have m rows
        dispatch and so on   `expert_operator_bytes`, with experts
        softmax              2 w T s a / t           scores of a heads; 0 where attention is fused
        attention dropout    (2 w + 1) T s a / t     where attention_dropout > 0; 0 where attention is fused

    Source: counted here. Kernels that fuse neighbours (bias, dropout and add in Megatron-LM) move less; frameworks that
    scale, mask and convert the scores in kernels of their own move more.
    """
    architecture, recipe, layout = workload
    h, f, w = architecture.hidden, architecture.ffn_hidden, WEIGHT_ELEMENT_BYTES[recipe.precision]
    t, bias = layout.tensor_parallel, architecture.bias
    queries, keys = architecture.query_width // t, key_width(architecture, tensor_parallel=t)
    tokens, residual = micro_batch_tokens(workload), hidden_elements(workload)
    gated = architecture.activation.gated
    parts = 1 + architecture.feeds_forward
    adds = 4 if architecture.residual is Residual.PARALLEL else 3 * parts
    bytes_by_operator = {
        "norm": (2 if architecture.shared_norm else 2 * parts) * w * residual,
        "residual add": adds * w * residual,
        "activation": (3 if gated else 2) * w * tokens * f // t,
    }
    if architecture.experts is not None:
        bytes_by_operator |= expert_operator_bytes(workload, tokens=tokens, element=w)
    if architecture.key_value_rank is not None:
        compressed = tokens * compressed_width(architecture) // (t if layout.sequence_parallel else 1)
        bytes_by_operator["compression norm"] = 2 * w * compressed
    if recipe.hidden_dropout > 0:
        bytes_by_operator["dropout"] = parts * (2 * w + MASK_BYTES) * residual
    if bias.attention or bias.projection or bias.feed_forward or architecture.expert_bias:
        inside = bias.attention * (queries + 2 * keys) + bias.feed_forward * ((2 if gated else 1) * f // t)
        bytes_by_operator["bias"] = w * (inside + (bias.projection + bias.feed_forward) * h)
    if architecture.expert_bias:
        own, width = (architecture.experts or 0) // layout.expert_parallel, architecture.expert_width
        bytes_by_operator["bias"] += w * own * ((2 if gated else 1) * width // t + h)
    if recipe.adapter_rank is not None:
        _, _, columns, _ = layer_products(workload)["adapter outputs"]
        bytes_by_operator["adapter add"] = 3 * w * tokens * columns
    if architecture.linear:
        more = linear_operator_bytes(architecture, tokens=tokens, element=w, ranks=t)
        return bytes_by_operator | more
    if architecture.attention_gate:
        bytes_by_operator["attention gate"] = 3 * w * tokens * architecture.context_width // t
    if architecture.query_key_norm is not QueryKeyNorm.NONE:
        bytes_by_operator["query, key norm"] = 2 * w * tokens * (queries + keys)
    if architecture.position is Position.ROTARY:
        turned = keys if architecture.key_value_rank is None else architecture.head_dim
        rotated = (queries + turned) * (architecture.rotary_dim or 0) // architecture.head_dim
        bytes_by_operator["rotary"] = 2 * w * tokens * rotated
    return bytes_by_operator | score_operator_bytes(workload)


def score_operator_bytes(workload: Workload) -> dict[str, int]:
    """Operators on attention scores among `layer_operator_bytes`: selective recomputation repeats them."""
    architecture, recipe, layout = workload
    if layout.fused_attention or architecture.linear:
        return {}
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    scores = micro_batch_tokens(workload) * architecture.sequence * architecture.heads // layout.tensor_parallel
    bytes_by_operator = {"softmax": 2 * w * scores}
    if recipe.attention_dropout > 0:
        bytes_by_operator["attention dropout"] = (2 * w + MASK_BYTES) * scores
    return bytes_by_operator


def backward_operator_bytes(workload: Workload, forward: Mapping[str, float]) -> dict[str, float]:
    """Least bytes of the same operators' backward pass, from those of the forward pass.

    As many tensors as `BACKWARD_SHARES` says; 5 in place of 3 of a gated activation; of k experts' outputs, weighed and
    added up, 2 k + 1 in place of k + 1: both factors of k products, and the sum's gradient.
    Source: counted here from the derivatives; as kernel_cost.py counts these kernels.
    """
    architecture = workload.architecture
    shares = dict(BACKWARD_SHARES)
    if architecture.activation.gated:
        shares["activation"] = 5 / 3
    if architecture.experts is not None:
        chosen = float(chosen_experts(architecture))
        shares["combine"] = (2 * chosen + 1) / (chosen + 1)
    return {name: shares[name] * moved for name, moved in forward.items() if name in shares}


def embedding_bytes(workload: Workload) -> int:
    """Least bytes that a rank of the first stage moves in the forward pass of one micro-batch before the layers.

    With T, w and r as in `layer_operator_bytes`:
        2 w T h          reading the tokens' rows and writing them
        3 w T h / r      adding learned positions
        2 w T h / r      the embedding norm, where there is one
        (2 w + 1) T h / r    dropout, where embedding_dropout > 0
    """
    architecture, recipe, _ = workload
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    each = 3 * w if architecture.position is Position.LEARNED else 0
    each += 2 * w if architecture.embedding_norm else 0
    each += 2 * w + MASK_BYTES if recipe.embedding_dropout > 0 else 0
    return 2 * w * micro_batch_tokens(workload) * architecture.hidden + each * hidden_elements(workload)


def loss_bytes(workload: Workload) -> int:
    """Least bytes that a rank of the last stage moves in the forward pass of one micro-batch after the layers.

    With T, w, t and r as in `layer_operator_bytes`:
        2 w T h / r      the last norm
        w T V / t        cross-entropy: reading the logits once (maximum and sum in one pass)

    Source: counted here. Implementations that convert the logits to fp32 and keep probabilities move several times it.
    """
    architecture, recipe, layout = workload
    w = WEIGHT_ELEMENT_BYTES[recipe.precision]
    logits = micro_batch_tokens(workload) * architecture.padded_vocabulary
    return 2 * w * hidden_elements(workload) + w * logits // layout.tensor_parallel


def update_element_bytes(precision: Precision, moments: Moments = Moments.FP32, *, kept: float | None = None) -> float:
    """Least bytes that one parameter's update moves, gradient clipping included.

    g + c      making the optimizer's fp32 copy of the gradient, where there is one
    2 g'       reading the gradient (or its copy) for its norm, and again for the update
    2 v        reading and writing the weight that is updated: the master weight where there is one
    w          writing the 16-bit weight next to a master weight
    2 * 8      reading and writing both moments; 2 * 4 in bf16, 0 with SGD, 2 * `kept` where that is given (Muon)

    32 in fp32, 34 in bf16, 30 in fp16, 40 with a gradient copy, 24 without master weights, 16 in bf16-pure.
    Source: counted here from the bytes a parameter of each precision.
    """
    state = BYTES_PER_PARAMETER[precision]
    gradient = state.gradient_copy if state.gradient_copy else state.gradients
    copied = state.gradients + state.gradient_copy if state.gradient_copy else 0
    weight = 2 * state.master_weights + state.weights if state.master_weights else 2 * state.weights
    kept = moment_bytes(precision, moments) if kept is None else kept
    return copied + 2 * gradient + weight + 2 * kept
