"""What the runs launch: models of PyTorch's fake tensors run on paper, and every launch of Triton is noted.

Fake tensors have shapes, strides and dtypes, and no memory. The models, the public functions of `kernels` and the code
that chooses grids, blocks and warps are those of a real launch. What they ask a GPU for is answered for an H100.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.jit import JITFunction

import kernels.operator
import kernels.tiles
from benchmarks.kernel_inspection.hopper import PROCESSORS
from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Architecture, Mask, Recipe
from suite.reproduce.supported import without_triton_kernel

GPT2_RUNS = ("gpt2-124m", "gpt2-1558m")


class KernelArgument:
    """A tensor as a launch gets it; the same tensor under several names is one object."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        self.dtype, self.elements = tensor.dtype, tensor.numel()
        self.bytes = self.elements * tensor.element_size()


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: a kernel with its arguments by name, and how often a micro-batch of the run has it.

    Args:
        named: tensors as `KernelArgument`, numbers, and values known at compilation.
        count: a micro-batch of the run, forward and backward.
    """

    kernel: Any
    run: str
    programs: int
    warps: int
    named: Mapping[str, Any]
    count: int = field(default=1, compare=False)

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.kernel.fn.__module__.removeprefix('kernels.')}.{self.kernel.fn.__name__}"

    @property
    def tensors(self) -> dict[str, KernelArgument]:
        """Tensors by name, each once: an argument that stands in for one that is not given is left out."""
        found: dict[int, tuple[str, KernelArgument]] = {}
        for name, value in self.named.items():
            if isinstance(value, KernelArgument):
                found.setdefault(id(value), (name, value))
        return dict(found.values())

    def key(self) -> tuple[object, ...]:
        """What two launches have in common that compile to the same code and move the same bytes."""
        of_tensors = {name: (a.shape, a.strides, a.dtype) for name, a in self.tensors.items()}
        numbers = {name: v for name, v in self.named.items() if not isinstance(v, KernelArgument)}
        return self.name, self.programs, self.warps, str(of_tensors), str(numbers)


@contextmanager
def launches_noted(run: str, into: list[KernelLaunch]) -> Iterator[None]:
    """Within it kernels are launched on paper: noted, on an H100, and not computed."""

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool, num_warps: int = 4, **named: Any) -> None:
        del warmup
        seen: dict[int, KernelArgument] = {}

        def argument(value: Any) -> Any:
            return seen.setdefault(id(value), KernelArgument(value)) if isinstance(value, Tensor) else value

        by_name = {name: argument(v) for name, v in zip(self.arg_names, arguments, strict=False)} | named
        programs = 1
        for size in grid:
            programs *= size
        into.append(KernelLaunch(self, run, programs, num_warps, by_name))

    original = JITFunction.run
    real = {name: getattr(kernels.operator, name) for name in ("runs_triton", "launchable")}
    replaced: dict[str, Callable[..., Any]] = {
        "runs_triton": lambda _: True,
        "launchable": lambda kernel: kernel,
        "_multiprocessors": lambda _: PROCESSORS,
    }
    real["_multiprocessors"] = kernels.tiles._multiprocessors
    places = [
        (module, name)
        for module in [m for n, m in sys.modules.items() if n.startswith("kernels.")]
        for name in replaced
        if getattr(module, name, None) is real[name]
    ]
    JITFunction.run = note
    for module, name in places:
        setattr(module, name, replaced[name])
    try:
        yield
    finally:
        JITFunction.run = original
        for module, name in places:
            setattr(module, name, real[name])


def of_model(name: str, architecture: Architecture, recipe: Recipe, layout: Layout) -> list[KernelLaunch]:
    """Launches of one micro-batch of a model, forward and backward, on one GPU."""
    from suite.execute.model.decoder import Decoder
    from suite.execute.model.triton_operations import TritonOperations
    from suite.execute.precision import DTYPES

    found: list[KernelLaunch] = []
    usual = torch.get_default_dtype()
    with launches_noted(name, found), FakeTensorMode():
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
    return counted(found)


def counted(found: list[KernelLaunch]) -> list[KernelLaunch]:
    """Launches that are alike once, with their number, in order."""
    alike: dict[tuple[object, ...], list[KernelLaunch]] = {}
    for launch in found:
        alike.setdefault(launch.key(), []).append(launch)
    return [
        KernelLaunch(one.kernel, one.run, one.programs, one.warps, one.named, len(same))
        for one, *same in ((launches[0], *launches) for launches in alike.values())
    ]


def run_launches() -> dict[str, Callable[[], list[KernelLaunch]]]:
    """By name of a run, what lists its launches: the miniatures in their GPU size, and GPT-2 as recorded."""

    def small(run: str) -> Callable[[], list[KernelLaunch]]:
        def listed() -> list[KernelLaunch]:
            mini = miniature(reference_run(run), "cuda", ranks=1)
            return of_model(mini.name, mini.architecture, mini.recipe, mini.layout)

        return listed

    def whole(run: str) -> Callable[[], list[KernelLaunch]]:
        def listed() -> list[KernelLaunch]:
            recorded = reference_run(run)
            return of_model(run, recorded.architecture, recorded.recipe, recorded.layout)

        return listed

    with_kernels = {
        name: small(run)
        for name, run in miniatures().items()
        if not without_triton_kernel(reference_run(run).architecture)
    }
    return with_kernels | {run: whole(run) for run in GPT2_RUNS}
