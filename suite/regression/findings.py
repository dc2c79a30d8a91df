"""Change of every quantity of a run since its baseline: by one launch, or by a verdict on times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from suite.metrics.difference_words import Direction, direction
from suite.metrics.figures import EXACT, Figure, Quantity
from suite.records.record import Record
from suite.regression.verdicts import ChangeVerdict, JudgedChange

# relative; the tolerances of the predictions (suite.predict), which are the reasons too
TOLERANCE = {
    Quantity.ACTIVATION_BYTES: 0.02,
    Quantity.PEAK_BYTES: 0.02,
    Quantity.SENT_BYTES: 0.03,
    Quantity.FIRST_LOSS: 0.02,
}
LOSSES = "losses"  # of all steps of rank 0

BeforeAfter = tuple[int | float | None, int | float | None]
RankFigureKey = tuple[str, str | None, str | None, int | None, int | None, str | None]


class RegressionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity: baseline, now, and the verdict. What does not apply is null.

    Args:
        before, after: of times the medians of the launches; of what one launch decides its value.
        ratio: after over before, with `interval`.
        q, family, band, least_detectable, rerun: as of `suite.regression.verdicts.JudgedChange`; `rerun` is a ratio.
    """

    run: str
    quantity: str
    axis: str | None = None
    operation: str | None = None
    rank: int | None = None
    stage: int | None = None
    term: str | None = None
    unit: str = "1"
    before: int | float | None
    after: int | float | None
    before_launches: int
    after_launches: int
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    q: float | None = None
    family: int | None = None
    band: float | None = None
    least_detectable: float | None = None
    rerun: float | None = None
    change: ChangeVerdict
    why: str


def time_finding(
    run: str, quantity: str, unit: str, before: Sequence[float], after: Sequence[float], verdict: JudgedChange
) -> RegressionFinding:
    """One member of the family of times."""
    return RegressionFinding(
        run=run,
        quantity=quantity,
        unit=unit,
        before=statistics.median(before),
        after=statistics.median(after),
        before_launches=len(before),
        after_launches=len(after),
        ratio=verdict.difference.ratio,
        interval=verdict.difference.interval,
        q=verdict.q,
        family=verdict.family,
        band=verdict.band,
        least_detectable=verdict.least_detectable,
        rerun=None if verdict.rerun is None else verdict.rerun.ratio,
        change=verdict.change,
        why=verdict.why,
    )


def record_findings(run: str, before: Sequence[Record], after: Sequence[Record]) -> list[RegressionFinding]:
    """Everything but the step's seconds themselves, in the order of the vocabulary; records that ended well.

    Exact quantities and, of one stack and seed, losses: by ==, with one launch. Memory and bytes on the wire: by one
    launch too, within their tolerance. Terms and rates follow from the step's seconds, or split them: they are shown
    and belong to no family, as they would count the same seconds twice.
    """
    left, right = _values(before), _values(after)
    why_not = _why_losses_may_differ(before, after)
    counts = len(before), len(after)
    findings = []
    for key in dict.fromkeys([*left, *right]):
        if key == (Quantity.STEP_SECONDS, None, None, None, None, None):
            continue
        sides = left.get(key, []), right.get(key, [])
        findings.append(_finding(run, key, sides, counts, why_not=why_not))
    order = {quantity.value: index for index, quantity in enumerate(Quantity)}
    findings.sort(key=lambda finding: (order[finding.quantity], finding.rank is not None))
    return [*findings, _losses(run, before, after, why_not)]


def _values(records: Sequence[Record]) -> dict[RankFigureKey, list[int | float]]:
    values: dict[RankFigureKey, list[int | float]] = {}
    for record in records:
        figures: list[Figure] = record.end.figures if record.end else []
        for figure in figures:
            values.setdefault(figure.key, []).append(figure.value)
    return values


def _finding(
    run: str,
    key: RankFigureKey,
    sides: tuple[list[int | float], list[int | float]],
    counts: tuple[int, int],
    *,
    why_not: str,
) -> RegressionFinding:
    quantity = Quantity(key[0])
    before, after = sides
    values: BeforeAfter
    if quantity in EXACT:
        values, change, why = _exact(before, after, counts)
    elif quantity in TOLERANCE and before and after:
        values, change, why = _within(quantity, before, after, why_not)
    else:
        values = (statistics.median(before) if before else None, statistics.median(after) if after else None)
        change, why = ChangeVerdict.SHOWN, "" if before and after else "of one side alone"
    ratio = values[1] / values[0] if values[0] and values[1] is not None else None
    names = dict(zip(("quantity", "axis", "operation", "rank", "stage", "term"), key, strict=True))
    return RegressionFinding(
        run=run,
        **names,  # type: ignore[arg-type]  # the key's parts have the fields' types
        unit=quantity.unit,
        before=values[0],
        after=values[1],
        before_launches=counts[0],
        after_launches=counts[1],
        ratio=ratio,
        change=change,
        why=why,
    )


def _exact(
    before: list[int | float], after: list[int | float], counts: tuple[int, int]
) -> tuple[BeforeAfter, ChangeVerdict, str]:
    """One launch decides, in either direction: what counts less may have been left out, until somebody accepts it."""
    first, now = next(iter(before), None), next(iter(after), None)
    if first is None or now is None:
        why = "no longer counted" if now is None else "not counted in the baseline"
        return (first, now), ChangeVerdict.REGRESSION, why
    if len({*before}) > 1 or len(before) < counts[0]:
        return (first, now), ChangeVerdict.INCONCLUSIVE, "the baseline's launches disagree"
    other = next((value for value in after if value != first), None)
    if other is not None:
        more = direction(other, first, Direction.AMOUNT)
        return (first, other), ChangeVerdict.REGRESSION, f"exact: {abs(other - first):,} {more}"
    if len(after) < counts[1]:
        return (first, now), ChangeVerdict.REGRESSION, "exact: some launches do not count it"
    return (first, now), ChangeVerdict.SAME, "exact"


def _within(
    quantity: Quantity, before: list[int | float], after: list[int | float], why_not: str
) -> tuple[BeforeAfter, ChangeVerdict, str]:
    """The largest of each side within the tolerance; the first loss of one stack by ==, on any side of its worst."""
    if quantity is Quantity.FIRST_LOSS and not why_not:
        first = before[0]
        other = next((value for value in after if value != first), None)
        if len({*before}) > 1:
            return (first, after[0]), ChangeVerdict.INCONCLUSIVE, "the baseline's launches disagree"
        if other is None:
            return (first, first), ChangeVerdict.SAME, "bit-equal"
        return (first, other), ChangeVerdict.REGRESSION, "one stack and seed, but not bit-equal"
    left, right = max(before), max(after)
    tolerance = TOLERANCE[quantity]
    if left == right:
        return (left, right), ChangeVerdict.SAME, "equal"
    if abs(right - left) <= tolerance * abs(left):
        return (left, right), ChangeVerdict.SAME, f"within {tolerance:.0%}"
    if quantity is Quantity.FIRST_LOSS:
        return (left, right), ChangeVerdict.REGRESSION, f"beyond {tolerance:.0%}; {why_not}"
    change = ChangeVerdict.REGRESSION if right > left else ChangeVerdict.IMPROVED
    return (left, right), change, f"beyond {tolerance:.0%}"


def _why_losses_may_differ(before: Sequence[Record], after: Sequence[Record]) -> str:
    """Why losses need not be bit-equal; empty where they must be: all but this suite's own code is the same."""
    stacks = {
        (record.begin.corpus.sha256, tuple(sorted((k, v) for k, v in record.begin.software.items() if k != "suite")))
        for record in [*before, *after]
    }
    if len({corpus for corpus, _ in stacks}) > 1:
        return "another corpus"
    if len(stacks) > 1:
        return "another software stack"
    if any(record.begin.policy.get("deterministic") != "True" for record in [*before, *after]):
        return "not deterministic"
    return ""


def _losses(run: str, before: Sequence[Record], after: Sequence[Record], why_not: str) -> RegressionFinding:
    """The losses of all steps, which are bit-equal with one stack and seed."""
    left, right = ([_curve(record) for record in side] for side in (before, after))
    first, now = left[0], right[0]
    first_before, first_after = (_first_difference(first, curves) for curves in (left, right))
    if why_not:
        change, why = ChangeVerdict.SHOWN, why_not
    elif first_before is not None:
        change, why = ChangeVerdict.INCONCLUSIVE, "the baseline's launches disagree"
    elif first_after is not None:
        change, why = ChangeVerdict.REGRESSION, f"one stack and seed, but not bit-equal from step {first_after} on"
    else:
        change, why = ChangeVerdict.SAME, f"bit-equal in {len(first)} steps"
    return RegressionFinding(
        run=run,
        quantity=LOSSES,
        before=first[-1] if first else None,
        after=now[-1] if now else None,
        before_launches=len(before),
        after_launches=len(after),
        change=change,
        why=why,
    )


def _first_difference(first: Sequence[float], curves: Sequence[Sequence[float]]) -> int | None:
    """The first step in which any of the curves leaves the first one; None where none does."""
    steps = (step for curve in curves for step, (x, y) in enumerate(zip(first, curve, strict=False)) if x != y)
    return min(steps, default=None)


def _curve(record: Record) -> list[float]:
    return [step.loss for step in record.end.ranks[0].steps] if record.end and record.end.ranks else []
