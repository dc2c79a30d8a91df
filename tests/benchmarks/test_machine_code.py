"""Machine code is read as nvdisasm lists it; what compiles is tested in tests/kernels/test_compilation.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import machine_code
from benchmarks.machine_code import MachineCode, opcodes
from suite.paths import ROOT

LISTING = """
.text._kernel:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @P0 BRA `(.L_x_1) ;
        /*0020*/                   LDG.E.U16 R2, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E R3, desc[UR4][R2.64+0x2] ;
        /*0040*/              @!P1 STG.E.128 desc[UR4][R2.64], R4 ;
.L_x_1:
        /*0050*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
        /*0060*/                   LDS.64 R4, [R2] ;
        /*0070*/                   EXIT ;
        /*0080*/                   NOP;
"""


def test_instructions_are_counted_by_kind_and_loads_and_stores_by_width() -> None:
    code = MachineCode(32, 0, 0, opcodes(LISTING), None)
    assert code.kinds == {"S2R": 1, "BRA": 1, "LDG": 2, "STG": 1, "LDGSTS": 1, "LDS": 1, "EXIT": 1}
    assert (code.load_bytes, code.store_bytes) == ([16, 4, 2], [16])


def test_bad_usage_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine_code, "INTERPRETED", True)
    assert machine_code.main(["gpt2-124m"]) == 2
    assert capsys.readouterr().err == "error: TRITON_INTERPRET: allowed unset, got 1\n"
    with pytest.raises(SystemExit) as ended:
        machine_code.main(["bloom"])
    assert ended.value.code == 2
    assert "invalid choice: 'bloom'" in capsys.readouterr().err


@pytest.mark.rare  # compiles one kernel in a process of its own
def test_a_row_names_the_kernels_of_a_run_s_micro_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.machine_code", "glm-mini", "--kernel", "rotary"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["| rotary._kernel", launches, "8 x 12 x 1024 x 64 float16", "768 x 8"] for launches in ("34", "17")
    ]
