"""Findings of a battery for people, for a scheduler's health check, and for a CI server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from reference_runs.units import printed
from suite.acceptance.battery import BatteryReport
from suite.acceptance.check_table import (
    ALL_REDUCE,
    BETWEEN_RANKS,
    CHECKS,
    CPU_SPEED,
    ENVIRONMENT,
    MATRIX,
    MEMORY,
    PEER,
    STEP_TIME,
    AcceptanceCheck,
    Sense,
)
from suite.acceptance.findings import joined_evidence
from suite.metrics.difference_words import Direction, difference_in_words
from suite.records.battery import (
    NOT_PASSED,
    BatteryEnd,
    CheckFinding,
    CheckVerdict,
    Decision,
    PastBattery,
    RecoveryAction,
    worst_first,
)
from suite.report.junit import JunitOutcome, JunitSuite
from suite.report.tables import folded
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
_SUMMARY_CHARACTERS = 400  # of the one-line summary: schedulers store a line of about that
_LINES, _STEPS = 15, 6  # of the short form, before narrow terminals fold them: what was found, and what to do


def print_verdict(out: Console, report: BatteryReport, again: str = "") -> None:
    """The short form: at most 15 lines on what was found, then at most 8 on what to do next.

    Verdict, parts at fault, what was measured and expected, and the evidence; then an order for each part, with the
    command that begins it. Lines are folded between words on a terminal, and whole elsewhere.

    Args:
        again: the command that comes after all of these.
    """
    shown = _distinct(_shown_findings(report.findings))
    headline, first_part = _headline(report)
    blocks = [_explained(finding, first_part if number == 0 else "") for number, finding in enumerate(shown)]
    if report.decision is Decision.ACCEPTED:
        blocks += [[_VerdictLine("PASS  ", _rate(finding))] for finding in report.findings if _is_passed_rate(finding)]
    end = f"{report.seconds:.0f} s; --all prints every finding; record {report.record}"
    tail = [line for line in (_counts(report.findings), "; ".join(report.notes), end) if line]
    lines = [_VerdictLine("", headline, _DECISION_COLOURS[report.decision])]
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        if len(lines) + len(block) + (not last) + len(tail) > _LINES:
            lines.append(_VerdictLine("", f"{len(blocks) - number} more"))
            break
        lines += block
    for line in [*lines, *(_VerdictLine("", text) for text in tail), *_next_steps(report, again)]:
        _print_line(out, line)


class _VerdictLine(NamedTuple):
    """A line of the short form: a verdict or an indent, the text, and its colour."""

    head: str
    text: str
    style: str = ""


def _print_line(out: Console, line: _VerdictLine) -> None:
    """Print a line; folded, its text stays right of its head."""
    text = f"{line.head}{line.text}"
    if out.is_terminal:
        text = folded(text, out.width, indent=" " * max(4, len(line.head)))
    shown = Text(text, line.style if not line.head.strip() else "")
    if line.head.strip() and line.style:
        shown.stylize(line.style, 0, len(line.head.rstrip()))
    out.print(shown, soft_wrap=True)


def _explained(finding: CheckFinding, said: str) -> list[_VerdictLine]:
    """The check, the part at fault unless the first line `said` it, what was measured and expected, the evidence."""
    part = finding.part or finding.subject
    check = _comma(f"check {finding.check}", CHECKS[finding.check].name, finding.subject)
    title = check if part in (said, finding.subject) else f"{check}: {part}"
    head = f"{finding.verdict.value}  "
    details = (comparison(finding), finding.evidence, since(finding))
    return [
        _VerdictLine(head, title, _COLOURS[finding.verdict]),
        *(_VerdictLine("      ", detail) for detail in details if detail),
    ]


def _shown_findings(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings that the short form explains: bad ones and warnings; in an invalid environment no other invalid ones."""
    bad = _bad_findings(findings)
    if any(finding.check == ENVIRONMENT and finding.verdict is CheckVerdict.INVALID for finding in bad):
        bad = [
            finding for finding in bad if finding.check == ENVIRONMENT or finding.verdict is not CheckVerdict.INVALID
        ]
    return [*bad, *(finding for finding in findings if finding.verdict is CheckVerdict.WARN)]


def _headline(report: BatteryReport) -> tuple[str, str]:
    """The first line, and the part at fault that it names; empty where it names none."""
    decision = report.decision.value
    if report.decision is Decision.ACCEPTED:
        ran = {finding.check for finding in report.findings if finding.verdict is not CheckVerdict.NOT_RUN}
        return f"{decision}: {len(ran)} checks ran, none failed", ""
    bad = [finding for finding in _shown_findings(report.findings) if finding.verdict is not CheckVerdict.WARN]
    if not bad:
        return f"{decision}: nothing was measured", ""
    parts = list(dict.fromkeys(finding.part or finding.subject or "unknown part" for finding in bad))
    more = f", and {len(parts) - 1} more" if len(parts) > 1 else ""
    return f"{decision}: {parts[0]}{more}", parts[0]


def _next_steps(report: BatteryReport, again: str) -> list[_VerdictLine]:
    """An order for each part, the worst first, and the command that comes last.

    Of an accepted node only what does not pass by itself: a warning that asks for a repetition alone needs none.
    """
    accepted = report.decision is Decision.ACCEPTED
    passing = (None, RecoveryAction.NONE, RecoveryAction.REPEAT) if accepted else (None, RecoveryAction.NONE)
    shown = [finding for finding in _shown_findings(report.findings) if finding.action not in passing]
    orders: dict[tuple[str, str, str], str] = {}
    for one in shown:  # of several checks that failed on one part, the first
        orders.setdefault((one.part or one.subject, one.to_do, one.command), next_step(one))
    steps = [*orders.values()]
    head = "later  " if accepted else "next   "
    lines = [_VerdictLine(head, step) for step in steps[:_STEPS]]
    if len(steps) > _STEPS:
        lines.append(_VerdictLine("", f"{len(steps) - _STEPS} more"))
    if accepted or not again:
        return lines
    drained = report.decision in (Decision.REJECTED, Decision.EXECUTION_FAILED)
    return [*lines, _VerdictLine("then   ", ("drain the node until this passes: " if drained else "") + again)]


def next_step(finding: CheckFinding) -> str:
    """A line: the check and the part that failed, what to do, and the command that begins it."""
    part = finding.part or finding.subject
    return ": ".join(words for words in (CHECKS[finding.check].name, part, finding.to_do, finding.command) if words)


def _bad_findings(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings that did not pass, worst first; without those that are invalid because of the environment."""
    bad = [finding for finding in worst_first(findings) if finding.verdict in NOT_PASSED]
    return [finding for finding in bad if finding.part or finding.verdict is not CheckVerdict.INVALID]


def _distinct(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Findings with another part or evidence: a launch that failed fails several checks alike."""
    return list({(finding.part, finding.evidence): finding for finding in reversed(findings)}.values())[::-1]


def comparison(finding: CheckFinding) -> str:
    """Measured value, how it differs from the expected one, its source and threshold; empty where nothing is compared.

    "90 Gflop/s, 10.0 % slower than expected (100 Gflop/s: data sheet); fails at 20.0 % slower"
    """
    measured = amount_text(finding.measured, finding.unit)
    if finding.measured is None and finding.ratio is not None and not _is_compared(finding):
        measured = f"{finding.ratio:.3f}"
    apart = compared(finding, finding.ratio, than="expected") if _is_compared(finding) else ""
    expected = "" if finding.expected is None else amount_text(finding.expected, _rate_unit(finding.unit))
    if expected and not apart:
        expected, apart = "", f"expected {expected}"
    basis = ": ".join(part for part in (expected, finding.source) if part)
    basis = f"({basis})" if basis and (measured or apart) else f"expected: {basis}" if basis else ""
    return joined_evidence(" ".join(part for part in (_comma(measured, apart), basis) if part), _limit(finding))


def _limit(finding: CheckFinding) -> str:
    """The threshold that a finding was held to; empty where it has none or nothing was measured."""
    warns = finding.fail is None or finding.verdict is CheckVerdict.WARN
    limit = finding.warn if warns else finding.fail
    if limit is None or (finding.measured is None and finding.ratio is None):
        return ""
    what = "warns" if warns else "fails"
    if _is_compared(finding):
        return f"{what} below that" if limit == 1 else f"{what} at {compared(finding, limit)}"
    falling = finding.fail is None or (finding.warn is not None and finding.fail <= finding.warn)
    return f"{what} {'below' if falling and limit < 1 else 'above'} {limit:.3g}"


def _is_compared(finding: CheckFinding) -> bool:
    """Whether the ratio is of measured and expected, not a figure with limits of its own."""
    return bool(finding.expected) or finding.check in BETWEEN_RANKS


def compared(finding: CheckFinding, ratio: float | None, *, than: str = "") -> str:
    """A ratio of measured over expected in words; a figure of its own as it is; empty for None."""
    if ratio is None:
        return ""
    if not _is_compared(finding):
        return f"{ratio:.3g}"
    check = CPU_SPEED if finding.unit == CPU_SPEED.unit else CHECKS[finding.check]
    return difference_in_words(ratio, 1.0, _scale(check), than=than)


def _scale(check: AcceptanceCheck) -> Direction:
    """Direction of a check's ratio: of rates, or of seconds."""
    return Direction.TIME if check.sense is Sense.LOWER_IS_BETTER else Direction.RATE


def _is_passed_rate(finding: CheckFinding) -> bool:
    rates = (MATRIX, MEMORY, PEER, ALL_REDUCE, STEP_TIME)
    return finding.check in rates and finding.verdict is CheckVerdict.PASS and finding.ratio is not None


def _rate(finding: CheckFinding) -> str:
    name = _comma(CHECKS[finding.check].name, finding.subject)
    least = finding.least_detectable
    detectable = "" if least is None else f"least detectable slowdown {least:.1%}"
    return joined_evidence(f"{name}: {comparison(finding)}", detectable)


def _counts(findings: Sequence[CheckFinding]) -> str:
    """Number of findings with each verdict, and the checks that did not run."""
    ran = {finding.check for finding in findings if finding.verdict is not CheckVerdict.NOT_RUN}
    missing = sorted({finding.check for finding in findings} - ran)
    not_run = f"did not run: {', '.join(CHECKS[check].name for check in missing)}" if missing else ""
    return joined_evidence(_verdict_counts(findings), not_run)


def _verdict_counts(findings: Sequence[CheckFinding]) -> str:
    counts = ((sum(finding.verdict is verdict for finding in findings), verdict.value) for verdict in CheckVerdict)
    return ", ".join(f"{number} {verdict}" for number, verdict in counts if number)


def _comma(*clauses: str) -> str:
    return ", ".join(clause for clause in clauses if clause)


def print_findings(out: Console, report: BatteryReport, again: str = "") -> None:
    """The table of all findings in the order of the checks, what each rests on, the summary, and what to do next."""
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
    for note in report.notes:
        print_folded(out, note)
    out.print(f"record {escape(report.record)}", soft_wrap=True)
    print_folded(out, summary(report), _DECISION_COLOURS[report.decision])
    for line in _next_steps(report, again):
        _print_line(out, line)


_PRINTED_UNITS = ("flop/s", "byte/s")


def number_text(value: float | None, unit: str) -> str:
    """A finding's number in its unit; empty where the check has none."""
    if value is None:
        return ""
    return f"{printed(value, unit)}{unit}" if unit in _PRINTED_UNITS else f"{value:.4g}"


def amount_text(value: float | None, unit: str) -> str:
    """The same with the unit in words, such as "0.96 of the prediction"."""
    return f"{number_text(value, unit)} {'' if unit in _PRINTED_UNITS else unit}".strip() if value is not None else ""


def _rate_unit(unit: str) -> str:
    """The unit of an expected value, which stands in words with the measured one alone."""
    return unit if unit in _PRINTED_UNITS else ""


def finding_reason(finding: CheckFinding) -> str:
    """The basis of a finding: dates, evidence, source of the expected value, limits, least detectable slowdown, and
    what to do next.
    """
    limits = ""
    if finding.fail is not None and finding.warn is not None and finding.ratio is not None:
        limits = f"warn {compared(finding, finding.warn)}, fail {compared(finding, finding.fail)}"
    least = "" if finding.least_detectable is None else f"least detectable slowdown {finding.least_detectable:.1%}"
    source = f"expected: {finding.source}" if finding.source else ""
    to_do = f"next: {finding.to_do}" if finding.to_do else ""
    return joined_evidence(since(finding), finding.evidence, source, limits, least, to_do)


def since(finding: CheckFinding) -> str:
    """Between which batteries of this node a finding became bad; empty where no earlier battery shows it."""
    good = f"good until {_battery_name(finding.good_until)}" if finding.good_until else ""
    bad = f"bad since {_battery_name(finding.bad_since)}" if finding.bad_since else ""
    return _comma(good, bad)


def _battery_name(past: PastBattery) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(past.finished))} (battery {past.battery})"


def summary(report: BatteryReport | BatteryEnd) -> str:
    """One line: the decision, every part at fault with its check and what to do, and the counts of verdicts.

    Dates are added as far as the line has room, of the worst part first.
    """
    dates: dict[str, str] = {}
    for finding in _bad_findings(report.findings):
        part = finding.part or finding.subject or "unknown part"
        apart = compared(finding, finding.ratio, than="expected")
        told = _comma(part, apart, f"next: {finding.action.value}" if finding.to_do and finding.action else "")
        dates.setdefault(f"{CHECKS[finding.check].name} {finding.verdict.value}: {told}", since(finding))
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
        limits = ("any" if limit is None else _threshold_text(check, limit) for limit in (check.warn, check.fail))
        rows.append([f"{check.number} {check.name}", *limits, check.formula, check.expects])
    print_table(out, rows, ["check", "warn", "fail", "formula", "expected"])
    print_folded(out, "warn, fail: the least difference from the expected value, or the least value, that does so")


def _threshold_text(check: AcceptanceCheck, limit: float) -> str:
    is_ratio = bool(check.unit) or check.number in BETWEEN_RANKS
    return difference_in_words(limit, 1.0, _scale(check)) if is_ratio else f"{limit:g}"


def rows(findings: Sequence[CheckFinding]) -> Iterable[dict[str, object]]:
    """The findings as objects for machines, each with the name of its check."""
    for finding in findings:
        names = zip(finding.__struct_encode_fields__, finding.__struct_fields__, strict=True)
        yield {"name": CHECKS[finding.check].name, **{key: getattr(finding, name) for key, name in names}}
