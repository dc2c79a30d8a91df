"""The typed records of a training run: what was trained, how, on what, and what came out."""

from __future__ import annotations

import enum
from typing import Annotated, NamedTuple

import msgspec

from reference_runs.architecture import Activation as Activation
from reference_runs.architecture import Architecture as Architecture
from reference_runs.architecture import Balancing as Balancing
from reference_runs.architecture import Gate as Gate
from reference_runs.architecture import Mask as Mask
from reference_runs.architecture import Norm as Norm
from reference_runs.architecture import Position as Position
from reference_runs.architecture import QueryKeyNorm as QueryKeyNorm
from reference_runs.architecture import Residual as Residual
from reference_runs.architecture import RotaryScaling as RotaryScaling
from reference_runs.errors import InputError, MissingFactError, Mistakes, belonging_mistakes, nearest
from reference_runs.layout import Layout
from reference_runs.quantities import (
    AcceleratorSeconds,
    Bytes,
    BytesPerSecond,
    Count,
    Deviation,
    Epsilon,
    Flop,
    FlopPerSecond,
    Fraction,
    NotNegative,
    ParametersInAll,
    Positive,
    Ratio,
    Samples,
    SamplesInAll,
    SamplesPerSecond,
    Seconds,
    Tokens,
    TokensInAll,
    TokensPerSecond,
)
from reference_runs.sourced import Sourced


class Objective(enum.StrEnum):
    """Task that the model learns: what it predicts."""

    CAUSAL_LM = "causal-lm"
    BLANK_INFILLING = "blank-infilling"


BLANK_TOKENS = ("[MASK]", "[gMASK]", "[sop]", "[eop]")  # blank infilling has them in the first rows after `vocabulary`
LEAST_WINDOW = 4  # tokens of a packed text: one of a question, [gMASK], [sop], one of the answer


class Precision(enum.StrEnum):
    """Formats of weights, gradients and optimizer state; bytes a parameter on one rank without sharding.

    fp32 (16): everything in fp32: weights 4, gradients 4, moments 8.
    bf16 (18): weights and arithmetic in bf16, gradients accumulated and reduced in fp32, fp32 master weights and
        moments: 2 + 4 + 4 + 8.
    fp16 (16): weights and gradients in fp16, fp32 master weights and moments: 2 + 2 + 4 + 8.
    fp16-gradient-copy (20): as fp16, and the optimizer keeps a copy of the gradients in fp32: 2 + 2 + 4 + 4 + 8.
    fp16-no-master (12): as fp16, the update widens the fp16 weights in passing: 2 + 2 + 8.
    bf16-pure (8): weights, gradients and both moments in bf16, without fp32 copies: 2 + 2 + 4. Others call it
        bf16-true, or a model that was loaded in bfloat16.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP16_GRADIENT_COPY = "fp16-gradient-copy"
    FP16_NO_MASTER = "fp16-no-master"
    BF16_PURE = "bf16-pure"

    @property
    def scaled(self) -> bool:
        """Whether gradients need a loss scale to stay within range."""
        return self not in (Precision.FP32, Precision.BF16, Precision.BF16_PURE)

    @property
    def has_masters(self) -> bool:
        """Whether fp32 weights are kept from step to step."""
        return self not in (Precision.FP16_NO_MASTER, Precision.BF16_PURE)


# Names of other software for a precision, in small letters with hyphens
PRECISION_NAMES = {
    **dict.fromkeys(("bf16-true", "pure-bf16", "bfloat16-pure", "full-bf16"), Precision.BF16_PURE),
    **dict.fromkeys(("bfloat16", "bf16-mixed", "mixed-bf16"), Precision.BF16),
    **dict.fromkeys(("float16", "half", "16-mixed", "fp16-mixed"), Precision.FP16),
    **dict.fromkeys(("float32", "32", "32-true", "fp32-true"), Precision.FP32),
}


def precision_of(name: str, *, where: str) -> Precision:
    """The precision of that name, as this suite calls it.

    Raises:
        InputError: none is; the line says which one the name of other software means.
    """
    try:
        return Precision(name)
    except ValueError:
        raise InputError(
            "unknown precision", got=repr(name), meant=meant_precision(name), allowed=", ".join(Precision), where=where
        ) from None


def meant_precision(name: str) -> str | None:
    """The precision that other software calls so, or that is written nearly so; None: none is."""
    folded = name.strip().casefold().replace("_", "-")
    meant = PRECISION_NAMES.get(folded) or nearest(folded, Precision)
    return None if meant is None else str(meant)


class ProductFormat(enum.StrEnum):
    """In what the matrix products of layers are computed, where not in the dtype of `Precision`.

    These are the linear layers', forward, by input and by weight: projections of attention, feed-forward parts,
    experts. Embedding, head, router, norms and the products of attention with itself stay wider, and so do stored
    weights, gradients, master weights and moments.

    none: in the dtype of the precision.
    fp8-delayed: one scale a tensor, from the largest elements of earlier steps.
    fp8-current: one scale a tensor, from its own largest element, which is read first.
    fp8-blockwise: fp32 scales of 1 x 128 elements of activations and gradients, of 128 x 128 of weights.
    mxfp8: scales of 8 bits (powers of two) of 32 elements.
    nvfp4: 4 bits, scales of 8 bits (e4m3) of 16 elements, and one in fp32 a tensor.

    Source: Micikevicius et al. 2022, arXiv 2209.05433 (fp8); NVIDIA Transformer Engine 2, transformer_engine.common.
    recipe: DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling; DeepSeek-AI 2024, arXiv
    2412.19437, section 3.3 (blockwise); Open Compute Project 2023, OCP Microscaling Formats (MX) v1.0 (mxfp8).
    """

    NONE = "none"
    FP8_DELAYED = "fp8-delayed"
    FP8_CURRENT = "fp8-current"
    FP8_BLOCKWISE = "fp8-blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def casts(self) -> bool:
        """Whether factors are cast for the products: in all formats but none."""
        return self is not ProductFormat.NONE

    @property
    def peak_dtype(self) -> str:
        """The key of an accelerator's `peak_flop_per_second` that has the rate of these products."""
        return "fp8" if self.value.startswith("fp8") else self.value


class Optimizer(enum.StrEnum):
    """Update rule.

    "sgd" has no momentum, so that nothing but weights and gradients lives from step to step. "muon" orthogonalises the
    momentum of the layers' matrices, and is AdamW for embedding, head and vectors (Jordan et al. 2024).
    """

    ADAM = "adam"
    ADAMW = "adamw"
    MUON = "muon"
    SGD = "sgd"


class LearningRateDecay(enum.StrEnum):
    """Shape of the learning rate after its linear warm-up."""

    COSINE = "cosine"
    LINEAR = "linear"


class FlopConvention(enum.StrEnum):
    """Convention by which a published flop rate, MFU or HFU counts (formulas in `suite.predict.analytic.flop`)."""

    MEGATRON_RECOMPUTED = "megatron-eq3-recomputed"
    MEGATRON_MODEL = "megatron-eq3-model"
    SIX_N = "6N"
    PALM = "palm"
    NANOGPT = "nanogpt"
    ALL_PRODUCTS = "all-products"
    CAUSAL_HALF = "causal-half"


_ADAPTERS = ("adapter_rank", "adapter_targets")
_BLANK_INFILLING = ("gmask_share", "mask_share", "mean_span", "packed_samples", "instruction_share")


class Moments(enum.StrEnum):
    """Dtype of the optimizer's two moments, fp8 with a scale a tensor (Megatron-Core); none: it keeps none."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    NONE = "none"


class AdapterTargets(enum.StrEnum):
    """Matrices with adapters: attention's (query, key, value and projection), or all of linear layers but the head."""

    ATTENTION = "attention"
    LINEAR = "linear"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model was trained. Batch sizes count samples (sequences); warm-up and decay count samples too.

    Args:
        product_format: of the layers' matrix products; state stays what `precision` says.
        moments: of the optimizer, whatever `precision` says of the rest of its state.
        adapter_rank: of low-rank adapters (LoRA), which alone are trained beside frozen weights; None: all weights are.
        expert_imbalance: tokens of the busiest rank's experts over the mean; None: 1, as with forced balance.
        gmask_share: of the samples of blank infilling that are no instructions, those with one [MASK] for all the rest.
        mask_share: of the text of the others, the part in spans, each after a [MASK].
        mean_span: of the Poisson distribution of the spans' lengths.
        packed_samples: how many short texts fill one sample with spans or instructions.
        instruction_share: samples of questions and answers among all.
    """

    objective: Objective
    global_batch: Samples
    batch_rampup_start: Samples | None = None
    batch_rampup_increment: Samples | None = None
    batch_rampup_samples: SamplesInAll | None = None
    tokens: TokensInAll
    precision: Precision
    product_format: ProductFormat = ProductFormat.NONE
    moments: Moments = Moments.FP32
    adapter_rank: Count | None = None
    adapter_targets: AdapterTargets | None = None
    expert_imbalance: Ratio | None = None
    optimizer: Optimizer
    beta1: Fraction
    beta2: Fraction
    epsilon: Epsilon
    weight_decay: NotNegative
    decay_of_vectors: bool
    gradient_clip: Positive
    learning_rate: Positive
    minimum_learning_rate: NotNegative
    learning_rate_decay: LearningRateDecay
    warmup: SamplesInAll
    decay: SamplesInAll
    init_std: Deviation
    residual_init_scaled: bool
    embedding_dropout: Fraction
    hidden_dropout: Fraction
    attention_dropout: Fraction
    initial_loss_scale: Positive | None = None
    loss_scale_window: Count | None = None
    embedding_gradient_shrink: Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})] | None = None
    gmask_share: Fraction | None = None
    mask_share: Annotated[float, msgspec.Meta(gt=0, le=0.5, extra={"unit": "1"})] | None = None
    mean_span: Tokens | None = None
    packed_samples: Count | None = None
    instruction_share: Fraction | None = None

    @property
    def kept_moments(self) -> Moments:
        """Dtype of the moments that the optimizer keeps from step to step: none with SGD."""
        return Moments.NONE if self.optimizer is Optimizer.SGD else self.moments

    @property
    def orthogonalises(self) -> bool:
        """Whether updates of the layers' matrices are orthogonalised: Muon."""
        return self.optimizer is Optimizer.MUON

    @property
    def imbalance(self) -> float:
        """Factor on what experts compute and exchange, which waits for the busiest rank."""
        return self.expert_imbalance or 1.0

    def check(self, where: str) -> None:
        """Refuse a mix of samples without blank infilling, and blank infilling without the whole mix.

        Raises:
            InputError: a key of the mix that does not belong here, or is missing.
        """
        blanks, adapters = self.objective is Objective.BLANK_INFILLING, self.adapter_rank is not None
        Mistakes(
            [
                *belonging_mistakes("recipe", self, _BLANK_INFILLING, "blank infilling", is_needed=blanks, where=where),
                *belonging_mistakes("recipe", self, _ADAPTERS, "adapters", is_needed=adapters, where=where),
            ]
        ).refuse()


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accelerators, nodes and network of the run."""

    accelerator: str
    accelerators: Count | None = None
    accelerators_per_node: Count | None = None
    node_link: str | None = None
    network_interfaces_per_node: Count | None = None
    network_interface_bandwidth: BytesPerSecond | None = None
    topology: str | None = None
    measured_all_reduce_bandwidth: BytesPerSecond | None = None
    host: str | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Software that the run was executed with."""

    stack: str
    fused_kernels: str | None = None
    blocking_launches: bool | None = None


class Reported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published outcome. Rates are per accelerator unless said otherwise.

    Args:
        flop_convention: what the published flop rate, MFU and HFU count; needed where one of them is published.
        total_flop: of the whole training, counted as `total_flop_convention`.
    """

    parameters: ParametersInAll | None = None
    step_seconds: Seconds | None = None
    flop_convention: FlopConvention | None = None
    hardware_flop_per_second: FlopPerSecond | None = None
    model_flop_per_second: FlopPerSecond | None = None
    samples_per_second: SamplesPerSecond | None = None
    tokens_per_second: TokensPerSecond | None = None
    mfu: Fraction | None = None
    hfu: Fraction | None = None
    peak_bytes: Bytes | None = None
    total_flop: Flop | None = None
    total_flop_convention: FlopConvention | None = None
    checkpoint_seconds: Seconds | None = None
    accelerator_seconds: AcceleratorSeconds | None = None
    duration: Seconds | None = None


class PublishedMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published measurement of the run: what differed from the recorded layout and batch, and what came out."""

    accelerators: Count
    data_parallel: Count
    global_batch: Samples
    micro_batch: Samples | None = None
    tensor_parallel: Count | None = None
    pipeline_stages: Count | None = None
    virtual_stages: Count | None = None
    context_parallel: Count | None = None
    expert_parallel: Count | None = None
    sequence: Tokens | None = None
    layers: Count | None = None
    step_seconds: Seconds | None = None
    hardware_flop_per_second: FlopPerSecond | None = None


class Workload(NamedTuple):
    """A model, its training recipe and its layout over ranks: what every count of a step depends on."""

    architecture: Architecture
    recipe: Recipe
    layout: Layout

    def at_stage(self, stage: int) -> Workload:
        """As a rank of pipeline stage `stage` (from 0) sees it, see `Layout.at_stage`."""
        return self._replace(layout=self.layout.at_stage(stage))


class ReferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded run: values for the formulas, and every value's facts (unit, kind, source) under `section.key`.

    Args:
        miniature: the command-line name of its executable miniature, where it has one.
        recorded_layout: None where the file has none, and where an axis or the micro-batch is recorded as not
            published, named in `unpublished`.
        measured: published measurements, each with its source in `facts` under `measured.N.key`.
    """

    name: str
    title: str
    where: str
    miniature: str | None
    architecture: Architecture
    recipe: Recipe
    recorded_layout: Layout | None = msgspec.field(name="layout")
    unpublished: tuple[str, ...]
    cluster: Cluster | None
    software: Software | None
    reported: Reported
    measured: tuple[PublishedMeasurement, ...]
    facts: dict[str, Sourced]
    sources: dict[str, str]

    @property
    def layout(self) -> Layout:
        """The recorded layout.

        Raises:
            InputError: there is none, or a fact that it needs is recorded as not published; the line names it.
        """
        if self.recorded_layout is None:
            what = f"{', '.join(self.unpublished)}: needed, but recorded as not published"
            what = what if self.unpublished else "[layout]: needed, and the file leaves it out"
            raise MissingFactError(what, allowed="a layout of your own with --layout", where=self.where)
        return self.recorded_layout

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and recorded layout.

        Raises:
            InputError: as `layout`.
        """
        return Workload(self.architecture, self.recipe, self.layout)
