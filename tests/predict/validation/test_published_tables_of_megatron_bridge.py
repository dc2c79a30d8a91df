"""Megatron-Bridge's published rows, which take part in no fit: mixtures of experts and dense models."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable

import msgspec

from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED, held_out_tables
from suite.predict.machine_model.model import prepared_row, row_step_seconds
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


def test_no_row_of_megatron_bridge_takes_part_in_a_fit() -> None:
    assert TABLE in held_out_tables()


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
