"""The input of a trace of serving, which executes any model's forward pass without its memory, and what it answers."""

from __future__ import annotations

import msgspec

from suite.job.trace_job import ModelSource


class ServedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="served"):
    """A sequence in 16 bits.

    Args:
        context: tokens; None: what the model takes, at most `usual`.
        chunk: tokens of a forward pass of prefill.
    """

    source: ModelSource
    context: int | None
    usual: int
    chunk: int


class CachedTensors(msgspec.Struct, frozen=True, kw_only=True):
    """Equal tensors that a cache holds of a sequence, of all layers that have them.

    Args:
        layer: class of the layer's cache.
        name: the tensor's in it.
        layers: how many have it.
        split: its size along dim 1, heads or channels, which tensor parallelism divides.
        element_bytes: of an element.
        bytes: of all of them, of the whole context.
        half_bytes: the same of half of it.
    """

    layer: str
    name: str
    layers: int
    split: int
    element_bytes: int
    bytes: int
    half_bytes: int


class ServedTrace(msgspec.Struct, frozen=True, kw_only=True, tag="served"):
    """A model's weights, its cache and its activations.

    Args:
        model: the module's class.
        software: what built it, with its version.
        heads: of attention's queries; None: the configuration has none.
        linear: rows, columns and number of equal matrices of linear layers and experts, head and routers left out.
        tables: elements of embeddings and of an untied head.
        other_matrices: elements of other tensors of two dimensions or more, routers and convolutions among them.
        vectors: elements of norms and biases.
        vocabulary: columns of the logits.
        prefill_bytes: activations at the fullest moment of a forward pass of `chunk` tokens.
        seconds: that the trace took.
    """

    model: str
    software: str
    context: int
    chunk: int
    heads: int | None
    linear: list[tuple[int, int, int]]
    tables: int
    other_matrices: int
    vectors: int
    vocabulary: int
    cache: list[CachedTensors]
    prefill_bytes: int
    seconds: float
