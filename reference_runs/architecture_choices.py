"""The choices of a block that families of models make differently, each with its names in run files."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Position(enum.StrEnum):
    """How a token's position reaches the attention."""

    ALIBI = "alibi"
    LEARNED = "learned"
    NONE = "none"
    ROTARY = "rotary"


class Norm(enum.StrEnum):
    """Normalisation and its place in a block.

    Deep-norm is post-norm: LayerNorm(sqrt(2 L) x + f(x)) with L layers. An output norm is of what is added: x +
    RMSNorm(f(x)) (OLMo 2).
    """

    PRE_LAYER_NORM = "pre-layer-norm"
    PRE_RMS_NORM = "pre-rms-norm"
    DEEP_NORM = "deep-norm"
    OUTPUT_RMS_NORM = "output-rms-norm"

    @property
    def before(self) -> bool:
        """Whether a norm stands before each part of a block, and not after it."""
        return self in (Norm.PRE_LAYER_NORM, Norm.PRE_RMS_NORM)

    @property
    def root_mean_square(self) -> bool:
        """Whether norms are RMSNorms, which have no bias."""
        return self in (Norm.PRE_RMS_NORM, Norm.OUTPUT_RMS_NORM)


class Activation(enum.StrEnum):
    """Non-linearity of the feed-forward part. Gated ones multiply the activated half of a twice as wide expansion."""

    GELU = "gelu"
    GELU_TANH = "gelu-tanh"
    FAST_GELU = "fast-gelu"
    RELU = "relu"
    RELU_SQUARED = "relu-squared"
    GEGLU = "geglu"
    GEGLU_TANH = "geglu-tanh"
    SWIGLU = "swiglu"

    @property
    def gated(self) -> bool:
        """Whether there are two expansions, one of which gates the other."""
        return self in (Activation.GEGLU, Activation.GEGLU_TANH, Activation.SWIGLU)


class Residual(enum.StrEnum):
    """How attention and feed-forward part are added to the residual stream."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


class Mask(enum.StrEnum):
    """Which positions a position attends to: earlier ones, or those of its document alone; with a prefix also all of
    the uncorrupted part."""

    CAUSAL = "causal"
    DOCUMENTS = "causal-documents"
    PREFIX = "prefix"


class RotaryScaling(enum.StrEnum):
    """How rotary positions of long wavelength are slowed down: by bands of wavelength (Llama 3.1), or by a ramp over
    the pairs of dimensions (YaRN), whose ends are whole pairs but where they are not rounded (gpt-oss).
    """

    BANDS = "bands"
    YARN = "yarn"
    YARN_UNROUNDED = "yarn-unrounded"


class QueryKeyNorm(enum.StrEnum):
    """RMSNorm of queries and keys before their rotation: of each head, with a gain that heads share, or of them all."""

    NONE = "none"
    HEAD = "head"
    PROJECTION = "projection"


class LinearRule(enum.StrEnum):
    """Update of linear attention's state: the gated delta rule (Qwen3-Next), or a scalar decay of each head, which is
    that of a state-space model (Mamba-2: its B, C and x are keys, queries and values).
    """

    GATED_DELTA = "gated-delta"
    STATE_SPACE = "state-space"


class Gate(enum.StrEnum):
    """Weights of a token's experts: a softmax over all experts, over the chosen ones alone, or a sigmoid of each,
    divided by their sum over the chosen ones.
    """

    SOFTMAX = "softmax"
    SOFTMAX_OF_CHOSEN = "softmax-of-chosen"
    SIGMOID = "sigmoid"


class Balancing(enum.StrEnum):
    """Means to keep experts equally busy: none, a loss of its own, or a bias of each expert in the choice alone."""

    NONE = "none"
    AUXILIARY_LOSS = "auxiliary-loss"
    BIAS = "bias"


class BiasPlaces(NamedTuple):
    """Which parts of a model have biases: query, key and value; their output's projection; both sides of the
    feed-forward part; norms; the head.
    """

    attention: bool
    projection: bool
    feed_forward: bool
    norm: bool
    head: bool
