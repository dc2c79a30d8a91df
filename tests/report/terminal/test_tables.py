"""Tables and long lines in the terminal: nothing is lost at any width, and folds keep their indent."""

from __future__ import annotations

import pytest
from rich.console import Console

from suite.metrics.comparison import compare
from suite.metrics.figures import Figure, Quantity
from suite.report.terminal.tables import coloured, console, print_comparison, print_folded, print_table

TITLES = ["run", "title", "parameters", "reproduce with"]
ROWS = [
    ["bloom-176b", "BLOOM-176B (BigScience, 2022)", "176,247,271,424", "bloom-mini"],
    ["gpt2-1558m", "GPT-2 1558M (OpenAI's shape, reproduced with llm.c)", "1,557,686,400", "-"],
]


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70, 80, 150])
def test_no_word_is_cut_at_any_width(width: int) -> None:
    out = Console(width=width, highlight=False)
    with out.capture() as captured:
        print_table(out, ROWS, TITLES)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", " ").split()
    for row in ROWS:
        for cell in row[:2]:
            assert {*cell.replace(",", " ").split()} <= {*words}
    assert any("176,247,271,424" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 150])
def test_a_comparison_keeps_every_cell_at_any_width(width: int) -> None:
    left = [Figure(quantity=Quantity.PEAK_BYTES, value=71_000_000, tolerance=0.02, why="every block of a step")]
    right = [Figure(quantity=Quantity.PEAK_BYTES, value=70_000_000)]
    out = Console(width=width, highlight=False)
    with out.capture() as captured:
        rows = compare(left, right, left_name="predicted", right_name="measured", judge=True)
        print_comparison(out, rows, left="predicted", right="measured")
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", " ").split()
    assert {"peak_bytes", "71", "000", "70", "1.4", "less", "2%", "pass", "(1)", "block"} <= {*words}


def test_a_folded_line_keeps_its_indent() -> None:
    out = Console(width=30, highlight=False)
    with out.capture() as captured:
        print_folded(out, "  backward: every word of a long line is printed")
    first, *rest = captured.get().splitlines()
    assert first.startswith("  backward: ")
    assert all(line.startswith(" " * 6) and line[6] != " " for line in rest)
    assert rest


def test_a_percentage_is_never_folded_before_its_sign() -> None:
    for width in range(20, 60):
        out = Console(width=width, highlight=False)
        with out.capture() as captured:
            print_folded(out, "as pytorch: step time +14.1 %, as generic: step time -2.5 %")
        text = captured.get()
        assert text.count(".1 %") == text.count(".5 %") == 1, width
        assert text.isascii()


def test_colours_of_cells_are_for_terminals_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(console(), [[coloured("fail", "bold red"), "1"]], ["verdict", "n"])
    assert capsys.readouterr().out == "verdict  n\nfail     1\n"


def test_columns_of_the_environment_hold_for_pipes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == 150
    monkeypatch.setenv("COLUMNS", "80")
    assert console().width == 80
