"""Arithmetic that published texts do in passing: what they state, claim and conclude, and where they slip."""

from __future__ import annotations

import enum
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import read_toml, shown_path
from reference_runs.units import UNITS

WORKED_EXAMPLES = Path(__file__).parent / "worked_examples.toml"
RATIO_UNITS = ("flop/byte", "byte/parameter", "year")  # besides the units of recorded runs; their own base units

Input = int | float | str | tuple[int | float, ...]


class Agreement(enum.StrEnum):
    """Whether a claim is what its formula gives for its inputs."""

    AGREES = "agrees"
    DIFFERS = "differs"


class ExampleResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One result of an example, in digits as printed; without a unit, in words.

    Args:
        claimed: None where the text prints no number.
        exact: what the formula gives.
        rounded_to: step to which the text rounds, where that is coarser than the claim's last digit.
    """

    what: str
    exact: str
    verdict: Agreement
    claimed: str | None = None
    unit: str | None = None
    rounded_to: str | None = None

    @property
    def base_unit(self) -> str | None:
        """The unit of `base_claimed` and `base_exact`; None for words."""
        return self.unit if self.unit is None or self.unit in RATIO_UNITS else UNITS[self.unit][0]

    @property
    def unit_factor(self) -> Decimal:
        """Base units in one recorded unit."""
        return Decimal(1) if self.unit is None or self.unit in RATIO_UNITS else Decimal(str(UNITS[self.unit][1]))

    @property
    def base_exact(self) -> Decimal:
        """The exact number in base units."""
        return Decimal(self.exact) * self.unit_factor

    @property
    def base_claimed(self) -> Decimal | None:
        """The claimed number in base units."""
        return None if self.claimed is None else Decimal(self.claimed) * self.unit_factor

    @property
    def exact_half_step(self) -> Decimal:
        """Half a unit of the last written digit of `exact`, in base units."""
        return _last_digit(self.exact) * self.unit_factor / 2

    @property
    def claimed_half_step(self) -> Decimal:
        """Half a unit of the claim's last printed digit, or half of `rounded_to`, in base units."""
        step = _last_digit(self.claimed or "0") if self.rounded_to is None else Decimal(self.rounded_to)
        return step * self.unit_factor / 2


class WorkedExample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One calculation of a document.

    Args:
        document: its title.
        formula: in words.
        inputs: by the name of the formula's parameter, in base units; texts name a recorded run.
        why: where the document slips; empty where every result agrees.
        found_here: the document is a source of the formulas, and this slip is a finding of this project.
    """

    id: str
    document: str
    formula: str
    inputs: dict[str, Input]
    results: tuple[ExampleResult, ...]
    note: str = ""
    why: str = ""
    found_here: bool = False

    @property
    def verdict(self) -> Agreement:
        """Differs where one of the results does."""
        differs = any(result.verdict is Agreement.DIFFERS for result in self.results)
        return Agreement.DIFFERS if differs else Agreement.AGREES


def _last_digit(digits: str) -> Decimal:
    exponent = Decimal(digits).as_tuple().exponent
    assert isinstance(exponent, int)  # finite, as `load` makes sure
    return Decimal(1).scaleb(exponent)


def load(path: Path = WORKED_EXAMPLES) -> tuple[WorkedExample, ...]:
    """The worked examples that the TOML file at `path` records, in its order.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, an unknown document or unit,
            digits that are no number, a name given twice, or a reason without a slip or a slip without a reason.
    """
    where = shown_path(path)
    raw = read_toml(path, what="worked examples", known={"documents", "example"})
    documents, tables = raw.get("documents", {}), raw.get("example", [])
    if not isinstance(documents, dict) or not all(isinstance(title, str) for title in documents.values()):
        raise InputError("documents: expected a table of texts", got=repr(documents), where=where)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("example: expected tables [[example]]", got=repr(tables), where=where)
    examples: dict[str, WorkedExample] = {}
    for number, table in enumerate(tables):
        example = _example(table, f"example.{table.get('id', number)}", documents, where)
        if example.id in examples:
            raise InputError(f"example.{example.id}: id given twice", where=where)
        examples[example.id] = example
    return tuple(examples.values())


def _example(table: dict[str, Any], label: str, documents: dict[str, str], where: str) -> WorkedExample:
    try:
        example = msgspec.convert(table, WorkedExample)
    except msgspec.ValidationError as error:
        raise InputError(f"{label}: {error}", where=where) from error
    if example.document not in documents:
        what, allowed = f"{label}.document: not a key of [documents]", ", ".join(documents)
        raise InputError(what, got=repr(example.document), allowed=allowed, where=where)
    if not example.results:
        raise InputError(f"{label}.results: expected one at least", where=where)
    names = [result.what for result in example.results]
    for result in example.results:
        key = f"{label}.results.{result.what}"
        if names.count(result.what) > 1:
            raise InputError(f"{key}: given twice", where=where)
        _check_result(result, key, where)
    if bool(example.why) != (example.verdict is Agreement.DIFFERS):
        raise InputError(f"{label}.why: needed where a result differs, and only there", where=where)
    return msgspec.structs.replace(example, document=documents[example.document])


def _check_result(result: ExampleResult, key: str, where: str) -> None:
    if result.unit is not None and result.unit not in UNITS and result.unit not in RATIO_UNITS:
        allowed = ", ".join((*UNITS, *RATIO_UNITS))
        raise InputError(f"{key}.unit: unknown", got=repr(result.unit), allowed=allowed, where=where)
    if result.verdict is Agreement.DIFFERS and result.claimed is None:
        raise InputError(f"{key}.claimed: needed, as nothing else can differ", where=where)
    if result.rounded_to is not None and (result.unit is None or result.claimed is None):
        raise InputError(f"{key}.rounded_to: belongs to a claimed number", where=where)
    if result.unit is None:
        return
    for name in ("claimed", "exact", "rounded_to"):
        digits = getattr(result, name)
        try:
            is_number = digits is None or Decimal(digits).is_finite()
        except InvalidOperation:
            is_number = False
        if not is_number:
            raise InputError(f"{key}.{name}: expected digits", got=repr(digits), where=where)
    if result.rounded_to is not None and Decimal(result.rounded_to) <= _last_digit(result.claimed or "0"):
        what = f"{key}.rounded_to: expected more than a unit of the claim's last digit"
        raise InputError(what, got=repr(result.rounded_to), where=where)
