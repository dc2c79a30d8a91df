"""What is left of the machine model when rows or terms are left out of its fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean

import msgspec

from reference_runs.machine_model import FitScores, LeftOutScore, MachineModel
from reference_runs.published import PublishedRow
from suite.machine.devices import usable_cores
from suite.predict.machine_model.fit import errors, fit
from suite.predict.machine_model.model import PreparedRow

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


def left_out_scores(model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float]) -> FitScores:
    """Errors of every row with its table, its model's size or its run left out, and of all without each term."""
    folds: list[tuple[str, list[int]]] = []  # group, and indices of the rows that are left out
    for kind, group in _GROUPS.items():
        names = [group(each.row) for each in rows]
        folds += [(kind, _indices(names, name)) for name in dict.fromkeys(names) if name]
    with ProcessPoolExecutor(usable_cores()) as pool:
        found = list(pool.map(partial(_fold_errors, model, rows, weights), [left_out for _, left_out in folds]))
        ablated = list(pool.map(partial(_ablated_errors, model, rows, weights), NEUTRAL))
    whole = errors(model, model.values(), rows)
    left: dict[str, dict[int, float]] = {kind: {} for kind in _GROUPS}
    for (kind, indices), of_fold in zip(folds, found, strict=True):
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
        tables=tables,
        without_term={term: fmean(list(each.values())) for term, each in without_terms.items()},
        without_term_by_table=without_terms,
    )


def _indices(names: Sequence[str], name: str) -> list[int]:
    return [index for index, each in enumerate(names) if each == name]


def _mean_percent(found: Sequence[float] | Mapping[int, float], indices: Sequence[int]) -> float:
    return 100 * fmean([abs(found[index]) for index in indices])


def without(model: MachineModel, term: str) -> MachineModel:
    """The model whose `term` is none, and not free in a fit."""
    parameters = dict(model.parameters)
    for name, neutral in NEUTRAL[term].items():
        for found in [each for each in parameters if each.split(".")[0] == name]:
            parameters[found] = msgspec.structs.replace(parameters[found], value=neutral, spread=1.0)
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
