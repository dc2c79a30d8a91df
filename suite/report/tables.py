"""Tables as text: rows or a pandas frame in, lines of tabulate out, no wider than the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

PLAIN, MARKDOWN = "plain", "pipe"
_NUMBER = re.compile(r"[<>~+-]?[\d.,]+(e[+-]?\d+)?\s?(%|[a-zA-Zμ/]{1,7})?|-|")  # what a column of numbers consists of
_NOTE = re.compile(r" ?\(\d+\)$")  # a footnote's number at the end of a cell
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_LEAST = 8  # characters that a shortened column keeps
_GAP = 2
_MOST_TABULATED = 5000  # rows


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

    Where it is wider than `width`, the columns named by `optional` go first, in their order, then texts are shortened,
    the longest first: "…" ends them, and a footnote's number after them stays. Numbers stay whole.

    Args:
        headers: names of the columns; those of the frame by default.
        style: PLAIN for terminals, MARKDOWN for files.
        right: columns that stand right; by default those of numbers alone, with a unit or without.
    """
    titles = [str(name) for name in (rows.columns if headers is None else headers)]  # type: ignore[union-attr]
    lines = rows.itertuples(index=False, name=None) if hasattr(rows, "itertuples") else rows
    columns = dict(
        zip(titles, zip(*([_text(cell, style) for cell in line] for line in lines), strict=True), strict=False)
    )
    cells: dict[str, list[str]] = {title: [*columns.get(title, ())] for title in titles}
    stand_right = {t for t in titles if (_is_numeric(cells[t]) if right is None else t in right)}
    if width is not None:
        for title in optional:
            if _total(cells) <= width:
                break
            cells.pop(title, None)
        _shorten(cells, stand_right, width)
    return _tabulated(cells, stand_right, style)


def _tabulated(cells: dict[str, list[str]], right: Collection[str], style: str) -> str:
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


def _padded(cells: dict[str, list[str]], right: Collection[str]) -> str:
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
    text = " ".join(str(cell).split("\n"))
    return text.replace("|", "\\|").replace("<", "&lt;") if style == MARKDOWN else text


def _is_numeric(cells: Sequence[str]) -> bool:
    plain = [_COLOUR.sub("", cell) for cell in cells]
    return any(any(c.isdigit() for c in cell) for cell in plain) and all(_NUMBER.fullmatch(cell) for cell in plain)


def _length(cell: str) -> int:
    return len(_COLOUR.sub("", cell))


def _widths(cells: dict[str, list[str]]) -> dict[str, int]:
    return {title: max([len(title), *map(_length, column)]) for title, column in cells.items()}


def _total(cells: dict[str, list[str]]) -> int:
    return sum(_widths(cells).values()) + _GAP * (len(cells) - 1)


def _shorten(cells: dict[str, list[str]], right: Collection[str], width: int) -> None:
    """Shorten columns of text until the table fits, the widest of them first."""
    widths = _widths(cells)
    texts = [title for title in cells if title not in right]
    surplus = _total(cells) - width
    while surplus > 0 and texts:
        widest = max(texts, key=widths.__getitem__)
        if widths[widest] <= max(_LEAST, len(widest)):
            break
        widths[widest] -= 1
        surplus -= 1
    for title in texts:
        cells[title] = [shortened(cell, widths[title]) for cell in cells[title]]


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters, with "…" for what is left out before a footnote's number."""
    if _length(text) <= width or _COLOUR.search(text):
        return text
    note = _NOTE.search(text)
    end = note.group() if note else ""
    return text[: max(0, width - 1 - len(end))].rstrip() + "…" + end
