"""A table of every accelerator in every format: each row is predicted on that part, or skipped for what it lacks."""

from __future__ import annotations

import csv
from pathlib import Path

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.published_cells import STEP
from suite.__main__ import main

FORMATS = {"bf16": "bf16", "fp16": "fp16", "FP8-CS": "fp8", "FP8-MX": "mxfp8", "NVFP4": "nvfp4"}  # words, peak's dtype
AS_WRITTEN = {
    "GB200 NVL72": "gb200",
    "DGX-GB300": "gb300",
    "HGX B300": "b300-sxm",
    "NVIDIA A800-SXM4-80GB": "a800-sxm",
    "H100 96GB HBM2e": "h100-sxm-96gb",
    "8x MI300X OAM": "mi300x",
    "MI325X 256GB": "mi325x",
    "RTX A6000": "rtx-a6000",
    "GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA DGX Spark": "gb10",
    "TPUv5p": "tpu-v5p",
    "TPU v6e (Trillium)": "tpu-v6e",
    "Trn2": "trainium2",
    "Gaudi 3": "gaudi3",
    "Vera Rubin NVL144": "rubin",
    "Tesla T4": "t4",
}


def validated(directory: Path, rows: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Rows of `validate --write` of a small model on one accelerator each, by the words for it and for the format."""
    shape = "llama,4,2048,16,32000,5504,1024,8,8"
    head = f"model,layers,hidden,heads,vocab,ffn_hidden,seq_len,global_batch,micro_batch,gpu,dtype,gpus,{STEP}\n"
    (directory / "own.csv").write_text(
        head + "".join(f'{shape},"{gpu}",{dtype},1,1\n' for gpu, dtype in rows), encoding="utf-8"
    )
    assert main(["validate", "own.csv", "--write", "out.csv", "--force", "--worst", "0"]) == 0
    with open(directory / "out.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_row_is_predicted_on_its_accelerator_or_says_which_format_that_lacks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    devices = [accelerator(name) for name in accelerator_names() if name != "this-cpu"]
    wanted = [(device, words, dtype) for device in devices for words, dtype in FORMATS.items()]
    rows = validated(tmp_path, [(device.name, words) for device, words, _ in wanted])
    wrong = []
    for (device, words, dtype), row in zip(wanted, rows, strict=True):
        able = {dtype, "bf16" if dtype not in ("bf16", "fp16") else dtype} <= device.peak_flop_per_second.keys()
        why = row["not_predicted"]
        lacking = "computes no products in" in why or "has no peak_flop_per_second for the dtype" in why
        predicted = bool(row["predicted_step_time_s"]) and row["predicted_accelerator"] == device.name and not why
        if not (predicted if able else lacking and device.name in why and "\n" not in why):
            wrong.append((device.name, words, why))
    assert wrong == []
    assert 0 < sum(bool(row["not_predicted"]) for row in rows) < len(rows)


def test_names_as_tables_write_them_are_of_the_accelerator_that_they_mean(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = validated(tmp_path, [(words, "fp16" if "T4" in words else "bf16") for words in AS_WRITTEN])
    assert {row["gpu"]: row["predicted_accelerator"] for row in rows} == AS_WRITTEN
    others = [(words, "bf16") for words in ("GB200 NVL36", "H200 NVL", "MI210", "A10", "TPU v3", "H20 141GB")]
    refused = validated(tmp_path, [*others, ("H100", "bf16")])[:-1]
    assert [row["predicted_accelerator"] for row in refused] == [""] * len(others)
    assert all("is not known" in row["not_predicted"] for row in refused)
