"""The fit of the machine model to published step times: residuals, their derivatives, and what the rows determine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy
from scipy.optimize import least_squares

from reference_runs.machine_model import MachineModel, Parameter
from suite.predict.machine_model.model import PreparedRow, row_step_seconds

SCALE = 0.02  # relative error where a residual's weight passes from square to absolute value
PRIOR_WEIGHT = 0.15  # of a parameter one spread away from what is expected, next to one table's residuals
LEAST_EFFECT = 1e-3  # relative, on a row's time
STEP = 1e-4  # of the logarithm of a parameter, for derivatives


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
            values: dict[str, Any] = {name: points[:, place] for place, name in enumerate(names)}
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

    found = least_squares(
        lambda x: residuals_and_derivatives(x)[0],
        first,
        jac=lambda x: residuals_and_derivatives(x)[1],
        bounds=bounds,
        max_nfev=most_evaluations,
        xtol=1e-5,
        ftol=1e-5,
    )
    values = fixed | {name: float(value) for name, value in zip(names, numpy.exp(found.x), strict=True)}
    slopes = found.jac
    scatter = 2 * found.cost / max(len(rows) - len(names), 1)
    covariance = numpy.linalg.pinv(slopes.T @ slopes) * scatter
    return Fitted(
        values,
        {name: float(math.sqrt(covariance[place, place])) for place, name in enumerate(names)},
        float(found.cost),
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
    squares = [sum(error**2 for error in found) / len(found) for found in errors_by_table(model, rows).values()]
    residual = math.sqrt(sum(squares) / len(squares))
    return msgspec.structs.replace(model, parameters=parameters, residual=residual)


def errors_by_table(model: MachineModel, rows: Sequence[PreparedRow]) -> dict[str, list[float]]:
    """By table, the relative error of each of its rows."""
    found: dict[str, list[float]] = {}
    for each, error in zip(rows, errors(model, model.values(), rows), strict=True):
        found.setdefault(each.row.table, []).append(error)
    return found


def with_values(model: MachineModel, fitted: Fitted) -> MachineModel:
    """The model with the fitted values and uncertainties."""
    parameters = {
        name: msgspec.structs.replace(parameter, value=fitted.values[name], uncertainty=fitted.uncertainty.get(name))
        for name, parameter in model.parameters.items()
    }
    return msgspec.structs.replace(model, parameters=parameters)
