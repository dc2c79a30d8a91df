"""Floating-point operations of one training step."""

from __future__ import annotations

from reference_runs.layout import Recomputation
from reference_runs.run import Architecture


def forward_flop(architecture: Architecture, *, samples: int) -> dict[str, int]:
    """Flop of matrix products in the forward pass of `samples` sequences, by part.

    A product of M x K by K x N is 2 M N K flop. With T = samples * s tokens:
        query, key, value     6 T h^2
        attention scores      2 T s h   (the full square; a causal kernel may skip half, this one does not)
        attention context     2 T s h
        projection            2 T h^2
        feed-forward          4 T h f
        head                  2 T h V   (V stored rows)
    Element-wise operations, norms and softmax are not counted.

    Source: Narayanan et al. 2021, arXiv 2104.04473, appendix (the derivation of equation 3), with f = 4 h.
    """
    h, f, s = architecture.hidden, architecture.ffn_hidden, architecture.sequence
    tokens = samples * s
    layers = architecture.layers
    return {
        "query, key, value": layers * 6 * tokens * h * h,
        "attention scores": layers * 2 * tokens * s * h,
        "attention context": layers * 2 * tokens * s * h,
        "projection": layers * 2 * tokens * h * h,
        "feed-forward": layers * 4 * tokens * h * f,
        "head": 2 * tokens * h * architecture.padded_vocabulary,
    }


def model_flop(architecture: Architecture, *, samples: int) -> int:
    """Flop that one step on `samples` sequences needs: three times the forward pass.

    The backward pass of a product is two products of the same size: by its input and by its weight. The input of the
    first layer has a gradient too, because the embedding is trained.

    Source: arXiv 2104.04473, equation 3 with 72 in place of 96: 72 B s L h^2 (1 + s / 6h + V / 12 L h).
    Differs from 6 N T (N with a tied embedding) by the attention square, s / 6h of the layers' flop, less biases and
    norms: 2.3 % more for BLOOM-176B.
    """
    return 3 * sum(forward_flop(architecture, samples=samples).values())


def hardware_flop(
    architecture: Architecture, *, samples: int, recomputation: Recomputation, hidden_dropout: float
) -> int:
    """Flop that one step on `samples` sequences executes, recomputation included.

        model flop
        + full recomputation: the layers' forward products once more (not the head)
        - the last product of a layer (feed-forward contraction, 2 T h f), where nothing behind it is kept for the
          backward pass: torch.utils.checkpoint stops as soon as the last kept tensor has been computed. A dropout
          mask behind the product is such a tensor, so this applies at hidden_dropout = 0 only.

    Source: arXiv 2104.04473, equation 3 (96 B s L h^2 (1 + s / 6h + V / 16 L h)), which has no early stop.

    Raises:
        ValueError: selective recomputation, which is not described yet.
    """
    if recomputation is Recomputation.SELECTIVE:
        raise ValueError("selective recomputation is not described yet; allowed: none, full")
    flop = model_flop(architecture, samples=samples)
    if recomputation is Recomputation.NONE:
        return flop
    forward = forward_flop(architecture, samples=samples)
    again = sum(forward.values()) - forward["head"]
    if hidden_dropout == 0:
        tokens = samples * architecture.sequence
        again -= architecture.layers * 2 * tokens * architecture.hidden * architecture.ffn_hidden
    return flop + again
