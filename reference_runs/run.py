"""The typed records of a training run: what was trained, how, on what, and what came out."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.sourced import Sourced


class Position(enum.StrEnum):
    """How a token's position reaches the attention."""

    ALIBI = "alibi"
    LEARNED = "learned"


class Norm(enum.StrEnum):
    """Normalisation and its place in a block."""

    PRE_LAYER_NORM = "pre-layer-norm"


class Activation(enum.StrEnum):
    """Non-linearity of the feed-forward part."""

    GELU_TANH = "gelu-tanh"
    RELU = "relu"


class Residual(enum.StrEnum):
    """How attention and feed-forward part are added to the residual stream."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


class Mask(enum.StrEnum):
    """Which positions a position attends to."""

    CAUSAL = "causal"


class Objective(enum.StrEnum):
    """What the model learns to predict."""

    CAUSAL_LM = "causal-lm"


class Precision(enum.StrEnum):
    """What weights, gradients and optimizer state are kept in.

    fp32: everything in fp32.
    bf16: weights and arithmetic in bf16, gradients accumulated and reduced in fp32, fp32 master weights and moments.
    """

    FP32 = "fp32"
    BF16 = "bf16"


class Optimizer(enum.StrEnum):
    """Update rule."""

    ADAMW = "adamw"


class LearningRateDecay(enum.StrEnum):
    """Shape of the learning rate after its linear warm-up."""

    COSINE = "cosine"


Count = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "1"})]
Tokens = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "token"})]
Samples = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "sample"})]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1, extra={"unit": "1"})]
Positive = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "1"})]
NotNegative = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "1"})]
Seconds = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "s"})]
Bytes = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte"})]
BytesPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte/s"})]
FlopPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "flop/s"})]


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's shape. `padded_vocabulary` rows are stored and computed; `vocabulary` tokens exist."""

    layers: Count
    hidden: Count
    heads: Count
    head_dim: Count
    kv_heads: Count
    ffn_hidden: Count
    vocabulary: Tokens
    padded_vocabulary: Tokens
    sequence: Tokens
    position: Position
    norm: Norm
    norm_epsilon: Positive
    embedding_norm: bool
    activation: Activation
    residual: Residual
    mask: Mask
    biases: bool
    tied_embeddings: bool

    def check(self, where: str) -> None:
        """Refuse shapes that contradict themselves.

        Raises:
            InputError: heads * head_dim is not hidden, kv_heads does not divide heads, or the padding is negative.
        """
        if self.heads * self.head_dim != self.hidden:
            raise InputError(
                f"architecture: {self.heads} (heads) * {self.head_dim} (head_dim) = {self.heads * self.head_dim}, "
                f"but hidden = {self.hidden}",
                where=where,
            )
        if self.kv_heads != self.heads:
            raise InputError(
                "architecture.kv_heads: grouped-query attention is not described yet",
                got=self.kv_heads,
                allowed=f"heads = {self.heads}",
                where=where,
            )
        if self.padded_vocabulary < self.vocabulary:
            raise InputError(
                "architecture.padded_vocabulary",
                got=self.padded_vocabulary,
                allowed=f"at least vocabulary = {self.vocabulary}",
                where=where,
            )


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model was trained. Batch sizes count samples (sequences); warm-up and decay count samples too."""

    objective: Objective
    global_batch: Samples
    micro_batch: Samples
    batch_rampup_start: Samples | None = None
    batch_rampup_increment: Samples | None = None
    batch_rampup_samples: Samples | None = None
    tokens: Tokens
    precision: Precision
    optimizer: Optimizer
    beta1: Fraction
    beta2: Fraction
    epsilon: Positive
    weight_decay: NotNegative
    decay_of_vectors: bool
    gradient_clip: Positive
    learning_rate: Positive
    minimum_learning_rate: NotNegative
    learning_rate_decay: LearningRateDecay
    warmup: Samples
    decay: Samples
    init_std: Positive
    residual_init_scaled: bool
    embedding_dropout: Fraction
    hidden_dropout: Fraction
    attention_dropout: Fraction


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run stood on."""

    accelerator: str
    accelerators: Count
    accelerators_per_node: Count
    node_link: str | None = None
    network_interfaces_per_node: Count | None = None
    network_interface_bandwidth: BytesPerSecond | None = None
    topology: str | None = None
    measured_all_reduce_bandwidth: BytesPerSecond | None = None
    host: str | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run was executed with."""

    stack: str
    fused_kernels: str | None = None
    blocking_launches: bool | None = None


class Reported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was published of the outcome. Rates are per accelerator unless said otherwise."""

    parameters: Count | None = None
    step_seconds: Seconds | None = None
    hardware_flop_per_second: FlopPerSecond | None = None
    samples_per_second: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "sample/s"})] | None = None
    tokens_per_second: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "token/s"})] | None = None
    mfu: Fraction | None = None
    hfu: Fraction | None = None
    peak_bytes: Bytes | None = None
    checkpoint_seconds: Seconds | None = None
    accelerator_seconds: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "accelerator s"})] | None = None
    duration: Seconds | None = None


class ReferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded run: values for the formulas, and every value's facts (unit, kind, source) under `section.key`."""

    name: str
    title: str
    where: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    cluster: Cluster | None
    software: Software | None
    reported: Reported
    facts: dict[str, Sourced]
    sources: dict[str, str]
