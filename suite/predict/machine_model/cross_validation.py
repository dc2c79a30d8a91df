"""What is left of the machine model when rows or terms are left out of its fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean
from typing import NamedTuple

import msgspec

from reference_runs.machine_model import FitScores, LeftOutScore, MachineModel
from suite.predict.machine_model.fit import errors, fit
from suite.predict.machine_model.published_rows import PreparedRow

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


class _Fold(NamedTuple):
    """Places of the rows that are left out."""

    kind: str
    name: str
    left_out: tuple[int, ...]


def left_out_scores(model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float]) -> FitScores:
    """Errors of every row with its table, its model's size or its run left out, and of all without each term."""
    folds = _folds(rows)
    whole = errors(model, model.values(), rows)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(partial(_fold_errors, model, rows, weights), folds))
        ablated = list(pool.map(partial(_ablated_errors, model, rows, weights), NEUTRAL))
    by_kind: dict[str, dict[int, float]] = {"table": {}, "size": {}, "run": {}}
    for fold, left in zip(folds, found, strict=True):
        by_kind[fold.kind] |= dict(zip(fold.left_out, left, strict=True))
    tables: dict[str, LeftOutScore] = {}
    for table in dict.fromkeys(each.row.table for each in rows):
        places = [place for place, each in enumerate(rows) if each.row.table == table]
        runs = [abs(by_kind["run"][place]) for place in places if place in by_kind["run"]]
        tables[table] = LeftOutScore(
            rows=len(places),
            fitted=_mean_percent(whole, places),
            table_left_out=_mean_percent(by_kind["table"], places),
            size_left_out=_mean_percent(by_kind["size"], places),
            run_left_out=100 * sum(runs) / len(runs) if runs else None,
            run_left_out_max=100 * max(runs) if runs else None,
        )
    without = {term: _by_table(rows, left) for term, left in zip(NEUTRAL, ablated, strict=True)}
    return FitScores(
        free_parameters=sum(parameter.fitted for parameter in model.parameters.values()),
        all_terms=fmean([score.fitted for score in tables.values()]),
        tables=tables,
        without_term={term: fmean(list(each.values())) for term, each in without.items()},
        without_term_by_table=without,
    )


def without(model: MachineModel, term: str) -> MachineModel:
    """The model whose `term` is none, and not free in a fit."""
    parameters = dict(model.parameters)
    for name, neutral in NEUTRAL[term].items():
        for found in [each for each in parameters if each.split(".")[0] == name]:
            parameters[found] = msgspec.structs.replace(parameters[found], value=neutral, spread=1.0)
    return msgspec.structs.replace(model, parameters=parameters)


def _folds(rows: Sequence[PreparedRow]) -> list[_Fold]:
    folds: list[_Fold] = []
    keys: dict[str, Callable[[PreparedRow], str]] = {
        "table": lambda each: each.row.table,
        "size": lambda each: f"{each.row.architecture.layers} x {each.row.architecture.hidden}",
        "run": lambda each: each.row.model if each.row.table == RECORDED_RUNS else "",
    }
    for kind, key in keys.items():
        for name in dict.fromkeys(key(each) for each in rows):
            if name:
                folds.append(_Fold(kind, name, tuple(i for i, each in enumerate(rows) if key(each) == name)))
    return folds


def _fold_errors(
    model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float], fold: _Fold
) -> list[float]:
    out = set(fold.left_out)
    kept = [each for place, each in enumerate(rows) if place not in out]
    fitted = fit(model, kept, weights=weights, start=model.values(), most_evaluations=EVALUATIONS)
    return errors(model, fitted.values, [rows[place] for place in fold.left_out])


def _ablated_errors(
    model: MachineModel, rows: Sequence[PreparedRow], weights: Mapping[str, float], term: str
) -> list[float]:
    less = without(model, term)
    fitted = fit(less, rows, weights=weights, start=model.values(), most_evaluations=EVALUATIONS)
    return errors(less, fitted.values, rows)


def _by_table(rows: Sequence[PreparedRow], found: Sequence[float]) -> dict[str, float]:
    tables = dict.fromkeys(each.row.table for each in rows)
    return {
        table: _mean_percent(found, [place for place, each in enumerate(rows) if each.row.table == table])
        for table in tables
    }


def _mean_percent(found: Sequence[float] | Mapping[int, float], places: Sequence[int]) -> float:
    return 100 * fmean([abs(found[place]) for place in places])
