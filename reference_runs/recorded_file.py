"""TOML files of sourced values: read, checked against a record's fields, refused with file, key and what is allowed."""

from __future__ import annotations

import enum
import functools
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reference_runs.errors import InputError, Mistakes, nearest
from reference_runs.regular_file import typed_text
from reference_runs.run import Precision, meant_precision
from reference_runs.sourced import Kind, Sourced
from reference_runs.units import in_base_unit, units_of

LONGEST_LINE = 4000  # of TOML; recorded files have up to 794, and a key of 100,000 parts takes seconds to read
LARGEST_EXACT = 2**53  # up to which a number such as 2e12 is a certain integer


def read_toml(path: Path, *, what: str, known: set[str]) -> dict[str, Any]:
    """The tables of the TOML file at `path`, a `what` file, whose top-level keys are all among `known`.

    Raises:
        InputError: unreadable file, broken TOML, or an unknown key.
    """
    where = shown_path(path)
    try:
        text = typed_text(path)
        if (longest := max(map(len, text.splitlines()), default=0)) > LONGEST_LINE:
            raise ValueError(f"a line of {longest:,} letters, allowed are {LONGEST_LINE:,}")
        raw = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the {what} file: {error.strerror}", where=where) from error
    except (ValueError, RecursionError) as error:  # numbers of 4,300 digits, tables of 1,000 levels
        raise InputError(f"not valid TOML: {error}", where=where) from error
    for key in raw:
        if key not in known:
            allowed = ", ".join(sorted(known))
            raise InputError(f"unknown key {key!r}", meant=nearest(key, known), allowed=allowed, where=where)
    return raw


Record = typing.TypeVar("Record", bound=msgspec.Struct)


def record_of(path: Path, kind: type[Record], *, what: str) -> Record:
    """The record that the whole TOML file at `path` is, a `what` file.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    raw = read_toml(path, what=what, known=known)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {error}", where=shown_path(path)) from error


def sources_of(raw: dict[str, Any], where: str) -> dict[str, str]:
    """The table [sources] of a file: key -> document.

    Raises:
        InputError: it is not a table of texts.
    """
    sources = raw.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise InputError("sources: expected a table of texts", got=repr(sources), where=where)
    return sources


def shown_path(path: Path) -> str:
    """The path as error messages print it: relative to the catalog's parent where it lies inside."""
    try:
        return str(Path(os.path.realpath(path)).relative_to(Path(__file__).parent))
    except ValueError:
        return str(path)


def required_text(raw: dict[str, Any], key: str, where: str) -> str:
    """The text under the top-level `key`.

    Raises:
        InputError: missing, empty, or no text.
    """
    value = raw.get(key)
    if value is None:
        raise InputError(f"missing key {key!r}", where=where)
    if not isinstance(value, str) or not value:
        raise InputError(f"{key}: expected a text", got=repr(value), where=where)
    return value


@functools.cache  # annotations of all fields are evaluated
def field_types(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """The fields of a record by name."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def unit_of(kind: type[msgspec.Struct], key: str) -> str | None:
    """The base unit of a record's number; None of a text, a choice or a claim, and of a key that it does not have."""
    fields = field_types(kind)
    if key not in fields:
        return None
    bare, meta = _bare(fields[key].type)
    return ((meta.extra or {}).get("unit", "1") if meta else "1") if bare in (int, float) else None


class Omitted(NamedTuple):
    """Treatment of keys that a section leaves out.

    Args:
        defaults: facts of such keys, from the values that the section has.
        incomplete: the record of a section that lacks keys even so, which refuses to say them; None: it is refused.
    """

    defaults: Callable[[str, Mapping[str, Any]], dict[str, Sourced]] = lambda _section, _values: {}
    incomplete: Callable[[dict[str, Any], tuple[str, ...], str], msgspec.Struct] | None = None


NOTHING_OMITTED = Omitted()


def section_of(  # long: what is wrong with the keys, with the values, and with what is left out
    table: dict[str, Any],
    kind: type[Record],
    section: str,
    sources: dict[str, str],
    where: str,
    omitted: Omitted = NOTHING_OMITTED,
) -> tuple[Record, dict[str, Sourced]]:
    """The record of one section, in base units, and its facts under `section.key`, those of defaults last.

    A required field that is recorded as not published is absent from the record's arguments: the caller handles such a
    section, or the refusal names the field.

    Raises:
        InputError: all unknown, missing and wrongly typed keys, wrong units, and sources that are no key of `sources`.
    """
    fields = field_types(kind)
    values: dict[str, Any] = {}
    facts: dict[str, Sourced] = {}
    mistakes = Mistakes()
    misspelt = {key: nearest(key, fields) for key in table if key not in fields}
    for key, meant in misspelt.items():
        what = f"unknown key '{section}.{key}'"
        mistakes.errors.append(InputError(what, meant=meant, allowed=", ".join(fields), where=where))
    for key, entry in table.items():
        if key in fields:
            with mistakes.collected():
                fact = _fact(entry, f"{section}.{key}", sources, where)
                facts[f"{section}.{key}"] = fact
                if fact.kind is not Kind.NOT_PUBLISHED:
                    values[key] = _value(fact, fields[key].type, f"{section}.{key}", where)
    given = {*table, *misspelt.values()}
    for key, fact in omitted.defaults(section, values).items() if not mistakes.errors else ():
        if key not in given:
            facts[f"{section}.{key}"] = msgspec.structs.replace(fact, unit=unit_of(kind, key))
            values[key] = msgspec.convert(fact.value, fields[key].type)
    lacking = tuple(key for key, field in fields.items() if field.required and key not in values)
    if omitted.incomplete and lacking and not mistakes.errors:
        return typing.cast(Record, omitted.incomplete(values, lacking, where)), facts
    if missing := [key for key in lacking if key not in given and not omitted.incomplete]:
        names = ", ".join(repr(f"{section}.{key}") for key in missing)
        mistakes.errors.append(InputError(f"missing key{'s' if len(missing) > 1 else ''} {names}", where=where))
    for key in lacking:
        recorded = facts.get(f"{section}.{key}")
        if recorded is not None and recorded.kind is Kind.NOT_PUBLISHED:
            what = f"{section}.{key} is needed, but recorded as not published"
            mistakes.errors.append(InputError(what, where=where))
    mistakes.refuse()
    return kind(**values), facts


def _fact(entry: Any, label: str, sources: dict[str, str], where: str) -> Sourced:
    try:
        fact = msgspec.convert(entry, Sourced)
    except (msgspec.ValidationError, ValueError) as error:
        allowed = "{ value, unit, kind, source } with kind one of " + ", ".join(Kind)
        raise InputError(f"{label}: {_reason(error)}", got=repr(entry), allowed=allowed, where=where) from error
    for source in [fact.source, *(reading.source for reading in fact.readings)]:
        if source.split()[0].rstrip(",:;") not in sources:
            what = f"{label}: source does not begin with a key of [sources]"
            allowed = ", ".join(sorted(sources)) or "none, as [sources] is empty"
            raise InputError(what, got=repr(source), allowed=allowed, where=where)
    return fact


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
        if isinstance(value, float) and bare is int and value.is_integer() and abs(value) <= LARGEST_EXACT:
            value = int(value)
        if bare is int and not isinstance(value, int):
            raise InputError(f"{label}: expected an integer", got=repr(fact.value), where=where)
    else:
        if fact.unit is not None:
            raise InputError(f"{label}: has no unit", got=repr(fact.unit), where=where)
        value = fact.value
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        if isinstance(bare, type) and issubclass(bare, enum.StrEnum):
            name = str(value)
            meant = meant_precision(name) if bare is Precision else nearest(name, bare)
            what = f"{label}: unknown value"
            raise InputError(what, got=repr(value), meant=meant, allowed=", ".join(bare), where=where) from error
        raise InputError(f"{label}: {_reason(error)}", got=repr(fact.value), where=where) from error


def _bare(annotation: Any) -> tuple[Any, msgspec.Meta | None]:
    """The plain type and msgspec's constraints of an annotation such as `Annotated[int, Meta(ge=1)] | None`."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(option for option in typing.get_args(annotation) if option is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        bare, meta = typing.get_args(annotation)[:2]
        return bare, meta
    return annotation, None
