"""Megatron-Bridge's published rows, to which two parameters alone are fitted: mixtures of experts and dense models."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable

import msgspec
import pytest

from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED, held_out_tables
from suite.predict.machine_model.intervals import step_interval
from suite.predict.machine_model.model import prepared_row, row_step_seconds, row_step_time
from suite.predict.validation.published_tables import timed_rows

TABLE = PUBLISHED / "megatron_bridge_25_09_26_02.csv"
OVERLAPPED = {"51", "68"}  # Qwen3 30B whose dispatch and combine overlap computation: see docs/published_tables.md


@functools.cache
def errors() -> dict[int, tuple[PublishedRow, float]]:
    """Line -> the row and the relative error of its predicted step time."""
    return {each.row.line: (each.row, each.predicted / each.measured - 1) for each in timed_rows(load_table(TABLE))}


def mean(select: Callable[[PublishedRow], bool]) -> float:
    """Mean absolute error of the rows that are selected."""
    found = [abs(error) for row, error in errors().values() if select(row)]
    assert found
    return sum(found) / len(found)


def is_mixture(row: PublishedRow) -> bool:
    return row.architecture.experts is not None


def test_no_row_takes_part_in_the_fit_of_all_tables() -> None:
    assert TABLE in held_out_tables()


def test_with_any_release_or_accelerator_left_out_mixtures_are_within_12_and_dense_models_within_7_percent() -> None:
    """Mean errors, stored by `refit`; the fitted ones are those of today."""
    for kind, most, select in (("mixtures", 12.0, is_mixture), ("dense", 7.0, lambda row: not is_mixture(row))):
        score = fit_scores().later[TABLE.stem][kind]
        assert max(score.release_left_out, score.accelerator_left_out, score.size_left_out) <= most
        assert 100 * mean(select) == pytest.approx(score.fitted, abs=0.1)


def test_intervals_of_predictions_hold_what_they_promise() -> None:
    """80 % intervals: of mixtures by their own width, of dense models by that of steps that compute."""
    model = machine_model()
    inside: dict[bool, list[bool]] = {True: [], False: []}
    for row, error in errors().values():
        step = row_step_time(model, model.values(), prepared_row(row))
        least, most = step_interval(step, row.architecture, 0.0)
        measured = step.total_seconds / (1 + error)
        inside[is_mixture(row)].append(least <= measured <= most)
    assert 0.75 <= sum(inside[True]) / len(inside[True]) <= 0.88
    assert 0.75 <= sum(inside[False]) / len(inside[False]) <= 0.88


def test_rows_are_those_of_the_source() -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["measured_step_time_s"]:
            tokens = int(row["global_batch"]) * int(row["seq_len"]) / int(row["gpus"])
            printed = tokens / float(row["measured_step_time_s"])
            assert abs(printed - int(row["printed_tokens_per_s_per_gpu"])) < 0.5, row


def test_layouts_are_read_from_the_columns_fsdp_ga_and_ep() -> None:
    rows = {line: row.layout for line, (row, _) in errors().items()}
    assert rows[4].zero_stage == 3
    assert rows[4].data_parallel == 64
    deepseek = rows[26]  # tp 2, dp 64, ep 64: 4 whole experts a rank
    assert (deepseek.expert_parallel, deepseek.expert_ranks, deepseek.whole_experts) == (32, 64, True)
    assert (rows[61].expert_parallel, rows[61].whole_experts) == (64, False)
    for line, row in load_lines().items():
        if row["accumulation"] and line in rows:
            samples = (
                int(row["accumulation"]) * rows[line].micro_batch * rows[line].dealt_to * rows[line].expert_parallel
            )
            assert samples == int(row["global_batch"]), line


def load_lines() -> dict[int, dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return dict(enumerate(csv.DictReader(file), start=2))


def test_mixtures_on_hopper_whose_experts_stand_on_several_nodes_are_within_9_percent() -> None:
    """235B over 4 nodes, DeepSeek-V3 over 8: what crosses the network is half of the step or more without copies."""
    found = [error for row, error in errors().values() if row.accelerator == "h100-sxm" and row.layout.expert_ranks > 8]
    assert len(found) == 4
    assert max(map(abs, found)) < 0.09


def test_whole_experts_and_one_copy_for_each_node_explain_those_rows() -> None:
    row, error = errors()[71]
    model = machine_model()
    layout = msgspec.structs.replace(row.layout, whole_experts=False)
    for changed in (msgspec.structs.replace(row, layout=layout), msgspec.structs.replace(row, stack="megatron-core")):
        seconds = row_step_seconds(model, model.values(), prepared_row(changed))
        assert seconds / (row.step_seconds or 0.0) - 1 > abs(error) + 0.1
