"""TOML files to reference runs; every failure names file, key, value and what is allowed."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.defaults import default_facts
from reference_runs.errors import InputError, Mistakes
from reference_runs.incomplete import incomplete_recipe, missing_keys
from reference_runs.layout import AXES, Layout, Recomputation, Schedule, StageAssignment, stages_word
from reference_runs.named_runs import RUNS as RUNS
from reference_runs.named_runs import command_name as command_name
from reference_runs.named_runs import meant_run
from reference_runs.named_runs import run_names as run_names
from reference_runs.quantities import divisors
from reference_runs.recorded_file import (
    Omitted,
    field_types,
    read_toml,
    required_text,
    section_of,
    shown_path,
    sources_of,
)
from reference_runs.run import (
    Architecture,
    Cluster,
    FlopConvention,
    PublishedMeasurement,
    QueryKeyNorm,
    Recipe,
    ReferenceRun,
    Reported,
    Software,
    Workload,
)
from reference_runs.sourced import Sourced

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "architecture": Architecture,
    "recipe": Recipe,
    "layout": Layout,
    "cluster": Cluster,
    "software": Software,
    "reported": Reported,
}
_OPTIONAL = ("recipe", "layout", "cluster", "software", "reported")
_RAMP_UP = ("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples")
MOST_INCREMENTS = 10_000  # steps with another batch are counted one by one
_INCOMPLETE = {"recipe": incomplete_recipe}
_DIVIDED = {
    "tensor_parallel": ("heads", "ffn_hidden", "padded_vocabulary"),
    "context_parallel": ("sequence",),
}  # by axis, what of the architecture it divides


def miniatures() -> dict[str, str]:
    """Command-line name of each miniature -> name of its recorded run, sorted; reads the head of each file alone."""
    names: dict[str, str] = {}
    for path in RUNS.glob("*.toml"):
        head = path.read_text(encoding="utf-8").partition("\n[")[0]
        if "miniature" in (keys := tomllib.loads(head)):
            names[keys["miniature"]] = command_name(path)
    return dict(sorted(names.items()))


def reference_run(name: str, *, also: Iterable[str] = (), near: Iterable[str] = (), takes: str = "") -> ReferenceRun:
    """The recorded run `name`, or the run of the user's own file where `name` ends in `.toml`.

    Args:
        also: names that the caller takes besides; the refusal lists them.
        near: further names that the refusal may suggest.
        takes: further words for what the caller takes, such as "config.json, ".

    Raises:
        InputError: no such run or file, or a file that breaks the schema.
    """
    if name.endswith(".toml"):
        return load(Path(name))
    path = RUNS / f"{name.replace('-', '_')}.toml"
    if name not in run_names():
        names = [*run_names(), *also]
        if name.endswith(".json"):
            what = "a configuration is no run: `import` writes a run file of it"
            raise InputError(what, got=repr(name), allowed="a file ending in .toml, or a name that `runs` lists")
        meant = meant_run(name, [*names, *near])
        listed = "a name that `runs` lists" if meant else ", ".join(names)
        allowed = f"{listed}, {takes}or a file ending in .toml"
        raise InputError("unknown run", got=repr(name), meant=meant, allowed=allowed)
    return _recorded(path, path.stat().st_mtime_ns)


@functools.cache
def _recorded(path: Path, _changed: int) -> ReferenceRun:
    """A recorded run, read once: many parts of a command ask for the same one."""
    return load(path)


def load(path: Path) -> ReferenceRun:
    """The run that the TOML file at `path` records.

    Raises:
        InputError: unreadable file or broken TOML; else every missing, unknown or wrongly typed key and wrong unit;
            else all values that contradict each other.
    """
    raw = read_toml(path, what="run", known={"title", "miniature", "sources", "measured", *_SECTIONS})
    return run_of(raw, name=command_name(path), where=shown_path(path))


def run_of(raw: dict[str, Any], *, name: str, where: str) -> ReferenceRun:
    """The run that the tables of a run file record.

    Args:
        where: in words, for errors.

    Raises:
        InputError: as `load`, for tables.
    """
    mistakes = Mistakes()
    head: dict[str, str] = {}
    for key in ("title", "miniature"):
        if key == "title" or key in raw:
            with mistakes.collected():
                head[key] = required_text(raw, key, where)
    sources = sources_of(raw, where)
    sections: dict[str, Any] = {}
    facts: dict[str, Sourced] = {}
    for section, kind in _SECTIONS.items():
        with mistakes.collected():
            sections[section], section_facts = _section(raw, section, kind, sources, where)
            facts |= section_facts
            if isinstance(sections[section], Architecture | Recipe):
                sections[section].check(where)
    measured: tuple[PublishedMeasurement, ...] = ()
    with mistakes.collected():
        measured, measured_facts = _measured(raw.get("measured", []), sources, where)
        facts |= measured_facts
    mistakes.refuse()
    unpublished = tuple(key for key, fact in facts.items() if key.startswith("layout.") and fact.value is None)
    layout = sections.pop("layout")
    run = ReferenceRun(
        name=name,
        title=head["title"],
        where=where,
        miniature=head.get("miniature"),
        recorded_layout=None if unpublished else layout,
        unpublished=unpublished,
        measured=measured,
        facts=facts,
        sources=sources,
        **sections,
    )
    Mistakes(_contradictions(run)).refuse()
    return run


def _section(
    raw: dict[str, Any], name: str, kind: type[msgspec.Struct], sources: dict[str, str], where: str
) -> tuple[msgspec.Struct | None, dict[str, Sourced]]:
    """The record of a section, and its facts; of an optional one that is absent none, but a recipe that lacks all."""
    if name not in raw:
        if name not in _OPTIONAL:
            raise InputError(f"missing section [{name}]", allowed=", ".join(field_types(kind)), where=where)
        if name != "recipe":
            return (Reported() if name == "reported" else None), {}
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{name}: expected a table", got=repr(table), where=where)
    return section_of(table, kind, name, sources, where, Omitted(default_facts, _INCOMPLETE.get(name)))


def _measured(
    tables: Any, sources: dict[str, str], where: str
) -> tuple[tuple[PublishedMeasurement, ...], dict[str, Sourced]]:
    """The [[measured]] tables and their facts, numbered from 0."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("measured: expected tables [[measured]]", got=repr(tables), where=where)
    facts: dict[str, Sourced] = {}
    measured: list[PublishedMeasurement] = []
    for number, table in enumerate(tables):
        record, section_facts = section_of(table, PublishedMeasurement, f"measured.{number}", sources, where)
        measured.append(record)
        facts |= section_facts
    return tuple(measured), facts


def _contradictions(run: ReferenceRun) -> Iterator[InputError]:
    """Contradictions between the sections of a file."""
    recipe, reported, layout = run.recipe, run.reported, run.recorded_layout
    conventions = ", ".join(FlopConvention)
    if not {"warmup", "decay"} & {*missing_keys(recipe)} and recipe.warmup > recipe.decay:
        what, allowed = "recipe.warmup is longer than recipe.decay", f"at most {recipe.decay} samples"
        yield InputError(what, got=f"{recipe.warmup} samples", allowed=allowed, where=run.where)
    rates = (reported.hardware_flop_per_second, reported.model_flop_per_second, reported.mfu, reported.hfu)
    yield from _ramp_up_mistakes(recipe, run.where)
    if reported.flop_convention is None and any(rate is not None for rate in rates):
        what = "reported.flop_convention is missing: a published flop rate, MFU or HFU needs it"
        yield InputError(what, allowed=conventions, where=run.where)
    if (reported.total_flop is None) != (reported.total_flop_convention is None):
        what = "reported.total_flop and reported.total_flop_convention need each other"
        yield InputError(what, allowed=conventions, where=run.where)
    if layout is None:
        return
    if run.cluster is not None and run.cluster.accelerators not in (None, layout.ranks):
        axes = f"{layout.data_parallel} (dp) * {layout.tensor_parallel} (tp) * {layout.pipeline_stages} (pp)"
        for size, axis in ((layout.context_parallel, "cp"), (layout.expert_parallel, "ep")):
            axes += f" * {size} ({axis})" if size > 1 else ""
        needed = f"layout: {axes} = {layout.ranks} accelerators"
        yield InputError(f"{needed}, but cluster.accelerators = {run.cluster.accelerators}", where=run.where)
    else:
        yield from layout_mistakes(Workload(run.architecture, recipe, layout), run.where)


def _ramp_up_mistakes(recipe: Recipe, where: str) -> Iterator[InputError]:
    """A growing batch that is described in part, or does not grow to the whole one."""
    values = (recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples)
    names = [name for name, value in zip(_RAMP_UP, values, strict=True) if value is not None]
    if 0 < len(names) < len(_RAMP_UP):
        what = "recipe.batch_rampup_*: all three or none"
        yield InputError(what, got=", ".join(names), allowed=", ".join(_RAMP_UP), where=where)
    elif names and "global_batch" not in missing_keys(recipe):
        (start, increment, _), batch = map(int, filter(None, values)), recipe.global_batch
        if not 0 <= batch - start <= MOST_INCREMENTS * increment:
            got, allowed = f"{start} by {increment} to {batch}", f"up to {MOST_INCREMENTS:,} increments"
            yield InputError("recipe: a batch grows to global_batch", got=got, allowed=allowed, where=where)


def check_layout(workload: Workload, where: str) -> None:
    """Refuse a layout that the architecture and the batch cannot be divided by.

    Raises:
        InputError: the first of `layout_mistakes`.
    """
    for mistake in layout_mistakes(workload, where):
        raise mistake


def _imbalance_mistakes(workload: Workload, where: str) -> Iterator[InputError]:
    if workload.architecture.experts is None and (imbalance := workload.recipe.expert_imbalance) is not None:
        yield InputError("recipe.expert_imbalance: belongs to a mixture of experts", got=imbalance, where=where)


def _adapter_mistakes(workload: Workload, where: str) -> Iterator[InputError]:
    rank = workload.recipe.adapter_rank
    if rank is not None and (workload.architecture.experts or workload.layout.zero_stage >= 2):
        what = "recipe.adapter_rank: adapters of experts, or with layout.zero_stage 2 or 3, are not described"
        yield InputError(f"{what}; `predict config.json --lora` traces them", got=rank, where=where)


def layout_mistakes(workload: Workload, where: str) -> Iterator[InputError]:
    """Each reason for which the architecture and the batch cannot be divided by the layout, see `check_layout`."""
    architecture, recipe, layout = workload
    for axis, names in _DIVIDED.items():
        for name in names:
            if getattr(architecture, name) % getattr(layout, axis):
                what = f"layout.{axis} does not divide architecture.{name} = {getattr(architecture, name)}"
                yield InputError(what, got=getattr(layout, axis), where=where)
    if architecture.kv_heads % layout.tensor_parallel and layout.tensor_parallel % architecture.kv_heads:
        what = f"layout.tensor_parallel does not divide architecture.kv_heads = {architecture.kv_heads}"
        allowed = "a divisor, or a multiple, whose ranks have copies"
        yield InputError(what, got=layout.tensor_parallel, allowed=allowed, where=where)
    if layout.tensor_parallel > 1 and architecture.query_key_norm is QueryKeyNorm.PROJECTION:
        what = "layout.tensor_parallel splits the projections that architecture.query_key_norm = projection norms whole"
        yield InputError(what, got=layout.tensor_parallel, allowed="1", where=where)
    if (architecture.linear_key_heads or layout.tensor_parallel) % layout.tensor_parallel:
        what = f"layout.tensor_parallel does not divide architecture.linear_key_heads = {architecture.linear_key_heads}"
        yield InputError(what, got=layout.tensor_parallel, where=where)
    if architecture.linear_heads is not None and layout.context_parallel > 1:
        what = "layout.context_parallel with linear attention: not described"
        yield InputError(what, got=layout.context_parallel, where=where)
    yield from _adapter_mistakes(workload, where)
    yield from _imbalance_mistakes(workload, where)
    if (architecture.experts or 1) % layout.expert_ranks:
        ranks = "expert_parallel * tensor_parallel" if layout.whole_experts else "expert_parallel"
        what = f"layout.{ranks} does not divide architecture.experts = {architecture.experts or 'none'}"
        yield InputError(what, got=layout.expert_ranks, where=where)
    if layout.whole_experts and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        what = "layout.whole_experts over tensor-parallel ranks, each with its own tokens, needs sequence parallelism"
        yield InputError(what, got=f"tp{layout.tensor_parallel}", allowed="sequence_parallel", where=where)
    if architecture.experts is not None:
        if architecture.expert_width % layout.expert_splits:
            what = f"layout.tensor_parallel does not divide the experts' width = {architecture.expert_width}"
            yield InputError(what, got=layout.tensor_parallel, where=where)
        if layout.recomputation is Recomputation.FROM_INPUT and architecture.first_kind_layers:
            what = "layout.recomputation from-input with layers of two kinds: not described"
            yield InputError(what, got=layout.recomputation.value, where=where)
    if layout.recomputation is Recomputation.SELECTIVE_OP and (
        architecture.experts is not None or architecture.key_value_rank is not None or not layout.fused_attention
    ):
        what = "layout.recomputation selective-op with experts, latent or unfused attention: not described"
        yield InputError(what, got=layout.recomputation.value, where=where)
    yield from _shard_mistakes(layout, where)
    yield from _replica_mistakes(layout, where)
    yield from _stage_mistakes(architecture, layout, where)
    if sorted(axis for axis in layout.axis_order if axis != "ep") != sorted(AXES) or layout.axis_order.count("ep") > 1:
        allowed = f"{'-'.join(AXES)} in any order"
        yield InputError("layout.rank_order", got=repr(layout.rank_order), allowed=allowed, where=where)
    yield from _recomputation_mistakes(layout, where)
    if layout.sequence_parallel and layout.tensor_parallel > 1 and architecture.sequence % layout.tensor_parallel:
        what = "layout: sequence parallelism needs tensor_parallel to divide architecture.sequence"
        got = f"tp{layout.tensor_parallel},sp"
        yield InputError(f"{what} = {architecture.sequence}", got=got, where=where)
    if "global_batch" in missing_keys(recipe):
        return
    if (mistake := _batch_mistake(recipe, layout, where)) is not None:
        yield mistake
    elif layout.schedule.shape_of_v and layout.pipeline_stages > 1:
        yield from _v_mistakes(workload, where)
    elif layout.virtual_stages > 1:
        yield from _interleaving_mistakes(workload, where)


def _recomputation_mistakes(layout: Layout, where: str) -> Iterator[InputError]:
    if layout.checkpoint_layers > 1 and layout.recomputation is not Recomputation.FULL:
        got = f"every{layout.checkpoint_layers} with recompute-{layout.recomputation.value}"
        yield InputError("layout.checkpoint_layers belongs to recompute-full", got=got, where=where)
    if layout.recomputed_modules and layout.recomputation is not Recomputation.SELECTIVE:
        got = layout.recomputation.value
        yield InputError("layout.recomputed_modules belong to recompute-selective", got=got, where=where)


def _shard_mistakes(layout: Layout, where: str) -> Iterator[InputError]:
    if (shards := layout.shard_ranks) is None:
        return
    if layout.zero_stage < 2:
        what = "layout.shard_ranks belongs to zero2 and zero3"
        yield InputError(what, got=f"shard{shards} with zero{layout.zero_stage}", where=where)
    if layout.expert_parallel > 1:
        what = "layout.shard_ranks with experts that ranks share out: not described"
        yield InputError(what, got=f"shard{shards} with ep{layout.expert_parallel}", where=where)
    contexts, ranks = layout.context_parallel, layout.data_parallel * layout.context_parallel
    if shards < 2 or shards % contexts or ranks % shards:
        allowed = [n for n in divisors(ranks) if n % contexts == 0 and n > 1]
        names = ", ".join(map(str, allowed)) or "none, on one rank"
        yield InputError("layout.shard_ranks: groups of dp x cp ranks", got=shards, allowed=names, where=where)


def _replica_mistakes(layout: Layout, where: str) -> Iterator[InputError]:
    """Replicas of each stage that are none, or that go with no other part of the layout."""
    if layout.stage_replicas is None:
        return
    got = stages_word("replicas", layout.stage_replicas)
    if len(layout.stage_replicas) != layout.pipeline_stages:
        yield InputError(
            "layout.stage_replicas: one number a stage", got=f"{got} with pp{layout.pipeline_stages}", where=where
        )
    if layout.data_parallel > 1:
        what = "layout.stage_replicas and data_parallel: replicas of each stage, and of all"
        yield InputError(what, got=f"{got} with dp{layout.data_parallel}", where=where)
    if layout.flushes:
        what = "layout: stages with different numbers of replicas need a schedule without flush"
        allowed = ", ".join(schedule for schedule in Schedule if not schedule.flushes)
        yield InputError(what, got=f"{got} with {layout.schedule}", allowed=allowed, where=where)
    if layout.accumulation is not None:
        what = "layout: ranks of such stages have different numbers of micro-batches"
        got = f"{got} with accumulate{layout.accumulation}"
        yield InputError(what, got=got, allowed="--global-batch", where=where)


def _stage_mistakes(architecture: Architecture, layout: Layout, where: str) -> Iterator[InputError]:
    """Layers that do not suffice for the stages, or a list of them that does not fit."""
    layers, stages = architecture.layers, layout.pipeline_stages
    chunks, counts = stages * layout.virtual_stages, layout.stage_layer_counts
    if counts is not None and (len(counts) != chunks or sum(counts) != layers):
        what = f"layout.stage_layer_counts: {len(counts)} entries with {sum(counts)} layers"
        allowed = f"one for each of {chunks} {'chunks' if chunks > stages else 'stages'}, {layers} layers in all"
        yield InputError(what, got=list(counts), allowed=allowed, where=where)
    with_tables = layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    most = layers + (2 if with_tables and chunks > stages else 0)
    if counts is None and (stages > layers or chunks > most):
        allowed = f"at most architecture.layers = {layers}" + (", and a chunk for each table" if most > layers else "")
        yield InputError("layout: more pipeline stages than layers", got=chunks, allowed=allowed, where=where)


def _interleaving_mistakes(workload: Workload, where: str) -> Iterator[InputError]:
    layout = workload.layout
    if layout.pipeline_stages == 1 or layout.schedule not in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE):
        got = f"interleave{layout.virtual_stages} with pp{layout.pipeline_stages},{layout.schedule.value}"
        what = "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble"
        yield InputError(what, got=got, where=where)
    if (micro_batches := accumulation(workload.recipe, layout)) % layout.pipeline_stages:
        what = f"layout: interleaving needs a multiple of {layout.pipeline_stages} (pp) micro-batches"
        yield InputError(what, got=micro_batches, where=where)


def _v_mistakes(workload: Workload, where: str) -> Iterator[InputError]:
    """Two chunks a stage make a V; DualPipeV's passes overlap once a micro-batch is in every chunk."""
    layout = workload.layout
    if layout.virtual_stages != 2:
        what, got = f"layout: {layout.schedule} has two chunks a stage", f"interleave{layout.virtual_stages}"
        yield InputError(what, got=got, allowed="interleave2", where=where)
    chunks, micro_batches = 2 * layout.pipeline_stages, accumulation(workload.recipe, layout)
    if layout.schedule is Schedule.DUALPIPEV and micro_batches < chunks:
        what = f"layout: dualpipev needs as many micro-batches as chunks, {chunks}"
        yield InputError(what, got=micro_batches, where=where)


def _batch_mistake(recipe: Recipe, layout: Layout, where: str) -> InputError | None:
    samples, batch = layout.replicas * layout.micro_batch, recipe.global_batch
    experts = f" * {layout.expert_parallel} (ep)" if layout.expert_parallel > 1 else ""
    replicas = f"layout: {layout.data_parallel} (dp){experts} * {layout.micro_batch} (micro-batch)"
    if layout.accumulation is not None:
        if samples * layout.accumulation == batch:
            return None
        whole = f"{replicas} * {layout.accumulation} (accumulate) = {samples * layout.accumulation} samples"
        return InputError(f"{whole}, but the global batch is {batch}", where=where)
    if layout.stage_replicas is not None and batch % (layout.dealt_to * layout.micro_batch):
        named = " and ".join(map(str, sorted(set(layout.stage_replicas))))
        what = f"layout: {named} replicas of stages * {layout.micro_batch} (micro-batch) do not divide the global batch"
        allowed = f"a multiple of {layout.dealt_to * layout.micro_batch}"
        return InputError(what, got=f"{batch} samples", allowed=allowed, where=where)
    if samples > batch:
        what = f"{replicas} = {samples} samples are more than the global batch of {batch}"
        allowed = f"a batch of {samples} or more, fewer replicas, or a smaller micro-batch"
        return InputError(what, allowed=allowed, where=where)
    if batch % samples:
        what = f"{replicas} does not divide the global batch of {batch} samples"
        slices, rest = divmod(batch, layout.micro_batch)
        usable = ", ".join(str(n) for n in divisors(slices) if slices % (n * layout.expert_parallel) == 0)
        allowed = "a micro-batch that divides it" if rest else f"dp {usable}"
        return InputError(what, got=f"dp{layout.data_parallel}", allowed=allowed, where=where)
    return None


def accumulation(recipe: Recipe, layout: Layout) -> int:
    """Micro-batches that each rank computes in a step: global batch / (replicas * micro-batch)."""
    if layout.accumulation is not None:
        return layout.accumulation
    return recipe.global_batch // (layout.replicas * layout.micro_batch)


def global_batch_at(recipe: Recipe, seen: int) -> int:
    """Samples of the step that begins when `seen` samples have been trained on.

    With b samples at the start, i the increment, r the samples of the ramp-up, B the full batch, n = (B - b) / i:
        seen < r:  b + i floor(seen n / r)
        else:      B, as without ramp-up

    Source: Megatron-LM, core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator. It divides r by
    n first, in floating point; the batch can differ where `seen` is a multiple of r / n to within a rounding.
    """
    start, increment, samples = recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples
    if start is None and increment is None and samples is None:
        return recipe.global_batch
    assert start is not None
    assert increment is not None
    assert samples is not None
    increments = (recipe.global_batch - start) // increment
    return start + increment * min(seen * increments // samples, increments)
