"""Parameters that one table alone determines: fitted to it after the whole fit, whose parameters stay as they are.

So accelerators and formats that came later are fitted, and what is predicted of the others does not move.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from reference_runs.machine_model import LaterScore, MachineModel
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED, load_tables
from suite.predict.machine_model.fit import determined, errors, fit, linearised, solved, with_values
from suite.predict.machine_model.intervals import MIXTURES
from suite.predict.machine_model.leave_out import INTERVAL
from suite.predict.machine_model.model import PreparedRow, prepared_row
from suite.predict.machine_model.spreads import size_of

_RELEASE = re.compile(r"\d+(?:\.\d+)+")


class LaterTable(NamedTuple):
    """A table that determines parameters, and its rows with a step time."""

    name: str
    parameters: tuple[str, ...]
    rows: list[PreparedRow]


def later_tables() -> list[LaterTable]:
    """The shipped tables that determine parameters of their own."""
    tables = []
    for facts in load_tables().tables:
        if facts.determines:
            rows = [
                prepared_row(row) for row in load_table(PUBLISHED / facts.file).rows if row.step_seconds is not None
            ]
            tables.append(LaterTable(facts.file.removesuffix(".csv"), facts.determines, rows))
    return tables


def with_free(model: MachineModel, free: Callable[[str], bool]) -> MachineModel:
    """The model in which no parameters but those for whose names `free` holds take part in a fit."""
    parameters = {
        name: parameter if free(name) else msgspec.structs.replace(parameter, spread=1.0)
        for name, parameter in model.parameters.items()
    }
    return msgspec.structs.replace(model, parameters=parameters)


def with_later(model: MachineModel, tables: Sequence[LaterTable]) -> MachineModel:
    """The model with the parameters that each of the tables determines alone."""
    for table in tables:
        alone = with_free(model, table.parameters.__contains__)
        fitted = with_values(alone, fit(alone, table.rows, start=model.values()))
        found = determined(fitted, table.rows).parameters
        own = {name: found[name] for name in table.parameters}
        model = msgspec.structs.replace(model, parameters=model.parameters | own)
    return model


def release_of(row: PublishedRow) -> str:
    """The first version in the text of the framework, such as 26.02.01."""
    found = _RELEASE.search(row.framework)
    return found.group() if found else row.framework


_GROUPS: dict[str, Callable[[PublishedRow], str]] = {  # what is left out together
    "release": release_of,
    "accelerator": lambda row: row.accelerator,
    "size": size_of,
}


def is_mixture(row: PreparedRow) -> bool:
    """Whether the row's model has experts."""
    return row.row.architecture.experts is not None


def later_scores(model: MachineModel, table: LaterTable) -> dict[str, LaterScore]:
    """Errors of a table's dense models and of its mixtures, with releases, accelerators and sizes left out.

    A fold's parameters are solved with the derivatives at the whole's; its rows are then predicted exactly. An
    interval is that of a fold if it holds 80 % of the other folds' errors, n of them, as far as ceil(0.8 (n + 1)) of n
    can: wider where rows are few.
    """
    alone, rows = with_free(model, table.parameters.__contains__), table.rows
    linear = linearised(alone, rows, model.values())
    unfitted = model.values() | {name: model.parameters[name].expected for name in table.parameters}
    found = {"fitted": errors(alone, model.values(), rows), "expected": errors(alone, unfitted, rows)}
    folds: dict[str, list[str]] = {}
    for kind, group in _GROUPS.items():
        names = folds[kind] = [group(each.row) for each in rows]
        left = dict.fromkeys(range(len(rows)), math.nan)
        for name in dict.fromkeys(names):
            inside = [number for number, each in enumerate(names) if each == name]
            kept = [number for number in left if number not in inside]
            values = linear.values(solved(linear, model.spreads, kept).logarithms)
            left |= dict(zip(inside, errors(alone, values, [rows[number] for number in inside]), strict=True))
        found[kind] = list(left.values())
    scores = {}
    for words, mixtures in (("dense", False), (MIXTURES, True)):
        numbers = [number for number, each in enumerate(rows) if is_mixture(each) is mixtures]
        mean = {kind: 100 * fmean([abs(each[number]) for number in numbers]) for kind, each in found.items()}
        distances = [abs(math.log1p(found["release"][number])) for number in numbers]
        scores[words] = LaterScore(
            rows=len(numbers),
            fitted=mean["fitted"],
            expected=mean["expected"],
            release_left_out=mean["release"],
            accelerator_left_out=mean["accelerator"],
            size_left_out=mean["size"],
            half_width=_half_width(distances),
            coverage=_coverage(distances, [folds["release"][number] for number in numbers]),
        )
    return scores


def _half_width(distances: Sequence[float]) -> float:
    """The distance within which as good as 80 % of distances lie, one that was not among them included."""
    place = math.ceil(INTERVAL * (len(distances) + 1))
    return sorted(distances)[min(place, len(distances)) - 1]


def _coverage(distances: Sequence[float], folds: Sequence[str]) -> float:
    """Percent of distances within the half-width that the other folds' give."""
    inside = []
    for name in dict.fromkeys(folds):
        width = _half_width([each for each, fold in zip(distances, folds, strict=True) if fold != name])
        inside += [each <= width for each, fold in zip(distances, folds, strict=True) if fold == name]
    return 100 * fmean(inside)
