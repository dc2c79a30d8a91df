"""A table of measurements as spreadsheets and people write it, in the canonical form of `published_cells`.

Separators, encodings and lines above the header; other names of columns; numbers such as "2,048" and "8 GPUs", blanks
such as "n/a", words such as "ZeRO-1". What is understood is in published/words.toml.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.published_cells import (
    BATCH_TOKENS,
    MEMORY,
    MEMORY_GB,
    NEEDED,
    OPTIONAL,
    SHAPE,
    STEP,
    STEP_MS,
    THROUGHPUTS,
    UnusableError,
    is_column,
)
from reference_runs.published_words import meanings, words
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes

MOST_ROWS, MOST_BYTES = 10_000, 1 << 27  # of a table: each row is a prediction
SEPARATORS = ",;\t"
MOST_COLUMNS = 1000
READ_AS = "read_as"  # the column of notes
MOST_HEADER_LINES = 64  # cells of a header may have line breaks
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SAYS_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?[,;\t ]*', re.IGNORECASE)
_NONE_IS_A_CHOICE = ("recompute", "product_format")
_CLAIMS = ("sp", "biases", "tied_embeddings", "fused_attention", "scatter_gather")
_AXES = ("tp", "pp", "cp", "vpp", "ep")  # 0 of them: nothing is split
_COUNTS = frozenset(
    [
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "padded_vocab", "seq_len"),
        *("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers", "gpus"),
        *("gpus_per_node", "dp", "global_batch", "micro_batch", "zero_stage", "mean_document", *_AXES, BATCH_TOKENS),
    ]
)
_FRACTIONS = (STEP, MEMORY, MEMORY_GB, "dropout")  # numbers that a table has with decimals
_NUMBERS = _COUNTS.union(_FRACTIONS, THROUGHPUTS, ("rotary_base", "network_bytes_per_second", STEP_MS))

_BY_BLANKS = re.compile(r"\d{1,3}(?:[ '\u2019\u00a0\u2009\u202f]\d{3})+(?=[.,]|$)")
_BY_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_BY_POINTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")


class CanonicalRow(NamedTuple):
    """A row in the canonical form.

    Args:
        line: in the file, from 1.
        texts: its cells as they are written.
        cells: by column; empty where the row has no canonical form.
        notes: each word or number that stands for another, "recompute core_attn = selective".
        unread: why it has no canonical form; empty where it has one.
    """

    line: int
    texts: tuple[str, ...]
    cells: dict[str, str]
    notes: tuple[str, ...] = ()
    unread: str = ""


class CanonicalTable(NamedTuple):
    """A table in the canonical form.

    Args:
        columns: of each cell; a name that is not known stays as the header words it.
        unread: those names.
    """

    columns: tuple[str, ...]
    unread: tuple[str, ...]
    rows: tuple[CanonicalRow, ...]


def canonical_table(path: Path) -> CanonicalTable:
    """The table at `path` in the canonical form; a row that has no such form with the reason.

    Raises:
        InputError: unreadable file, no header, a column twice, or a needed column missing.
    """
    file = read_table_file(path)
    named = _checked_columns(file.header, shown_path(path))
    columns, rows = named.columns, []
    for line, texts in file.rows:
        row = CanonicalRow(line, tuple(texts), {})
        if len(texts) != len(columns):
            rows.append(row._replace(unread=f"{len(texts)} cells under a header of {len(columns)} columns"))
            continue
        stated = {name: text.strip() for name, text in zip(columns, texts, strict=True)}
        try:
            cells, notes = read_cells(stated, file.separator)
            rows.append(row._replace(cells=cells, notes=(*named.loose, *notes)))
        except UnusableError as error:
            rows.append(row._replace(unread=str(error)))
    return CanonicalTable(tuple(columns), tuple(named.unread), tuple(rows))


def canonical_text(table: CanonicalTable) -> str:
    """The table as a file with commas, its notes in a last column.

    A row without a canonical form stays as it is written, with the reason in a cell beyond the header: so it is none
    until somebody corrects it.

    Raises:
        InputError: the table has such a column.
    """
    if READ_AS in table.columns:
        raise InputError("the table has such a column", got=READ_AS, allowed="none")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.columns, READ_AS])
    for row in table.rows:
        if row.unread:
            blank = [""] * (1 + max(0, len(table.columns) - len(row.texts)))
            writer.writerow([*row.texts, *blank, row.unread])
            continue
        cells = [row.cells.get(column, written) for column, written in zip(table.columns, row.texts, strict=True)]
        writer.writerow([*cells, "; ".join(row.notes)])
    return text.getvalue()


def _checked_columns(header: Sequence[str], where: str) -> NamedColumns:
    named = named_columns(header)
    if missing := absent(named.columns):
        allowed = f"{', '.join(NEEDED)}; and {', '.join(OPTIONAL)}"
        raise InputError(f"missing column {', '.join(missing)}", allowed=allowed, where=where)
    for name in named.columns:
        if name and named.columns.count(name) > 1:
            given = [text.strip() for text, column in zip(header, named.columns, strict=True) if column == name]
            raise InputError("column given twice", got=f"{name!r} as {', '.join(given)}", where=where)
    return named


class TableFile(NamedTuple):
    """A table as its file words it.

    Args:
        rows: that are not blank: line in the file, from 1, and cells, without blank ones beyond the header.
    """

    header: list[str]
    separator: str
    rows: list[tuple[int, list[str]]]


def read_table_file(path: Path) -> TableFile:
    """The header and the rows of the table at `path`.

    A first line such as "sep=;" says what separates the cells, else the header does. Lines above it that are blank or
    begin with # are none.

    Raises:
        InputError: unreadable file, bytes that are no text, broken quotes, or too many rows.
    """
    where = shown_path(path)
    try:
        text = _text(file_bytes(path, most=MOST_BYTES), where)
    except OSError as error:
        raise InputError(f"cannot read the table: {error.strerror}", where=where) from error
    lines = text.splitlines(keepends=True)
    above, separator = 0, ""
    if lines and (said := _SAYS_SEPARATOR.fullmatch(lines[0].rstrip("\r\n"))):
        above, separator = 1, said[1]
    while above < len(lines) and _is_above(lines[above], separator):
        above += 1
    separator = separator or _separator(lines[above : above + MOST_HEADER_LINES])
    reader = csv.reader(io.StringIO("".join(lines[above:]), newline=""), delimiter=separator)
    rows: list[tuple[int, list[str]]] = []
    try:
        header = next(reader, [])
        if len(header) > MOST_COLUMNS:
            raise InputError("too many columns", got=f"{len(header):,}", allowed=f"{MOST_COLUMNS:,}", where=where)
        line = reader.line_num + 1
        for number, cells in enumerate(reader):
            if number == MOST_ROWS:
                raise InputError("too many rows", allowed=f"{MOST_ROWS:,}", where=where)
            while len(cells) > len(header) and not cells[-1].strip():
                del cells[-1]
            if any(cell.strip() for cell in cells):
                rows.append((above + line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"not a table of comma-separated values: {error}", where=where) from error
    return TableFile(header, separator, rows)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        got = f"byte 0x{data[error.start]:02x} in line {line}"
        allowed = "UTF-8, or UTF-16 as Excel saves it"
        raise InputError("expected a text file", got=got, allowed=allowed, where=where) from error


def _is_above(line: str, separator: str) -> bool:
    """Whether a line is none of the table: blank, or begins with # and names no two columns, as "# GPUs,TP,PP" does."""
    bare = line.strip().lstrip('"')
    if not bare.strip(SEPARATORS + " "):
        return True
    return bare.startswith("#") and _named([line], separator or _separator([line])) <= 1


def _separator(header: list[str]) -> str:
    """Separator of a header's cells: the one of `SEPARATORS` with which it names the most columns."""
    return max(SEPARATORS, key=lambda each: (_named(header, each), any(each in line for line in header)))


def _named(header: list[str], separator: str) -> int:
    """How many columns the row in the first of these lines names."""
    try:
        cells = next(csv.reader(header, delimiter=separator), [])
    except csv.Error:
        return 0
    return sum(is_column(column) for column in columns_of(cells[:MOST_COLUMNS]))


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


def columns_of(header: Sequence[str]) -> list[str]:
    """`named_columns`' columns."""
    return named_columns(header).columns


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
