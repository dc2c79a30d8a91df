"""How a table's frameworks were read as stacks, and the other stack that would change its predictions most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow
from suite.predict.machine_model.model import catalogued, prepared_row, row_step_seconds
from suite.predict.machine_model.rival_stacks import rival_stacks

SAMPLE = 8  # rows of one framework that each other stack is tried on


class FrameworkReading(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the column `framework`, the stack that it was read as, and what hangs on it.

    Args:
        read_as: in words, how.
        rows: that have it, skipped ones left out.
        rival: the stack, of those that execute these layouts, that would change predicted step times most; None: none
            does.
        rival_percent: by how much, the mean of logarithms over `sampled` rows.
        closest: where the table names no framework, the stack whose step times are nearest to the measured ones; None:
            the one that it was read as, or nothing was measured.
        closest_percent: its mean absolute error over the measured ones of the `sampled` rows.
        own_percent: the same of the stack that it was read as.
    """

    framework: str
    stack: str
    read_as: str
    rows: int
    rival: str | None
    rival_percent: float | None
    sampled: int
    closest: str | None = None
    closest_percent: float | None = None
    own_percent: float | None = None


def framework_readings(rows: Sequence[PublishedRow]) -> list[FrameworkReading]:
    """Each framework of rows that are predicted with its stack, the one of most rows first."""
    by_reading: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in rows:
        by_reading.setdefault((row.framework, row.stack), []).append(row)
    readings = [_reading(alike) for alike in by_reading.values()]
    return sorted(readings, key=lambda each: -each.rows)


def _reading(rows: Sequence[PublishedRow]) -> FrameworkReading:
    first = rows[0]
    sample = rows[:: -(-len(rows) // SAMPLE)]
    tried = [_seconds(row, _possible(sample)) for row in sample]
    changes = {
        name: fmean(math.log(seconds[name] / seconds[first.stack]) for seconds in tried)
        for name in tried[0]
        if name != first.stack
    }
    errors = _errors(sample, tried) if not first.framework else {}
    closest = min(errors, key=errors.__getitem__, default=first.stack)
    proposed = closest != first.stack
    rival = max(changes, key=lambda name: abs(changes[name]), default=None)
    return FrameworkReading(
        framework=first.framework,
        stack=first.stack,
        read_as=first.stack_read_as,
        rows=len(rows),
        rival=rival,
        rival_percent=None if rival is None else 100 * math.expm1(changes[rival]),
        sampled=len(sample),
        closest=closest if proposed else None,
        closest_percent=errors[closest] if proposed else None,
        own_percent=errors[first.stack] if proposed else None,
    )


def _possible(rows: Sequence[PublishedRow]) -> list[str]:
    """The rows' own stack, and the others that execute all their layouts."""
    others = [set(rival_stacks(row.stack, catalogued(row.accelerator), row.layout)) for row in rows]
    return [rows[0].stack, *sorted(set.intersection(*others))]


def _seconds(row: PublishedRow, stacks: Sequence[str]) -> dict[str, float]:
    """The row's step time as each of the stacks would execute it."""
    model = machine_model()
    values = model.values()
    # without what a table leaves open: of the likeliest
    prepared = prepared_row(msgspec.structs.replace(row, alternatives=()))
    return {
        name: row_step_seconds(model, values, prepared._replace(row=msgspec.structs.replace(prepared.row, stack=name)))
        for name in stacks
    }


def _errors(rows: Sequence[PublishedRow], tried: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean absolute error of each stack's step times in percent, over the measured rows; empty without one."""
    measured = [(row.step_seconds, each) for row, each in zip(rows, tried, strict=True) if row.step_seconds]
    if not measured:
        return {}
    return {name: 100 * fmean(abs(each[name] / seconds - 1) for seconds, each in measured) for name in tried[0]}
