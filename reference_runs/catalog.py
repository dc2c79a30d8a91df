"""TOML files to reference runs; every failure names file, key, value and what is allowed."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import AXES, Layout, Recomputation, Schedule
from reference_runs.recorded_file import field_types, read_toml, required_text, section_of, shown_path, sources_of
from reference_runs.run import (
    Architecture,
    Cluster,
    FlopConvention,
    Measurement,
    Recipe,
    ReferenceRun,
    Reported,
    Software,
    Workload,
)
from reference_runs.sourced import Kind, Sourced

RUNS = Path(__file__).parent / "runs"

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "architecture": Architecture,
    "recipe": Recipe,
    "layout": Layout,
    "cluster": Cluster,
    "software": Software,
    "reported": Reported,
}
_OPTIONAL = ("cluster", "software", "reported")


def command_name(path: Path) -> str:
    """The name that the command line uses for a recorded run: the file's stem with hyphens."""
    return path.stem.replace("_", "-")


def run_names() -> list[str]:
    """Names of the recorded runs, sorted."""
    return sorted(command_name(path) for path in RUNS.glob("*.toml"))


def miniatures() -> dict[str, str]:
    """Command-line name of each miniature -> name of its recorded run, sorted; reads the head of each file alone."""
    names: dict[str, str] = {}
    for path in RUNS.glob("*.toml"):
        head = path.read_text(encoding="utf-8").partition("\n[")[0]
        if "miniature" in (keys := tomllib.loads(head)):
            names[keys["miniature"]] = command_name(path)
    return dict(sorted(names.items()))


def reference_run(name: str, *, also: Iterable[str] = ()) -> ReferenceRun:
    """The recorded run `name`, or the run of the user's own file where `name` ends in `.toml`.

    Args:
        also: names that the caller takes besides; the refusal lists them.

    Raises:
        InputError: no such run or file, or a file that breaks the schema.
    """
    if name.endswith(".toml"):
        return load(Path(name))
    path = RUNS / f"{name.replace('-', '_')}.toml"
    if name not in run_names():
        allowed = ", ".join([*run_names(), *also]) + ", or a file ending in .toml"
        raise InputError("unknown run", got=repr(name), allowed=allowed)
    return load(path)


def load(path: Path) -> ReferenceRun:
    """The run that the TOML file at `path` records.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, wrong unit, or values that
            contradict each other.
    """
    where = shown_path(path)
    raw = read_toml(path, what="run", known={"title", "miniature", "sources", "measured", *_SECTIONS})
    title = required_text(raw, "title", where)
    miniature = required_text(raw, "miniature", where) if "miniature" in raw else None
    sources = sources_of(raw, where)
    sections: dict[str, Any] = {}
    facts: dict[str, Sourced] = {}
    unpublished: tuple[str, ...] = ()
    for name, kind in _SECTIONS.items():
        if name not in raw:
            if name in _OPTIONAL:
                sections[name] = Reported() if name == "reported" else None
                continue
            raise InputError(f"missing section [{name}]", allowed=", ".join(field_types(kind)), where=where)
        if not isinstance(raw[name], dict):
            raise InputError(f"{name}: expected a table", got=repr(raw[name]), where=where)
        if name == "layout":
            unpublished = _unpublished(raw[name])
        sections[name], section_facts = section_of(raw[name], kind, name, sources, where)
        facts |= section_facts
    measured, measured_facts = _measured(raw.get("measured", []), sources, where)
    layout = sections.pop("layout")
    run = ReferenceRun(
        name=command_name(path),
        title=title,
        where=where,
        miniature=miniature,
        recorded_layout=None if unpublished else layout,
        unpublished=unpublished,
        measured=measured,
        facts=facts | measured_facts,
        sources=sources,
        **sections,
    )
    _check(run)
    return run


def _unpublished(table: dict[str, Any]) -> tuple[str, ...]:
    """The entries of [layout] that are recorded as not published."""
    return tuple(
        f"layout.{key}"
        for key, entry in table.items()
        if isinstance(entry, dict) and entry.get("kind") == Kind.NOT_PUBLISHED.value
    )


def _measured(tables: Any, sources: dict[str, str], where: str) -> tuple[tuple[Measurement, ...], dict[str, Sourced]]:
    """The [[measured]] tables and their facts, numbered from 0."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("measured: expected tables [[measured]]", got=repr(tables), where=where)
    facts: dict[str, Sourced] = {}
    measured: list[Measurement] = []
    for place, table in enumerate(tables):
        record, section_facts = section_of(table, Measurement, f"measured.{place}", sources, where)
        measured.append(typing.cast(Measurement, record))
        facts |= section_facts
    return tuple(measured), facts


def _check(run: ReferenceRun) -> None:
    """Refuse records whose values contradict each other."""
    run.architecture.check(run.where)
    run.recipe.check(run.where)
    recipe = run.recipe
    if recipe.warmup > recipe.decay:
        raise InputError(
            "recipe.warmup is longer than recipe.decay",
            got=f"{recipe.warmup} samples",
            allowed=f"at most {recipe.decay} samples",
            where=run.where,
        )
    reported = run.reported
    rates = (reported.hardware_flop_per_second, reported.model_flop_per_second, reported.mfu, reported.hfu)
    if reported.flop_convention is None and any(rate is not None for rate in rates):
        raise InputError(
            "reported.flop_convention is missing: a published flop rate, MFU or HFU needs it",
            allowed=", ".join(FlopConvention),
            where=run.where,
        )
    if (reported.total_flop is None) != (reported.total_flop_convention is None):
        raise InputError(
            "reported.total_flop and reported.total_flop_convention need each other",
            allowed=", ".join(FlopConvention),
            where=run.where,
        )
    if run.recorded_layout is None:
        return
    layout = run.recorded_layout
    axes = f"{layout.data_parallel} (dp) * {layout.tensor_parallel} (tp) * {layout.pipeline_stages} (pp)"
    if layout.context_parallel > 1:
        axes += f" * {layout.context_parallel} (cp)"
    if run.cluster is not None and run.cluster.accelerators not in (None, layout.ranks):
        raise InputError(
            f"layout: {axes} = {layout.ranks} accelerators, but cluster.accelerators = {run.cluster.accelerators}",
            where=run.where,
        )
    check_layout(Workload(run.architecture, recipe, layout), run.where)


def check_layout(workload: Workload, where: str) -> None:
    """Refuse a layout that the architecture and the batch cannot be divided by.

    Raises:
        InputError: tensor parallelism does not divide heads, key-value heads, feed-forward width or vocabulary; more
            pipeline stages than layers; interleaving that does not divide the layers or the micro-batches; context
            parallelism that does not divide the sequence; an order of axes that is none; or a global batch that is not
            data_parallel * micro_batch * accumulation.
    """
    architecture, recipe, layout = workload
    divided = {
        "tensor_parallel": ("heads", "kv_heads", "ffn_hidden", "padded_vocabulary"),
        "context_parallel": ("sequence",),
    }
    for axis, names in divided.items():
        for name in names:
            if getattr(architecture, name) % getattr(layout, axis):
                raise InputError(
                    f"layout.{axis} does not divide architecture.{name} = {getattr(architecture, name)}",
                    got=getattr(layout, axis),
                    where=where,
                )
    if layout.pipeline_stages * layout.virtual_stages > architecture.layers:
        raise InputError(
            "layout: more pipeline stages than layers",
            got=layout.pipeline_stages * layout.virtual_stages,
            allowed=f"at most architecture.layers = {architecture.layers}",
            where=where,
        )
    if sorted(layout.rank_order.split("-")) != sorted(AXES):
        raise InputError(
            "layout.rank_order", got=repr(layout.rank_order), allowed=f"{'-'.join(AXES)} in any order", where=where
        )
    if layout.checkpoint_layers > 1 and layout.recomputation is not Recomputation.FULL:
        raise InputError(
            "layout.checkpoint_layers belongs to recompute-full",
            got=f"every{layout.checkpoint_layers} with recompute-{layout.recomputation.value}",
            where=where,
        )
    if layout.sequence_parallel and layout.tensor_parallel > 1 and architecture.sequence % layout.tensor_parallel:
        raise InputError(
            f"layout: sequence parallelism needs tensor_parallel to divide architecture.sequence = "
            f"{architecture.sequence}",
            got=f"tp{layout.tensor_parallel},sp",
            where=where,
        )
    _check_batch(recipe, layout, where)
    if layout.virtual_stages > 1:
        stages = layout.pipeline_stages * layout.virtual_stages
        if layout.pipeline_stages == 1 or layout.schedule is not Schedule.ONE_F_ONE_B:
            raise InputError(
                "layout: interleaving needs pipeline stages and the schedule 1f1b",
                got=f"interleave{layout.virtual_stages} with pp{layout.pipeline_stages},{layout.schedule.value}",
                where=where,
            )
        if architecture.layers % stages:
            raise InputError(
                f"layout: {layout.pipeline_stages} (pp) * {layout.virtual_stages} (interleave) = {stages} does not "
                f"divide architecture.layers = {architecture.layers}",
                where=where,
            )
        if accumulation(recipe, layout) % layout.pipeline_stages:
            raise InputError(
                f"layout: interleaving needs a multiple of {layout.pipeline_stages} (pp) micro-batches",
                got=accumulation(recipe, layout),
                where=where,
            )


def _check_batch(recipe: Recipe, layout: Layout, where: str) -> None:
    slice_samples = layout.data_parallel * layout.micro_batch
    if layout.accumulation is None:
        if slice_samples > recipe.global_batch:
            raise InputError(
                f"layout: {layout.data_parallel} (dp) * {layout.micro_batch} (micro-batch) = {slice_samples} samples "
                f"are more than the global batch of {recipe.global_batch}",
                where=where,
            )
        if recipe.global_batch % slice_samples:
            raise InputError(
                f"layout: {layout.data_parallel} (dp) * {layout.micro_batch} (micro-batch) does not divide the global "
                f"batch of {recipe.global_batch} samples",
                got=f"dp{layout.data_parallel}",
                allowed=_dividing(recipe.global_batch, layout.micro_batch),
                where=where,
            )
    elif slice_samples * layout.accumulation != recipe.global_batch:
        raise InputError(
            f"layout: {layout.data_parallel} (dp) * {layout.micro_batch} (micro-batch) * {layout.accumulation} "
            f"(accumulate) = {slice_samples * layout.accumulation} samples, but the global batch is "
            f"{recipe.global_batch}",
            where=where,
        )


def _dividing(global_batch: int, micro_batch: int) -> str:
    if global_batch % micro_batch:
        return "a micro-batch that divides it"
    slices = global_batch // micro_batch
    return "dp " + ", ".join(str(n) for n in range(1, slices + 1) if slices % n == 0)


def accumulation(recipe: Recipe, layout: Layout) -> int:
    """Micro-batches that each rank computes in a step: global batch / (data_parallel * micro-batch)."""
    if layout.accumulation is not None:
        return layout.accumulation
    return recipe.global_batch // (layout.data_parallel * layout.micro_batch)
