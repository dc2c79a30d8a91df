"""Facts as the text of a run file, as `reference_runs.catalog.load` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from reference_runs.printable import printable
from reference_runs.sourced import Sourced

OMITTED = {field.encode_name: field.default for field in msgspec.structs.fields(Sourced) if not field.required}


def run_text(title: str, sources: Mapping[str, str], facts: Mapping[str, Sourced], *, comments: Iterable[str]) -> str:
    """The TOML text of a run with these `facts`, each under `section.key`, and `comments` before them."""
    lines = [*(f"# {_line(comment)}" for comment in comments), f"title = {toml_value(title)}", "", "[sources]"]
    lines += [f"{_key(key)} = {toml_value(document)}" for key, document in sources.items()]
    for section in dict.fromkeys(key.rpartition(".")[0] for key in facts):
        lines += ["", f"[{section}]"]
        lines += [f"{key.rpartition('.')[2]} = {_entry(facts[key])}" for key in facts if key.startswith(f"{section}.")]
    return "\n".join([*lines, ""])


def _line(comment: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in comment).split())


def _entry(fact: Sourced) -> str:
    """The inline table of a fact, `value` first; without readings, which no file that is written has."""
    order = ("value", "unit", "kind", "source", "note", "why", "effect")
    said = {name: getattr(fact, name) for name in order if name not in OMITTED or getattr(fact, name) != OMITTED[name]}
    return "{ " + ", ".join(f"{name} = {toml_value(value)}" for name, value in said.items()) + " }"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else toml_value(name)


def toml_value(value: Any) -> str:
    """A number, text, true, false, or a list of them as TOML: JSON's, without characters that a terminal would obey."""
    return printable(json.dumps(value, ensure_ascii=False))
