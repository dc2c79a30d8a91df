"""Machine code for an H100 of the kernels that a run launches: registers, spills and instructions, without a GPU.

    python -m benchmarks.machine_code gpt2-124m --kernel row_norm

The model of a run runs on tensors without memory, forward and backward over one micro-batch, and every launch of Triton
is noted with its arguments; then each is compiled for sm_90. Runs are GPT-2 as recorded, and miniatures in their GPU
size. Nothing is measured or predicted. Exit code 0; 2: bad usage, or Triton cannot compile here.
"""

from __future__ import annotations

import argparse
import importlib
import math
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, MockTensor

import kernels.operator
import kernels.tiles
from kernels.operator import INTERPRETED
from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Architecture, Mask, Recipe
from suite.reproduce.supported import without_triton_kernel

PROCESSORS = 132  # of an H100 SXM: grids depend on it
TARGET = GPUTarget("cuda", 90, 32)
GPT2_RUNS = ("gpt2-124m", "gpt2-1558m")
HEADER = ("kernel", "launches", "first tensor", "programs x warps", "registers", "spilled", "shared", "load", "store")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)[^;]*;", re.MULTILINE)
_ROOM = re.compile(r"REG:(\d+) STACK:(\d+)")


class KernelArgument(NamedTuple):
    """A tensor as a launch gets it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class KernelLaunch(NamedTuple):
    """One launch of a kernel, with its arguments by name: tensors as `KernelArgument`, numbers as they are."""

    kernel: Any
    programs: int
    warps: int
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.kernel.fn.__module__.removeprefix('kernels.')}.{self.kernel.fn.__name__}"


class MachineCode(NamedTuple):
    """One kernel compiled for sm_90.

    Args:
        registers: of a thread.
        spilled_bytes: of a thread, in memory: what its registers do not hold.
        shared_bytes: of a program.
        opcodes: with their modifiers, such as LDG.E.128, in order; NOP left out.
        built: Triton's compiled kernel.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    opcodes: tuple[str, ...]
    built: Any

    @property
    def load_bytes(self) -> list[int]:
        """Bytes that a thread loads from memory at once, each width that occurs."""
        return _widths(self.opcodes, ("LDG", "LDGSTS"))

    @property
    def store_bytes(self) -> list[int]:
        """Bytes that a thread stores to memory at once, each width that occurs."""
        return _widths(self.opcodes, ("STG",))

    @property
    def kinds(self) -> Counter[str]:
        """Instructions by opcode without modifiers."""
        return Counter(opcode.partition(".")[0] for opcode in self.opcodes)


def _widths(opcodes: Sequence[str], kinds: tuple[str, ...]) -> list[int]:
    bits = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    found = set()
    for opcode in opcodes:
        kind, *modifiers = opcode.split(".")
        if kind in kinds:
            found.add(next((bits[word] for word in modifiers if word in bits), 4))
    return sorted(found, reverse=True)


@contextmanager
def launches_noted() -> Iterator[list[KernelLaunch]]:
    """Within it, launches of Triton on any tensors are appended to the list, and computed nowhere.

    Grids and blocks are those of an H100.
    """
    for one in pkgutil.iter_modules(kernels.__path__, "kernels."):
        importlib.import_module(one.name)  # before names are replaced, which PyTorch reads the source of
    found: list[KernelLaunch] = []

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool, num_warps: int = 4, **named: Any) -> None:
        del warmup
        known = {
            name: KernelArgument(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
            for name, value in (dict(zip(self.arg_names, arguments, strict=False)) | named).items()
        }
        found.append(KernelLaunch(self, math.prod(grid), num_warps, known))

    answers = {
        kernels.operator.runs_triton: lambda _: True,
        kernels.operator.launchable: lambda kernel: kernel,
        kernels.tiles._multiprocessors: lambda _: PROCESSORS,
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.")]
    places = [
        (module, real.__name__, real)
        for module in modules
        for real in answers
        if vars(module).get(real.__name__) is real
    ]
    run = JITFunction.run
    JITFunction.run = note
    for module, name, real in places:
        setattr(module, name, answers[real])
    try:
        yield found
    finally:
        JITFunction.run = run
        for module, name, real in places:
            setattr(module, name, real)


def model_launches(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[KernelLaunch]:
    """Launches of one micro-batch of a model, forward and backward, on one GPU."""
    from suite.execute.model.decoder import Decoder
    from suite.execute.model.triton_operations import TritonOperations
    from suite.execute.precision import DTYPES

    usual = torch.get_default_dtype()
    with launches_noted() as found, FakeTensorMode():
        torch.set_default_dtype(DTYPES[recipe.precision])
        try:
            model = Decoder(architecture, recipe, TritonOperations(architecture))
        finally:
            torch.set_default_dtype(usual)
        model.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers or 1)
        tokens = torch.zeros(layout.micro_batch, architecture.sequence, dtype=torch.int64)
        arguments = {}
        if architecture.mask is Mask.PREFIX:
            seen = torch.zeros(layout.micro_batch, 2, architecture.sequence, dtype=torch.int64)
            arguments = {"positions_BT": tokens, "seen_B2S": seen}
        model(tokens, tokens, **arguments).backward()
    return found


def run_launches(name: str) -> list[KernelLaunch]:
    """Launches of one micro-batch of a run: GPT-2 as recorded, a miniature in its GPU size."""
    if name in GPT2_RUNS:
        return model_launches(*reference_run(name).workload)
    small = miniature(reference_run(miniatures()[name]), "cuda", ranks=1)
    return model_launches(small.architecture, small.recipe, small.layout)


class _Driver:
    """Answers in place of Triton's driver, which would look for a GPU."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def compiled(launch: KernelLaunch) -> MachineCode:
    """The machine code that this launch runs on sm_90: Triton compiles it for these arguments as on a GPU."""
    triton.runtime.driver.set_active(_Driver())
    arguments = {
        name: MockTensor(value.dtype, list(value.shape)) if isinstance(value, KernelArgument) else value
        for name, value in launch.arguments.items()
    }
    built = JITFunction.run(launch.kernel, grid=(launch.programs,), warmup=True, num_warps=launch.warps, **arguments)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tools = triton.knobs.nvidia
        used = _output([tools.cuobjdump.path, "--dump-resource-usage", file.name])
        text = _output([tools.nvdisasm.path, "-c", file.name])
    room = _ROOM.search(used)
    assert room is not None, used
    return MachineCode(int(room[1]), int(room[2]), built.metadata.shared, opcodes(text), built)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def opcodes(listing: str) -> tuple[str, ...]:
    """The opcodes of one function as nvdisasm lists it, without those that do nothing."""
    return tuple(opcode for opcode in _INSTRUCTION.findall(listing) if opcode != "NOP")


def row(launch: KernelLaunch, launches: int, code: MachineCode) -> str:
    """One line of the table: the columns of `HEADER`, then the instructions by kind, most first."""
    first = next(value for value in launch.arguments.values() if isinstance(value, KernelArgument))
    cells = (
        launch.name,
        launches,
        f"{' x '.join(map(str, first.shape))} {str(first.dtype).removeprefix('torch.')}",
        f"{launch.programs} x {launch.warps}",
        code.registers,
        code.spilled_bytes,
        code.shared_bytes,
        "/".join(map(str, code.load_bytes)) or "-",
        "/".join(map(str, code.store_bytes)) or "-",
        ", ".join(f"{count} {kind}" for kind, count in code.kinds.most_common()),
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str]) -> int:
    """Print a table in Markdown, a row for each kernel and its shapes; returns the exit code."""
    listed = [*GPT2_RUNS]
    listed += [name for name, run in miniatures().items() if not without_triton_kernel(reference_run(run).architecture)]
    parser = argparse.ArgumentParser(
        "benchmarks.machine_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=listed, metavar="RUN", help=f"one of {', '.join(listed)}")
    parser.add_argument("--kernel", default="", help="a part of kernels' names")
    asked = parser.parse_args(arguments)
    if INTERPRETED:
        sys.stderr.write("error: TRITON_INTERPRET: allowed unset, got 1\n")
        return 2
    alike: dict[str, list[KernelLaunch]] = {}
    for launch in run_launches(asked.run):
        if asked.kernel in launch.name:
            alike.setdefault(str(launch), []).append(launch)
    columns = [*HEADER, "instructions"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for first, *others in alike.values():
        print(row(first, 1 + len(others), compiled(first)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
