"""A recorded run made small by one stated rule: what is kept, what is scaled, and by how much."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.miniature_shape import SCALES, Scale, scaled_architecture, sequence_divisor
from reference_runs.run import Architecture, Moments, Optimizer, ProductFormat, Recipe, ReferenceRun, Workload

WARMUP_FRACTION = 0.1
LAYOUT_RULE = (
    "the ranks' prime factors, largest first, go in turns to the axes that the record uses: dp, pp, tp; "
    "one that cannot be divided so is passed over"
)
UNPUBLISHED_RULE = "not published: one sample a micro-batch, and every rank a data-parallel one"
DEFAULT_STEPS = 30


class ScaledFact(msgspec.Struct, frozen=True):
    """One fact of the record and its value in the miniature, with the rule that made it."""

    key: str
    recorded: Annotated[int | float | str | bool | None, "value in base units"]
    here: int | float | str | bool | None
    rule: str


class Miniature(msgspec.Struct, frozen=True, kw_only=True):
    """Shape, recipe and layout that are executed, and how they differ from the record."""

    name: str
    run: str
    scale: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    scaled: tuple[ScaledFact, ...]
    kept: tuple[ScaledFact, ...]

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and layout."""
        return Workload(self.architecture, self.recipe, self.layout)


def prime_factors(number: int) -> list[int]:
    """Prime factors of `number`, largest first; none of 1."""
    for divisor in range(2, number + 1):
        if number % divisor == 0:
            return [*prime_factors(number // divisor), divisor]
    return []


def scaled_layout(recorded: Layout, architecture: Architecture, *, ranks: int) -> Layout:
    """`recorded` on `ranks` ranks, for a model of shape `architecture`.

    The prime factors of the ranks go one by one to dp, pp and tp in turns, of those that the record uses. An axis takes
    no factor that it cannot be divided by: tp must divide heads, key-value heads, feed-forward width and vocabulary
    rows, and with sequence parallelism the sequence; pp must leave a layer for each stage. What no axis takes goes to
    dp. Sequence parallelism stays where tp does; interleaving where it divides layers. 8 ranks of a run with all three
    axes are dp2, tp2, pp2.
    """
    sizes = {"data_parallel": 1, "pipeline_stages": 1, "tensor_parallel": 1}
    used = [axis for axis in sizes if getattr(recorded, axis) > 1]
    turn = 0
    for factor in prime_factors(ranks):
        taken = "data_parallel"
        for offset in range(len(used)):
            axis = used[(turn + offset) % len(used)]
            if _fits(architecture, recorded, axis, sizes[axis] * factor):
                taken = axis
                turn += offset + 1
                break
        sizes[taken] *= factor
    stages = sizes["pipeline_stages"]
    interleaves = stages > 1 and architecture.layers % (stages * recorded.virtual_stages) == 0
    return msgspec.structs.replace(
        recorded,
        **sizes,
        context_parallel=1,
        expert_parallel=1,
        shard_ranks=None,
        stage_layer_counts=None,
        virtual_stages=recorded.virtual_stages if interleaves else 1,
        sequence_parallel=recorded.sequence_parallel and sizes["tensor_parallel"] > 1,
        accumulation=None,
    )


def _fits(architecture: Architecture, recorded: Layout, axis: str, size: int) -> bool:
    if axis == "pipeline_stages":
        return size <= architecture.layers
    if axis == "data_parallel":
        return True
    divided = [architecture.heads, architecture.kv_heads, architecture.ffn_hidden, architecture.padded_vocabulary]
    if recorded.sequence_parallel:
        divided.append(architecture.sequence)
    return all(number % size == 0 for number in divided)


def _recorded_layout(run: ReferenceRun) -> Layout:
    """The layout that a miniature is scaled from: one rank, where a run records none."""
    return run.recorded_layout or Layout()


def samples_of_a_micro_batch(run: ReferenceRun, scale: Scale) -> int:
    """The recorded micro-batch, scaled and limited."""
    recorded = _recorded_layout(run)
    most = scale.most_samples if accumulation(run.recipe, recorded) > 1 else scale.most_samples_alone
    return min(recorded.micro_batch * scale.micro_batch, most)


def global_batch(run: ReferenceRun, scale: Scale, layout: Layout) -> int:
    """Samples of a step of the miniature in `layout`: data_parallel * micro-batch * accumulation.

    Accumulation is what the layout says; otherwise the recorded one, limited by the most micro-batches of a step, up to
    a multiple of the stages, which need that many. In a larger or smaller micro-batch than usual, the same samples.
    """
    replicas = layout.dealt_to * layout.micro_batch
    if layout.accumulation is not None:
        return replicas * layout.accumulation
    recorded = accumulation(run.recipe, _recorded_layout(run))
    micro_batches = min(recorded * layout.dealt_to, scale.most_micro_batches)
    filling = replicas * layout.pipeline_stages
    return -(-samples_of_a_micro_batch(run, scale) * micro_batches // filling) * filling


def in_batches(recipe: Recipe, run: ReferenceRun, scale_name: str, layout: Layout, *, steps: int) -> Recipe:
    """`recipe` of the miniature of `run` with the batch of `layout`, for `steps` steps."""
    batch = global_batch(run, SCALES[scale_name], layout)
    sequence = recipe.tokens // (steps * recipe.global_batch)
    recipe = msgspec.structs.replace(
        recipe,
        global_batch=batch,
        tokens=steps * batch * sequence,
        warmup=max(1, round(WARMUP_FRACTION * steps)) * batch,
        decay=steps * batch,
    )
    return ramped_up(recipe, run.recipe, layout)


def ramped_up(recipe: Recipe, recorded: Recipe, layout: Layout) -> Recipe:
    """`recipe` with a ramp-up of its global batch where `recorded` has one.

    The first step has the recorded share of the batch, in multiples of the samples that fill the pipeline: a
    micro-batch for each stage of each replica. The second one has the whole, so that the steps that are counted have it
    too. Where the start would be the whole batch there is none.
    """
    multiple = layout.dealt_to * layout.micro_batch * layout.pipeline_stages
    share = (recorded.batch_rampup_start or 0) / recorded.global_batch
    start = max(1, round(share * recipe.global_batch / multiple)) * multiple
    ramps = recorded.batch_rampup_start is not None and start < recipe.global_batch
    return msgspec.structs.replace(
        recipe,
        batch_rampup_start=start if ramps else None,
        batch_rampup_increment=recipe.global_batch - start if ramps else None,
        batch_rampup_samples=start if ramps else None,
    )


def miniature_name(run: ReferenceRun) -> str:
    """Name of the miniature of a run."""
    return run.miniature or f"{run.name}-mini"


def miniature(run: ReferenceRun, scale_name: str, *, ranks: int, steps: int = DEFAULT_STEPS) -> Miniature:
    """The miniature of `run` for a device kind ("cpu" or "cuda"), `ranks` processes and `steps` steps.

    A run that records no layout has the ranks as data-parallel ones; one that names no miniature has NAME-mini.

    Raises:
        InputError: a shape that the rule cannot divide.
    """
    scale = SCALES[scale_name]
    architecture, w = scaled_architecture(run.architecture, scale)
    architecture.check(f"{run.where} at scale {scale_name}")
    recipe = run.recipe
    recorded = _recorded_layout(run)
    small_layout = msgspec.structs.replace(
        scaled_layout(recorded, architecture, ranks=ranks),
        recomputation=recorded.executed_recomputation,
        recomputed_modules=(),
        micro_batch=samples_of_a_micro_batch(run, scale),
        fused_attention=False,
        whole_experts=False,
        partitioned_checkpoints=False,
        scatter_gather=False,
        accumulation=None,
        bucket_bytes=scale.bucket_bytes,
    )
    small_recipe = msgspec.structs.replace(
        recipe,
        tokens=steps * recipe.global_batch * architecture.sequence,
        learning_rate=recipe.learning_rate * w,
        minimum_learning_rate=recipe.minimum_learning_rate * w,
        init_std=recipe.init_std * math.sqrt(w),
        product_format=ProductFormat.NONE,
        moments=Moments.FP32,
        optimizer=Optimizer.ADAMW if recipe.optimizer is Optimizer.MUON else recipe.optimizer,
        initial_loss_scale=recipe.initial_loss_scale and min(recipe.initial_loss_scale, scale.most_loss_scale),
    )
    small_recipe = in_batches(small_recipe, run, scale_name, small_layout, steps=steps)
    small_layout = msgspec.structs.replace(small_layout, accumulation=accumulation(small_recipe, small_layout))
    small: dict[str, msgspec.Struct] = {"architecture": architecture, "recipe": small_recipe, "layout": small_layout}
    kept, scaled = _differences(run, small, w, scale)
    return Miniature(
        name=miniature_name(run),
        run=run.name,
        scale=scale_name,
        architecture=architecture,
        recipe=small_recipe,
        layout=small_layout,
        scaled=scaled,
        kept=kept,
    )


def _rules(architecture: Architecture, w: int, scale: Scale) -> dict[str, str]:
    """The rule for each value that a miniature of `architecture` changes."""
    shorter = f"/ {sequence_divisor(architecture, scale)}"
    size = f"/ {w}: the power of two that brings hidden nearest to {scale.hidden}"
    ramp_up = "; none where that is the whole batch"
    full = "data_parallel * pipeline_stages * micro_batch"
    return {
        "architecture.hidden": size,
        "architecture.ffn_hidden": f"/ {w}, as hidden",
        "architecture.vocabulary": f"/ {w}, as hidden",
        "architecture.padded_vocabulary": f"/ {w}, as hidden, up to a multiple of 8",
        "architecture.head_dim": f"/ {scale.head_dim}",
        "architecture.rotary_dim": f"/ {scale.head_dim}, as head_dim, up to an even number",
        "architecture.heads": "the recorded width of all heads over hidden",
        "architecture.kv_heads": "the recorded share of heads",
        "architecture.layers": f"fill up {scale.parameters:,} parameters",
        "architecture.dense_layers": "the recorded share of layers, at least one",
        "architecture.experts": f"at most {scale.most_experts}",
        "architecture.experts_per_token": "as recorded, a quarter of the experts at most",
        "architecture.expert_ffn_hidden": f"/ {w}, as hidden",
        "architecture.expert_groups": "of two experts or more",
        "architecture.groups_per_token": "the recorded share of groups",
        "architecture.query_rank": f"/ {w}, as hidden",
        "architecture.key_value_rank": f"/ {w}, as hidden",
        "architecture.value_head_dim": f"/ {scale.head_dim}, as head_dim",
        "architecture.sequence": f"{shorter}: {scale.sequence}, doubled until at most {scale.most_sequence:,} are left",
        "architecture.sliding_window": f"{shorter}, as sequence",
        "architecture.mean_document": f"{shorter}, as sequence",
        "architecture.rotary_scaling_sequence": f"{shorter}, as sequence",
        "layout.micro_batch": f"* {scale.micro_batch}, at most {scale.most_samples}, where steps have one "
        f"{scale.most_samples_alone}",
        "recipe.global_batch": "data_parallel * micro-batch * accumulation",
        "recipe.batch_rampup_start": f"the recorded share, to a multiple of {full}{ramp_up}",
        "recipe.batch_rampup_increment": f"all that the start leaves{ramp_up}",
        "recipe.batch_rampup_samples": f"one batch of the first size: the second step has the whole batch{ramp_up}",
        "recipe.product_format": "none: its products are too small to gain by another",
        "recipe.moments": "fp32: others are not executed",
        "recipe.optimizer": "adamw: muon is not executed",
        "recipe.tokens": "steps * global batch * sequence",
        "recipe.learning_rate": f"* {w}: inverse to hidden (Yang et al. 2022, arXiv 2203.03466, Adam)",
        "recipe.minimum_learning_rate": f"* {w}, as learning_rate: the recorded ratio to the peak",
        "recipe.warmup": f"{WARMUP_FRACTION:.0%} of the steps: the recorded share would be less than one step",
        "recipe.decay": "all steps",
        "recipe.initial_loss_scale": f"at most {scale.most_loss_scale:g}: the counted steps must not be skipped",
        "recipe.init_std": f"* sqrt({w}): inverse to sqrt(hidden), as 0.0048 = sqrt(0.33 / 14336)",
        **{f"layout.{axis}": LAYOUT_RULE for axis in ("data_parallel", "tensor_parallel", "pipeline_stages")},
        "layout.context_parallel": "1: its sequences are short",
        "layout.expert_parallel": "1: its experts fit every rank",
        "layout.shard_ranks": "all: its data-parallel ranks are few",
        "layout.stage_layer_counts": "evenly: there are fewer layers",
        "layout.virtual_stages": "as recorded where it divides the layers of several stages",
        "layout.sequence_parallel": "as recorded where there are several tensor-parallel ranks",
        "layout.recomputation": "none where modules of layers are named",
        "layout.recomputed_modules": "Megatron-Core's: these layers do not recompute them",
        "layout.partitioned_checkpoints": "PyTorch's checkpoints keep whole inputs",
        "layout.scatter_gather": "PyTorch's pipeline sends whole activations",
        "layout.fused_attention": "scores are stored, so that records stay comparable; `fused` in --layout asks for it",
        "layout.accumulation": f"at most {scale.most_micro_batches} micro-batches a step over all ranks, "
        "up to a multiple of pipeline_stages",
        "layout.bucket_bytes": "several messages a step, as in the record",
    }


def _differences(
    run: ReferenceRun, small: dict[str, msgspec.Struct], w: int, scale: Scale
) -> tuple[tuple[ScaledFact, ...], tuple[ScaledFact, ...]]:
    rules = _rules(run.architecture, w, scale)
    kept: list[ScaledFact] = []
    scaled: list[ScaledFact] = []
    recorded_sections = {"architecture": run.architecture, "recipe": run.recipe, "layout": _recorded_layout(run)}
    for section, record in small.items():
        for name in record.__struct_fields__:
            recorded, here = getattr(recorded_sections[section], name), getattr(record, name)
            key = f"{section}.{name}"
            if key in run.unpublished:
                scaled.append(ScaledFact(key, None, here, UNPUBLISHED_RULE))
            elif recorded == here:
                kept.append(ScaledFact(key, recorded, here, "kept"))
            elif key in rules:
                scaled.append(ScaledFact(key, recorded, here, rules[key]))
            else:
                raise InputError(f"{key} changes without a rule", got=here, where=run.where)
    return tuple(kept), tuple(scaled)
