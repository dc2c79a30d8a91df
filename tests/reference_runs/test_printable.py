"""Text from outside commands no terminal, and its cells are no formulas."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from reference_runs.printable import csv_cell, printable

COMMANDS = "\x1b[31m \x1b]8;;x\x07 \x9b1m \x00 \x7f \r \x08 \u202e \u2028 \udcff"


@given(st.text())
def test_no_control_character_is_left_but_tabs_and_line_feeds(text: str) -> None:
    shown = printable(text)
    assert not {letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")} - {"\n", "\t"}
    assert not any(unicodedata.bidirectional(letter) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI") for letter in shown)
    assert "\n" not in printable(text, lines=False)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_says_the_same_after_it(text: str) -> None:
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_commands_are_shown_and_letters_stay() -> None:
    assert printable("é 漢 😀 µ\u00a0%") == "é 漢 😀 µ\u00a0%"
    assert printable(COMMANDS[:6]) == "\\u001b[31m "
    assert printable(COMMANDS).isprintable()


def test_formulas_stand_after_an_apostrophe_and_numbers_and_marks_do_not() -> None:
    for formula in ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"):
        assert csv_cell(formula) == f"'{formula}"
    for plain in ("", "-", "--", "-1.5", "+3e-4", "-12,288", "-4 %", "llama3.1-8b", "a=b", "1-2"):
        assert csv_cell(plain) == plain
