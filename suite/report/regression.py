"""A regression check for people and for CI: the verdict first, a table a run, and the words that explain it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from reference_runs.units import printed
from suite.regression.check import Comparison
from suite.regression.findings import RegressionFinding
from suite.regression.verdicts import ChangeVerdict
from suite.report.junit import JunitOutcome, JunitSuite
from suite.report.tables import MARKDOWN, table
from suite.report.terminal.tables import NOT_JUDGED, coloured, print_folded, print_table

_COLOURS = {
    ChangeVerdict.REGRESSION: "bold red",
    ChangeVerdict.IMPROVED: "bold green",
    ChangeVerdict.INCONCLUSIVE: "yellow",
    ChangeVerdict.UNCALIBRATED: "yellow",
    ChangeVerdict.SHOWN: "dim",
}
_NAMED = 3  # findings in the line of the verdict
_NAMED_DIFFERENCES = 12  # of two environments; JSON has all
TITLES = ("quantity", "of", "baseline", "now", "ratio", "interval", "band", "detectable", "verdict", "why")
_TEXTS = ("quantity", "of", "verdict", "why")
RATIO = "ratio: now over baseline"
UNCHANGED = (ChangeVerdict.SAME, ChangeVerdict.SHOWN)


def shown(findings: Iterable[RegressionFinding]) -> list[RegressionFinding]:
    """Findings of the whole job, and those of single ranks and stages that changed."""
    return [
        finding
        for finding in findings
        if (finding.rank is None and finding.stage is None) or finding.change not in UNCHANGED
    ]


def cells(finding: RegressionFinding) -> dict[str, str]:
    """The texts of a row by `TITLES`."""
    interval = finding.interval
    return {
        "quantity": finding.quantity,
        "of": subject(finding),
        "baseline": printed(finding.before, finding.unit),
        "now": printed(finding.after, finding.unit),
        "ratio": "-" if finding.ratio is None else f"{finding.ratio:.4f}",
        "interval": "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
        "band": _percent(finding.band),
        "detectable": _percent(finding.least_detectable),
        "verdict": NOT_JUDGED if finding.change is ChangeVerdict.SHOWN else finding.change.value,
        "why": finding.why,
    }


def subject(finding: RegressionFinding) -> str:
    """Axis, collective, term, rank and stage in words; empty for the whole job."""
    rank = "" if finding.rank is None else f"rank {finding.rank}"
    return " ".join(part for part in (finding.axis, finding.operation, finding.term, rank) if part)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def headline(comparison: Comparison) -> str:
    """A line with the numbers of launches that are compared, and the baseline."""
    if not comparison.baseline:
        launches = f"{len(comparison.after)} launches" if comparison.after else "not launched"
        return f"{comparison.run}: {launches}, no baseline"
    return (
        f"{comparison.run}: {len(comparison.after)} launches against {len(comparison.before)} "
        f"({comparison.baseline}: {comparison.baseline_suite})"
    )


def notes(comparison: Comparison) -> list[str]:
    """The basis of the verdicts, and everything else that differs, a line each."""
    return [*_environment_notes(comparison), *_verdict_notes(comparison)]


def _environment_notes(comparison: Comparison) -> list[str]:
    """Both environments and what differs between them; nothing where there is one."""
    if not comparison.environments:
        return []
    lines = [
        f"{side}: {environment.executable}: {environment.versions}"
        for side, environment in zip(("baseline", "now"), comparison.environments, strict=True)
    ]
    differing = comparison.differences
    if not differing:
        return [*lines, "nothing that is looked at differs: versions, startup files, and files of what ranks import"]
    more = len(differing) - _NAMED_DIFFERENCES
    rest = [f"{more} more differences: --json names them"] if more > 0 else []
    return [*lines, *(f"differs: {line}" for line in differing[:_NAMED_DIFFERENCES]), *rest]


def _verdict_notes(comparison: Comparison) -> list[str]:
    if not comparison.baseline:
        return [f"no baseline of this hardware, policy and number of steps is accepted here: {comparison.hint}"]
    lines = [f"noise: {comparison.floor}"]
    if comparison.looks:
        count = "1 look" if comparison.looks == 1 else f"{comparison.looks} looks"
        lines.append(f"decided or given up after {count}; all looks together raise no more false alarms than one")
    if comparison.changed and not comparison.environments:
        lines.append(f"software differs: {comparison.changed}")
    if comparison.best is not None and comparison.best.ratio is not None:
        best = comparison.best
        low, high = best.interval or (None, None)
        inside = "" if low is None else f", {low:.3f} to {high:.3f}"
        lines.append(
            f"against {best.why}: {printed(best.before, best.unit)} s, {best.before_launches} launches; "
            f"ratio {best.ratio:.4f}{inside}"
        )
    times = [finding for finding in comparison.findings if finding.family is not None]
    for finding in times:
        least = finding.least_detectable
        words = "no change at all" if least is None else f"{least:.1%}"
        unsure = "; a guess from these launches themselves" if finding.change is ChangeVerdict.UNCALIBRATED else ""
        lines.append(
            f"detectable: the least slow-down that {finding.before_launches} and {finding.after_launches} launches in "
            f"a family of {finding.family} find in 9 of 10 checks, re-run included: {words}{unsure}"
        )
        if finding.change is ChangeVerdict.UNCALIBRATED:
            lines.append("10 launches of one commit, on this machine, with the same options, calibrate it")
    return lines


def verdict_line(comparison: Comparison) -> str:
    """The first line for people: the verdict, its quantities, and the slow-down that would have been found."""
    if not comparison.baseline:
        return headline(comparison)
    findings = comparison.findings
    if not findings:
        return f"{comparison.run}: not decided: the time was over before both sides had a launch"
    bad = [finding for finding in findings if finding.change is ChangeVerdict.REGRESSION]
    open_ = [
        finding for finding in findings if finding.change in (ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED)
    ]
    named = [
        f"{' '.join(filter(None, (finding.quantity, subject(finding))))} ({finding.why})" for finding in bad or open_
    ]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    word = "regression" if bad else "not decided" if open_ else "no regression"
    remedy = f"; {comparison.remedy.words}" if comparison.remedy is not None and not bad else ""
    words = f"{': ' if named else ''}{', '.join(named[:_NAMED])}{more}"
    return f"{comparison.run}: {word}{words}{_detectable(findings)}{remedy}"


def _detectable(findings: Iterable[RegressionFinding]) -> str:
    least = [finding.least_detectable for finding in findings if finding.family is not None]
    if not least:
        return ""
    known = [share for share in least if share is not None]
    if len(known) < len(least):
        return "; so few launches find no slow-down of a step, however large"
    return f"; a step slower by {max(known):.1%} or more is found in 9 of 10 checks"


def print_check(out: Console, comparisons: Sequence[Comparison]) -> None:
    """Print the verdict of every run first, then a table a run with what it rests on."""
    for comparison in comparisons:
        print_folded(out, verdict_line(comparison), "bold")
    for comparison in comparisons:
        if comparison.findings:
            out.print()
            print_folded(out, headline(comparison), "")
            _print_findings(out, shown(comparison.findings))
        for line in notes(comparison):
            print_folded(out, line)
    if any(comparison.findings for comparison in comparisons):
        print_folded(out, RATIO)


def _print_findings(out: Console, findings: Sequence[RegressionFinding]) -> None:
    """Print the table of a run: quantity and what it is of in one column, the verdict in its colour."""
    rows = []
    for finding in findings:
        texts: dict[str, Any] = {**cells(finding)}
        texts["quantity"] = f"{texts['quantity']} {texts.pop('of')}".strip()
        texts["verdict"] = coloured(texts["verdict"], _COLOURS.get(finding.change, "none"))
        rows.append([*texts.values()])
    titles = [title for title in TITLES if title != "of"]
    print_table(out, rows, titles, right={*TITLES} - {*_TEXTS}, optional=("detectable", "band", "interval"))


_UNDECIDED = (ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED)


def junit(comparisons: Sequence[Comparison], failed: str = "") -> str:
    """One suite: a regression is a failure, what was not decided is skipped, a launch that did not end well an error.

    What is only shown is no test. Durations are those of the steps that were timed.
    """
    suite = JunitSuite("regress")
    for comparison in comparisons:
        for name, value in _properties(comparison):
            suite.add_property(f"{comparison.run} {name}", value)
        if not comparison.findings:
            suite.add(comparison.run, "baseline", outcome=JunitOutcome.SKIPPED, message=verdict_line(comparison))
        for finding in comparison.findings:
            if finding.change is not ChangeVerdict.SHOWN:
                _judged(suite, finding)
    if failed:
        suite.add("regress", "launch", outcome=JunitOutcome.ERROR, message=failed)
    return suite.xml()


def _properties(comparison: Comparison) -> list[tuple[str, str]]:
    """Facts of a check for those who read JUnit files: both environments, looks, and what would decide it."""
    facts = []
    for side, environment in zip(("baseline", "now"), comparison.environments, strict=False):
        facts.append((f"{side} interpreter", environment.executable))
        facts += [(f"{side} {name}", version) for name, version in sorted(environment.software.items())]
    facts += [("difference", line) for line in comparison.differences]
    if comparison.looks:
        facts.append(("looks", str(comparison.looks)))
    if comparison.remedy is not None:
        facts.append(("remedy", comparison.remedy.words))
    return facts


def _judged(suite: JunitSuite, finding: RegressionFinding) -> None:
    name = " ".join(part for part in (finding.quantity, subject(finding)) if part)
    seconds = finding.after if finding.unit == "s" else None
    texts = cells(finding)
    message = f"{texts['baseline']} -> {texts['now']}, ratio {texts['ratio']}: {finding.why}"
    if finding.change is ChangeVerdict.REGRESSION:
        text = "\n".join(f"{title}: {texts[title]}" for title in TITLES if texts[title])
        suite.add(finding.run, name, outcome=JunitOutcome.FAILURE, message=message, text=text, seconds=seconds)
    elif finding.change in _UNDECIDED:
        words = f"{finding.change.value}: {message}"
        suite.add(finding.run, name, outcome=JunitOutcome.SKIPPED, message=words, seconds=seconds)
    else:
        suite.add(finding.run, name, seconds=seconds)


def markdown(comparisons: Sequence[Comparison], failed: str = "") -> str:
    """A heading and a table a run: what changed or was not decided first, the rest folded away."""
    lines = ["## Regressions", ""]
    if failed:
        lines += [f"**A launch did not end well**: {_cell(failed)}", ""]
    for comparison in comparisons:
        lines += [f"### {_cell(headline(comparison))}", "", _cell(verdict_line(comparison)), ""]
        rows = [finding for finding in shown(comparison.findings) if finding.change is not ChangeVerdict.SHOWN]
        first = [finding for finding in rows if finding.change is not ChangeVerdict.SAME]
        rest = [finding for finding in rows if finding.change is ChangeVerdict.SAME]
        if first:
            lines += [*_table(first), ""]
        if rest:
            summary = f"<summary>{len(rest)} quantities are the same</summary>"
            lines += ["<details>", summary, "", *_table(rest), "", "</details>", ""]
        lines += [f"- {_cell(line)}" for line in notes(comparison)] + [""]
    return "\n".join(lines)


def _table(findings: list[RegressionFinding]) -> list[str]:
    import pandas

    return [table(pandas.DataFrame(map(cells, findings)), style=MARKDOWN, right=())]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
