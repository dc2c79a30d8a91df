"""The cells of one row of a published table: read as numbers and choices, blank ones filled by assumptions."""

from __future__ import annotations

import enum
import math
import typing

from reference_runs.published_tables import Assumption
from reference_runs.stack import matches

LARGEST, SMALLEST, MOST = 1e18, 1e-9, 10**8  # what no number, no time or size, and no count of a real run exceeds
MOST_LAYERS = 10_000
Choice = typing.TypeVar("Choice", bound=enum.StrEnum)
_TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class UnusableError(Exception):
    """Why a row cannot be used."""


class Cells:
    """The cells of one row by column; blank ones are filled by the table's assumptions, which are noted in `assumed`.

    `known` has texts found on the way (accelerator, stack) that assumptions may ask for.
    """

    def __init__(self, stated: dict[str, str], assumptions: dict[str, list[Assumption]]) -> None:
        self.stated = stated
        self.assumptions = assumptions
        self.known: dict[str, str] = {}
        self.assumed: list[str] = []

    def text(self, column: str) -> str:
        """What the row says, or what is assumed.

        Raises:
            UnusableError: neither.
        """
        said = self.stated.get(column) or self.known.get(column)
        if said:
            return said
        for assumption in self.assumptions.get(column, ()):
            if (value := self._value(assumption)) is not None:
                self.assumed.append(f"{column} = {value}")
                self.known[column] = value
                return value
        raise UnusableError(f"{column} is blank")

    def _value(self, assumption: Assumption) -> str | None:
        for column, patterns in assumption.where.items():
            text = self.said(column)
            if not any(matches(pattern, text) for pattern in patterns):
                return None
        if not assumption.same_as:
            value = assumption.values.get(self.said(assumption.by)) if assumption.by else assumption.value
            return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)
        number = assumption.times * self.count(assumption.same_as)
        if assumption.padded_to and number % (tensor_parallel := self.count("tp")):
            multiple = assumption.padded_to * tensor_parallel
            number = -(-number // multiple) * multiple
        return str(number)

    def said(self, column: str) -> str:
        """As `text`, and empty where nothing is said and nothing assumed."""
        try:
            return self.text(column)
        except UnusableError:
            return ""

    def number(self, column: str) -> float:
        """A number from 0 to `LARGEST`."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= LARGEST:
            raise UnusableError(f"{column}: expected a number from 0 to {LARGEST:g}; got {text!r}")
        return number

    def positive(self, column: str) -> float:
        """A number from `SMALLEST` to `LARGEST`."""
        number = self.number(column)
        if number < SMALLEST:
            raise UnusableError(f"{column}: expected a number from {SMALLEST:g} on; got {self.text(column)!r}")
        return number

    def count(self, column: str, *, least: int = 1, most: int = MOST) -> int:
        """An integer from `least` to `most`."""
        number = self.number(column)
        if number != int(number) or not least <= number <= most:
            raise UnusableError(f"{column}: expected an integer from {least} to {most}; got {self.text(column)!r}")
        return int(number)

    def claim(self, column: str) -> bool:
        """Whether it is so."""
        text = self.text(column)
        if (claim := _TRUTH.get(text.casefold())) is None:
            raise UnusableError(f"{column}: got {text!r}, allowed: {', '.join(_TRUTH)}")
        return claim

    def choice(self, column: str, allowed: type[Choice]) -> Choice:
        """The member of an enum that is written so."""
        text = self.text(column)
        try:
            return allowed(text.casefold())
        except ValueError as error:
            raise UnusableError(f"{column}: got {text!r}, allowed: {', '.join(allowed)}") from error
