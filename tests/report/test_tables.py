"""Tables as text: what stands right, what a narrow terminal loses, and what it never loses."""

from __future__ import annotations

import math

import pandas
import pytest

from suite.report.tables import MARKDOWN, Coloured, table

TITLES = ["quantity", "predicted", "measured", "why"]
ROWS = [
    ["step_seconds", "326.8 ms", "340 ms", "median of 23 steps on a machine that others use too (12)"],
    ["peak_bytes", "1,024", "-", "exact"],
]


def test_numbers_stand_right_and_texts_left() -> None:
    assert table([["a", "1.5"], ["bbb", "10"]], ["name", "value"]).splitlines() == [
        "name  value",
        "a       1.5",
        "bbb      10",
    ]


def test_a_frame_needs_no_headers_and_its_gaps_are_empty() -> None:
    frame = pandas.DataFrame({"name": ["a", None], "seconds": [0.5, math.nan]})
    assert table(frame).splitlines() == ["name  seconds", "a         0.5"]


def test_no_rows_leave_the_headers() -> None:
    assert table([], TITLES).split() == TITLES


def test_markdown_escapes_what_would_end_a_cell() -> None:
    lines = table([["a|b", "<1"]], ["name", "value"], style=MARKDOWN).splitlines()
    assert lines == ["| name | value |", "|:---|:---|", "| a\\|b | &lt;1 |"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_table_folds_texts_and_keeps_every_word(width: int) -> None:
    lines = table(ROWS, TITLES, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "326.8 ms" in lines[1]
    assert {*ROWS[0][3].split()} <= {*" ".join(lines).split()}
    assert (len(lines) > 3) is (width < 94)
    assert all(len(line) - len(line.lstrip()) in (0, lines[0].index("why")) for line in lines)


def test_what_fits_no_columns_becomes_a_line_and_an_indented_one() -> None:
    lines = table(ROWS, TITLES, width=44).splitlines()
    assert lines[:2] == ["quantity", "step_seconds"]
    assert lines[2] == "    predicted 326.8 ms, measured 340 ms, why"
    assert lines[-2:] == ["peak_bytes", "    predicted 1,024, measured -, why exact"]
    assert all(line.startswith("    ") for line in lines[3:-2])


def test_optional_columns_go_first_and_are_named() -> None:
    lines = table(ROWS, TITLES, width=80, optional=["measured", "predicted"]).splitlines()
    assert lines[0].split() == ["quantity", "why"]
    assert lines[1].endswith("too (12)")
    assert lines[-1] == "(not shown in 80 columns: measured, predicted)"


def test_colours_take_no_room() -> None:
    plain = table([["pass", "1"], ["fail", "22"]], ["verdict", "n"])
    coloured = table([[Coloured((("pass", "green"),)), "1"], [Coloured((("fail", "red"),)), "22"]], ["verdict", "n"])
    assert coloured.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "") == plain


def test_many_rows_are_aligned_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    few = table(ROWS, TITLES)
    monkeypatch.setattr("suite.report.tables._MOST_TABULATED", 1)
    assert table(ROWS, TITLES) == few
