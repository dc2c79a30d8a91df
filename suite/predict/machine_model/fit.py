"""The fit of the machine model to published step times, and what the rows determine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy
from scipy.optimize import least_squares

from reference_runs.machine_model import MachineModel, Parameter, Spreads
from suite.predict.machine_model.model import PreparedRow, row_step_seconds
from suite.predict.machine_model.spreads import blocks

OUTLIER = 2.0  # standard deviations where a residual's weight passes from square to absolute value
LEAST_EFFECT = 1e-3  # relative, on a row's time
STEP = 1e-3  # of the logarithm of a parameter, for derivatives
FARTHEST_STEP = 0.5  # of the logarithm of a parameter, from where derivatives were taken
ROUNDS = 8  # of derivatives, at most
STILL = 0.01  # of the logarithm of any parameter, where no further round is needed


class Fitted(NamedTuple):
    """Parameters by name, the relative standard error of each free one, and the final cost."""

    values: dict[str, float]
    uncertainty: dict[str, float]
    cost: float


class Linearised(NamedTuple):
    """Logarithms of predicted over measured time of all rows near one set of parameters.

    Args:
        names: of the free parameters.
        at: their logarithms, where derivatives were taken.
        residuals: there, a row each.
        slopes: by the logarithm of each parameter, a row each.
    """

    model: MachineModel
    rows: Sequence[PreparedRow]
    names: list[str]
    at: Any
    residuals: Any
    slopes: Any

    def values(self, logarithms: Any) -> dict[str, float]:
        """All parameters by name, the free ones with these logarithms."""
        return self.model.values() | {
            name: float(value) for name, value in zip(self.names, numpy.exp(logarithms), strict=True)
        }


def errors(model: MachineModel, values: Mapping[str, float], rows: Sequence[PreparedRow]) -> list[float]:
    """Relative error of each row: predicted over measured, less 1."""
    return [float(row_step_seconds(model, values, each)) / (each.row.step_seconds or math.nan) - 1 for each in rows]


def linearised(model: MachineModel, rows: Sequence[PreparedRow], start: Mapping[str, float]) -> Linearised:
    """Residuals and derivatives at `start`; a free parameter that it lacks is where it is expected."""
    free = {name: parameter for name, parameter in model.parameters.items() if parameter.fitted}
    within = [min(max(start.get(name, each.expected), each.least), each.most) for name, each in free.items()]
    at = numpy.log(within)
    points = numpy.exp(at + numpy.vstack([numpy.zeros(len(at)), STEP * numpy.eye(len(at))]))
    values: dict[str, Any] = {
        name: numpy.full(len(points), parameter.value) for name, parameter in model.parameters.items()
    }
    values |= {name: points[:, index] for index, name in enumerate(free)}
    measured = numpy.array([each.row.step_seconds for each in rows])
    seconds = numpy.array([numpy.broadcast_to(row_step_seconds(model, values, each), len(points)) for each in rows])
    ratio = numpy.log(seconds / measured[:, None])
    return Linearised(model, rows, list(free), at, ratio[:, 0], (ratio[:, 1:] - ratio[:, :1]) / STEP)


class Solved(NamedTuple):
    """Logarithms of the free parameters, their covariance, and the cost."""

    logarithms: Any
    covariance: Any
    cost: float


def solved(linear: Linearised, spreads: Spreads, kept: Sequence[int] | None = None) -> Solved:
    """The parameters that predict the rows best, as far as the derivatives reach; `kept`: of these rows alone.

    Minimises, over the logarithms x of the parameters and within their bounds,
        sum over rows of 2 s^2 (sqrt(1 + (q / s)^2) - 1)        q: whitened residuals, s = `OUTLIER`
        + sum of ((x - expected) / log spread)^2                what is expected of each parameter
    Whitened are residuals whose common effects (`spreads.py`) are taken out: independent, with variance 1. The cost is
    square for those below s, absolute above, so that few wrong rows do not decide.
    """
    numbers = list(range(len(linear.rows))) if kept is None else list(kept)
    free = [linear.model.parameters[name] for name in linear.names]
    expected, spread = numpy.log([each.expected for each in free]), numpy.log([each.spread for each in free])
    least = numpy.maximum(numpy.log([each.least for each in free]), linear.at - FARTHEST_STEP)
    most = numpy.minimum(numpy.log([each.most for each in free]), linear.at + FARTHEST_STEP)
    residuals, slopes = linear.residuals[numbers], linear.slopes[numbers]
    white, white_slopes = numpy.empty_like(residuals), numpy.empty_like(slopes)
    for block in blocks([linear.rows[number].row for number in numbers], spreads):
        white[block.rows] = block.whitening @ residuals[block.rows]
        white_slopes[block.rows] = block.whitening @ slopes[block.rows]

    def terms(x: Any) -> tuple[Any, Any]:
        q = (white + white_slopes @ (x - linear.at)) / OUTLIER
        root = numpy.sqrt(1 + q**2)
        softened = q * numpy.sqrt(2 / (root + 1))
        steepness = numpy.sqrt((root + 1) / 2) / root
        return (
            numpy.concatenate([OUTLIER * softened, (x - expected) / spread]),
            numpy.vstack([steepness[:, None] * white_slopes, numpy.diag(1 / spread)]),
        )

    first = numpy.clip(linear.at, least + 1e-9, most - 1e-9)
    optimum = least_squares(lambda x: terms(x)[0], first, jac=lambda x: terms(x)[1], bounds=(least, most))
    return Solved(optimum.x, numpy.linalg.pinv(optimum.jac.T @ optimum.jac), float(optimum.cost))


def fit(
    model: MachineModel,
    rows: Sequence[PreparedRow],
    *,
    spreads: Spreads | None = None,
    start: Mapping[str, float] | None = None,
    rounds: int = ROUNDS,
) -> Fitted:
    """The free parameters of `model` that predict the rows best, by `solved` until they stand still.

    Args:
        spreads: the model's own where none are given.
        start: where the first derivatives are taken; what is expected where nothing is given.
    """
    values: Mapping[str, float] = start or {}
    for _ in range(rounds):
        linear = linearised(model, rows, values)
        found = solved(linear, spreads or model.spreads)
        values = linear.values(found.logarithms)
        if abs(found.logarithms - linear.at).max() < STILL:
            break
    uncertainty = {name: math.sqrt(found.covariance[i, i]) for i, name in enumerate(linear.names)}
    return Fitted(dict(values), uncertainty, found.cost)


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
