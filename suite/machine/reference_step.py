"""The reference step: a training step that a calibration times as a whole, with shapes that no miniature has."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import (
    Activation,
    Architecture,
    LearningRateDecay,
    Mask,
    Norm,
    Objective,
    Optimizer,
    Position,
    Precision,
    Recipe,
    Residual,
    Workload,
)
from suite.machine.timings import Timing

PRECISION = Precision.BF16
SAMPLES = 2  # of a micro-batch
MICRO_BATCHES = 2  # of a rank and step
BUCKET_BYTES = 4_000_000  # as in the miniatures
# All sizes are multiples of 32, as in the miniatures: compiled steps of other shapes take longer than their operators
ARCHITECTURE = Architecture(
    layers=3,
    hidden=288,
    heads=18,
    head_dim=16,
    kv_heads=18,
    ffn_hidden=1152,
    vocabulary=2048,
    padded_vocabulary=2048,
    sequence=96,
    position=Position.LEARNED,
    norm=Norm.PRE_LAYER_NORM,
    norm_epsilon=1e-5,
    embedding_norm=False,
    activation=Activation.GELU_TANH,
    residual=Residual.SEQUENTIAL,
    mask=Mask.CAUSAL,
    biases=True,
    tied_embeddings=True,
)


class ReferenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """A training that a calibration runs as a launch would.

    Args:
        threads: arithmetic threads of a rank, on "cpu".
    """

    architecture: Architecture
    recipe: Recipe
    layout: Layout
    compiled: bool
    threads: int

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and layout."""
        return Workload(self.architecture, self.recipe, self.layout)

    def __str__(self) -> str:
        return f"reference step {'compiled' if self.compiled else 'eager'} {self.layout.ranks} ranks"


class TimedReferenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """A reference step and its seconds: the mean over ranks of the median over steps.

    Args:
        parts_seconds: the sum of its operators' seconds, where the profile no longer has those that were timed with it.
    """

    step: ReferenceStep
    timing: Timing
    parts_seconds: float | None = None


def reference_step(ranks: int, *, compiled: bool, threads: int) -> ReferenceStep:
    """A decoder like GPT-2's with dropout, in bf16, full recomputation and ZeRO-1 over the ranks."""
    samples = ranks * SAMPLES * MICRO_BATCHES
    recipe = Recipe(
        objective=Objective.CAUSAL_LM,
        global_batch=samples,
        tokens=samples * ARCHITECTURE.sequence,
        precision=PRECISION,
        optimizer=Optimizer.ADAMW,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        decay_of_vectors=False,
        gradient_clip=1.0,
        learning_rate=1e-4,
        minimum_learning_rate=1e-5,
        learning_rate_decay=LearningRateDecay.COSINE,
        warmup=samples,
        decay=1000 * samples,
        init_std=0.02,
        residual_init_scaled=True,
        embedding_dropout=0.1,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )
    layout = Layout(
        micro_batch=SAMPLES,
        data_parallel=ranks,
        accumulation=MICRO_BATCHES,
        zero_stage=1,
        recomputation=Recomputation.FULL,
        bucket_bytes=BUCKET_BYTES,
    )
    return ReferenceStep(architecture=ARCHITECTURE, recipe=recipe, layout=layout, compiled=compiled, threads=threads)
