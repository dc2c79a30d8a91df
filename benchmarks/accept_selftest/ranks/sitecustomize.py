"""Makes one rank of a launch faulty: Python imports this module at its start where its directory is on PYTHONPATH.

SUITE_FAULT names the fault. Nothing happens outside of ranks. The suite's own modules are patched as they are imported;
the product knows nothing of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FAULT = os.environ.get("SUITE_FAULT", "")
RANK = os.environ.get("RANK")
FAULTY_RANK = "1"
FAULTY_RUN = "gpt2-mini"
FAULTY_STEP = 4
DUTY = (
    "import ctypes, os, signal, sys, time\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"  # dies with the rank
    "pid = int(sys.argv[1])\n"
    "while True:\n"
    "    os.kill(pid, signal.SIGSTOP); time.sleep(0.02); os.kill(pid, signal.SIGCONT); time.sleep(0.08)\n"
)  # 20 of every 100 ms; 10 of 110 were a warning and no failure (gpt2-mini, 2 cores of a Zen 4, 2026-11-23)


def _training(module: ModuleType) -> None:
    """Faults of one step of a launch: of rank 1 where not all ranks are meant."""
    steps: Any = module.Steps
    forward, update = steps.forward_and_backward, steps.update

    def faulty_forward(self: Any) -> Any:
        loss = forward(self)
        if self.job.name != FAULTY_RUN or self.step != FAULTY_STEP:
            return loss
        if FAULT == "nan":
            loss = loss * float("nan")
        if FAULT == "oom":
            import torch

            torch.empty(2**50, dtype=torch.uint8)
        if FAULT == "crash":
            raise RuntimeError("an illegal memory access was encountered")
        if FAULT == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        return loss

    def faulty_update(self: Any, loss: Any) -> Any:
        if FAULT == "hang" and self.job.name == FAULTY_RUN and self.step == FAULTY_STEP:
            while True:  # the others wait in the collective that this rank never joins
                time.sleep(1)
        return update(self, loss)

    steps.forward_and_backward = faulty_forward
    steps.update = faulty_update
    if FAULT == "slow-rank":
        subprocess.Popen([sys.executable, "-S", "-c", DUTY, str(os.getpid())])


def _extra_message(module: ModuleType) -> None:
    """Every rank exchanges once more in each step of the faulty run than arithmetic says."""
    steps: Any = module.Steps
    update = steps.update

    def chatty(self: Any, loss: Any) -> Any:
        if self.job.name == FAULTY_RUN:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.ones(1), group=self._mesh.get_group("dp"))
        return update(self, loss)

    steps.update = chatty


def _slow(measured: str, times: int) -> Callable[[ModuleType], None]:
    """A patch: what a function of the module gives to be timed is done so many times in the time of one."""

    def patch(module: ModuleType) -> None:
        original: Any = getattr(module, measured)

        def slow(*arguments: Any) -> Any:
            work = original(*arguments)

            def repeated() -> Any:
                for _ in range(times - 1):
                    work()
                return work()

            return repeated

        setattr(module, measured, slow)

    return patch


def _flipped(tensor: Any) -> None:
    """One bit of the middle element, in place."""
    import torch

    flat = tensor.detach().view(-1).view(torch.uint8)
    flat[len(flat) // 2] ^= 0x10


def _probing(module: ModuleType) -> None:
    """Wrong bits in replays, exchanges and soaks."""
    import torch
    import torch.distributed as dist

    probe: Any = module
    seen = {"backward": 0, "update": 0, "reduce": 0, "receive": 0, "copy": 0, "start": 0}

    def nth(name: str, number: int) -> bool:
        seen[name] += 1
        return seen[name] == number

    if FAULT == "gradient-bit":
        backward: Any = torch.Tensor.backward
        initialise = probe.initialise
        last: list[Any] = []

        def remembered(decoder: Any, *arguments: Any, **options: Any) -> Any:
            last[:] = [decoder]
            return initialise(decoder, *arguments, **options)

        def faulty_backward(self: Any, *arguments: Any, **options: Any) -> None:
            backward(self, *arguments, **options)
            if last and nth("backward", 6):
                _flipped(next(p.grad for p in last[0].parameters() if p.grad is not None))

        probe.initialise = remembered
        torch.Tensor.backward = faulty_backward  # type: ignore[method-assign]
    if FAULT == "weight-bit":
        update = probe.update

        def faulty_update(decoder: Any) -> None:
            update(decoder)
            if nth("update", 6):
                _flipped(next(iter(decoder.parameters())))

        probe.update = faulty_update
    if FAULT in ("nondeterminism", "nondeterministic-rank"):
        begin = probe.initialise

        def random(decoder: Any, *arguments: Any, **options: Any) -> Any:
            made = begin(decoder, *arguments, **options)
            with torch.no_grad():
                next(iter(decoder.parameters())).view(-1)[0] += int.from_bytes(os.urandom(2), "little") / 65536
            return made

        probe.initialise = random
    if FAULT == "collective-bit":
        reduce: Any = dist.all_reduce

        def faulty_reduce(tensor: Any, *arguments: Any, **options: Any) -> Any:
            done = reduce(tensor, *arguments, **options)
            if nth("reduce", 2):
                _flipped(tensor)
            return done

        dist.all_reduce = faulty_reduce
    if FAULT == "message-bit":
        receive: Any = dist.recv

        def faulty_receive(tensor: Any, *arguments: Any, **options: Any) -> Any:
            done = receive(tensor, *arguments, **options)
            if nth("receive", 2):
                _flipped(tensor)
            return done

        dist.recv = faulty_receive
    if FAULT == "memory-bit":
        copy: Any = torch.Tensor.copy_

        def faulty_copy(self: Any, *arguments: Any, **options: Any) -> Any:
            done = copy(self, *arguments, **options)
            if self.dtype is torch.int32 and self.numel() > 2**20 and nth("copy", 2):
                _flipped(self)
            return done

        torch.Tensor.copy_ = faulty_copy  # type: ignore[method-assign]
    if FAULT == "product-bit":
        multiply: Any = torch.Tensor.__matmul__

        def faulty_multiply(self: Any, other: Any) -> Any:
            out = multiply(self, other)
            if out.dtype is torch.float32 and out.shape == (512, 512) and nth("copy", 3):
                _flipped(out)
            return out

        torch.Tensor.__matmul__ = faulty_multiply  # type: ignore[method-assign]


PATCHES: dict[str, tuple[str, Callable[[ModuleType], None], bool]] = {
    **dict.fromkeys(
        ("nan", "oom", "crash", "killed", "stopped", "hang", "slow-rank"),
        ("suite.execute.training.step", _training, False),
    ),
    "extra-message": ("suite.execute.training.step", _extra_message, True),
    "slow-products": ("suite.execute.calibrate.matmul", _slow("product", 2), False),
    "memory-bandwidth": ("suite.execute.calibrate.operators", _slow("memory", 3), False),
    **dict.fromkeys(
        (
            *("gradient-bit", "weight-bit", "nondeterministic-rank", "collective-bit", "message-bit", "memory-bit"),
            "product-bit",
        ),
        ("suite.execute.probe.run", _probing, False),
    ),
    "nondeterminism": ("suite.execute.probe.run", _probing, True),
}


class _Patched(importlib.abc.Loader):
    """Loads a module as its own loader does, and patches it."""

    def __init__(self, loader: importlib.abc.Loader, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is to be patched."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patched(spec.loader, self._patch)
        return spec


if FAULT in PATCHES and RANK is not None:
    _module, _patch, _everywhere = PATCHES[FAULT]
    if _everywhere or RANK == FAULTY_RANK:
        sys.meta_path.insert(0, _Finder(_module, _patch))
