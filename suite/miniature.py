"""A recorded run made small by one stated rule: what is kept, what is scaled, and by how much."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, StageAssignment
from reference_runs.run import Architecture, Recipe, ReferenceRun


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How small a miniature becomes on one kind of device.

    Args:
        hidden: the hidden size aimed at; the recorded one is divided by the power of two that comes nearest.
        parameters: the parameter count aimed at; it decides the number of layers.
        head_dim: divisor of the recorded head size.
        sequence: divisor of the recorded sequence.
        micro_batch: factor on the recorded micro-batch.
        most_samples: of a micro-batch, so that its logits stay small.
        global_batch: micro-batches in a step over all ranks (12 divides by 1, 2, 3, 4, 6 and 12 ranks).
        bucket_bytes: so that gradients still travel in several messages.
    """

    hidden: int
    parameters: int
    head_dim: int
    sequence: int
    micro_batch: int
    most_samples: int
    global_batch: int
    bucket_bytes: int


SCALES = {
    "cpu": Scale(
        hidden=200,
        parameters=4_000_000,
        head_dim=8,
        sequence=32,
        micro_batch=1,
        most_samples=4,
        global_batch=12,
        bucket_bytes=4_000_000,
    ),
    "cuda": Scale(
        hidden=900,
        parameters=130_000_000,
        head_dim=2,
        sequence=2,
        micro_batch=8,
        most_samples=32,
        global_batch=48,
        bucket_bytes=25_000_000,
    ),
}
WARMUP_FRACTION = 0.1
DEFAULT_STEPS = 30


class Difference(msgspec.Struct, frozen=True):
    """One fact of the record beside its value in the miniature, with the rule that made it."""

    key: str
    recorded: Annotated[int | float | str | bool | None, "value in base units"]
    here: int | float | str | bool | None
    rule: str


class Miniature(msgspec.Struct, frozen=True, kw_only=True):
    """What is executed: shape, recipe and layout, and how they differ from the record."""

    name: str
    run: str
    scale: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    scaled: tuple[Difference, ...]
    kept: tuple[Difference, ...]


def power_of_two_near(ratio: float) -> int:
    """The power of two whose logarithm is nearest to that of `ratio`, at least 1."""
    return 1 << max(0, round(math.log2(ratio)))


def scaled_architecture(architecture: Architecture, scale: Scale) -> tuple[Architecture, int]:
    """The smaller shape and the divisor w of its width.

    w = power of two nearest to hidden / aim, so hidden, feed-forward width and vocabulary keep their recorded ratios
    exactly (the padded vocabulary is rounded up to a multiple of 8). The head size shrinks by a fixed divisor, the
    number of heads by what remains of w, so 112 heads become 14: neither is a power of two. Layers fill up the
    parameter count aimed at.
    """
    w = power_of_two_near(architecture.hidden / scale.hidden)
    head_divisor = min(scale.head_dim, w)
    hidden, head_dim = architecture.hidden // w, architecture.head_dim // head_divisor
    padded = -(-architecture.padded_vocabulary // (8 * w)) * 8
    block = 4 * hidden * hidden + 2 * hidden * (architecture.ffn_hidden // w)
    tables = 1 if architecture.tied_embeddings else 2
    layers = max(2, round((scale.parameters - tables * padded * hidden) / block))
    small = msgspec.structs.replace(
        architecture,
        layers=min(layers, architecture.layers),
        hidden=hidden,
        heads=hidden // head_dim,
        head_dim=head_dim,
        kv_heads=max(1, hidden // head_dim * architecture.kv_heads // architecture.heads),
        ffn_hidden=architecture.ffn_hidden // w,
        vocabulary=min(padded, round(architecture.vocabulary / w)),
        padded_vocabulary=padded,
        sequence=architecture.sequence // scale.sequence,
    )
    return small, w


def miniature(run: ReferenceRun, scale_name: str, *, ranks: int, steps: int = DEFAULT_STEPS) -> Miniature:
    """The miniature of `run` for a device kind ("cpu" or "cuda"), `ranks` processes and `steps` steps.

    Raises:
        InputError: a run without a miniature, or a shape that the rule cannot divide.
    """
    if run.miniature is None:
        raise InputError(f"{run.name} has no miniature", where=run.where)
    scale = SCALES[scale_name]
    architecture, w = scaled_architecture(run.architecture, scale)
    architecture.check(f"{run.where} at scale {scale_name}")
    recipe, layout = run.recipe, run.layout
    micro_batch = min(layout.micro_batch * scale.micro_batch, scale.most_samples)
    global_batch = micro_batch * scale.global_batch
    small_recipe = msgspec.structs.replace(
        recipe,
        global_batch=global_batch,
        batch_rampup_start=None,
        batch_rampup_increment=None,
        batch_rampup_samples=None,
        tokens=steps * global_batch * architecture.sequence,
        learning_rate=recipe.learning_rate * w,
        minimum_learning_rate=recipe.minimum_learning_rate * w,
        warmup=max(1, round(WARMUP_FRACTION * steps)) * global_batch,
        decay=steps * global_batch,
        init_std=recipe.init_std * math.sqrt(w),
    )
    small_layout = msgspec.structs.replace(
        layout,
        micro_batch=micro_batch,
        data_parallel=ranks,
        tensor_parallel=1,
        pipeline_stages=1,
        context_parallel=1,
        virtual_stages=1,
        sequence_parallel=False,
        stage_assignment=StageAssignment.LAYERS,
        fused_attention=False,
        accumulation=scale.global_batch // ranks if scale.global_batch % ranks == 0 else None,
        bucket_bytes=scale.bucket_bytes,
    )
    small: dict[str, msgspec.Struct] = {"architecture": architecture, "recipe": small_recipe, "layout": small_layout}
    kept, scaled = _differences(run, small, w, scale)
    return Miniature(
        name=run.miniature,
        run=run.name,
        scale=scale_name,
        architecture=architecture,
        recipe=small_recipe,
        layout=small_layout,
        scaled=scaled,
        kept=kept,
    )


def _rules(w: int, scale: Scale) -> dict[str, str]:
    """The rule behind each value that a miniature changes."""
    size = f"/ {w}: the power of two that brings hidden nearest to {scale.hidden}"
    one_axis = "1: this version executes data parallelism alone"
    per_batch = f"{scale.global_batch} micro-batches a step over all ranks"
    return {
        "architecture.hidden": size,
        "architecture.ffn_hidden": f"/ {w}, as hidden",
        "architecture.vocabulary": f"/ {w}, as hidden",
        "architecture.padded_vocabulary": f"/ {w}, as hidden, up to a multiple of 8",
        "architecture.head_dim": f"/ {scale.head_dim}",
        "architecture.heads": "hidden / head_dim",
        "architecture.kv_heads": "the recorded share of heads",
        "architecture.layers": f"fill up {scale.parameters:,} parameters",
        "architecture.sequence": f"/ {scale.sequence}",
        "layout.micro_batch": f"* {scale.micro_batch}, at most {scale.most_samples}",
        "recipe.global_batch": per_batch,
        "recipe.batch_rampup_start": "no ramp-up: one batch size",
        "recipe.batch_rampup_increment": "no ramp-up: one batch size",
        "recipe.batch_rampup_samples": "no ramp-up: one batch size",
        "recipe.tokens": "steps * global batch * sequence",
        "recipe.learning_rate": f"* {w}: inverse to hidden (Yang et al. 2022, arXiv 2203.03466, Adam)",
        "recipe.minimum_learning_rate": f"* {w}, as learning_rate: the recorded ratio to the peak",
        "recipe.warmup": f"{WARMUP_FRACTION:.0%} of the steps: the recorded share would be less than one step",
        "recipe.decay": "all steps",
        "recipe.init_std": f"* sqrt({w}): inverse to sqrt(hidden), as 0.0048 = sqrt(0.33 / 14336)",
        "layout.data_parallel": "the number of ranks",
        "layout.tensor_parallel": one_axis,
        "layout.pipeline_stages": one_axis,
        "layout.context_parallel": one_axis,
        "layout.virtual_stages": one_axis,
        "layout.sequence_parallel": one_axis,
        "layout.stage_assignment": one_axis,
        "layout.fused_attention": "this version keeps the scores",
        "layout.accumulation": "global batch / (ranks * micro-batch)",
        "layout.bucket_bytes": "several messages a step, as in the record",
    }


def _differences(
    run: ReferenceRun, small: dict[str, msgspec.Struct], w: int, scale: Scale
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    rules = _rules(w, scale)
    kept: list[Difference] = []
    scaled: list[Difference] = []
    for section, record in small.items():
        for field in msgspec.structs.fields(record):
            recorded = getattr(getattr(run, section), field.name)
            here = getattr(record, field.name)
            key = f"{section}.{field.name}"
            if recorded == here:
                kept.append(Difference(key, recorded, here, "kept"))
            elif key in rules:
                scaled.append(Difference(key, recorded, here, rules[key]))
            else:
                raise InputError(f"{key} changes without a rule", got=here, where=run.where)
    return tuple(kept), tuple(scaled)
