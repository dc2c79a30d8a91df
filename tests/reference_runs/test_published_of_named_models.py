"""Rows that name a recorded run: its own shape where the row says none, and the row's own layout."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.model_names import is_plain
from reference_runs.published import STEP, PublishedRow, load_table

LAYOUT = {
    **{"gpu": "h100", "gpus": "64", "dp": "16", "tp": "4", "pp": "1", "cp": "1"},
    **{"global_batch": "256", "micro_batch": "1", STEP: "10"},
}
UNPUBLISHED = [name for name in run_names() if reference_run(name).unpublished and name != "qwen3-30b-a3b"]


def written(path: Path, cells: dict[str, str]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    return path


def row(tmp_path: Path, model: str, **cells: str) -> PublishedRow:
    (found,) = load_table(written(tmp_path / "own.csv", {"model": model} | LAYOUT | cells)).rows
    return found


def reason(tmp_path: Path, model: str, **cells: str) -> str:
    (found,) = load_table(written(tmp_path / "own.csv", {"model": model} | LAYOUT | cells)).skipped
    return found.reason


@pytest.mark.parametrize("name", ["mistralai/Mixtral-8x7B-v0.1", *UNPUBLISHED])
def test_a_row_states_the_layout_of_a_model_that_has_none_published(tmp_path: Path, name: str) -> None:
    assert {"mixtral-8x7b", "llama2-7b"} <= set(UNPUBLISHED)
    found = row(tmp_path, name)
    layout = found.layout
    assert (layout.data_parallel, layout.tensor_parallel, layout.pipeline_stages, layout.micro_batch) == (16, 4, 1, 1)
    # the rest by the rules for a model that is not recorded
    other = row(tmp_path, "my own", layers="32", hidden="4096", heads="32", vocab="32000", seq_len="4096")
    assert layout == other.layout
    assert {words for words in other.assumed if words.startswith(("recompute", "vpp", "sp", "zero_stage"))} <= {
        *found.assumed
    }


def test_experts_lie_within_the_stated_data_parallelism_of_a_model_without_a_layout(tmp_path: Path) -> None:
    found = row(tmp_path, "mixtral-8x7b", ep="8", recompute="full", zero_stage="1")
    assert (found.layout.data_parallel, found.layout.expert_parallel) == (2, 8)
    assert (found.layout.recomputation.value, found.layout.zero_stage) == ("full", 1)


@pytest.mark.parametrize("name", [name for name in UNPUBLISHED if not is_plain(reference_run(name))])
def test_what_a_row_does_not_state_of_a_layout_is_named(tmp_path: Path, name: str) -> None:
    assert reason(tmp_path, name, tp="", pp="", micro_batch="") == "tp, pp, micro_batch are blank"
    assert row(tmp_path, name, dp="").layout.data_parallel == 16
    assert row(tmp_path, name, dp="", cp="2").layout.data_parallel == 8
    assert row(tmp_path, name, gpus="").layout.ranks == 64
