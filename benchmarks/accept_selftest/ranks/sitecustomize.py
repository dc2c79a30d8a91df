"""Makes one rank of a launch faulty. Python imports this module at its start if its directory is on PYTHONPATH.

SUITE_FAULT names the fault. Nothing happens outside of ranks. Modules of the suite are patched as they are imported;
the suite itself has no code for it.
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
    """Faults of one step of a launch."""
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
    """One more exchange of every rank in each step of the faulty run than arithmetic says."""
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
    """A patch: what a function of the module returns to be timed does its work `times` times."""

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


def _flip(tensor: Any) -> None:
    """Flip one bit of the middle element."""
    import torch

    flat = tensor.detach().view(-1).view(torch.uint8)
    flat[len(flat) // 2] ^= 0x10


def _flipping(number: int, original: Any, flipped: Callable[..., Any]) -> Any:
    """The function, with one bit flipped after its `number`-th call that counts.

    Args:
        flipped: the tensor to flip, from the result and the arguments of a call; None: the call does not count.
    """
    calls = 0

    def faulty(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **options)
        tensor = flipped(result, *arguments)
        if tensor is not None:
            calls += 1
            if calls == number:
                _flip(tensor)
        return result

    return faulty


def _gradient_bit(probe: Any) -> None:
    """A bit of the first gradient, after the sixth backward pass of replays."""
    import torch

    initialise = probe.initialise
    decoders: list[Any] = []

    def remembered(decoder: Any, *arguments: Any, **options: Any) -> Any:
        decoders[:] = [decoder]
        return initialise(decoder, *arguments, **options)

    def gradient(_result: Any, *_arguments: Any) -> Any:
        return next(p.grad for p in decoders[0].parameters() if p.grad is not None) if decoders else None

    probe.initialise = remembered
    torch.Tensor.backward = _flipping(6, torch.Tensor.backward, gradient)  # type: ignore[method-assign]


def _weight_bit(probe: Any) -> None:
    probe.update = _flipping(6, probe.update, lambda _result, decoder: next(iter(decoder.parameters())))


def _random_weight(probe: Any) -> None:
    """Another first weight in every replay."""
    import torch

    initialise = probe.initialise

    def random(decoder: Any, *arguments: Any, **options: Any) -> Any:
        result = initialise(decoder, *arguments, **options)
        with torch.no_grad():
            next(iter(decoder.parameters())).view(-1)[0] += int.from_bytes(os.urandom(2), "little") / 65536
        return result

    probe.initialise = random


def _collective_bit(_probe: Any) -> None:
    import torch.distributed as dist

    dist.all_reduce = _flipping(2, dist.all_reduce, lambda _result, tensor, *_: tensor)


def _message_bit(_probe: Any) -> None:
    """In the second message of a probe."""
    import torch.distributed as dist

    def message(_result: Any, received: Any, *_: Any) -> Any:
        return received if received.numel() > 2**10 else None  # not the words by which ranks agree

    dist.recv = _flipping(2, dist.recv, message)


def _memory_bit(_probe: Any) -> None:
    """In the second copy of a soak: int32, over 1 Mi elements."""
    import torch

    def buffer(_result: Any, copied: Any, *_: Any) -> Any:
        return copied if copied.dtype is torch.int32 and copied.numel() > 2**20 else None

    torch.Tensor.copy_ = _flipping(2, torch.Tensor.copy_, buffer)  # type: ignore[method-assign]


def _product_bit(_probe: Any) -> None:
    """In the third product of a soak: fp32, 512 squared."""
    import torch

    def product(result: Any, *_: Any) -> Any:
        return result if result.dtype is torch.float32 and result.shape == (512, 512) else None

    torch.Tensor.__matmul__ = _flipping(3, torch.Tensor.__matmul__, product)  # type: ignore[method-assign]


def _some_sizes_bit(_probe: Any) -> None:
    """In every linear layer that makes twice its input or more, and in no other: the same wrong bit each time."""
    import torch
    import torch.nn.functional as functional

    linear = functional.linear

    def faulty(input: Any, weight: Any, bias: Any = None) -> Any:
        result = linear(input, weight, bias)
        if weight.shape[0] >= 2 * weight.shape[1] and result.dtype is not torch.bool:
            _flip(result)
        return result

    functional.linear = faulty


STEP, PROBE = "suite.execute.training.step", "suite.execute.probe.run"
IN_STEP = ("nan", "oom", "crash", "killed", "stopped", "hang", "slow-rank")
# by fault: module, patch, and whether all ranks are faulty
PATCHES: dict[str, tuple[str, Callable[[ModuleType], None], bool]] = {
    **dict.fromkeys(IN_STEP, (STEP, _training, False)),
    "extra-message": (STEP, _extra_message, True),
    "slow-products": ("suite.execute.calibrate.operators", _slow("product", 2), False),
    "memory-bandwidth": ("suite.execute.calibrate.operators", _slow("memory", 3), False),
    "gradient-bit": (PROBE, _gradient_bit, False),
    "weight-bit": (PROBE, _weight_bit, False),
    "nondeterministic-rank": (PROBE, _random_weight, False),
    "nondeterminism": (PROBE, _random_weight, True),
    "some-sizes-bit": (PROBE, _some_sizes_bit, False),
    "collective-bit": (PROBE, _collective_bit, False),
    "message-bit": (PROBE, _message_bit, False),
    "memory-bit": (PROBE, _memory_bit, False),
    "product-bit": (PROBE, _product_bit, False),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, which its loader loads and then patches."""

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
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            self._patch(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


if FAULT in PATCHES and RANK is not None:
    _module, _patch, _everywhere = PATCHES[FAULT]
    if _everywhere or RANK == FAULTY_RANK:
        sys.meta_path.insert(0, _Finder(_module, _patch))
