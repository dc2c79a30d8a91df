"""Machine code of the kernels that a run launches: registers, spills, bytes on the way, instructions, without a GPU.

    python -m benchmarks.machine_code gpt2-124m --kernel row_norm --target sm_100

The model of a run runs on tensors without memory, forward and backward over one micro-batch; two matrices of a layer
are clipped and updated in one pass. Every launch of Triton is noted with its arguments, then compiled for the target,
by default sm_90. Runs are GPT-2 as recorded, and miniatures in their GPU size. Nothing is measured or predicted. Exit
code 0; 2: bad usage, or Triton cannot compile here.

Column "at once": programs that a multiprocessor holds at the same time, by registers, shared memory and warps. Column
"in flight": kB that its loads have on the way at most, these programs times their threads times the bytes that a thread
waits for (`machine_listing.waiting_bytes`). An H100 needs about 25 kB of a kernel that only reads: 3.35 TB/s times a
latency taken as 1 us, in 132 parts. A program that computes loads nothing unless it loads ahead: with one program at
once even much in flight does not keep the memory busy.
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
from benchmarks.machine_listing import access_bytes, instructions, waiting_bytes
from benchmarks.machine_targets import TARGETS, CompilationTarget
from kernels.operator import INTERPRETED
from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Architecture, Mask, Recipe
from suite.reproduce.supported import without_triton_kernel

USUAL_TARGET = "sm_90"
GPT2_RUNS = ("gpt2-124m", "gpt2-1558m")
HEADER = (
    *("kernel", "launches", "first tensor", "programs x warps", "registers", "spilled", "shared", "load", "store"),
    *("at once", "in flight"),
)
_NVIDIA_ROOM = re.compile(r"REG:(\d+) STACK:(\d+)")
_AMD_ROOM = re.compile(r"\.private_segment_fixed_size: (\d+).*?\.vgpr_count: +(\d+)", re.DOTALL)


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
    """Kernel compiled for a target.

    Args:
        registers: of a thread.
        spilled_bytes: of a thread, in memory: what its registers do not hold.
        shared_bytes: of a program.
        opcodes: with their modifiers, such as LDG.E.128, in order; those that do nothing left out.
        waiting_bytes: of a thread: the most that its loads have on the way at once.
        built: Triton's compiled kernel.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    opcodes: tuple[str, ...]
    waiting_bytes: int
    built: Any

    @property
    def load_bytes(self) -> list[int]:
        """Bytes that a thread loads from memory at once, each width that occurs."""
        return access_bytes(self.opcodes, "load")

    @property
    def store_bytes(self) -> list[int]:
        """Bytes that a thread stores to memory at once, each width that occurs."""
        return access_bytes(self.opcodes, "store")

    @property
    def kinds(self) -> Counter[str]:
        """Instructions by opcode without modifiers."""
        return Counter(opcode.partition(".")[0] for opcode in self.opcodes)

    def programs_at_once(self, launch: KernelLaunch, target: CompilationTarget) -> int:
        """Programs of the launch that a multiprocessor holds at once."""
        return target.programs_at_once(
            registers=self.registers, shared_bytes=self.shared_bytes, warps=launch.warps, programs=launch.programs
        )

    def in_flight_bytes(self, launch: KernelLaunch, target: CompilationTarget) -> int:
        """The most bytes of loads that a multiprocessor has on the way at once, see above."""
        threads = launch.warps * target.warp_threads
        return self.programs_at_once(launch, target) * threads * self.waiting_bytes


@contextmanager
def launches_noted(target: CompilationTarget = TARGETS[USUAL_TARGET]) -> Iterator[list[KernelLaunch]]:
    """Within it, launches of Triton on any tensors are appended to the list, and computed nowhere.

    Grids, blocks and warps are those of the target.
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
        kernels.tiles._multiprocessors: lambda _: target.multiprocessors,
        kernels.tiles._warp_threads: lambda _: target.warp_threads,
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


def model_launches(
    architecture: Architecture, recipe: Recipe, layout: Layout, target: CompilationTarget
) -> list[KernelLaunch]:
    """Launches of one micro-batch of a model, forward and backward, on one GPU."""
    from suite.execute.model.decoder import Decoder
    from suite.execute.model.triton_operations import TritonOperations
    from suite.execute.precision import DTYPES

    usual = torch.get_default_dtype()
    with launches_noted(target) as found, FakeTensorMode():
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


def update_launches(architecture: Architecture, recipe: Recipe, target: CompilationTarget) -> list[KernelLaunch]:
    """Launches that clip and update the two matrices of a feed-forward part in one pass, masters and gradients in fp32.

    The tensors have memory, whose addresses the kernels' table needs.
    """
    from kernels.adamw import adamw
    from kernels.gradient_norm import gradient_norm
    from suite.execute.precision import DTYPES

    shape = (architecture.ffn_hidden, architecture.hidden)

    def matrices(dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [torch.empty(size, dtype=dtype) for size in (shape, shape[::-1])]

    weights, gradients, first_moments, second_moments = (matrices() for _ in range(4))
    narrow = DTYPES[recipe.precision]
    with launches_noted(target) as found:
        adamw(
            *(weights, gradients, first_moments, second_moments),
            step=1,
            learning_rate=1e-3,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.1,
            gradient_factor=gradient_norm(gradients),
            copies=None if narrow is torch.float32 else matrices(narrow),
        )
    return found


def run_launches(name: str, target: CompilationTarget) -> list[KernelLaunch]:
    """Launches of one micro-batch and of an update of a run: GPT-2 as recorded, a miniature in its GPU size."""
    if name in GPT2_RUNS:
        architecture, recipe, layout = reference_run(name).workload
    else:
        small = miniature(reference_run(miniatures()[name]), "cuda", ranks=1)
        architecture, recipe, layout = small.architecture, small.recipe, small.layout
    launches = model_launches(architecture, recipe, layout, target)
    return launches + update_launches(architecture, recipe, target)


class _Driver:
    """Answers in place of Triton's driver, which would look for a GPU."""

    def __init__(self, target: CompilationTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target.triton

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def compiled(launch: KernelLaunch, target: CompilationTarget = TARGETS[USUAL_TARGET]) -> MachineCode:
    """The machine code that this launch runs on a target: Triton compiles it for these arguments as on a GPU."""
    triton.runtime.driver.set_active(_Driver(target))
    arguments = {
        name: MockTensor(value.dtype, list(value.shape)) if isinstance(value, KernelArgument) else value
        for name, value in launch.arguments.items()
    }
    launch.kernel.device_caches.clear()  # kernels compiled before are found by device, whatever its target
    built = JITFunction.run(launch.kernel, grid=(launch.programs,), warmup=True, num_warps=launch.warps, **arguments)
    if target.triton.backend == "hip":
        listing = built.asm["amdgcn"]
        room = _AMD_ROOM.search(listing)
        assert room is not None, listing[-2000:]
        spilled, registers = int(room[1]), int(room[2])
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(built.asm["cubin"])
            file.flush()
            tools = triton.knobs.nvidia
            used = _output([tools.cuobjdump.path, "--dump-resource-usage", file.name])
            listing = _output([tools.nvdisasm.path, "-c", file.name])
        room = _NVIDIA_ROOM.search(used)
        assert room is not None, used
        registers, spilled = int(room[1]), int(room[2])
    code = instructions(listing)
    opcodes = tuple(opcode for opcode, _ in code)
    return MachineCode(registers, spilled, built.metadata.shared, opcodes, waiting_bytes(code), built)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def row(launch: KernelLaunch, launches: int, code: MachineCode, target: CompilationTarget) -> str:
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
        code.programs_at_once(launch, target),
        f"{code.in_flight_bytes(launch, target) / 1000:.0f}",
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
    parser.add_argument("--target", choices=TARGETS, default=USUAL_TARGET, help="what it is compiled for")
    asked = parser.parse_args(arguments)
    target = TARGETS[asked.target]
    if INTERPRETED:
        sys.stderr.write("error: TRITON_INTERPRET: allowed unset, got 1\n")
        return 2
    alike: dict[str, list[KernelLaunch]] = {}
    for launch in run_launches(asked.run, target):
        if asked.kernel in launch.name:
            alike.setdefault(str(launch), []).append(launch)
    columns = [*HEADER, "instructions"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for first, *others in alike.values():
        print(row(first, 1 + len(others), compiled(first, target), target), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
