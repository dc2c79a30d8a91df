"""The shell file of a submission gives the variables that a shell would set, and is never executed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from reference_runs.mlperf_layout import configuration_beside, layout_cells, read_shell

COMMON = """# what all configurations share
export MICRO_BATCH_SIZE=1
: "${SEQ_PARALLEL:=True}"
export FP8=True
"""
CONFIG = """#!/bin/bash
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=128     # samples of a replica
export TENSOR_MODEL_PARALLEL="4"
PIPELINE_MODEL_PARALLEL=$((2 * TENSOR_MODEL_PARALLEL))
export INTERLEAVED_PIPELINE=${VP:-12}
export DGXNGPU=8
export DGXNNODES=$(( 2 * ( 40 - DGXNGPU ) ))
export DGXSYSTEM=DGXH100_$(printf %d ${DGXNNODES})x8
export WALLTIME_MINUTES=75; export WALLTIME=$(( WALLTIME_MINUTES + 5 ))
touch executed
"""
NAMES = ("MICRO_BATCH_SIZE", "SEQ_PARALLEL", "FP8", "MINIBS", "TENSOR_MODEL_PARALLEL", "PIPELINE_MODEL_PARALLEL")
NAMES += ("INTERLEAVED_PIPELINE", "DGXNGPU", "DGXNNODES", "WALLTIME_MINUTES")


def written(directory: Path, text: str = CONFIG, common: str = COMMON) -> Path:
    (directory / "config_common.sh").write_text(common, encoding="utf-8")
    (directory / "config_DGXH100_64x8x128x4x8_mbs1.sh").write_text(text, encoding="utf-8")
    return directory / "config_DGXH100_64x8x128x4x8_mbs1.sh"


def test_variables_are_those_that_a_shell_sets(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert configuration_beside(tmp_path / "result_0.txt") == path
    values = read_shell(path).values
    assert not (tmp_path / "executed").exists()
    shell = shutil.which("bash")
    assert shell is not None
    script = f". ./{path.name} && printf '%s\\n' " + " ".join(f'"${name}"' for name in NAMES)
    set_by_bash = subprocess.run([shell, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert [values[name] for name in NAMES] == set_by_bash.stdout.split()


def test_cells_are_those_of_the_published_row(tmp_path: Path) -> None:
    """The configuration of mlperf_gpt3_h100_fp8.csv's first row: 64 nodes, dp 16, tp 4, pp 8, vpp 12."""
    expected = {"tp": "4", "pp": "8", "vpp": "12", "micro_batch": "1", "gpus": "512", "dp": "16", "gpus_per_node": "8"}
    assert dict(layout_cells(read_shell(written(tmp_path)))) == expected | {"sp": "1", "dtype": "fp8"}
    off = "export INTERLEAVED_PIPELINE=null\nexport CONTEXT_PARALLEL=2\nexport FP8=0\n"
    assert dict(layout_cells(read_shell(written(tmp_path, off, "")))) == {"cp": "2", "dtype": "bf16"}


def test_a_file_that_is_not_beside_it_is_named_and_one_that_includes_itself_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "config_common.sh").unlink()
    assert read_shell(path).lacking == ("config_common.sh",)
    path.write_text(f"source ./{path.name}\n", encoding="utf-8")
    with pytest.raises(InputError, match="more than 8 configurations include each other"):
        read_shell(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "export TENSOR_MODEL_PARALLEL=four",
            "TENSOR_MODEL_PARALLEL; got 'four', allowed: a whole number of 1 or more",
        ),
        ("export DGXNNODES=$(nproc)", "DGXNNODES; got '$(nproc)', allowed: a whole number of 1 or more"),
        ("export FP8=maybe", "FP8; got 'maybe', allowed: 0, 1, true or false"),
        (
            "export DGXNNODES=1\nexport DGXNGPU=6",
            "tp * pp * cp = 4 does not divide the accelerators; got 1 (DGXNNODES)",
        ),
    ],
)
def test_a_value_that_is_none_is_refused_in_a_line(line: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"export TENSOR_MODEL_PARALLEL=4\n{line}\n")
    with pytest.raises(InputError) as refusal:
        list(layout_cells(read_shell(path)))
    assert words in str(refusal.value)
    assert len(refusal.value.lines) == 1


def test_several_configurations_beside_a_log_are_refused_by_their_names(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "config_b.sh").touch()
    with pytest.raises(InputError, match=r"several configurations beside the log; got config_DGXH100_.*, config_b\.sh"):
        configuration_beside(tmp_path / "result_0.txt")
    assert configuration_beside(tmp_path / "elsewhere" / "result_0.txt") is None
