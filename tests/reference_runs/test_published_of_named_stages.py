"""The ZeRO stage that a framework's name says, where the row states none."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.published import STEP, load_table

CELLS = {
    **{"model": "Llama-3.1-8B", "gpu": "h100", "gpus": "8", "dp": "8", "tp": "1", "pp": "1"},
    **{"global_batch": "8", "micro_batch": "1", STEP: "1"},
}


def stage(tmp_path: Path, framework: str, **cells: str) -> int:
    stated = CELLS | {"framework": framework} | cells
    path = tmp_path / "own.csv"
    path.write_text(f"{','.join(stated)}\n{','.join(stated.values())}\n", encoding="utf-8")
    (row,) = load_table(path).rows
    assert "zero_stage" in cells or f"zero_stage = {row.layout.zero_stage}" in row.assumed
    return row.layout.zero_stage


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("torchtitan", 3),
        ("TorchTitan 0.1", 3),
        ("torchtitan DDP", 0),
        ("FSDP", 3),
        *(
            (words.format(number), number)
            for number in (1, 2, 3)
            for words in (
                "DeepSpeed Stage {}",
                "deepspeed stage{}",
                "DeepSpeed (stage-{})",
                "DeepSpeed ZeRO-{}",
                "ZeRO{}",
                "DeepSpeed zero_{} offload",
                "ZeRO Stage {}",
                "DeepSpeed ZeRO stage={}",
                "Accelerate + ZeRO {} bf16",
            )
        ),
        ("DeepSpeed 3 pipeline stages", 0),
        ("DeepSpeed 0.16.3", 0),
        ("DDP", 0),
        ("", 0),
    ],
)
def test_the_name_of_a_framework_says_its_zero_stage(tmp_path: Path, framework: str, expected: int) -> None:
    assert stage(tmp_path, framework) == expected


def test_what_a_row_states_comes_before_what_the_name_says(tmp_path: Path) -> None:
    assert stage(tmp_path, "torchtitan", zero_stage="2") == 2
    assert stage(tmp_path, "DeepSpeed Stage 3", zero_stage="0") == 0
