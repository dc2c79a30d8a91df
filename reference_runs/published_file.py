"""Files of tables as spreadsheets and people write them: separators, encodings, and lines above the header."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.published_columns import columns_of, is_column
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes

MOST_ROWS, MOST_BYTES = 10_000, 1 << 27  # of a table: each row is a prediction
SEPARATORS = ",;\t"
MOST_COLUMNS = 1000
MOST_HEADER_LINES = 64  # cells of a header may have line breaks
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SAYS_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?[,;\t ]*', re.IGNORECASE)


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
    """What separates a header's cells: that of `SEPARATORS` with which it names the most columns."""
    return max(SEPARATORS, key=lambda each: (_named(header, each), any(each in line for line in header)))


def _named(header: list[str], separator: str) -> int:
    """How many columns the row in the first of these lines names."""
    try:
        cells = next(csv.reader(header, delimiter=separator), [])
    except csv.Error:
        return 0
    return sum(is_column(column) for column in columns_of(cells[:MOST_COLUMNS]))
