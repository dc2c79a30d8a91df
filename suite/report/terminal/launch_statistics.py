"""Several launches of one run in the terminal: what was left out, and every clocked quantity's summary."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.metrics.launch_statistics import QuantityStatistics

_TITLES = ("quantity", "axis", "launches", "median", "minimum", "maximum", "variation", "interval", "detectable")
_LEFT_OUT_FIRST = ("interval", "axis", "launches")  # columns that a narrow terminal does without, in this order
_NARROW = (125, 105, 85)  # terminal widths below which one more of them is left out


def print_launches(
    out: Console, run: str, started: int, left_out: list[str], summaries: list[QuantityStatistics]
) -> None:
    """Print how many of the launches ended well, why the others are left out, and a row for each quantity."""
    well = started - len(left_out)
    what = "nothing to summarise" if well < 2 else "the others are left out" if left_out else "none is left out"
    out.print(f"{escape(run)}: {well} of {started} launches ended well; {what}")
    for line in left_out:
        out.print(f"left out: {escape(line)}", soft_wrap=True)
    if not summaries:
        return
    titles = [*_TITLES]
    for title in _LEFT_OUT_FIRST[: sum(out.width < width for width in _NARROW)]:
        titles.remove(title)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in ("quantity", "axis") else "right", no_wrap=True)
    for summary in summaries:
        cells = _cells(summary)
        table.add_row(*(cells[title] for title in titles))
    out.print(table)
    confidence = {summary.confidence for summary in summaries if summary.confidence is not None}
    for share in sorted(confidence):
        out.print(f"[dim]interval: of the median, between two of the launches, confidence {share:.1%}[/]")
    for reason in dict.fromkeys(summary.why for summary in summaries):
        out.print(f"[dim]detectable: least change of the median; {escape(reason)}[/]", soft_wrap=True)


def _cells(summary: QuantityStatistics) -> dict[str, str]:
    low, high = summary.interval or (None, None)
    return {
        "quantity": summary.quantity,
        "axis": " ".join(part for part in (summary.axis, summary.operation, summary.term) if part),
        "launches": str(summary.launches),
        "median": printed(summary.median, summary.unit),
        "minimum": printed(summary.minimum, summary.unit),
        "maximum": printed(summary.maximum, summary.unit),
        "variation": _percent(summary.variation),
        "interval": "-" if low is None else f"{printed(low, summary.unit)} to {printed(high, summary.unit)}",
        "detectable": _percent(summary.least_detectable_change),
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
