"""Entries of a recorded file, read without the catalog, and what is wrong with them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_runs.sourced import Kind
from reference_runs.units import UNITS

OTHER = (
    "title",
    "aliases",
    "miniature",
    "sources",
    "measured",
    "floors",
    "no_floor",
)  # what has no entries below its keys


def entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Each `section.key` of the file with what it records."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    sections = {name: table for name, table in raw.items() if name not in OTHER}
    sections |= {f"measured.{place}": table for place, table in enumerate(raw.get("measured", []))}
    return [(f"{section}.{key}", entry) for section, table in sections.items() for key, entry in table.items()]


def unexplained(path: Path) -> Iterator[str]:
    """Entries without kind, source or unit, and assumptions and conflicts that do not say why."""
    sources = tomllib.loads(path.read_text(encoding="utf-8"))["sources"]
    for key, entry in entries(path):
        number = isinstance(entry.get("value"), (int, float)) and not isinstance(entry["value"], bool)
        readings = entry.get("readings", [])
        cited = [text.split()[:1] for text in (entry["source"], *(reading["source"] for reading in readings))]
        claims = {
            "kind": entry["kind"] in set(Kind),
            "source": all(words and words[0].rstrip(";,:") in sources for words in cited),
            "unit": ("unit" in entry) == number and (not number or entry["unit"] in UNITS),
            "assumed": entry["kind"] != Kind.ASSUMED or (len(entry["why"]) > 5 and len(entry["effect"]) > 3),
            "readings": not readings or bool(entry["why"]),
            "another value": all(reading["value"] != entry["value"] for reading in readings),
        }
        yield from (f"{path.name}: {key}: {name}" for name, holds in claims.items() if not holds)


def unused_sources(path: Path) -> set[str]:
    """Keys of [sources] that nothing cites."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    texts = [part["source"] for _, entry in entries(path) for part in [entry, *entry.get("readings", [])]]
    texts += [floor["source"] for floor in raw.get("floors", [])]
    return set(raw["sources"]) - {word.strip("();,") for text in texts for word in text.split()}
