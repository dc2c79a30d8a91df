"""Names of columns, and numbers and words of cells, as people write them; words.toml has those that are understood."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from reference_runs.published_cells import (
    BATCH_TOKENS,
    MEMORY,
    MEMORY_GB,
    NEEDED,
    SHAPE,
    STEP,
    STEP_MS,
    THROUGHPUTS,
    UnusableError,
    is_column,
)
from reference_runs.published_words import meanings, words

_NONE_IS_A_CHOICE = ("recompute", "product_format")
_CLAIMS = ("sp", "biases", "tied_embeddings", "fused_attention", "scatter_gather", "fsdp")
_AXES = ("tp", "pp", "cp", "vpp", "ep", "etp")  # 0 of them: nothing is split
_COUNTS = frozenset(
    [
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "padded_vocab", "seq_len"),
        *("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers", "gpus"),
        *("gpus_per_node", "dp", "global_batch", "micro_batch", "zero_stage", "mean_document", *_AXES, BATCH_TOKENS),
        *("accumulation", "shard_ranks"),
    ]
)
_FRACTIONS = (STEP, MEMORY, MEMORY_GB, "dropout", "imbalance")  # numbers that a table has with decimals
_NUMBERS = _COUNTS.union(_FRACTIONS, THROUGHPUTS, ("rotary_base", "network_bytes_per_second", STEP_MS))

_BY_BLANKS = re.compile(r"\d{1,3}(?:[ '\u2019\u00a0\u2009\u202f]\d{3})+(?=[.,]|$)")
_BY_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_BY_POINTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")


class NamedColumns(NamedTuple):
    """Columns that the cells of a header name.

    Args:
        columns: of each cell; what names none stays as it is.
        unread: cells that name none.
        loose: "column Hardware = gpu" of each that is named by a word which may mean something else too.
    """

    columns: list[str]
    unread: list[str]
    loose: list[str]


class _Names(NamedTuple):
    firm: dict[str, str]
    loose: dict[str, str]


@cache
def _names() -> _Names:
    """Other names of each column: those that mean it alone, and those that may mean something else too."""
    said = words()
    firm = meanings(said.columns) | {
        f"{name}{end}": axis
        for axis, names in said.axes.items()
        for word in (axis, *names)
        for name in dict.fromkeys((word, re.sub("parallel$", "parallelism", word)))
        for end in ("", "_size", "_degree")
        if f"{name}{end}" != axis
    }
    return _Names(firm, meanings(said.loose_columns))


def named_columns(header: Sequence[str]) -> NamedColumns:
    """Columns that a header names.

    Case does not count, nor what stands between words: "Seq. Len" is seq_len, "Tokens / sec / GPU" is
    tokens_per_s_per_gpu, "Step time (ms)" step_time_ms. Another name counts where the column's own is not there: GBS
    beside global_batch is none.
    """
    known = _names()
    names = [_known_name(given) for given in header]
    own = {name for name in names if is_column(name)}
    firm = own.union(known.firm.get(name, "") for name in names)
    columns, unread, loose = [], [], []
    for given, name in zip(header, names, strict=True):
        if name in own:
            columns.append(name)
        elif name in known.firm and known.firm[name] not in own:
            columns.append(known.firm[name])
        elif name in known.loose and known.loose[name] not in firm:
            columns.append(known.loose[name])
            loose.append(f"column {given.strip()} = {columns[-1]}")
        else:
            columns.append(given.strip())
            unread += [given.strip()] if given.strip() else []
    return NamedColumns(columns, unread, loose)


def _known_name(given: str) -> str:
    """The name among all that are known that `given` is; itself folded where it is none.

    "MicroBatchSize" is micro_batch_size, "# of layers" and "number of layers" are layers, but "# of GPU" is no type.
    """
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", given.strip())
    for name in (_folded(given), _folded(split)):
        counted = re.sub(r"^(?:#|number_of|no_of)_*(?:of_)?", "", name)
        for each in (name, "gpus" if counted == "gpu" != name else counted):
            if is_column(each) or each in _names().firm or each in _names().loose:
                return each
    return _folded(given)


def _folded(name: str) -> str:
    folded = re.sub(r"\s*/\s*", " per ", name.strip().casefold())
    folded = re.sub(r"[\s_.()\[\]-]+", "_", folded).strip("_")
    return folded if is_column(folded) else re.sub(r"_sec(s|ond|onds)?(?=_|$)", "_s", folded)


def absent(columns: Sequence[str]) -> list[str]:
    """Needed columns that are not there.

    A model's name may say its shape (`named_run`), `gpus` and `dp` each other, a throughput the time of a step, and
    `tp` and `pp` are 1 where nothing says more.
    """
    needless = [*(SHAPE if "model" in columns else ()), *(["dp"] if "gpus" in columns else ["gpus"])]
    needless += ["tp", "pp"]  # not split unless they say so
    needless += [STEP] if {STEP_MS, *THROUGHPUTS}.intersection(columns) else []
    needless += ["global_batch"] if BATCH_TOKENS in columns else []
    needless += ["micro_batch"] if "accumulation" in columns else []
    return [column for column in NEEDED if column not in (*columns, *needless)]


def read_cells(stated: dict[str, str], separator: str) -> tuple[dict[str, str], list[str]]:
    """The cells of a row, numbers with a point and no other mark and words as tables have them; and what is to be said.

    Args:
        separator: between the file's cells; a comma within a number may be a decimal one where it is another.

    Raises:
        UnusableError: a number that has two readings.
    """
    read: dict[str, str] = {}
    notes: list[str] = []
    for column, text in stated.items():
        read[column], noted = _read(column, text, separator)
        if noted:
            notes.append(f"{column} {text} = {read[column]}")
    framework, version = read.get("framework", ""), read.get("framework_version", "")
    if version not in framework:
        read["framework"] = f"{framework} {version}".strip()
    return read, notes


def _read(column: str, text: str, separator: str) -> tuple[str, bool]:
    """Meaning of a cell, and whether it needs a note: marks of a number and blanks need none."""
    folded = text.casefold()
    if folded in words().blank and not (folded == "none" and column in _NONE_IS_A_CHOICE):
        return "", False
    meaning_of = _meanings_of(column)
    said = _number(column, text, separator) if column in _NUMBERS or meaning_of else text
    if column in _AXES and said == "0":
        return "1", True
    if meaning := meaning_of.get(re.sub(r"[\s_()/-]+", "-", said.casefold()).strip("-")):
        return meaning, column not in _CLAIMS
    return said, column in _FRACTIONS and bool(_BY_COMMAS.fullmatch(text))


@cache
def _meanings_of(column: str) -> dict[str, str]:
    """The meaning of each word of a column's cells; empty where it has none."""
    return meanings(words().claims if column in _CLAIMS else words().cells.get(column, {}))


def _number(column: str, text: str, separator: str) -> str:
    """`text` as a number with a decimal point and no unit; unchanged where it is none, or is written so already."""
    bare = text
    if (unit := words().units.get(column)) and (
        found := re.fullmatch(rf"(\d[^a-z]*?)\s*(?:{unit})", text, re.IGNORECASE)
    ):
        bare = found[1]
    bare = _BY_BLANKS.sub(lambda found: re.sub(r"\D", "", found[0]), bare)
    readings = _readings(bare, separator, decimals=column in _FRACTIONS)
    integer = column in _COUNTS or bool(_meanings_of(column))
    possible = [value for value in readings if value == int(value)] if integer and "," in bare else readings
    if len(possible) > 1:
        either = " or ".join(f"{value:.15g}" for value in readings)
        raise UnusableError(f"{column}: expected a number with one reading; got {text!r}, which is {either}")
    if not readings or bare.isdecimal():
        return bare if readings else text
    value = (possible or readings)[0]
    if value == int(value) and integer:
        return str(int(value))
    return text if _plain(text) is not None else f"{value:.15g}"


def _plain(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _readings(text: str, separator: str, *, decimals: bool) -> list[float]:
    """The numbers that `text` may be.

    In a file without commas between its cells a comma may be a decimal one, and a point before three digits none.

    Args:
        decimals: such numbers have decimals more often than thousands.
    """
    free = separator != ","
    plain, one_mark = _plain(text), len(re.findall("[.,]", text)) == 1
    by_points = float(text.replace(".", "").replace(",", ".")) if _BY_POINTS.fullmatch(text) else None
    if plain is not None:
        return [plain, by_points] if free and by_points is not None and not decimals else [plain]
    if _BY_COMMAS.fullmatch(text):
        thousands = float(text.replace(",", ""))
        if one_mark and decimals and separator == ";":
            return [float(text.replace(",", "."))]
        return [thousands, float(text.replace(",", "."))] if one_mark and (free or decimals) else [thousands]
    if by_points is not None and (free or "," not in text):
        return [by_points]
    return [float(text.replace(",", "."))] if free and re.fullmatch(r"\d+,\d+", text) else []
