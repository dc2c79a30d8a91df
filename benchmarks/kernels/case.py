"""A case to time: one kernel at one size in one dtype, its inputs, and the functions that do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from suite.execute.calibrate.operators import DTYPES
from suite.job.options import Optimization

Function = Callable[..., Any]
StepWay = tuple[Optimization, ...]
PLAIN, KERNEL, EAGER, COMPILED, LIGER = "plain", "kernel", "eager", "compiled", "liger"
RUNS = ("gpt2-124m", "gpt2-1558m", "codegeex-13b", "gpt-neox-20b", "glm-130b", "opt-175b", "bloom-176b", "mt-nlg-530b")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")  # whose kernels are timed
SDPA, FLEX = "sdpa", "flex"  # PyTorch's fused attention: scaled_dot_product_attention and FlexAttention


@dataclass
class TimedCases:
    """Choice of functions to time in this process.

    Attributes:
        left_out: names of functions that are not.
        optimizations: of parts of a step alone, the plain way and those with no other optimization; None: all cases.
    """

    left_out: set[str] = field(default_factory=set)
    optimizations: frozenset[Optimization] | None = None


SELECTION = TimedCases()


class LackingError(Exception):
    """A function cannot run on this machine, which is no failure: why, in words."""


class Draw:
    """Random normal tensors on one device, seeded once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._numbers = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """New standard normal numbers; random, because arithmetic on zeros takes less power and time."""
        return torch.randn(shape, generator=self._numbers, device=self.device).to(dtype)

    def integers(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """New integers from 0 to `below` - 1, each as likely."""
        return torch.randint(0, below, shape, generator=self._numbers, device=self.device, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """One kernel at one size in one dtype.

    Args:
        formula: its name in `suite.predict.analytic.kernel_cost`, where it is another.
        variant: what of the kernel, where there is more than one thing to time.
        sizes: what the formula of its least bytes takes.
        over: which of the sizes the plot is over.
        inputs: draws the arguments of the functions: tensors, and lists of them.
        ours: the public function of `kernels`; `plain` its reference.
        eager: PyTorch's own, or `plain` where PyTorch has none.
        compilable: what torch.compile gets; `eager` by default.
        liger: Liger-Kernel's, imported when it is called; None where it has none.
        fused: PyTorch's own fused functions of the same, made when they are called, by name.
        ways: of a part of a step its functions in place of all others, by the optimizations that they have; none first.
        forward_alone: names of those that have no backward pass on this device.
        differentiated: of the inputs, how many of the first ones have gradients; 0: there is no backward pass.
        consumed: whether a call spoils its inputs, so that each call needs copies of them.
    """

    kernel: str
    dtype: str
    sizes: Mapping[str, int]
    over: str
    inputs: Callable[[Draw], tuple[Any, ...]]
    ours: Function
    plain: Function
    eager: Function
    compilable: Function | None = None
    liger: Callable[[], Function] | None = None
    fused: Mapping[str, Callable[[], Function]] = field(default_factory=dict)
    ways: Mapping[StepWay, Callable[[], Function]] = field(default_factory=dict)
    forward_alone: tuple[str, ...] = ()
    formula: str = ""
    variant: str = ""
    differentiated: int = 0
    consumed: bool = False

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the passes that are timed."""
        return ("forward", "backward") if self.differentiated else ("forward",)

    def has(self, which: str, function: str) -> bool:
        """Whether a function has this pass."""
        return which == "forward" or function not in self.forward_alone

    @property
    def is_selected(self) -> bool:
        """Whether it is timed in this process: with optimizations, a part of a step that has one, or any with none."""
        asked = SELECTION.optimizations
        if asked is None:
            return True
        return any(asked.issuperset(way) for way in self.ways if way or not asked)

    @property
    def name(self) -> str:
        """Kernel, variant, dtype and sizes in one word."""
        sizes = "x".join(str(size) for name, size in self.sizes.items() if not name.endswith("_bytes"))
        return "-".join(part for part in (self.kernel, self.variant, self.dtype, sizes) if part)

    def functions(self, device: torch.device) -> dict[str, Callable[[], Function]]:
        """By name, in the order of the table, what makes each function: making may fail, or take long.

        On CUDA our kernel; on a CPU, where it does not run, the plain reference in its place.
        """
        if self.ways:
            asked = SELECTION.optimizations
            ways = {way: make for way, make in self.ways.items() if asked is None or asked.issuperset(way)}
            return {"+".join(way) or PLAIN: make for way, make in ways.items()}
        compilable = self.compilable or self.eager
        cuda = device.type == "cuda"
        made: dict[str, Callable[[], Function]] = {KERNEL if cuda else PLAIN: lambda: self.ours}
        if cuda or self.eager is not self.plain:
            made[EAGER] = lambda: self.eager
        if COMPILED not in SELECTION.left_out:
            made[COMPILED] = lambda: _freshly_compiled(compilable)
        if cuda and self.liger is not None and _has_liger():
            made[LIGER] = self.liger
        return made | dict(self.fused)


def _freshly_compiled(function: Function) -> Function:
    """A fresh compilation: of the sizes before, PyTorch would keep some and then give up without a word."""
    torch.compiler.reset()
    return compiled(function)


def compiled(function: Function) -> Function:
    """The function as torch.compile makes it for one size."""
    return torch.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs")


def _has_liger() -> bool:
    try:
        import liger_kernel.ops  # noqa: F401
    except Exception:  # whatever it fails with on this machine, it cannot be timed
        return False
    return True


def dtypes(device: torch.device, *names: str) -> dict[str, torch.dtype]:
    """The dtypes to time on a device: those named, or all; on a CPU the first, for 16 bits are not its own."""
    chosen = names or tuple(DTYPES)
    return {name: DTYPES[name] for name in (chosen if device.type == "cuda" else chosen[:1])}
