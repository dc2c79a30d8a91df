"""Models that shipped tables call by a name, with their shapes: MPT-7b, Nemotron-340B, nanotron-llama-1b."""

from __future__ import annotations

import csv
import re
from functools import cache

from reference_runs.named_runs import folded_name
from reference_runs.published_tables import shipped_tables

_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
_NEEDED = ("layers", "hidden", "heads")
_OF_A_SIZE = re.compile(r"gpt[\d.]+[bmt]")  # "GPT-18B" is any GPT of that size


def tabled_shape(model: str) -> tuple[str, dict[str, str]] | None:
    """The first shipped table that calls a model so, and the cells of its shape; None: none does, or with one shape.

    Letters' case, what stands between them, and an owner in front ("mosaicml/mpt-7b") do not count.
    """
    return _shapes().get(folded_name(model))


@cache
def _shapes() -> dict[str, tuple[str, dict[str, str]]]:
    known: dict[str, tuple[str, dict[str, str]]] = {}
    for path in shipped_tables():
        of_table: dict[str, list[dict[str, str]]] = {}
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                shape = {column: row.get(column) or "" for column in _SHAPE}
                of_table.setdefault(folded_name(row.get("model") or ""), []).append(shape)
        for name, shapes in of_table.items():
            said = {column: value for column, value in shapes[0].items() if value}
            if (
                name
                and not _OF_A_SIZE.fullmatch(name)
                and all(said.get(column) for column in _NEEDED)
                and all(shape == shapes[0] for shape in shapes)
            ):
                known.setdefault(name, (path.stem, said))
    return known
