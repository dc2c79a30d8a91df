"""One kernel's machine code: registers, spills, shared memory, and the instructions on its way, by kind and loop.

The way is the path from the first instruction to an exit that loads most bytes, then stores most, with the fewest
instructions: a branch for whole blocks is preferred to one for the rest of a row, and exits under a predicate are
passed. Backward branches
are loops; what an instruction counts is the product of the passes of the loops that it is in.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, MockTensor

from benchmarks.kernel_inspection.launches import KernelArgument, KernelLaunch

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_ROOM = re.compile(r"REG:(\d+) STACK:(\d+)")
LOADS = ("LDG", "LDGSTS")
GLOBAL = (*LOADS, "STG")
EXCHANGES = ("LDS", "STS", "LDSM", "STSM", "SHFL")
TARGET = GPUTarget("cuda", 90, 32)


class _Driver:
    """In place of Triton's driver, which would look for a GPU."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


class Instruction(NamedTuple):
    """One of the machine's instructions.

    Args:
        opcode: with its modifiers, such as LDG.E.128.
        predicated: whether a thread may pass it over.
        target: index of the instruction that it may branch to.
    """

    opcode: str
    predicated: bool = False
    target: int | None = None

    @property
    def kind(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """Of a thread, that it loads or stores; 0 for others."""
        if self.kind not in (*GLOBAL, *EXCHANGES):
            return 0
        modifiers = self.opcode.split(".")
        for bits in (128, 64):
            if str(bits) in modifiers:
                return bits // 8
        if "U16" in modifiers or "S16" in modifiers:
            return 2
        return 1 if "U8" in modifiers or "S8" in modifiers else 4


class MachineCode(NamedTuple):
    """What of a compiled kernel the model takes.

    Args:
        registers: of a thread.
        spilled_bytes: of a thread, in memory: what its registers do not hold.
        shared_bytes: of a program.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: tuple[Instruction, ...]


def parsed(text: str) -> tuple[Instruction, ...]:
    """The instructions of one function as nvdisasm prints them, without those that do nothing."""
    labels: dict[str, int] = {}
    found: list[tuple[str, bool, str | None]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif (one := _INSTRUCTION.match(line)) and one[2] != "NOP":
            target = _TARGET.search(one[3])
            found.append((one[2], one[1] is not None, target[1] if target else None))
    return tuple(
        Instruction(opcode, predicated, labels.get(target) if target and opcode.startswith("BRA") else None)
        for opcode, predicated, target in found
    )


def loops(instructions: Sequence[Instruction]) -> list[tuple[int, int]]:
    """First index and end of every loop, the outer ones first; the trap after the last exit is none."""
    found = [
        (one.target, place + 1)
        for place, one in enumerate(instructions)
        if one.target is not None and one.target <= place and one.target != place
    ]
    merged: dict[int, int] = {}
    for first, end in found:
        merged[first] = max(end, merged.get(first, 0))
    return sorted(merged.items(), key=lambda loop: (loop[0], -loop[1]))


def way(instructions: Sequence[Instruction]) -> list[int]:
    """Indices of the instructions on the way, in order; each loop is gone through once."""
    count = len(instructions)
    best: list[tuple[int, int, int, int]] = [(0, 0, 0, count)] * (count + 1)  # loaded, stored, -instructions, next one
    for place in range(count - 1, -1, -1):
        one = instructions[place]
        ends = one.kind == "EXIT" and not one.predicated
        jumps = one.opcode == "BRA" and not one.predicated and one.target is not None and one.target > place
        following = [] if ends or jumps else [place + 1]
        if one.target is not None and one.target > place:
            following.append(one.target)
        loaded, stored, fewest, chosen = max(((*best[n][:3], n) for n in following), default=best[count])
        loads, stores = one.kind in LOADS, one.kind == "STG"
        best[place] = (loaded + loads * one.bytes, stored + stores * one.bytes, fewest - 1, chosen)
    found, place = [], 0
    while place < count:
        found.append(place)
        place = best[place][3]
    return found


def weights(
    instructions: Sequence[Instruction], passes: Sequence[float], *, streams: int = 1, pass_bytes: float = 0
) -> dict[int, float]:
    """How often a warp issues each instruction on the way: loops at depth 0, 1, ... have so many passes.

    Args:
        streams: loops at depth 0 that run so often, those that load most; the others are what unrolling leaves over.
        pass_bytes: what a thread loads in one pass as it is written; a loop that loads twice as much is unrolled twice.
            0: loops are not unrolled.
    """
    steps = way(instructions)
    loaded = {
        loop: sum(instructions[i].bytes for i in steps if loop[0] <= i < loop[1] and instructions[i].kind in LOADS)
        for loop in loops(instructions)
    }
    outer = [loop for loop in loaded if not any(o != loop and o[0] <= loop[0] and loop[1] <= o[1] for o in loaded)]
    main = sorted((loop for loop in outer if loaded[loop]), key=lambda loop: -loaded[loop])[:streams]
    found = {}
    for place in steps:
        around = [loop for loop in loaded if loop[0] <= place < loop[1]]
        weight = 1.0
        if around and around[0] not in main:
            weight = 0.0
        for depth, loop in enumerate(around):
            unrolled = max(1.0, loaded[loop] / pass_bytes) if pass_bytes else 1.0
            weight *= passes[depth] / unrolled if depth < len(passes) and loaded[loop] else 1.0
        found[place] = weight
    return found


def compiled(launch: KernelLaunch) -> MachineCode:
    """The machine code that this launch runs on sm_90: Triton compiles it for these arguments as on a GPU."""
    triton.runtime.driver.set_active(_Driver())
    mocks: dict[int, MockTensor] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, KernelArgument):
            return mocks.setdefault(id(value), MockTensor(value.dtype, list(value.shape)))
        return value

    named = {name: argument(value) for name, value in launch.named.items()}
    built = JITFunction.run(launch.kernel, grid=(launch.programs,), warmup=True, num_warps=launch.warps, **named)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tools = triton.knobs.nvidia
        used = _output([tools.cuobjdump.path, "--dump-resource-usage", file.name])
        text = _output([tools.nvdisasm.path, "-c", file.name])
    room = _ROOM.search(used)
    assert room is not None, used
    return MachineCode(int(room[1]), int(room[2]), built.metadata.shared, parsed(text))


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
