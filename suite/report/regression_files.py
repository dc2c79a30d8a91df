"""A regression check for CI: JUnit XML, a test a run and quantity, and a summary in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from suite.findings import Finding
from suite.regression_check import Comparison
from suite.regressions import Change
from suite.report.regression_table import TITLES, cells, headline, notes, place, shown

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNDECIDED = (Change.INCONCLUSIVE, Change.UNCALIBRATED)


def junit(comparisons: Sequence[Comparison], failed: str = "") -> str:
    """One suite: a regression is a failure, what was not decided is skipped, a launch that did not end well an error.

    What is only shown is no test. Durations are those of the steps that were timed.
    """
    suite = ElementTree.Element("testsuite", name="regress")
    for comparison in comparisons:
        if not comparison.baseline:
            _skip(_case(suite, comparison.run, "baseline"), headline(comparison))
        for finding in comparison.findings:
            if finding.change is not Change.SHOWN:
                _judged(suite, finding)
    if failed:
        error = ElementTree.SubElement(_case(suite, "regress", "launch"), "error", type="launch")
        error.set("message", _text(failed))
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(list(suite.iter(tag)))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, run: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_text(run), name=_text(name))


def _judged(suite: ElementTree.Element, finding: Finding) -> None:
    case = _case(suite, finding.run, " ".join(part for part in (finding.quantity, place(finding)) if part))
    if finding.unit == "s" and finding.after is not None:
        case.set("time", f"{finding.after:.6f}")
    texts = cells(finding)
    message = f"{texts['baseline']} -> {texts['now']}, ratio {texts['ratio']}: {finding.why}"
    if finding.change is Change.REGRESSION:
        failure = ElementTree.SubElement(case, "failure", type="regression")
        failure.set("message", _text(message))
        failure.text = _text("\n".join(f"{title}: {texts[title]}" for title in TITLES if texts[title]))
    elif finding.change in _UNDECIDED:
        _skip(case, f"{finding.change.value}: {message}")


def _skip(case: ElementTree.Element, message: str) -> None:
    ElementTree.SubElement(case, "skipped", message=_text(message))


def _text(text: str) -> str:
    return _NOT_XML.sub("?", text)


def markdown(comparisons: Sequence[Comparison], failed: str = "") -> str:
    """A heading and a table a run: what changed or was not decided first, the rest folded away."""
    lines = ["## Regressions", ""]
    if failed:
        lines += [f"**A launch did not end well**: {_cell(failed)}", ""]
    for comparison in comparisons:
        lines += [f"### {_cell(headline(comparison))}", ""]
        rows = [one for one in shown(comparison.findings) if one.change is not Change.SHOWN]
        first = [one for one in rows if one.change is not Change.SAME]
        rest = [one for one in rows if one.change is Change.SAME]
        if first:
            lines += [*_table(first), ""]
        if rest:
            summary = f"<summary>{len(rest)} quantities are the same</summary>"
            lines += ["<details>", summary, "", *_table(rest), "", "</details>", ""]
        lines += [f"- {_cell(line)}" for line in notes(comparison)] + [""]
    return "\n".join(lines)


def _table(findings: list[Finding]) -> list[str]:
    rows = [[_cell(cells(one)[title]) for title in TITLES] for one in findings]
    return [f"| {' | '.join(row)} |" for row in ([*TITLES], ["---"] * len(TITLES), *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
