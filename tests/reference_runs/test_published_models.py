"""Shapes of models that shipped tables name fill the blank cells of a row that calls a model so."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reference_runs.published import PublishedRow, load_table
from reference_runs.published_columns import STEP
from reference_runs.published_models import tabled_shape

ROW = {
    **{"framework": "llm-foundry", "gpu": "h100", "gpus": "8", "seq_len": "2048"},
    **{"global_batch": "64", "micro_batch": "4", STEP: "2"},
}


def row(tmp_path: Path, model: str, **cells: str) -> PublishedRow | str:
    stated = {"model": model} | ROW | cells
    path = tmp_path / "own.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(stated))
        writer.writeheader()
        writer.writerow(stated)
    table = load_table(path)
    return table.rows[0] if table.rows else table.skipped[0].reason


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("MPT-7b", (32, 4096, 32)),
        ("mosaicml/mpt-7b", (32, 4096, 32)),
        ("mpt 70B", (80, 8192, 64)),
        ("Nemotron-340B", (96, 18432, 96)),
    ],
)
def test_a_row_of_a_tabled_model_has_its_shape(tmp_path: Path, model: str, shape: tuple[int, int, int]) -> None:
    found = row(tmp_path, model)
    assert isinstance(found, PublishedRow)
    architecture = found.architecture
    assert (architecture.layers, architecture.hidden, architecture.heads) == shape
    where = tabled_shape(model)
    assert where is not None
    assert f"layers = {shape[0]} as {where[0]}" in found.assumed


def test_a_row_that_states_another_shape_keeps_its_own(tmp_path: Path) -> None:
    found = row(tmp_path, "MPT-7b", layers="4", hidden="1024", heads="8", vocab="50368")
    assert isinstance(found, PublishedRow)
    assert (found.architecture.layers, found.architecture.hidden) == (4, 1024)
    assert row(tmp_path, "MPT-7b", layers="4") == "hidden, heads are blank, and no recorded run is called 'MPT-7b'"


@pytest.mark.parametrize("model", ["", "MPT-8b", "7b", "GPT-18B", "GPT-18.4B"])
def test_other_names_have_none(model: str) -> None:
    assert tabled_shape(model) is None
