"""Lines without what launchers and terminals put around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.training_logs.lines import log_lines, number


@pytest.mark.parametrize(
    ("text", "value"), [("1,234", 1234), ("1.23K", 1230), ("93.2M", 93.2e6), ("1.249e+03", 1249), ("-0.5", -0.5)]
)
def test_numbers_are_read_as_logs_print_them(text: str, value: float) -> None:
    assert number(text) == pytest.approx(value)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        number("n/a")


def test_colours_prefixes_and_bars_that_are_written_over_are_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"0: [rank7]:\x1b[31mone\x1b[0m\n\n 1%|x| 1/9\r 2%|x| 2/9\r\nlast \xff\n")
    assert list(log_lines(path)) == ["one", " 1%|x| 1/9", " 2%|x| 2/9", "last �"]


def test_a_line_without_an_end_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("x" * 200_000, encoding="utf-8")
    assert [len(line) for line in log_lines(path)] == [65536, 65536, 65536, 3392]
