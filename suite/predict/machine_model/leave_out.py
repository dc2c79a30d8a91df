"""Errors of step times that a fit has not seen, intervals that they give, and what each term is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy

from reference_runs.machine_model import FitScores, LeftOutScore, MachineModel, PeakSpread
from reference_runs.published import PublishedRow
from reference_runs.published_tables import load_tables
from suite.predict.machine_model.fit import errors, linearised, solved
from suite.predict.machine_model.intervals import regime
from suite.predict.machine_model.model import PreparedRow, row_step_time
from suite.predict.machine_model.spreads import RECORDED_RUNS, laboratory_of, size_of

INTERVAL = 0.8  # share of step times that shall lie inside
ABLATED_ROWS = 20  # of a table, evenly spread: as many show what a term is worth

# Term -> parameters by name, families aside, and the value at which the term is none.
NEUTRAL: dict[str, dict[str, float]] = {
    "launches by the host": {"launch_seconds": 1e-12},
    "time of each kernel": {"kernel_seconds": 1e-12},
    "bytes of products beside their arithmetic": {"product_exposure": 1e-9},
    "stored attention scores": {"score_passes": 1e-9},
    "element-wise operators": {"residual_passes": 1e-9, "inner_passes": 1e-9},
    "cross-entropy": {"loss_passes": 1e-9},
    "bandwidth inside a node": {"link_efficiency": 1e6, "link_latency_seconds": 1e-12},
    "bandwidth between nodes": {"network_efficiency": 1e6, "network_latency_seconds": 1e-12},
    "contention of the network": {"network_contention": 1e-9},
    "overlap with data-parallel traffic": {"overlap_share": 1e-9},
    "what hidden traffic costs": {"overlap_cost": 1e-9},
    "older libraries": {"libraries_2021": 1.0, "libraries_early_2021": 1.0},
    "misaligned vocabulary": {"misalignment": 1.0},
    "efficiency of 8-bit products": {"format_efficiency": 1.0},
    "experts that are not equally busy": {"expert_slowdown": 1.0},
    "overhead of a step": {"step_overhead_seconds": 1e-12},
}


def _cluster_of(row: PublishedRow) -> str:
    clusters = {facts.file.removesuffix(".csv"): facts.cluster for facts in load_tables().tables}
    return clusters.get(row.table) or laboratory_of(row)


_GROUPS: dict[str, Callable[[PublishedRow], str]] = {  # what is left out together
    "table": lambda row: row.table,
    "cluster": _cluster_of,
    "size": size_of,
    "run": lambda row: row.model if row.table == RECORDED_RUNS else "",
}


def held_out_errors(model: MachineModel, rows: Sequence[PreparedRow]) -> dict[str, dict[int, float]]:
    """By kind of group and number of a row, its relative error with its group left out of the fit.

    A fold's parameters are solved with the derivatives at the whole's; its rows are then predicted exactly.
    """
    linear = linearised(model, rows, model.values())
    left: dict[str, dict[int, float]] = {kind: {} for kind in _GROUPS}
    for kind, group in _GROUPS.items():
        names = [group(each.row) for each in rows]
        for name in dict.fromkeys(filter(None, names)):
            indices = _indices(names, name)
            kept = sorted(set(range(len(rows))) - set(indices))
            values = linear.values(solved(linear, model.spreads, kept).logarithms)
            found = errors(model, values, [rows[index] for index in indices])
            left[kind] |= dict(zip(indices, found, strict=True))
    return left


def left_out_scores(
    model: MachineModel, rows: Sequence[PreparedRow], *, peaks: dict[str, PeakSpread], peak_coverage: float
) -> FitScores:
    """Errors of every row with its table, cluster, size or run left out, intervals, and errors without each term.

    Args:
        peaks, peak_coverage: see `FitScores`.
    """
    left = held_out_errors(model, rows)
    whole = errors(model, model.values(), rows)
    names = [each.row.table for each in rows]
    by_table = {table: _indices(names, table) for table in dict.fromkeys(names)}
    tables: dict[str, LeftOutScore] = {}
    for table, indices in by_table.items():
        runs = [abs(left["run"][index]) for index in indices if index in left["run"]]
        tables[table] = LeftOutScore(
            rows=len(indices),
            fitted=_mean_percent(whole, indices),
            table_left_out=_mean_percent(left["table"], indices),
            cluster_left_out=_mean_percent(left["cluster"], indices),
            size_left_out=_mean_percent(left["size"], indices),
            run_left_out=100 * sum(runs) / len(runs) if runs else None,
            run_left_out_max=100 * max(runs) if runs else None,
        )
    some = [row for table, indices in by_table.items() for row in _some(rows, indices)]
    without_terms = {term: _ablated_errors(model, some, term) for term in NEUTRAL}
    regimes = [regime(row_step_time(model, model.values(), each)) for each in rows]
    return FitScores(
        free_parameters=sum(parameter.fitted for parameter in model.parameters.values()),
        all_terms=fmean([score.fitted for score in tables.values()]),
        half_width=half_widths(rows, left["table"], regimes),
        coverage={kind: coverage(rows, left[kind], regimes, _GROUPS[kind]) for kind in ("table", "cluster", "size")},
        peak_coverage=peak_coverage,
        peaks=peaks,
        tables=tables,
        without_term={term: fmean(list(each.values())) for term, each in without_terms.items()},
        without_term_by_table=without_terms,
    )


def half_widths(
    rows: Sequence[PreparedRow], left: Mapping[int, float], regimes: Sequence[str], among: Sequence[int] | None = None
) -> dict[str, float]:
    """By regime, the distance of logarithms within which `INTERVAL` of the held-out errors lie; tables weigh alike.

    Args:
        among: of these rows alone.
    """
    chosen = [number for number in (left if among is None else among) if number in left]
    widths: dict[str, float] = {}
    for name in dict.fromkeys(regimes):
        numbers = [number for number in chosen if regimes[number] == name]
        tables = [rows[number].row.table for number in numbers]
        weights = [1 / tables.count(table) for table in tables]
        widths[name] = weighted_quantile([abs(math.log1p(left[number])) for number in numbers], weights, INTERVAL)
    return widths


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The smallest of the values up to which they have `share` of the weight.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("expected one value at least")
    order = numpy.argsort(values)
    passed: Any = numpy.cumsum(numpy.array(weights)[order])
    return float(values[order[min(int(numpy.searchsorted(passed, share * passed[-1])), len(order) - 1)]])


def coverage(
    rows: Sequence[PreparedRow], left: Mapping[int, float], regimes: Sequence[str], group: Callable[[PublishedRow], str]
) -> float:
    """Percent of rows whose held-out error is within the half-width that all other groups' give; tables weigh alike."""
    names = [group(each.row) for each in rows]
    inside: dict[str, list[bool]] = {}
    for name in dict.fromkeys(names):
        indices = _indices(names, name)
        others = sorted(set(range(len(rows))) - set(indices))
        widths = half_widths(rows, left, regimes, others)
        for index in indices:
            within = abs(math.log1p(left[index])) <= widths[regimes[index]]
            inside.setdefault(rows[index].row.table, []).append(within)
    return 100 * fmean([fmean(each) for each in inside.values()])


def _indices(names: Sequence[str], name: str) -> list[int]:
    return [index for index, each in enumerate(names) if each == name]


def _mean_percent(values: Sequence[float] | Mapping[int, float], indices: Sequence[int]) -> float:
    return 100 * fmean([abs(values[index]) for index in indices])


def without(model: MachineModel, term: str) -> MachineModel:
    """The model whose `term` is none, and not free in a fit."""
    parameters = dict(model.parameters)
    for name, neutral in NEUTRAL[term].items():
        for of_family in [each for each in parameters if each.split(".")[0] == name]:
            parameters[of_family] = msgspec.structs.replace(parameters[of_family], value=neutral, spread=1.0)
    return msgspec.structs.replace(model, parameters=parameters)


def _some(rows: Sequence[PreparedRow], indices: Sequence[int]) -> list[PreparedRow]:
    """Up to `ABLATED_ROWS` of a table's rows, evenly spread."""
    return [rows[index] for index in indices[:: math.ceil(len(indices) / ABLATED_ROWS)]]


def _ablated_errors(model: MachineModel, rows: Sequence[PreparedRow], term: str) -> dict[str, float]:
    """By table, the mean absolute error in percent without the term, the others fitted anew as a fold's are."""
    less = without(model, term)
    linear = linearised(less, rows, model.values())
    found = errors(less, linear.values(solved(linear, model.spreads).logarithms), rows)
    names = [each.row.table for each in rows]
    return {table: _mean_percent(found, _indices(names, table)) for table in dict.fromkeys(names)}
