"""Recorded facts for the page: values, how they are known, and their sources with links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import reference_run, run_names
from reference_runs.sourced import Sourced, Value
from reference_runs.this_cpu import THIS_CPU
from reference_runs.units import printed

_LINK = re.compile(
    r"(?P<url>https?://[^\s<>\"')]+[^\s<>\"').,;])"
    r"|arXiv[ :](?P<arxiv>\d{4}\.\d{4,5}(?:v\d+)?)"
    r"|(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)@(?P<commit>[0-9a-f]{7,40})"
    r"(?: (?P<path>[\w./-]+\.[A-Za-z]\w*)(?![\w*/]))?"
)


class Piece(NamedTuple):
    """A part of a text; `link` is empty or begins with https:// or http://."""

    text: str
    link: str = ""


class Fact(NamedTuple):
    """One recorded value as it is shown; `others` are what other sources say."""

    name: str
    value: str
    kind: str
    source: list[Piece]
    notes: str
    others: list[tuple[str, list[Piece]]]


class Facts(NamedTuple):
    """Everything that is recorded of one run or accelerator."""

    name: str
    title: str
    facts: list[Fact]
    sources: list[tuple[str, list[Piece]]]


def linked(text: str) -> list[Piece]:
    """`text` in pieces: addresses, arXiv numbers, and repository@commit with a path, as links; no other scheme ever."""
    pieces, end = [], 0
    for match in _LINK.finditer(text):
        pieces.append(Piece(text[end : match.start()]))
        pieces.append(Piece(match.group(), _address(match)))
        end = match.end()
    pieces.append(Piece(text[end:]))
    return [piece for piece in pieces if piece.text]


def _address(match: re.Match[str]) -> str:
    if match["url"]:
        return match["url"]
    if match["arxiv"]:
        return f"https://arxiv.org/abs/{match['arxiv']}"
    root = f"https://github.com/{match['repository']}"
    return f"{root}/blob/{match['commit']}/{match['path']}" if match["path"] else f"{root}/tree/{match['commit']}"


def _origin(text: str, sources: Mapping[str, str]) -> list[Piece]:
    """A fact's source: its first word is a key of the sources, and links to where that one links."""
    key, _, rest = text.partition(" ")
    word = key.rstrip(";,")
    link = next((piece.link for piece in linked(sources.get(word, "")) if piece.link), "")
    if not link:
        return linked(text)
    return [Piece(word, link), *linked(key[len(word) :] + (f" {rest}" if rest else ""))]


def _value(value: Value | None, unit: str | None) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else printed(value, unit or "")
    return text if unit in (None, "1") else f"{text} {unit}"


def _facts(name: str, title: str, facts: Mapping[str, Sourced], sources: Mapping[str, str]) -> Facts:
    shown = []
    for key, fact in facts.items():
        notes = [fact.note, f"why: {fact.why}" if fact.why else "", f"effect: {fact.effect}" if fact.effect else ""]
        others = [
            (
                _value(reading.value, fact.unit),
                [*_origin(reading.source, sources), Piece(f" {reading.note}" if reading.note else "")],
            )
            for reading in fact.readings
        ]
        shown.append(
            Fact(
                key,
                _value(fact.value, fact.unit),
                fact.kind.value,
                _origin(fact.source, sources),
                "; ".join(filter(None, notes)),
                others,
            )
        )
    return Facts(name, title, shown, [(key, linked(text)) for key, text in sources.items()])


@cache
def recorded_facts() -> list[Facts]:
    """Facts of every run of the catalog, then of every accelerator except the CPU of this machine."""
    runs = [reference_run(name) for name in run_names()]
    devices = [accelerator(name) for name in accelerator_names() if name != THIS_CPU]
    of_runs = [_facts(run.name, run.title, run.facts, run.sources) for run in runs]
    return of_runs + [_facts(device.name, device.title, device.facts, device.sources) for device in devices]
