"""Text from files and command lines as a terminal, a comment or a spreadsheet may show it."""

from __future__ import annotations

import re

# Control characters but tab and line feed, marks that reorder or break lines, and halves of surrogate pairs
# (bytes of a file name that are not UTF-8)
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?\s?%?", re.IGNORECASE)
_LINES = re.compile(r"[\t\n]")


def printable(text: str, *, lines: bool = True) -> str:
    """The text with every character that a terminal could take for a command as JSON writes it, such as \\u001b.

    Args:
        lines: whether tabs and line feeds stay as they are.
    """
    shown = _COMMANDS.sub(_escaped, text)
    return shown if lines else _LINES.sub(_escaped, shown)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def csv_cell(text: str) -> str:
    """The text as a cell of a CSV file that no spreadsheet takes for a formula.

    One that begins as a formula stands after an apostrophe. Numbers and marks such as "-" stay as they are.
    Source: OWASP, CSV Injection.
    """
    begins = text[:1] in _FORMULAS and bool(text.strip("-"))
    return f"'{text}" if begins and not _NUMBER.fullmatch(text) else text
