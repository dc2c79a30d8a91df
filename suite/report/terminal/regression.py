"""A regression check in the terminal: one table a run, and the words that explain it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.regression.check import Comparison
from suite.regression.findings import RegressionFinding
from suite.regression.verdicts import ChangeVerdict

_COLOURS = {
    ChangeVerdict.REGRESSION: "bold red",
    ChangeVerdict.IMPROVED: "bold green",
    ChangeVerdict.INCONCLUSIVE: "yellow",
    ChangeVerdict.UNCALIBRATED: "yellow",
    ChangeVerdict.SHOWN: "dim",
}
TITLES = ("quantity", "of", "baseline", "now", "ratio", "interval", "band", "detectable", "verdict", "why")
_LEFT_OUT_FIRST = ("band", "interval", "detectable")  # columns that a narrow terminal does without, in this order
_NARROW = (140, 125, 110)  # terminal widths below which one more of them is left out
_TEXTS = ("quantity", "of", "verdict", "why")
UNCHANGED = (ChangeVerdict.SAME, ChangeVerdict.SHOWN)


def shown(findings: Iterable[RegressionFinding]) -> list[RegressionFinding]:
    """Those of the whole job, and of single ranks and stages what changed."""
    return [one for one in findings if (one.rank is None and one.stage is None) or one.change not in UNCHANGED]


def cells(finding: RegressionFinding) -> dict[str, str]:
    """The texts of a row by `TITLES`."""
    interval = finding.interval
    return {
        "quantity": finding.quantity,
        "of": place(finding),
        "baseline": printed(finding.before, finding.unit),
        "now": printed(finding.after, finding.unit),
        "ratio": "-" if finding.ratio is None else f"{finding.ratio:.4f}",
        "interval": "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
        "band": _percent(finding.band),
        "detectable": _percent(finding.least_detectable),
        "verdict": finding.change.value,
        "why": finding.why,
    }


def place(finding: RegressionFinding) -> str:
    """Axis, collective, term, rank and stage in words; empty for the whole job."""
    rank = "" if finding.rank is None else f"rank {finding.rank}"
    return " ".join(part for part in (finding.axis, finding.operation, finding.term, rank) if part)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def headline(comparison: Comparison) -> str:
    """How many launches stand beside how many, of which baseline."""
    if not comparison.baseline:
        launches = f"{len(comparison.after)} launches" if comparison.after else "not launched"
        return f"{comparison.run}: {launches}, no baseline"
    return (
        f"{comparison.run}: {len(comparison.after)} launches beside {len(comparison.before)} "
        f"({comparison.baseline}: {comparison.baseline_suite})"
    )


def notes(comparison: Comparison) -> list[str]:
    """What the verdicts rest on, and what else differs, a line each."""
    if not comparison.baseline:
        return [f"no baseline of this hardware, policy and number of steps is accepted here: {comparison.hint}"]
    lines = [f"noise: {comparison.floor}"]
    if comparison.changed:
        lines.append(f"software differs: {comparison.changed}")
    if comparison.best is not None and comparison.best.ratio is not None:
        best = comparison.best
        low, high = best.interval or (None, None)
        inside = "" if low is None else f", {low:.3f} to {high:.3f}"
        lines.append(
            f"beside {best.why}: {printed(best.before, best.unit)} s, {best.before_launches} launches; "
            f"ratio {best.ratio:.4f}{inside}"
        )
    times = [one for one in comparison.findings if one.family is not None]
    for one in times:
        least = one.least_detectable
        words = "no change at all" if least is None else f"{least:.1%}"
        unsure = "; a guess from these launches themselves" if one.change is ChangeVerdict.UNCALIBRATED else ""
        lines.append(
            f"detectable: the least slow-down that {one.before_launches} and {one.after_launches} launches in a family "
            f"of {one.family} find in 9 of 10 checks, re-run included: {words}{unsure}"
        )
        if one.change is ChangeVerdict.UNCALIBRATED:
            lines.append("10 launches of one commit, on this machine, with the same options, calibrate it")
    return lines


def print_check(out: Console, comparisons: Sequence[Comparison]) -> None:
    """Print a table a run with what it rests on."""
    for comparison in comparisons:
        out.print(escape(headline(comparison)), soft_wrap=True)
        if comparison.findings:
            out.print(_table(out, shown(comparison.findings)))
        for line in notes(comparison):
            out.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _table(out: Console, findings: list[RegressionFinding]) -> Table:
    titles = [*TITLES]
    for title in _LEFT_OUT_FIRST[: sum(out.width < width for width in _NARROW)]:
        titles.remove(title)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        last = title == titles[-1]
        table.add_column(title, justify="left" if title in _TEXTS else "right", no_wrap=not last, overflow="fold")
    for finding in findings:
        texts = {title: escape(text) for title, text in cells(finding).items()}
        colour = _COLOURS.get(finding.change)
        if colour:
            texts["verdict"] = f"[{colour}]{texts['verdict']}[/]"
        table.add_row(*(texts[title] for title in titles))
    return table
