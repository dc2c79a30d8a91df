"""Tables as text: rows or a pandas frame in, lines of tabulate out, no wider than the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reference_runs.printable import printable

if TYPE_CHECKING:
    import pandas

PLAIN, MARKDOWN = "plain", "pipe"
_NUMBER = re.compile(r"[<>~+-]?[\d.,]+(e[+-]?\d+)?\s?(%|[a-zA-Zμ/]{1,7})?|-|")  # what a column of numbers consists of
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_LEAST = 16  # characters that a folded column keeps
_GAP = 2
_INDENT = " " * 4
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BREAK = "\N{ZERO WIDTH SPACE}"  # where a long word may end a line
_MOST_TABULATED = 5000  # rows

TableCells = dict[str, list[str]]  # by the column's title


class Coloured(NamedTuple):
    """A cell in colours: texts, each with its style in the words of rich; empty for none."""

    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The cell with escape sequences of its colours, and of nothing else."""
        from rich.style import Style

        shown = ((printable(text), style) for text, style in self.parts)
        return "".join(Style.parse(style).render(text) if style else text for text, style in shown)


def table(
    rows: pandas.DataFrame | Iterable[Sequence[Any]],
    headers: Sequence[str] | None = None,
    *,
    style: str = PLAIN,
    width: int | None = None,
    optional: Sequence[str] = (),
    right: Collection[str] | None = None,
) -> str:
    """Lines of a table without a newline at the end; an empty cell for None, and the headers alone without rows.

    Where it is wider than `width`, the columns named by `optional` go first, in their order, and a last line names
    them. Then texts are folded between words. Where even that is too wide, each row becomes a line with its first cell,
    and an indented one with the others, each after its title.

    Args:
        headers: names of the columns; those of the frame by default.
        style: PLAIN for terminals, MARKDOWN for files.
        right: columns that stand right; by default those of numbers alone, with a unit or without.
    """
    titles = [printable(str(name), lines=False) for name in (rows.columns if headers is None else headers)]  # type: ignore[union-attr]  # only frames come without
    lines = rows.itertuples(index=False, name=None) if hasattr(rows, "itertuples") else rows
    columns = list(zip(*([_text(cell, style) for cell in line] for line in lines), strict=True))
    cells: TableCells = {title: [*columns[index]] if columns else [] for index, title in enumerate(titles)}
    stand_right = {t for t in titles if (_is_numeric(cells[t]) if right is None else t in right)}
    if width is None or _total(_widths(cells)) <= width:
        return _tabulated(cells, stand_right, style)
    dropped = []
    for title in optional:
        if _total(_widths(cells)) > width and title in cells:
            del cells[title]
            dropped.append(title)
    folded = _folded(cells, stand_right, width)
    text = _blocks(cells, width) if folded is None else _tabulated(folded, stand_right, style)
    note = f"(not shown in {width} columns: {', '.join(dropped)})"
    return "\n".join([text, textwrap.fill(note, width)]) if dropped else text


def _tabulated(cells: TableCells, right: Collection[str], style: str) -> str:
    if style == PLAIN and len(next(iter(cells.values()), ())) > _MOST_TABULATED:
        return _padded(cells, right)
    import tabulate

    tabulate.MIN_PADDING = 0  # else every column is two wider than its header
    lines = tabulate.tabulate(
        list(zip(*cells.values(), strict=True)),
        headers=[*cells],
        tablefmt=style,
        disable_numparse=True,
        colalign=["right" if title in right else "left" for title in cells] if any(cells.values()) else None,
    )
    if style == MARKDOWN:
        return "\n".join(_compact(line) for line in lines.splitlines())
    return "\n".join(line.rstrip() for line in lines.splitlines())


def _padded(cells: TableCells, right: Collection[str]) -> str:
    """The same lines as tabulate's, for many rows: it takes 7 us a cell, 7 s for 100,000 launches."""
    widths = _widths(cells)
    form = (" " * _GAP).join(f"{{:{'>' if title in right else '<'}{widths[title]}}}" for title in cells)
    lines = [form.format(*cells), *map(form.format, *cells.values())]
    return "\n".join(line.rstrip() for line in lines)


def _compact(line: str) -> str:
    """A line of a Markdown table without the padding: one changed cell changes one line."""
    return re.sub(r"-{3,}", "---", line) if set(line) <= {*"|-:"} else re.sub(r" *(?<!\\)\| *", " | ", line).strip()


def _text(cell: Any, style: str) -> str:
    if cell is None or cell != cell:  # NaN
        return ""
    if isinstance(cell, Coloured):
        return cell.text
    text = printable(" ".join(str(cell).split("\n")))
    return text.replace("|", "\\|").replace("<", "&lt;") if style == MARKDOWN else text


def _is_numeric(cells: Sequence[str]) -> bool:
    plain = [_COLOUR.sub("", cell) for cell in cells]
    return any(any(c.isdigit() for c in cell) for cell in plain) and all(_NUMBER.fullmatch(cell) for cell in plain)


def _length(cell: str) -> int:
    return len(_COLOUR.sub("", cell))


def _widths(cells: TableCells) -> dict[str, int]:
    return {title: max([len(title), *map(_length, column)]) for title, column in cells.items()}


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _folded(cells: TableCells, right: Collection[str], width: int) -> TableCells | None:
    """The cells with line breaks between words, so that the table fits; None where it cannot."""
    widths = _widths(cells)
    least = {}
    for title in cells.keys() - {*right}:
        words = [word for cell in cells[title] for word in cell.split()]
        least[title] = max([len(title), min(_LEAST, widths[title]), *map(_length, words)])
    while _total(widths) > width:
        widest = max((title for title in least if widths[title] > least[title]), key=widths.__getitem__, default=None)
        if widest is None:
            return None
        widths[widest] -= 1
    return {
        title: [_filled(cell, widths[title]) if title in least else cell for cell in column]
        for title, column in cells.items()
    }


def _filled(cell: str, width: int) -> str:
    if _length(cell) <= width:
        return cell
    return textwrap.fill(cell, width, break_long_words=False, break_on_hyphens=False)


def _blocks(cells: TableCells, width: int) -> str:
    """A line a row with its first cell, and under it the others with their titles."""
    first, *titles = cells
    titles = titles if len(titles) > 1 else [""]
    lines = [first] if first else []
    for name, *values in zip(*cells.values(), strict=True):
        named = [f"{t} {_COLOUR.sub('', value)}".strip() for t, value in zip(titles, values, strict=True) if value]
        lines.append(folded(name, width, indent=_INDENT))
        if named:
            lines.append(folded(f"{_INDENT}{', '.join(named)}", width, indent=_INDENT))
    return "\n".join(lines)


def folded(line: str, width: int, *, indent: str) -> str:
    """A line with line breaks between words, and after commas of words that are longer than a line.

    A number and its "%" stay together. The lines without their indents, joined again, are the line.
    """
    room = width - len(indent)
    words = (word if len(word) <= room else word.replace(",", f",{_BREAK} ") for word in line.split(" "))
    text = " ".join(words).replace(" %", f"{_NO_BREAK}%")
    text = textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return text.replace(f"{_BREAK} ", "").replace(_BREAK, "").replace(_NO_BREAK, " ")
