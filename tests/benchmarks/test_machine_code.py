"""Machine code is read as nvdisasm lists it; what compiles is tested in tests/kernels/test_compilation.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import machine_code
from benchmarks.machine_code import MachineCode
from benchmarks.machine_listing import instructions, waiting_bytes
from benchmarks.machine_targets import TARGETS
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


AMD_LISTING = """
_kernel:
\ts_load_dwordx2 s[0:1], s[4:5], 0x0
\tbuffer_load_dwordx4 v[2:5], v1, s[8:11], 0 offen
\tbuffer_load_dwordx2 v[6:7], v1, s[8:11], 0 offen
\ts_waitcnt vmcnt(1)
\tglobal_load_dwordx4 v[8:11], v1, s[8:9]
\tv_add_f32_e32 v2, v2, v3
\tglobal_store_dwordx2 v1, v[2:3], s[8:9]
\ts_waitcnt vmcnt(0)
\ts_nop 0
\ts_endpgm
"""


def test_instructions_are_counted_by_kind_and_loads_and_stores_by_width() -> None:
    code = MachineCode(32, 0, 0, tuple(opcode for opcode, _ in instructions(LISTING)), 0, None)
    assert code.kinds == {"S2R": 1, "BRA": 1, "LDG": 2, "STG": 1, "LDGSTS": 1, "LDS": 1, "EXIT": 1}
    assert (code.load_bytes, code.store_bytes) == ([16, 4, 2], [16])
    code = MachineCode(32, 0, 0, tuple(opcode for opcode, _ in instructions(AMD_LISTING)), 0, None)
    assert (code.load_bytes, code.store_bytes) == ([16, 8], [8])
    assert "s_nop" not in code.kinds


def sass(*lines: str) -> str:
    return "".join(f"        /*{16 * place:04x}*/   {line} ;\n" for place, line in enumerate(lines))


def test_loads_are_on_the_way_until_what_they_load_is_used() -> None:
    first, second = "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.128 R8, desc[UR4][R2.64+0x10]"
    for lines, expected in (
        ((first, second, "FADD R0, R5, R9"), 32),
        ((first, "FADD R0, R5, R5", second), 16),
        ((first, "FADD R0, R12, R1", second), 32),
        ((first, "MOV R7, 0x0", second), 16),  # overwritten, so it has arrived
        ((first, second, "FADD R0, R5, R5", "LDG.E.U16 R12, desc[UR4][R2.64]"), 32),  # the second is still on the way
        (("LDGSTS.E.128 [R2], desc[UR4][R4.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x0", first), 16),
        (("LDGSTS.E.128 [R2], desc[UR4][R4.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x1", first), 32),
    ):
        assert waiting_bytes(instructions(sass(*lines))) == expected, lines
    assert waiting_bytes(instructions(AMD_LISTING)) == 24


@pytest.mark.parametrize(
    ("name", "registers", "shared", "warps", "programs", "expected"),
    [
        ("sm_90", 32, 0, 8, 10_000, 8),  # 64 warps
        ("sm_90", 33, 0, 8, 10_000, 6),  # 40 registers: 12 warps of each of 4 schedulers
        ("sm_90", 128, 0, 16, 10_000, 1),
        ("sm_90", 16, 0, 1, 10_000, 32),
        ("sm_90", 32, 100 * 1024, 4, 10_000, 2),
        ("sm_90", 32, 0, 4, 200, 2),  # 200 programs on 132 multiprocessors
        ("gfx942", 128, 0, 4, 10_000, 4),  # 4 wavefronts of each of 4 SIMDs
        ("gfx942", 32, 33 * 1024, 4, 10_000, 1),
        ("gfx950", 32, 33 * 1024, 4, 10_000, 4),
    ],
)
def test_programs_fit_by_registers_shared_memory_and_warps(
    name: str, registers: int, shared: int, warps: int, programs: int, expected: int
) -> None:
    found = TARGETS[name].programs_at_once(registers=registers, shared_bytes=shared, warps=warps, programs=programs)
    assert found == expected


def test_bad_usage_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine_code, "INTERPRETED", True)
    assert machine_code.main(["gpt2-124m"]) == 2
    assert capsys.readouterr().err == "error: TRITON_INTERPRET: allowed unset, got 1\n"
    with pytest.raises(SystemExit) as ended:
        machine_code.main(["bloom"])
    assert ended.value.code == 2
    assert "invalid choice: 'bloom'" in capsys.readouterr().err


@pytest.mark.rare  # compiles one kernel in a process of its own
@pytest.mark.parametrize(
    ("run", "kernel", "cells"),
    [
        (
            "glm-mini",
            "rotary",
            [["| rotary._kernel", launches, *("8 x 12 x 1024 x 64 float16", "768 x 8")] for launches in ("34", "17")],
        ),
        ("gpt2-124m", "adamw", [["| adamw._kernel", "1", "3072 x 768 float32", "4608 x 4"]]),
    ],
)
def test_a_row_names_the_kernels_of_a_run_s_step(run: str, kernel: str, cells: list[list[str]]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.machine_code", run, "--kernel", kernel],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[:4] for row in rows] == cells
