"""The fit of the machine model to published step times, what the rows determine, and errors of what was left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy
from scipy.optimize import least_squares

from reference_runs.machine_model import FitScores, LeftOutScore, MachineModel, Parameter
from reference_runs.published import PublishedRow
from suite.machine.devices import usable_cores
from suite.predict.machine_model.model import PreparedRow, row_step_seconds

SCALE = 0.02  # relative error where a residual's weight passes from square to absolute value
PRIOR_WEIGHT = 0.15  # of a parameter one spread away from what is expected, next to one table's residuals
LEAST_EFFECT = 1e-3  # relative, on a row's time
STEP = 1e-4  # of the logarithm of a parameter, for derivatives
RECORDED_RUNS = "real_runs"
EVALUATIONS = 12  # of a fit that begins at the parameters of the whole

# Term -> parameters by name, families aside, and the value at which the term is none.
NEUTRAL: dict[str, dict[str, float]] = {
    "launches by the host": {"launch_seconds": 1e-12},
    "time of each kernel": {"kernel_seconds": 1e-12},
    "small matrix products": {"matrix_saturation": 1e-9},
    "stored attention scores": {"score_passes": 1e-9},
    "element-wise operators": {"residual_passes": 1e-9, "inner_passes": 1e-9},
    "cross-entropy": {"loss_passes": 1e-9},
    "bandwidth inside a node": {"link_efficiency": 1e6, "link_latency_seconds": 1e-12},
    "bandwidth between nodes": {"network_efficiency": 1e6, "network_latency_seconds": 1e-12},
    "contention of the network": {"network_contention": 1e-9},
    "overlap with data-parallel traffic": {"overlap_share": 1e-9},
    "older libraries": {"libraries_2021": 1.0, "libraries_early_2021": 1.0},
    "misaligned vocabulary": {"misalignment": 1.0},
    "overhead of a step": {"step_overhead_seconds": 1e-12},
}


_GROUPS: dict[str, Callable[[PublishedRow], str]] = {  # what is left out together
    "table": lambda row: row.table,
    "size": lambda row: f"{row.architecture.layers} x {row.architecture.hidden}",
    "run": lambda row: row.model if row.table == RECORDED_RUNS else "",
}


class Fitted(NamedTuple):
    """Parameters by name, the relative standard error of each free one, and the final cost."""

    values: dict[str, float]
    uncertainty: dict[str, float]
    cost: float


def errors(model: MachineModel, values: Mapping[str, float], rows: Sequence[PreparedRow]) -> list[float]:
    """Relative error of each row: predicted over measured, less 1."""
    return [float(row_step_seconds(model, values, each)) / (each.row.step_seconds or math.nan) - 1 for each in rows]


def fit(
    model: MachineModel,
    rows: Sequence[PreparedRow],
    *,
    weights: Mapping[str, float],
    start: Mapping[str, float] | None = None,
    most_evaluations: int = 30,
) -> Fitted:
    """The free parameters of `model` that predict the rows best.

    Minimises, over the logarithms x of the parameters,
        sum over tables of w^2 mean of 2 (sqrt(1 + (r / s)^2) - 1)     r: log of predicted over measured time
        + c^2 sum of ((x - expected) / log spread)^2                   weak priors
    within the parameters' bounds: square for errors far below s, absolute value above, so that few wrong rows do not
    decide; each table counts as much as every other, times the square of its weight w.
    """
    free = {name: parameter for name, parameter in model.parameters.items() if parameter.fitted}
    fixed = {name: parameter.value for name, parameter in model.parameters.items() if not parameter.fitted}
    names = list(free)
    expected = numpy.log([free[name].expected for name in names])
    spread = numpy.log([free[name].spread for name in names])
    bounds = (numpy.log([free[name].least for name in names]), numpy.log([free[name].most for name in names]))
    first = numpy.log([(start or {}).get(name, free[name].expected) for name in names])
    first = numpy.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9)
    measured = numpy.array([each.row.step_seconds for each in rows])
    tables = [each.row.table for each in rows]
    weight = numpy.array([3 * weights.get(table, 1.0) / math.sqrt(tables.count(table)) for table in tables])
    shifts = numpy.vstack([numpy.zeros(len(names)), STEP * numpy.eye(len(names))])
    known: dict[bytes, tuple[Any, Any]] = {}

    def residuals_and_derivatives(x: Any) -> tuple[Any, Any]:
        key = x.tobytes()
        if key not in known:
            points = numpy.exp(x + shifts)
            values: dict[str, Any] = {name: points[:, index] for index, name in enumerate(names)}
            values |= {name: numpy.full(len(points), value) for name, value in fixed.items()}
            seconds = numpy.array(
                [numpy.broadcast_to(row_step_seconds(model, values, each), len(points)) for each in rows]
            )
            ratio = numpy.log(seconds / measured[:, None]) / SCALE
            softened = numpy.sign(ratio) * numpy.sqrt(2 * (numpy.sqrt(1 + ratio**2) - 1)) * weight[:, None]
            prior = (x - expected) / spread * PRIOR_WEIGHT
            slopes = (softened[:, 1:] - softened[:, :1]) / STEP
            known.clear()
            known[key] = (
                numpy.concatenate([softened[:, 0], prior]),
                numpy.vstack([slopes, numpy.diag(PRIOR_WEIGHT / spread)]),
            )
        return known[key]

    optimum = least_squares(
        lambda x: residuals_and_derivatives(x)[0],
        first,
        jac=lambda x: residuals_and_derivatives(x)[1],
        bounds=bounds,
        max_nfev=most_evaluations,
        xtol=1e-5,
        ftol=1e-5,
    )
    values = fixed | {name: float(value) for name, value in zip(names, numpy.exp(optimum.x), strict=True)}
    slopes = optimum.jac
    scatter = 2 * optimum.cost / max(len(rows) - len(names), 1)
    covariance = numpy.linalg.pinv(slopes.T @ slopes) * scatter
    return Fitted(
        values,
        {name: float(math.sqrt(covariance[index, index])) for index, name in enumerate(names)},
        float(optimum.cost),
    )


def determined(model: MachineModel, rows: Sequence[PreparedRow]) -> MachineModel:
    """The model with each free parameter's rows and tables, and with the residual of the whole.

    A row counts for a parameter where a change of it by 10 % moves the predicted time by more than `LEAST_EFFECT`.
    """
    values = model.values()
    base = [float(row_step_seconds(model, values, each)) for each in rows]
    parameters: dict[str, Parameter] = {}
    for name, parameter in model.parameters.items():
        parameters[name] = parameter
        if parameter.fitted:
            moved = values | {name: 1.1 * parameter.value}
            tables = [
                each.row.table
                for each, before in zip(rows, base, strict=True)
                if abs(float(row_step_seconds(model, moved, each)) / before - 1) > LEAST_EFFECT
            ]
            parameters[name] = msgspec.structs.replace(parameter, rows=len(tables), tables=tuple(dict.fromkeys(tables)))
    squares = [sum(error**2 for error in each) / len(each) for each in errors_by_table(model, rows).values()]
    residual = math.sqrt(sum(squares) / len(squares))
    return msgspec.structs.replace(model, parameters=parameters, residual=residual)


def errors_by_table(model: MachineModel, rows: Sequence[PreparedRow]) -> dict[str, list[float]]:
    """By table, the relative error of each of its rows."""
    by_table: dict[str, list[float]] = {}
    for each, error in zip(rows, errors(model, model.values(), rows), strict=True):
        by_table.setdefault(each.row.table, []).append(error)
    return by_table


def with_values(model: MachineModel, fitted: Fitted) -> MachineModel:
    """The model with the fitted values and uncertainties."""
    parameters = {
        name: msgspec.structs.replace(parameter, value=fitted.values[name], uncertainty=fitted.uncertainty.get(name))
        for name, parameter in model.parameters.items()
    }
    return msgspec.structs.replace(model, parameters=parameters)


def left_out_scores(
    model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float], *, peak_bytes: dict[str, float]
) -> FitScores:
    """Errors of every row with its table, its model's size or its run left out, and of all without each term.

    Args:
        peak_bytes: see `FitScores`.
    """
    folds: list[tuple[str, list[int]]] = []  # group, and indices of the rows that are left out
    for kind, group in _GROUPS.items():
        names = [group(each.row) for each in rows]
        folds += [(kind, _indices(names, name)) for name in dict.fromkeys(names) if name]
    with ProcessPoolExecutor(usable_cores()) as pool:
        left_out_errors = list(
            pool.map(partial(_fold_errors, model, rows, weights), [left_out for _, left_out in folds])
        )
        ablated = list(pool.map(partial(_ablated_errors, model, rows, weights), NEUTRAL))
    whole = errors(model, model.values(), rows)
    left: dict[str, dict[int, float]] = {kind: {} for kind in _GROUPS}
    for (kind, indices), of_fold in zip(folds, left_out_errors, strict=True):
        left[kind] |= dict(zip(indices, of_fold, strict=True))
    names = [each.row.table for each in rows]
    by_table = {table: _indices(names, table) for table in dict.fromkeys(names)}
    tables: dict[str, LeftOutScore] = {}
    for table, indices in by_table.items():
        runs = [abs(left["run"][index]) for index in indices if index in left["run"]]
        tables[table] = LeftOutScore(
            rows=len(indices),
            fitted=_mean_percent(whole, indices),
            table_left_out=_mean_percent(left["table"], indices),
            size_left_out=_mean_percent(left["size"], indices),
            run_left_out=100 * sum(runs) / len(runs) if runs else None,
            run_left_out_max=100 * max(runs) if runs else None,
        )
    without_terms = {
        term: {table: _mean_percent(each, indices) for table, indices in by_table.items()}
        for term, each in zip(NEUTRAL, ablated, strict=True)
    }
    return FitScores(
        free_parameters=sum(parameter.fitted for parameter in model.parameters.values()),
        all_terms=fmean([score.fitted for score in tables.values()]),
        peak_bytes=peak_bytes,
        tables=tables,
        without_term={term: fmean(list(each.values())) for term, each in without_terms.items()},
        without_term_by_table=without_terms,
    )


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


def _fold_errors(
    model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float], left_out: Sequence[int]
) -> list[float]:
    kept = [each for index, each in enumerate(rows) if index not in left_out]
    fitted = fit(model, kept, weights=weights, start=model.values(), most_evaluations=EVALUATIONS)
    return errors(model, fitted.values, [rows[index] for index in left_out])


def _ablated_errors(
    model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float], term: str
) -> list[float]:
    less = without(model, term)
    fitted = fit(less, rows, weights=weights, start=model.values(), most_evaluations=EVALUATIONS)
    return errors(less, fitted.values, rows)
