"""Tables of texts on terminals of any width: no word is cut, and no line is too long."""

from __future__ import annotations

import pytest
from rich.console import Console

from suite.report.terminal.tables import plain_table

TITLES = ["run", "title", "parameters", "reproduce with"]
ROWS = [
    ["bloom-176b", "BLOOM-176B (BigScience, 2022)", "176,247,271,424", "bloom-mini"],
    ["gpt2-1558m", "GPT-2 1558M (OpenAI's shape, reproduced with llm.c)", "1,557,686,400", "-"],
]


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70, 80, 150])
def test_no_word_is_cut_at_any_width(width: int) -> None:
    out = Console(width=width, highlight=False)
    with out.capture() as captured:
        out.print(plain_table(TITLES, ROWS))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", " ").split()
    for row in ROWS:
        for cell in row[:2]:
            assert {*cell.replace(",", " ").split()} <= {*words}
    assert {"176", "247", "271", "424"} <= {*words}
    assert any("176,247,271,424" in line for line in lines)
