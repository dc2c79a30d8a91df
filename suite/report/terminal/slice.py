"""A launch of a slice, printed."""

from __future__ import annotations

from rich.console import Console

from suite.job.slice import SliceTimes
from suite.report.slice import COLUMNS, part_rows
from suite.report.terminal.tables import print_folded, print_table

SPREAD = "spread: half of the range between the quartiles, over the median; a layer: the mean of the slice's"


def print_parts(out: Console, times: SliceTimes) -> None:
    """A row for each part."""
    print_table(out, part_rows(times), COLUMNS, right=COLUMNS[1:])
    print_folded(out, SPREAD)
