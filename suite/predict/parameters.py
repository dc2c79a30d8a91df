"""Parameters of an architecture: by part, and tensor by tensor in the order of their use."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Architecture, Position


class ParameterTensor(NamedTuple):
    """One parameter tensor: `matrix` tensors decay, vectors (biases, LayerNorm) are told apart from them."""

    name: str
    elements: int
    matrix: bool


def parameter_counts(architecture: Architecture) -> dict[str, int]:
    """Parameters by part; their sum is the model's parameter count.

    With h hidden, L layers, V stored vocabulary rows, f feed-forward width, s positions:
        embedding            V h
        position             s h (learned positions), 0 (ALiBi)
        embedding norm       2 h, where there is one
        attention            L (4 h^2 + 4 h): fused query, key, value h x 3h and projection h x h, with biases
        feed-forward         L (2 h f + f + h), with biases
        norm                 L 4 h + 2 h: two LayerNorms a layer and the last one, gain and bias
        head                 V h where it is not the embedding itself

    The sum with f = 4 h, ALiBi, embedding norm and tied embeddings is L (12 h^2 + 13 h) + V h + 4 h.
    Source: BigScience, train/tr11-176B-ml/README.md, layer-size formula; the paper prints 176,247M.
    Differs from the often quoted 12 L h^2 by the embedding and the 13 h: 2.0 % for BLOOM-176B.
    """
    h, f, v = architecture.hidden, architecture.ffn_hidden, architecture.padded_vocabulary
    bias = 1 if architecture.biases else 0
    norm = h + bias * h
    return {
        "embedding": v * h,
        "position": architecture.sequence * h if architecture.position is Position.LEARNED else 0,
        "embedding norm": norm if architecture.embedding_norm else 0,
        "attention": architecture.layers * (4 * h * h + bias * 4 * h),
        "feed-forward": architecture.layers * (2 * h * f + bias * (f + h)),
        "norm": architecture.layers * 2 * norm + norm,
        "head": 0 if architecture.tied_embeddings else v * h,
    }


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the whole model, stored vocabulary rows included (see `parameter_counts`)."""
    return sum(parameter_counts(architecture).values())


def parameter_tensors(architecture: Architecture) -> list[ParameterTensor]:
    """Every parameter tensor in the order in which the forward pass reads it first; tied tensors appear once.

    A linear layer reads its weight before its bias; a LayerNorm its gain before its bias.
    """
    h, f, v = architecture.hidden, architecture.ffn_hidden, architecture.padded_vocabulary

    def vectors(name: str, elements: int) -> list[ParameterTensor]:
        return [ParameterTensor(name, elements, False)] if architecture.biases else []

    def norm(name: str) -> list[ParameterTensor]:
        return [ParameterTensor(f"{name}.weight", h, False), *vectors(f"{name}.bias", h)]

    def linear(name: str, rows: int, columns: int) -> list[ParameterTensor]:
        return [ParameterTensor(f"{name}.weight", rows * columns, True), *vectors(f"{name}.bias", rows)]

    tensors = [ParameterTensor("embedding.weight", v * h, True)]
    if architecture.position is Position.LEARNED:
        tensors.append(ParameterTensor("position.weight", architecture.sequence * h, True))
    if architecture.embedding_norm:
        tensors += norm("embedding_norm")
    for layer in range(architecture.layers):
        block = f"blocks.{layer}"
        tensors += norm(f"{block}.attention_norm")
        tensors += linear(f"{block}.attention.query_key_value", 3 * h, h)
        tensors += linear(f"{block}.attention.projection", h, h)
        tensors += norm(f"{block}.feed_forward_norm")
        tensors += linear(f"{block}.feed_forward.expansion", f, h)
        tensors += linear(f"{block}.feed_forward.contraction", h, f)
    tensors += norm("final_norm")
    if not architecture.tied_embeddings:
        tensors.append(ParameterTensor("head.weight", v * h, True))
    return tensors
