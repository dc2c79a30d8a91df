"""TOML files to reference runs; every failure names file, key, value and what is allowed."""

from __future__ import annotations

import enum
import math
import tomllib
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Architecture, Cluster, Recipe, ReferenceRun, Reported, Software
from reference_runs.sourced import Kind, Sourced
from reference_runs.units import in_base_unit, units_of

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
    where = _shown(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the run file: {error.strerror}", where=where) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not valid TOML: {error}", where=where) from error
    known = {"title", "sources", *_SECTIONS}
    for key in raw:
        if key not in known:
            raise InputError(f"unknown key {key!r}", allowed=", ".join(sorted(known)), where=where)
    title = _required_text(raw, "title", where)
    sources = raw.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise InputError("sources: expected a table of texts", got=repr(sources), where=where)
    sections: dict[str, Any] = {}
    facts: dict[str, Sourced] = {}
    for name, kind in _SECTIONS.items():
        if name not in raw:
            if name in _OPTIONAL:
                sections[name] = Reported() if name == "reported" else None
                continue
            raise InputError(f"missing section [{name}]", allowed=", ".join(_fields(kind)), where=where)
        if not isinstance(raw[name], dict):
            raise InputError(f"{name}: expected a table", got=repr(raw[name]), where=where)
        sections[name], section_facts = _section(raw[name], kind, name, sources, where)
        facts |= section_facts
    run = ReferenceRun(name=command_name(path), title=title, where=where, facts=facts, sources=sources, **sections)
    _check(run)
    return run


def _shown(path: Path) -> str:
    """The path as error messages print it: relative to the catalog's parent where it lies inside."""
    try:
        return str(path.resolve().relative_to(RUNS.parent))
    except ValueError:
        return str(path)


def _required_text(raw: dict[str, Any], key: str, where: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        if value is None:
            raise InputError(f"missing key {key!r}", where=where)
        raise InputError(f"{key}: expected a text", got=repr(value), where=where)
    return value


def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _section(
    table: dict[str, Any], kind: type[msgspec.Struct], section: str, sources: dict[str, str], where: str
) -> tuple[msgspec.Struct, dict[str, Sourced]]:
    fields = _fields(kind)
    values: dict[str, Any] = {}
    facts: dict[str, Sourced] = {}
    for key, entry in table.items():
        label = f"{section}.{key}"
        if key not in fields:
            raise InputError(f"unknown key {label!r}", allowed=", ".join(fields), where=where)
        try:
            fact = msgspec.convert(entry, Sourced)
        except (msgspec.ValidationError, ValueError) as error:
            raise InputError(
                f"{label}: {_reason(error)}",
                got=repr(entry),
                allowed="{ value, unit, kind, source } with kind one of " + ", ".join(Kind),
                where=where,
            ) from error
        for source in [fact.source, *(reading.source for reading in fact.readings)]:
            if source.split()[0].rstrip(",:;") not in sources:
                raise InputError(
                    f"{label}: source does not begin with a key of [sources]",
                    got=repr(source),
                    allowed=", ".join(sorted(sources)) or "none, as [sources] is empty",
                    where=where,
                )
        facts[label] = fact
        if fact.kind is not Kind.NOT_PUBLISHED:
            values[key] = _value(fact, fields[key].type, label, where)
    for key, field in fields.items():
        if field.required and key not in values:
            unpublished = f"{section}.{key}" in facts
            what = (
                f"{section}.{key} is needed, but recorded as not published"
                if unpublished
                else (f"missing key '{section}.{key}'")
            )
            raise InputError(what, where=where)
    return kind(**values), facts


def _reason(error: Exception) -> str:
    """msgspec's text with its JSON path turned into the file's words."""
    text = str(error).replace("Object", "the entry")
    head, _, path = text.partition(" - at `$.")
    return f"{path.rstrip('`')}: {head}" if path else head


def _value(fact: Sourced, annotation: Any, label: str, where: str) -> Any:
    bare, meta = _bare(annotation)
    if bare in (int, float):
        expected = (meta.extra or {}).get("unit", "1") if meta else "1"
        if isinstance(fact.value, (bool, str)):
            raise InputError(f"{label}: expected a number", got=repr(fact.value), where=where)
        if not math.isfinite(typing.cast(float, fact.value)):
            raise InputError(f"{label}: expected a finite number", got=repr(fact.value), where=where)
        if fact.unit is None:
            raise InputError(f"{label}: missing unit", allowed=", ".join(units_of(expected)), where=where)
        try:
            value: Any = in_base_unit(typing.cast(float, fact.value), fact.unit, expected)
        except ValueError as error:
            raise InputError(f"{label}: {error}", where=where) from error
        if bare is int and not isinstance(value, int):
            raise InputError(f"{label}: expected an integer", got=repr(fact.value), where=where)
    else:
        if fact.unit is not None:
            raise InputError(f"{label}: has no unit", got=repr(fact.unit), where=where)
        value = fact.value
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        allowed = ", ".join(bare) if isinstance(bare, type) and issubclass(bare, enum.Enum) else None
        raise InputError(f"{label}: {_reason(error)}", got=repr(fact.value), allowed=allowed, where=where) from error


def _bare(annotation: Any) -> tuple[Any, msgspec.Meta | None]:
    """The plain type and msgspec's constraints of an annotation such as `Annotated[int, Meta(ge=1)] | None`."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(option for option in typing.get_args(annotation) if option is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        bare, meta = typing.get_args(annotation)[:2]
        return bare, meta
    return annotation, None


def _check(run: ReferenceRun) -> None:
    """Refuse records whose values contradict each other."""
    run.architecture.check(run.where)
    layout, recipe = run.layout, run.recipe
    axes = f"{layout.data_parallel} (dp) * {layout.tensor_parallel} (tp) * {layout.pipeline_stages} (pp)"
    if layout.context_parallel > 1:
        axes += f" * {layout.context_parallel} (cp)"
    if run.cluster is not None and layout.ranks != run.cluster.accelerators:
        raise InputError(
            f"layout: {axes} = {layout.ranks} accelerators, but cluster.accelerators = {run.cluster.accelerators}",
            where=run.where,
        )
    if recipe.warmup > recipe.decay:
        raise InputError(
            "recipe.warmup is longer than recipe.decay",
            got=f"{recipe.warmup} samples",
            allowed=f"at most {recipe.decay} samples",
            where=run.where,
        )
    check_layout(run.architecture, recipe, layout, run.where)


def check_layout(architecture: Architecture, recipe: Recipe, layout: Layout, where: str) -> None:
    """Refuse a layout that the architecture and the batch cannot be divided by.

    Raises:
        InputError: tensor parallelism does not divide the heads, more pipeline stages than layers, or a global batch
            that is not data_parallel * micro_batch * accumulation.
    """
    if architecture.heads % layout.tensor_parallel:
        raise InputError(
            f"layout.tensor_parallel does not divide architecture.heads = {architecture.heads}",
            got=layout.tensor_parallel,
            where=where,
        )
    if layout.pipeline_stages * layout.virtual_stages > architecture.layers:
        raise InputError(
            "layout: more pipeline stages than layers",
            got=layout.pipeline_stages * layout.virtual_stages,
            allowed=f"at most architecture.layers = {architecture.layers}",
            where=where,
        )
    slice_samples = layout.data_parallel * recipe.micro_batch
    if layout.accumulation is None:
        if recipe.global_batch % slice_samples:
            raise InputError(
                f"layout: {layout.data_parallel} (dp) * {recipe.micro_batch} (micro-batch) does not divide the global "
                f"batch of {recipe.global_batch} samples",
                got=f"dp{layout.data_parallel}",
                allowed="dp " + ", ".join(str(n) for n in _divisors(recipe.global_batch // recipe.micro_batch)),
                where=where,
            )
    elif slice_samples * layout.accumulation != recipe.global_batch:
        raise InputError(
            f"layout: {layout.data_parallel} (dp) * {recipe.micro_batch} (micro-batch) * {layout.accumulation} "
            f"(accumulate) = {slice_samples * layout.accumulation} samples, but the global batch is "
            f"{recipe.global_batch}",
            where=where,
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def accumulation(recipe: Recipe, layout: Layout) -> int:
    """Micro-batches that each rank computes in a step: global batch / (data_parallel * micro-batch)."""
    if layout.accumulation is not None:
        return layout.accumulation
    return recipe.global_batch // (layout.data_parallel * recipe.micro_batch)
