"""A regression check for CI: JUnit XML, a test a run and quantity, and a summary in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from suite.regression.check import Comparison
from suite.regression.findings import RegressionFinding
from suite.regression.verdicts import ChangeVerdict
from suite.report.junit import JunitOutcome, JunitSuite
from suite.report.tables import MARKDOWN, table
from suite.report.terminal.regression import TITLES, cells, headline, notes, shown, subject, verdict_line

_UNDECIDED = (ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED)


def junit(comparisons: Sequence[Comparison], failed: str = "") -> str:
    """One suite: a regression is a failure, what was not decided is skipped, a launch that did not end well an error.

    What is only shown is no test. Durations are those of the steps that were timed.
    """
    suite = JunitSuite("regress")
    for comparison in comparisons:
        if not comparison.baseline:
            suite.add(comparison.run, "baseline", outcome=JunitOutcome.SKIPPED, message=headline(comparison))
        for finding in comparison.findings:
            if finding.change is not ChangeVerdict.SHOWN:
                _judged(suite, finding)
    if failed:
        suite.add("regress", "launch", outcome=JunitOutcome.ERROR, message=failed)
    return suite.xml()


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
