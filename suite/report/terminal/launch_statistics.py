"""Several launches of one run in the terminal: what was left out, and every clocked quantity's summary."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from reference_runs.units import printed
from suite.metrics.launch_statistics import QuantityStatistics
from suite.report.terminal.tables import print_folded, print_table

_TITLES = ("quantity", "launches", "median", "minimum", "maximum", "variation", "interval", "detectable")


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
    print_table(out, map(_cells, summaries), _TITLES, right=_TITLES[1:], optional=("interval", "launches"))
    confidence = {summary.confidence for summary in summaries if summary.confidence is not None}
    for share in sorted(confidence):
        print_folded(out, f"interval: of the median, between two of the launches, confidence {share:.1%}")
    for reason in dict.fromkeys(summary.why for summary in summaries):
        print_folded(out, f"detectable: least change of the median; {reason}")


def _cells(summary: QuantityStatistics) -> list[str]:
    low, high = summary.interval or (None, None)
    return [
        " ".join(part for part in (summary.quantity, summary.axis, summary.operation, summary.term) if part),
        str(summary.launches),
        *(printed(value, summary.unit) for value in (summary.median, summary.minimum, summary.maximum)),
        _percent(summary.variation),
        "-" if low is None else f"{printed(low, summary.unit)} to {printed(high, summary.unit)}",
        _percent(summary.least_detectable_change),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
