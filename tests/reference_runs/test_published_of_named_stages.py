"""What a framework's name says with the row's layout: its stack, and the ZeRO stage that the row does not state."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.published import STEP, load_table
from suite.predict.validation.software import framework_readings

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
        ("PyTorch FSDP (SHARD_GRAD_OP)", 2),
        ("PyTorch FSDP NO_SHARD", 0),
        ("DDP (no FSDP)", 0),
        ("DeepSpeed ZeRO-Infinity", 3),
        ("DeepSpeed ZeRO++", 3),
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
        *((framework, 3) for framework in ("llm-foundry", "Composer 0.16", "MosaicML", "metaseq")),
        ("Composer DDP", 0),
        ("DDP", 0),
        ("", 0),
    ],
)
def test_the_name_of_a_framework_says_its_zero_stage(tmp_path: Path, framework: str, expected: int) -> None:
    assert stage(tmp_path, framework) == expected


def test_what_a_row_states_comes_before_what_the_name_says(tmp_path: Path) -> None:
    assert stage(tmp_path, "torchtitan", zero_stage="2") == 2
    assert stage(tmp_path, "DeepSpeed Stage 3", zero_stage="0") == 0


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"tp": "2", "pp": "2", "dp": "2"}, "megatron-core"),
        ({"tp": "2", "pp": "1", "dp": "4"}, "pytorch"),
        ({"tp": "1", "pp": "2", "dp": "4"}, "pytorch"),
    ],
)
def test_pytorch_with_tensor_and_pipeline_parallelism_is_megatron_core(
    tmp_path: Path, cells: dict[str, str], expected: str
) -> None:
    stated = CELLS | {"framework": "PyTorch"} | cells
    path = tmp_path / "own.csv"
    path.write_text(f"{','.join(stated)}\n{','.join(stated.values())}\n", encoding="utf-8")
    table = load_table(path)
    assert [row.stack for row in table.rows] == [expected]
    (reading,) = framework_readings(table.rows)
    assert (reading.stack, "Megatron-Core" in reading.read_as) == (expected, expected == "megatron-core")
