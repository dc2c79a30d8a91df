"""Checks the worked examples: what `suite.predict` computes against what the text claims."""

from __future__ import annotations

import enum
from decimal import Decimal

import msgspec

from reference_runs.worked_examples import Agreement, ExampleResult, WorkedExample
from suite.predict.validation.computations import COMPUTATIONS, Value
from suite.predict.validation.lessons import Computed


class ExampleVerdict(enum.StrEnum):
    """Verdict of one result.

    agrees: the text's claim is what the formula gives, or it has none.
    slips: it is not, as recorded.
    broken: the formula does not give the recorded figure, or the verdict is not the recorded one.
    """

    AGREES = "agrees"
    SLIPS = "slips"
    BROKEN = "broken"


class FormulaResult(msgspec.Struct, frozen=True, kw_only=True):
    """One checked result, in base units or words.

    Args:
        recorded_unit: in which the text prints it.
        claimed: None where the text prints nothing.
        computed: None where no function is assigned to the example.
        difference: computed - claimed.
        found_here: a slip that this project found in a source of its formulas.
        why: where the text slips, how it rounds where it rounds coarsely, or what is broken.
    """

    id: str
    document: str
    what: str
    unit: str | None
    recorded_unit: str | None
    claimed: Value | None
    computed: Value | None
    exact: Value
    difference: int | float | None
    verdict: ExampleVerdict
    found_here: bool
    why: str


def computed_values(example: WorkedExample) -> Computed:
    """Values that the formulas give for an example's inputs, by result; empty where none is assigned to it."""
    computation = COMPUTATIONS.get(example.id)
    if computation is None:
        return {}
    values = computation(**example.inputs)
    return values if isinstance(values, dict) else {example.results[0].what: values}


def formula_results(example: WorkedExample) -> list[FormulaResult]:
    """Every result of an example: claimed, computed, and whether they agree at the claim's printed precision."""
    computed = computed_values(example)
    return [_checked(example, result, computed.get(result.what)) for result in example.results]


def _checked(example: WorkedExample, result: ExampleResult, computed: Value | None) -> FormulaResult:
    difference: Decimal | None = None
    if result.unit is None:
        exact: Value = result.exact
        claimed: Value | None = result.claimed
        right = computed == exact
        agrees = claimed is None or computed == claimed
    else:
        exact, claimed = _number(result.base_exact), None
        right, agrees = False, result.claimed is None
        if result.base_claimed is not None:
            claimed = _number(result.base_claimed)
        if isinstance(computed, (int, float)):
            right = abs(_decimal(computed) - result.base_exact) <= result.exact_half_step
            if result.base_claimed is not None:
                difference = _decimal(computed) - result.base_claimed
                agrees = abs(difference) <= result.claimed_half_step
    verdict = ExampleVerdict.AGREES if agrees else ExampleVerdict.SLIPS
    why = example.why if verdict is ExampleVerdict.SLIPS else example.note if result.rounded_to else ""
    recorded = ExampleVerdict.AGREES if result.verdict is Agreement.AGREES else ExampleVerdict.SLIPS
    broken = [
        words
        for words, holds in (
            ("no function computes it", computed is not None),
            (f"computed {computed}, recorded {exact}", computed is None or right),
            (f"{verdict.value}, recorded as {result.verdict.value}", computed is None or verdict is recorded),
        )
        if not holds
    ]
    return FormulaResult(
        id=example.id,
        document=example.document,
        what=result.what,
        unit=result.base_unit,
        recorded_unit=result.unit,
        claimed=claimed,
        computed=computed,
        exact=exact,
        difference=None if difference is None else _number(difference),
        verdict=ExampleVerdict.BROKEN if broken else verdict,
        found_here=example.found_here,
        why="; ".join(broken) or why,
    )


def _decimal(value: float) -> Decimal:
    """The number to 12 digits: less than any claim's, more than rounding errors reach, so that ties are ties."""
    return Decimal(value) if isinstance(value, int) else Decimal(f"{value:.12g}")


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
