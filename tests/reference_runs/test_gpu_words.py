"""GPUs with vendor, count, machine and memory around their name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.gpu_words import near_gpu, worded_gpu
from reference_runs.published import load_table

DEVICES = [name for name in accelerator_names() if name != "this-cpu"]
WORDED = {
    "h100-sxm": [
        *("NVIDIA H100-SXM5-80GB", "NVIDIA H100 SXM 80 GB", "8x NVIDIA H100 80GB HBM3", "8xH100", "H100 x8"),
        *("H100 (80GB)", "DGX H100", "HGX-H100", "NVIDIA H100 Tensor Core GPU", "H100 SXM 79.1 GiB"),
    ],
    "h200-sxm": ["NVIDIA H200-SXM-141GB", "H200 141GB HBM3e", "NVIDIA H200 141GB", "DGX H200"],
    "b200-sxm": [
        *("NVIDIA B200-SXM-180GB", "B200 180GB", "B200-SXM6-180GB", "DGX B200", "HGX B200"),
        *("NVIDIA Blackwell B200", "B200 192GB"),
    ],
    "gb200": ["NVIDIA GB200 NVL72", "GB200 186GB HBM3e", "NVIDIA GB200 (186GB)", "4x GB200", "DGX-GB200"],
    "a100-sxm-80gb": ["NVIDIA A100-SXM-80GB", "DGX A100 80GB"],
    "a100-sxm-40gb": ["NVIDIA A100-SXM-40GB", "HGX A100 40GB"],
    "a100-pcie-40gb": ["NVIDIA A100 PCIe 40 GB HBM2"],
    "h100-pcie": ["NVIDIA H100 PCIe 80 GB HBM2e", "8x H100 PCIe"],
    "h100-nvl": ["NVIDIA H100 NVL 94 GB", "2x H100 NVL"],
    "mi355x": ["AMD MI355X", "MI355X 288GB HBM3E"],
    "mi300x": ["AMD Instinct MI300X 192GB HBM3", "8 \u00d7 MI300X"],
}


@pytest.mark.parametrize(("text", "name"), [(text, name) for name, texts in WORDED.items() for text in texts])
def test_words_around_a_name_leave_it_as_it_is(text: str, name: str) -> None:
    assert worded_gpu(text) == name


@given(st.sampled_from(DEVICES), st.sampled_from(["", "8x ", "DGX "]), st.sampled_from(["", " GPU", " HBM3e", " (x8)"]))
def test_names_and_aliases_of_every_accelerator_are_found_within_words(name: str, before: str, after: str) -> None:
    size = accelerator(name).board.memory_bytes // 2**30
    assert worded_gpu(f"{before}{name}{after}") == name
    if f"{size}gb" not in name:
        assert worded_gpu(f"{before}{name}{after} {size} GB") == name
    assert worded_gpu(f"{name} {size * 1.2:g}GB") is None
    assert worded_gpu(f"{name} {size * 0.8:g}GB") is None


@pytest.mark.parametrize(
    "text",
    [
        *("H100 SXM 81GB", "A100_SXM 8GB", "A100 40GB 80GB", "H100 94GB", "A100 SXM 80GB PCIe", "H100 Superchip"),
        *("B300", "GH200", "H20", "SXM", "80GB", "NVIDIA", "8x", "GB200 SXM", "H100 NVL72"),
    ],
)
def test_words_of_no_recorded_board_are_none(text: str) -> None:
    assert worded_gpu(text) is None


@pytest.mark.parametrize(
    ("text", "near"),
    [("H100 SXM 81GB", "h100-sxm-80gb"), ("A100_SXM 8GB", "a100-sxm-80gb"), ("DGX B300", None), ("GB300", None)],
)
def test_a_hint_is_of_the_model_that_is_named(text: str, near: str | None) -> None:
    assert near_gpu(text) == near


@pytest.mark.parametrize("text", ["DGX B200", "NVIDIA B200-SXM-180GB"])
def test_a_row_says_what_its_words_were_read_as(tmp_path: Path, text: str) -> None:
    header = "model,gpu,gpus,dp,tp,pp,global_batch,micro_batch,measured_step_time_s"
    path = tmp_path / "own.csv"
    path.write_text(f"{header}\nLlama-3.1-8B,{text},8,8,1,1,8,1,1\n", encoding="utf-8")
    (row,) = load_table(path).rows
    assert row.accelerator == "b200-sxm"
    assert f"gpu {text} = b200-sxm" in row.assumed
