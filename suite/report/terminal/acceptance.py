"""A battery's findings for people, for a scheduler's health check, and for a CI server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.acceptance.battery import Report
from suite.acceptance.battery_record import Closed
from suite.acceptance.check_table import CHECKS
from suite.acceptance.findings import Decision, Finding, Past, Verdict, worst_first
from suite.report.junit import JunitSuite, Outcome

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.HANG: "bold red",
    Verdict.INVALID: "magenta",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.NOT_RUN: "dim",
}
_DECISION_COLOURS = {
    Decision.ACCEPTED: "bold green",
    Decision.REJECTED: "bold red",
    Decision.UNDECIDED: "bold magenta",
    Decision.EXECUTION_FAILED: "bold red",
}
_NOT_PASSED = (Verdict.FAIL, Verdict.HANG, Verdict.INVALID, Verdict.INCONCLUSIVE)
_LINE = 400  # characters of the summary: schedulers keep a line of about that


def print_report(out: Console, report: Report) -> None:
    """The table of all findings in the order of the checks; what each rests on; the verdict last."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("#", "check", "of", "measured", "expected", "ratio", "verdict", "part", ""):
        table.add_column(title, justify="right" if title in ("measured", "expected", "ratio") else "left", no_wrap=True)
    reasons: list[str] = []
    for finding in report.findings:
        reasons.append(finding_reason(finding))
        table.add_row(
            str(finding.check),
            CHECKS[finding.check].name,
            escape(finding.subject),
            number_text(finding.measured, finding.unit),
            number_text(finding.expected, finding.unit),
            "" if finding.ratio is None else f"{finding.ratio:.3f}",
            f"[{_COLOURS[finding.verdict]}]{finding.verdict.value}[/]",
            escape(finding.part[:40]),
            f"({len(reasons)})",
        )
    out.print(table)
    for number, reason in enumerate(reasons, start=1):
        out.print(f"[dim]({number}) {escape(reason)}[/]", soft_wrap=True)
    for note in report.notes:
        out.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    out.print(f"record {escape(report.record)}", soft_wrap=True)
    out.print(f"[{_DECISION_COLOURS[report.decision]}]{escape(summary(report))}[/]", soft_wrap=True)


def number_text(value: float | None, unit: str) -> str:
    """A finding's number in its unit; nothing where the check has none."""
    if value is None:
        return ""
    return f"{printed(value, unit)}{unit}" if unit in ("flop/s", "byte/s") else f"{value:.4g}"


def finding_reason(finding: Finding) -> str:
    """What a finding rests on: since when, evidence, source of the expected value, limits, least slowdown."""
    limits = ""
    if finding.fail is not None and finding.warn is not None and finding.ratio is not None:
        limits = f"warn {finding.warn:.3f}, fail {finding.fail:.3f}"
    least = "" if finding.least_detectable is None else f"least detectable slowdown {finding.least_detectable:.1%}"
    source = f"expected: {finding.source}" if finding.source else ""
    return "; ".join(part for part in (since(finding), finding.evidence, source, limits, least) if part)


def since(finding: Finding) -> str:
    """Between which batteries of this node a finding became bad; empty where no earlier battery tells."""
    good = f"good until {_past(finding.good_until)}" if finding.good_until else ""
    bad = f"bad since {_past(finding.bad_since)}" if finding.bad_since else ""
    return ", ".join(part for part in (good, bad) if part)


def _past(one: Past) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(one.finished))} (battery {one.battery})"


def summary(report: Report | Closed) -> str:
    """One line: the decision, then every part at fault with its check, then the counts of verdicts.

    Since when a part is bad stands behind it as far as the line has room: of the worst part first.
    """
    bad = [finding for finding in worst_first(report.findings) if finding.verdict in _NOT_PASSED]
    # what is invalid without a part is so because the environment is, which is named
    bad = [finding for finding in bad if finding.part or finding.verdict is not Verdict.INVALID]
    words: dict[str, str] = {}
    for finding in bad:
        ratio = "" if finding.ratio is None else f" {finding.ratio:.3f} of expected"
        part = finding.part or finding.subject or "unknown part"
        words.setdefault(f"{CHECKS[finding.check].name} {finding.verdict.value}: {part}{ratio}", since(finding))
    counts = ", ".join(
        f"{number} {verdict.value}"
        for verdict in Verdict
        if (number := sum(finding.verdict is verdict for finding in report.findings))
    )
    line = f"{report.profile}: {report.decision.value}"
    tail = f" ({counts}; {report.seconds:.0f} s)"
    room = _LINE - len(tail) - len(f"{line}: {'; '.join(words)}")
    said = []
    for word, when in words.items():
        fits = bool(when) and len(f", {when}") <= room
        room -= len(f", {when}") if fits else 0
        said.append(f"{word}, {when}" if fits else word)
    if said:
        line += f": {'; '.join(said)}"
    return f"{line[: _LINE - len(tail)]}{tail}"


def junit(report: Report) -> str:
    """The findings as JUnit XML: failures, errors (what did not end, or is not decidable) and skipped ones."""
    outcomes = {
        Verdict.FAIL: Outcome.FAILURE,
        Verdict.HANG: Outcome.ERROR,
        Verdict.INVALID: Outcome.ERROR,
        Verdict.INCONCLUSIVE: Outcome.ERROR,
        Verdict.NOT_RUN: Outcome.SKIPPED,
    }
    suite = JunitSuite(f"accept {report.profile}", seconds=report.seconds)
    for finding in report.findings:
        outcome = outcomes.get(finding.verdict)
        suite.add(
            f"accept.{finding.check:02d}",
            " ".join(part for part in (CHECKS[finding.check].name, finding.subject) if part),
            outcome=outcome,
            message=f"{finding.verdict.value}: {finding.part or finding.evidence}" if outcome else "",
            text=finding_reason(finding),
        )
    return suite.xml()


def checks_table(out: Console) -> None:
    """What the checks are, without running any."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("#", "check", "warn", "fail", "formula", "expected"):
        table.add_column(title, overflow="fold")
    for check in CHECKS:
        table.add_row(
            str(check.number), check.name, _limit(check.warn), _limit(check.fail), escape(check.formula), check.expects
        )
    out.print(table)


def _limit(value: float | None) -> str:
    return "any" if value is None else f"{value:g}"


def rows(findings: Sequence[Finding]) -> Iterable[dict[str, object]]:
    """The findings as objects for machines, each with the name of its check."""
    for finding in findings:
        fields = {name: getattr(finding, name) for name in finding.__struct_fields__}
        yield {"name": CHECKS[finding.check].name, **fields}
