"""The column `gpu` as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.published import STEP, PublishedTable, load_table


def table(tmp_path: Path, gpu: str) -> PublishedTable:
    cells = {"model": "Llama-3.1-8B", "gpu": gpu, "gpus": "8", "dp": "8", "tp": "1", "pp": "1"}
    cells |= {"global_batch": "8", "micro_batch": "1", STEP: "1"}
    path = tmp_path / "own.csv"
    path.write_text(f"{','.join(cells)}\n{','.join(cells.values())}\n", encoding="utf-8")
    return load_table(path)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("A100 80GB", "a100-sxm-80gb"),
        ("A100_40GB", "a100-sxm-40gb"),
        ("A100 80GB SXM", "a100-sxm-80gb"),
        ("H100 SXM5 80GB", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ],
)
def test_blanks_underscores_and_hyphens_are_alike(tmp_path: Path, gpu: str, name: str) -> None:
    (row,) = table(tmp_path, gpu).rows
    assert row.accelerator == name
    assert not any(words.startswith("gpu ") for words in row.assumed)


def test_what_leaves_the_board_open_is_said(tmp_path: Path) -> None:
    (row,) = table(tmp_path, " h100 ").rows
    assert "gpu h100 = h100-sxm" in row.assumed


@pytest.mark.parametrize(("gpu", "near"), [("H100 SXM 81GB", "h100-sxm-80gb"), ("A100_SXM 8GB", "a100-sxm-80gb")])
def test_an_unknown_one_is_named_with_what_was_perhaps_meant(tmp_path: Path, gpu: str, near: str) -> None:
    (skipped,) = table(tmp_path, gpu).skipped
    assert skipped.reason.startswith(f"gpu: {gpu!r} is not known; did you mean {near}? allowed: ")
