"""Machine code is read, and its time on an H100 predicted, as the module says; the committed table is the command's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from benchmarks.kernel_inspection.__main__ import main
from benchmarks.kernel_inspection.hopper import resident_programs
from benchmarks.kernel_inspection.launches import KernelArgument, KernelLaunch
from benchmarks.kernel_inspection.machine_code import Instruction, MachineCode, loops, parsed, way, weights
from benchmarks.kernel_inspection.prediction import forecast
from benchmarks.kernel_inspection.table import BEGIN, END, Inspected, reason, table, written_into
from benchmarks.kernel_inspection.walks import RULES, UNRULED, walk
from suite.paths import ROOT

PAGE = ROOT / "docs" / "kernels.md"
# two branches, the first of narrow loads; in the second a loop that loads ahead; a trap at the end
LISTING = """
.text._kernel:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @P0 BRA `(.L_x_1) ;
        /*0020*/                   LDG.E.U16 R2, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.U16 R3, desc[UR4][R2.64+0x2] ;
        /*0040*/              @!P1 STG.E.128 desc[UR4][R2.64], R4 ;
        /*0050*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0060*/                   EXIT ;
.L_x_1:
        /*0070*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
.L_x_2:
        /*0080*/                   LDS.128 R4, [R2] ;
        /*0090*/                   MUFU.EX2 R4, R4 ;
        /*00a0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
        /*00c0*/               @P2 BRA `(.L_x_2) ;
        /*00d0*/              @!P3 EXIT ;
        /*00e0*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*00f0*/                   EXIT ;
.L_x_3:
        /*0100*/                   BRA `(.L_x_3);
        /*0110*/                   NOP;
"""


def _argument(*shape: int, dtype: torch.dtype = torch.bfloat16) -> KernelArgument:
    return KernelArgument(torch.empty(shape, dtype=dtype, device="meta"))


def _launch(name: str, programs: int, warps: int, **named: Any) -> KernelLaunch:
    module, _, function = name.partition(".")
    kernel = SimpleNamespace(fn=SimpleNamespace(__module__=f"kernels.{module}", __name__=function))
    return KernelLaunch(kernel, "a run", programs, warps, named)


def _activation(programs: int, rows: int) -> KernelLaunch:
    tensors = {"x_ptr": _argument(rows, 1024), "y_ptr": _argument(rows, 1024)}
    return _launch("bias_activation._forward_kernel", programs, 4, **tensors, ACTIVATION=3)


def _code(count: Mapping[str, int], *, registers: int = 32, shared_bytes: int = 0) -> MachineCode:
    found = [Instruction(opcode) for opcode, times in count.items() for _ in range(times)]
    return MachineCode(registers, 0, shared_bytes, (*found, Instruction("EXIT")))


def test_instructions_are_read_with_their_bytes_branches_and_predicates() -> None:
    instructions = parsed(LISTING)
    assert len(instructions) == 17
    by_opcode = {one.opcode: one for one in instructions}
    assert [by_opcode[name].bytes for name in ("LDG.E.U16", "LDGSTS.E.BYPASS.128", "LDS.128", "STG.E.64")] == [
        2,
        16,
        16,
        8,
    ]
    assert by_opcode["MUFU.EX2"].bytes == 0
    assert instructions[1] == Instruction("BRA", True, 7)
    assert loops(instructions) == [(8, 13)]


def test_the_way_loads_most_and_passes_exits_under_a_predicate() -> None:
    assert way(parsed(LISTING)) == [0, 1, *range(7, 16)]
    # as many bytes in fewer instructions
    masked = [Instruction("BRA", True, 4), *[Instruction("LDG.E.64")] * 2, Instruction("EXIT")]
    assert way([*masked, Instruction("LDG.E.128"), Instruction("EXIT")]) == [0, 4, 5]


def test_loops_count_their_passes_and_what_unrolling_left_over_does_not() -> None:
    often = weights(parsed(LISTING), (5.0,))
    assert [often[place] for place in (0, 7, 8, 12, 15)] == [1, 1, 5, 5, 1]
    twice = weights(parsed(LISTING), (6.0,), pass_bytes=8)
    assert twice[8] == 3
    assert 2 not in often
    rest = [*[Instruction("LDG.E.128")] * 2, Instruction("BRA", True, 0), Instruction("LDG.E.128")]
    rest += [Instruction("BRA", True, 3), Instruction("EXIT")]
    assert list(weights(rest, (10.0,), pass_bytes=16).values()) == [5, 5, 5, 0, 0, 1]
    assert list(weights(rest, (10.0,), streams=2).values()) == [10] * 5 + [1]


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "programs"),
    [(32, 0, 4, 16), (64, 0, 16, 2), (65, 0, 16, 1), (40, 0, 4, 12), (16, 0, 1, 32), (32, 100_000, 4, 2)],
)
def test_programs_of_a_processor(registers: int, shared_bytes: int, warps: int, programs: int) -> None:
    assert resident_programs(registers=registers, shared_bytes=shared_bytes, warps=warps) == programs


def test_bandwidth_limits_what_has_few_instructions() -> None:
    got = forecast(_activation(32_768, 65_536), _code({"LDG.E.128": 2, "FMUL": 16, "STG.E.128": 2}))
    assert got.binding == "bandwidth"
    assert got.share == pytest.approx(1)
    assert got.seconds["bandwidth"] == pytest.approx(2 * 65_536 * 1024 * 2 / 3.35e12)
    assert (got.load_bytes, got.store_bytes, got.resident, got.occupancy) == ((16,), (16,), 16, 1.0)
    # 16 programs of 128 threads have two loads each on the way; half of the bytes at 3.35 TB/s are loads
    assert got.in_flight == pytest.approx(16 * 128 * 32 / (3.35e12 / 132 * 0.7e-6 / 2))


def test_instructions_limit_beyond_what_four_schedulers_issue() -> None:
    got = forecast(_activation(32_768, 65_536), _code({"LDG.E.128": 2, "FMUL": 1000, "STG.E.128": 2}))
    assert got.binding == "issue"
    assert got.seconds["issue"] == pytest.approx(32_768 * 4 * 1005 / 4 / 0.8 / 132 / 1.83e9)
    assert got.share == pytest.approx(got.seconds["bandwidth"] / got.seconds["issue"])
    special = forecast(_activation(32_768, 65_536), _code({"LDG.E.128": 2, "MUFU.EX2": 1000}))
    assert special.seconds["issue"] == pytest.approx(32_768 * 4 * 2000 / 132 / 1.83e9)
    narrow = forecast(_activation(32_768, 65_536), _code({"LDG.E.U16": 1000}))
    assert narrow.seconds["issue"] == pytest.approx(32_768 * 4 * 1000 / 132 / 1.83e9)


def test_latency_limits_a_few_programs_and_a_last_round_of_few_costs_a_whole_one() -> None:
    code = _code({"LDG.E.128": 2, "BAR.SYNC": 1, "SHFL.BFLY": 2, "STG.E.128": 2}, registers=255)
    alone = 0.7e-6 + (8 * 2 + 30 + 2 * 25) / 1.83e9
    for programs, rounds in ((10, 1), (264, 1), (265, 2), (528, 2)):
        got = forecast(_activation(programs, 2 * programs), code)
        assert got.resident == 2
        assert got.seconds["latency"] == pytest.approx(rounds * alone), programs
    assert forecast(_activation(10, 20), code).binding == "latency"
    assert forecast(_activation(10, 20), code, latency=1.4e-6).seconds["latency"] == pytest.approx(alone + 0.7e-6)


def test_a_loop_that_loads_ahead_waits_only_for_what_it_does_not_compute() -> None:
    code = MachineCode(32, 0, 0, parsed(LISTING))
    tensors = {name: _argument(512, 1024) for name in ("kept_ptr", "dy_ptr", "dx_ptr")}
    sizes = {"M": 512, "N": 1024, "ROWS": 1, "BLOCK": 1024}
    waits = {}
    for stages in (2, 3):
        launch = _launch("bias_activation._backward_kernel", 64, 4, **tensors, **sizes, STAGES=stages)
        assert walk(launch).passes == (8,)
        waits[stages] = forecast(launch, code).seconds["latency"]
    lap = (5 * 2 + 30) / 1.83e9
    outside = 6 * 2 / 1.83e9
    assert waits[2] == pytest.approx(0.7e-6 + 8 * 0.7e-6 + outside)
    assert waits[3] == pytest.approx(0.7e-6 + 8 * max(lap, 0.35e-6) + outside)


def test_bytes_of_a_causal_mask_of_changed_tensors_and_of_rows_that_are_read_again() -> None:
    shape = (1, 1, 1024, 1024)
    softmax = {"scores_ptr": _argument(*shape), "weights_ptr": _argument(*shape), "S": 1024, "LAPS": 1}
    whole, half = (
        walk(_launch("masked_softmax._forward_kernel", 1024, 1, **softmax, CAUSAL=causal)).least_bytes
        for causal in (False, True)
    )
    assert (whole, half) == (4 * 2**20, 2 * 2**20 + 2**20 * (1024 + 16) / 1024)
    for columns, again in ((50_304, 0), (250_880, 1)):
        logits, losses = _argument(4096, columns), _argument(4096, dtype=torch.float32)
        sizes = {"V": columns, "vocabulary": columns, "BLOCK": 8192}
        got = walk(
            _launch("cross_entropy._kernel", 4096, 16, logits_ptr=logits, factor_ptr=logits, losses_ptr=losses, **sizes)
        )
        assert got.least_bytes == 2 * logits.bytes + losses.bytes
        assert got.read_bytes == (1 + again) * logits.bytes
        assert got.passes == (columns // 8192,)


def test_every_kernel_has_a_rule() -> None:
    found = set()
    for path in (ROOT / "kernels").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        # a kernel is what an operator launches; the others are functions of kernels
        found |= {f"{path.stem}.{name}" for name in _jitted(text) if name.endswith("kernel")}
    assert found == RULES.keys() | UNRULED


def _jitted(text: str) -> list[str]:
    return [part.partition("(")[0] for part in text.split("@triton.jit\ndef ")[1:]]


def test_what_falls_short_has_a_mark_and_its_reason_and_other_rows_have_none() -> None:
    slow = _code({"LDG.E.128": 2, "FMUL": 1000, "STG.E.128": 2})
    launch = _activation(32_768, 65_536)
    text = table([Inspected(launch, slow, forecast(launch, slow))])
    assert "(1) | issue |" in text
    assert text.endswith("\n\n1. No reason is known.\n")
    fast = _code({"LDG.E.128": 2, "STG.E.128": 2})
    good = Inspected(launch, fast, forecast(launch, fast))
    assert not good.falls_short
    assert table([good]).endswith("| 100% | bandwidth |\n")
    odd = _launch("cross_entropy._kernel", 4096, 16, logits_ptr=_argument(4096, 50_257), VECTOR=1, V=50_257)
    assert "Pad the vocabulary" in str(reason(Inspected(odd, slow, good.forecast)))
    assert "not measured" in text.splitlines()[0]


def test_the_table_stands_between_its_marks_and_nowhere_else() -> None:
    page = f"before\n{BEGIN}\n\nold\n\n{END}\nafter\n"
    assert written_into(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    for wrong in ("", BEGIN, f"{END}{BEGIN}"):
        with pytest.raises(ValueError, match="allowed a page with the lines"):
            written_into(wrong, "new")


def _command(*arguments: str, interpreted: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.kernel_inspection", *arguments],
        cwd=ROOT,
        env=environment | ({"TRITON_INTERPRET": "1"} if interpreted else {}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.rare  # tests/kernels/test_compilation.py compiles them too
def test_rows_of_the_committed_table_are_what_the_command_writes() -> None:
    page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    compiler = page.partition("Triton ")[2].partition(";")[0]
    if compiler != triton.__version__:
        pytest.skip(f"the table is by Triton {compiler}, here is {triton.__version__}")
    for arguments in (
        ("--run", "glm-mini", "--kernel", "rotary"),
        ("--run", "glm-mini", "--kernel", "gated_activation"),
    ):
        done = _command(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "2 launches, 0 rows fall short, 0 without a reason\n"
        rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
        assert len(rows) == 2
        for row in rows:
            assert row in page.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--write", "README.md"), f"error: README.md: allowed a page with the lines {BEGIN} and {END}"),
        (("--write", "absent.md"), "error: absent.md: [Errno 2] No such file"),
        (("--run", "bloom"), "argument --run: invalid choice: 'bloom'"),
    ],
)
def test_bad_usage_ends_with_2_in_a_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code  # argparse's
    assert code == 2
    assert message in capsys.readouterr().err


def test_triton_that_interprets_compiles_nothing() -> None:
    done = _command(interpreted=True)
    assert (done.returncode, done.stderr) == (2, "error: TRITON_INTERPRET: allowed unset, got 1\n")
