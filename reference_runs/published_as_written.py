"""A table of measurements as spreadsheets and people write it, in the canonical form of `published_cells`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.printable import csv_cell
from reference_runs.published_cells import NEEDED, OPTIONAL, UnusableError, is_column
from reference_runs.published_readings import NamedColumns, absent, named_columns, read_cells
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes

MOST_ROWS, MOST_BYTES = 10_000, 1 << 27  # of a table: each row is a prediction
SEPARATORS = ",;\t"
MOST_COLUMNS = 1000
READ_AS = "read_as"  # the column of notes
MOST_HEADER_LINES = 64  # cells of a header may have line breaks
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SAYS_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?[,;\t ]*', re.IGNORECASE)


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
    unread = tuple(name for name in named.unread if name != READ_AS)
    return CanonicalTable(tuple(columns), unread, tuple(rows))


def canonical_text(table: CanonicalTable, where: str) -> str:
    """The table as a file with commas, its notes in a last column.

    A row without a canonical form stays as it is written, with the reason in a cell beyond the header: so it is none
    until somebody corrects it.

    Raises:
        InputError: the table has such a column.
    """
    if READ_AS in table.columns:
        raise InputError("the table has such a column", got=READ_AS, allowed="none", where=where)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, [*table.columns, READ_AS]))
    for row in table.rows:
        if row.unread:
            blank = [""] * (1 + max(0, len(table.columns) - len(row.texts)))
            writer.writerow(map(csv_cell, [*row.texts, *blank, row.unread]))
            continue
        cells = [row.cells.get(column, written) for column, written in zip(table.columns, row.texts, strict=True)]
        writer.writerow(map(csv_cell, [*cells, "; ".join(row.notes)]))
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
    return sum(is_column(column) for column in named_columns(cells[:MOST_COLUMNS]).columns)
