"""Findings of a battery for people, for a scheduler's health check, and for a CI server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape

from reference_runs.units import printed
from suite.acceptance.battery import BatteryReport
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, ENVIRONMENT, MATRIX, MEMORY, PEER, STEP_TIME
from suite.acceptance.findings import joined_evidence
from suite.records.battery import NOT_PASSED, BatteryEnd, CheckFinding, CheckVerdict, Decision, PastBattery, worst_first
from suite.report.junit import JunitOutcome, JunitSuite
from suite.report.terminal.tables import coloured, print_folded, print_table

_COLOURS = {
    CheckVerdict.PASS: "green",
    CheckVerdict.WARN: "yellow",
    CheckVerdict.FAIL: "bold red",
    CheckVerdict.HANG: "bold red",
    CheckVerdict.INVALID: "magenta",
    CheckVerdict.INCONCLUSIVE: "magenta",
    CheckVerdict.NOT_RUN: "dim",
}
_DECISION_COLOURS = {
    Decision.ACCEPTED: "bold green",
    Decision.REJECTED: "bold red",
    Decision.UNDECIDED: "bold magenta",
    Decision.EXECUTION_FAILED: "bold red",
}
_ADVICE = {
    CheckVerdict.FAIL: "drain the node; replace the part, and run accept again",
    CheckVerdict.INVALID: "fix the environment, and run accept again",
    CheckVerdict.INCONCLUSIVE: "run accept again with --profile accept, which launches more",
}
_FAILED_ADVICE = "run accept again; if it fails again, drain the node"
SIGNS = "differences: expected over measured, less 1"
_SUMMARY_CHARACTERS = 400  # of the one-line summary: schedulers store a line of about that
_LINES = 15  # of the short form
_LINE_CHARACTERS = 160  # of a line of the short form


def print_verdict(out: Console, report: BatteryReport) -> None:
    """The short form, at most 15 lines: verdict, parts at fault, what was measured and expected, and the evidence."""
    lines = [f"[{_DECISION_COLOURS[report.decision]}]{escape(_headline(report))}[/]"]
    tail = [_counts(report.findings), "; ".join(report.notes), _advice(report)]
    tail = [escape(_shortened(line)) for line in tail if line]
    tail.append(escape(f"{report.seconds:.0f} s; --all prints every finding; record {report.record}"))
    blocks = [_explained(finding) for finding in _distinct(_shown_findings(report.findings))]
    if report.decision is Decision.ACCEPTED:
        blocks += [[f"PASS  {escape(_rate(finding))}"] for finding in report.findings if _is_passed_rate(finding)]
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        if len(lines) + len(block) + (not last) + len(tail) > _LINES:
            lines.append(f"{len(blocks) - number} more")
            break
        lines += block
    for line in [*lines, *tail]:
        out.print(line, soft_wrap=True)


def _explained(finding: CheckFinding) -> list[str]:
    """The part at fault, what was measured and expected, the evidence, and since when."""
    part = finding.part or finding.subject or CHECKS[finding.check].name
    check = _comma(f"check {finding.check}", CHECKS[finding.check].name, finding.subject if finding.part else "")
    title = f"[{_COLOURS[finding.verdict]}]{finding.verdict.value}[/]  {escape(f'{part}  ({check})')}"
    details = (comparison(finding), finding.evidence, since(finding))
    return [title, *(f"      {escape(_shortened(detail))}" for detail in details if detail)]


def _shown_findings(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings that the short form explains: bad ones and warnings; in an invalid environment no other invalid ones."""
    bad = _bad_findings(findings)
    if any(finding.check == ENVIRONMENT and finding.verdict is CheckVerdict.INVALID for finding in bad):
        bad = [
            finding for finding in bad if finding.check == ENVIRONMENT or finding.verdict is not CheckVerdict.INVALID
        ]
    return [*bad, *(finding for finding in findings if finding.verdict is CheckVerdict.WARN)]


def _headline(report: BatteryReport) -> str:
    if report.decision is Decision.ACCEPTED:
        ran = {finding.check for finding in report.findings if finding.verdict is not CheckVerdict.NOT_RUN}
        return f"{report.decision.value}: {len(ran)} checks ran, none failed"
    bad = [finding for finding in _shown_findings(report.findings) if finding.verdict is not CheckVerdict.WARN]
    if not bad:
        return f"{report.decision.value}: nothing was measured"
    parts = list(dict.fromkeys(finding.part or finding.subject or "unknown part" for finding in bad))
    return f"{report.decision.value}: {parts[0]}" + (f", and {len(parts) - 1} more" if len(parts) > 1 else "")


def _advice(report: BatteryReport) -> str:
    """The next step for the reader, by the worst verdict; empty for an accepted node."""
    if report.decision is Decision.EXECUTION_FAILED:
        return _FAILED_ADVICE
    verdicts = {finding.verdict for finding in report.findings}
    return next((advice for verdict, advice in _ADVICE.items() if verdict in verdicts), "")


def _bad_findings(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings that did not pass, worst first; without those that are invalid because of the environment."""
    bad = [finding for finding in worst_first(findings) if finding.verdict in NOT_PASSED]
    return [finding for finding in bad if finding.part or finding.verdict is not CheckVerdict.INVALID]


def _distinct(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings with another part or evidence: a launch that failed fails several checks alike."""
    return list({(finding.part, finding.evidence): finding for finding in reversed(findings)}.values())[::-1]


def comparison(finding: CheckFinding) -> str:
    """Measured and expected value, their ratio, threshold and source in words; empty where nothing is compared."""
    clauses = []
    if finding.measured is not None:
        unit = "" if finding.unit in _PRINTED_UNITS else finding.unit
        clauses.append(f"got {number_text(finding.measured, finding.unit)} {unit}".rstrip())
    if finding.expected is not None:
        apart = f" ({compared(finding, finding.ratio)})" if finding.ratio is not None else ""
        clauses.append(f"expected {number_text(finding.expected, finding.unit)}{apart}")
    elif finding.ratio is not None:
        clauses.append(f"got {finding.ratio:.3f}")
    warns = finding.fail is None or finding.verdict is CheckVerdict.WARN
    limit = finding.warn if warns else finding.fail
    if limit is not None and clauses:
        falling = finding.fail is None or (finding.warn is not None and finding.fail <= finding.warn)
        below = (falling and limit < 1) != _is_compared(finding)
        clauses.append(f"{'warns' if warns else 'fails'} {'below' if below else 'above'} {compared(finding, limit)}")
    if finding.source:
        clauses = [*clauses[:-1], f"{clauses[-1]} ({finding.source})"] if clauses else [f"expected: {finding.source}"]
    return ", ".join(clauses)


def _is_compared(finding: CheckFinding) -> bool:
    """Whether the ratio is of measured and expected, not a figure with limits of its own."""
    return bool(finding.expected)


def compared(finding: CheckFinding, ratio: float | None) -> str:
    """A ratio of measured over expected as it is printed: how much more was expected; a figure of its own as it is."""
    if ratio is None:
        return ""
    return f"{1 / ratio - 1:+.1%}" if _is_compared(finding) and ratio else f"{ratio:.3g}"


def _is_passed_rate(finding: CheckFinding) -> bool:
    rates = (MATRIX, MEMORY, PEER, ALL_REDUCE, STEP_TIME)
    return finding.check in rates and finding.verdict is CheckVerdict.PASS and finding.ratio is not None


def _rate(finding: CheckFinding) -> str:
    name = _comma(CHECKS[finding.check].name, finding.subject)
    least = finding.least_detectable
    detectable = "" if least is None else f"least detectable slowdown {least:.1%}"
    return _shortened(joined_evidence(f"{name}: {comparison(finding)}", detectable))


def _counts(findings: Sequence[CheckFinding]) -> str:
    """Number of findings with each verdict, and the checks that did not run."""
    ran = {finding.check for finding in findings if finding.verdict is not CheckVerdict.NOT_RUN}
    missing = sorted({finding.check for finding in findings} - ran)
    not_run = f"did not run: {', '.join(CHECKS[check].name for check in missing)}" if missing else ""
    return joined_evidence(f"{_verdict_counts(findings)} ({SIGNS})", not_run)


def _verdict_counts(findings: Sequence[CheckFinding]) -> str:
    counts = ((sum(finding.verdict is verdict for finding in findings), verdict.value) for verdict in CheckVerdict)
    return ", ".join(f"{number} {verdict}" for number, verdict in counts if number)


def _comma(*clauses: str) -> str:
    return ", ".join(clause for clause in clauses if clause)


def _shortened(text: str) -> str:
    return text if len(text) <= _LINE_CHARACTERS else f"{text[: _LINE_CHARACTERS - 4]} ..."


def print_findings(out: Console, report: BatteryReport) -> None:
    """The table of all findings in the order of the checks, what each rests on, and the summary last."""
    rows = []
    for number, finding in enumerate(report.findings, start=1):
        check = " ".join(part for part in (str(finding.check), CHECKS[finding.check].name, finding.subject) if part)
        values = (number_text(value, finding.unit) for value in (finding.measured, finding.expected))
        verdict = coloured(finding.verdict.value, _COLOURS[finding.verdict])
        rows.append([check, *values, compared(finding, finding.ratio), verdict, finding.part, f"({number})"])
    titles = ["check", "measured", "expected", "compared", "verdict", "part", ""]
    print_table(out, rows, titles, right=titles[1:4])
    for number, finding in enumerate(report.findings, start=1):
        print_folded(out, f"({number}) {finding_reason(finding)}")
    for note in [*report.notes, SIGNS]:
        print_folded(out, note)
    out.print(f"record {escape(report.record)}", soft_wrap=True)
    print_folded(out, summary(report), _DECISION_COLOURS[report.decision])


_PRINTED_UNITS = ("flop/s", "byte/s")


def number_text(value: float | None, unit: str) -> str:
    """A finding's number in its unit; empty where the check has none."""
    if value is None:
        return ""
    return f"{printed(value, unit)}{unit}" if unit in _PRINTED_UNITS else f"{value:.4g}"


def finding_reason(finding: CheckFinding) -> str:
    """The basis of a finding: dates, evidence, source of the expected value, limits, least detectable slowdown."""
    limits = ""
    if finding.fail is not None and finding.warn is not None and finding.ratio is not None:
        limits = f"warn {compared(finding, finding.warn)}, fail {compared(finding, finding.fail)}"
    least = "" if finding.least_detectable is None else f"least detectable slowdown {finding.least_detectable:.1%}"
    source = f"expected: {finding.source}" if finding.source else ""
    return joined_evidence(since(finding), finding.evidence, source, limits, least)


def since(finding: CheckFinding) -> str:
    """Between which batteries of this node a finding became bad; empty where no earlier battery shows it."""
    good = f"good until {_battery_name(finding.good_until)}" if finding.good_until else ""
    bad = f"bad since {_battery_name(finding.bad_since)}" if finding.bad_since else ""
    return _comma(good, bad)


def _battery_name(past: PastBattery) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(past.finished))} (battery {past.battery})"


def summary(report: BatteryReport | BatteryEnd) -> str:
    """One line: the decision, every part at fault with its check, and the counts of verdicts.

    Dates are added as far as the line has room, of the worst part first.
    """
    dates: dict[str, str] = {}
    for finding in _bad_findings(report.findings):
        ratio = "" if finding.ratio is None else f" {finding.ratio:.3f} of expected"
        part = finding.part or finding.subject or "unknown part"
        dates.setdefault(f"{CHECKS[finding.check].name} {finding.verdict.value}: {part}{ratio}", since(finding))
    line = f"{report.profile}: {report.decision.value}"
    tail = f" ({_verdict_counts(report.findings)}; {report.seconds:.0f} s)"
    room = _SUMMARY_CHARACTERS - len(tail) - len(f"{line}: {'; '.join(dates)}")
    clauses = []
    for clause, date in dates.items():
        if date and len(date) + 2 <= room:
            room -= len(date) + 2
            clause = f"{clause}, {date}"
        clauses.append(clause)
    if clauses:
        line += f": {'; '.join(clauses)}"
    return f"{line[: _SUMMARY_CHARACTERS - len(tail)]}{tail}"


def junit(report: BatteryReport) -> str:
    """The findings as JUnit XML: failures, errors (what did not end, or is not decidable) and skipped ones."""
    outcomes = {
        CheckVerdict.FAIL: JunitOutcome.FAILURE,
        CheckVerdict.HANG: JunitOutcome.ERROR,
        CheckVerdict.INVALID: JunitOutcome.ERROR,
        CheckVerdict.INCONCLUSIVE: JunitOutcome.ERROR,
        CheckVerdict.NOT_RUN: JunitOutcome.SKIPPED,
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


def print_checks(out: Console) -> None:
    """Print the table of all checks; none is run."""
    rows = []
    for check in CHECKS:
        limits = (
            "any" if limit is None else f"{1 / limit - 1:+.1%}" if check.unit else f"{limit:g}"
            for limit in (check.warn, check.fail)
        )
        rows.append([f"{check.number} {check.name}", *limits, check.formula, check.expects])
    print_table(out, rows, ["check", "warn", "fail", "formula", "expected"])
    print_folded(out, f"limits in percent: of differences, {SIGNS.removeprefix('differences: ')}")


def rows(findings: Sequence[CheckFinding]) -> Iterable[dict[str, object]]:
    """The findings as objects for machines, each with the name of its check."""
    for finding in findings:
        names = zip(finding.__struct_encode_fields__, finding.__struct_fields__, strict=True)
        yield {"name": CHECKS[finding.check].name, **{key: getattr(finding, name) for key, name in names}}
