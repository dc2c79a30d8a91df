"""How a table's frameworks were read as stacks, and the other stack that would change its predictions most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow
from suite.predict.machine_model.model import prepared_row, row_step_seconds
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
    """

    framework: str
    stack: str
    read_as: str
    rows: int
    rival: str | None
    rival_percent: float | None
    sampled: int


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
    changes = _changes(sample)
    rival = max(changes, key=lambda name: abs(changes[name]), default=None)
    return FrameworkReading(
        framework=first.framework,
        stack=first.stack,
        read_as=first.stack_read_as,
        rows=len(rows),
        rival=rival,
        rival_percent=None if rival is None else 100 * math.expm1(changes[rival]),
        sampled=len(sample),
    )


def _changes(rows: Sequence[PublishedRow]) -> dict[str, float]:
    """Mean logarithm of step times over those of the rows' stack, for each stack that executes all layouts."""
    possible = [set(rival_stacks(row.stack, row.accelerator, row.layout)) for row in rows]
    names = sorted(set.intersection(*possible))
    model = machine_model()
    values = model.values()
    changes = dict.fromkeys(names, 0.0)
    for row in rows:
        # without what a table leaves open: of the likeliest
        prepared = prepared_row(msgspec.structs.replace(row, alternatives=()))
        own = row_step_seconds(model, values, prepared)
        for name in names:
            other = prepared._replace(row=msgspec.structs.replace(prepared.row, stack=name))
            changes[name] += math.log(row_step_seconds(model, values, other) / own) / len(rows)
    return changes
