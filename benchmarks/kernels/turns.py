"""Seconds of functions that do the same work, taken in turn in one process, and those of a copy among them."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.equal_work import UnequalWorkError
from benchmarks.kernels.case import Case, Draw, Function
from suite.execute.calibrate.stopwatch import MOST_WARM_UP, Stopwatch, is_warm
from suite.execute.measure.clock import Call
from suite.machine.cpu_caches import later_caches
from suite.machine.timings import median

COPY = "copy"
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # read, and as many written: far beyond any cache
LEAST_ROUNDS = 7
MOST_ROUNDS = 100
ROTATED_CACHES = 2  # bytes of all sets of inputs, in sizes of the last cache
HOST_SAMPLES = 5
HOST_AHEAD = 2  # the device is kept busy for so many times what the host needs to hand a call over
SAME = 0.02  # a wrong formula is farther off; how exact a right one is, the tests of the kernels say

PrepareCall = Callable[[int], Call]  # makes the call of a round ready


@dataclass
class CaseTimings:
    """One pass of one case.

    Attributes:
        seconds: by function, one sample a round; those of the copy too.
        warm_up: by function, samples before it was warm.
        host_seconds: by function, median until the host has handed a call over; on CUDA alone.
        errors: by function, why it was not timed.
        copy_bytes: read and written by the copy.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    warm_up: dict[str, list[float]] = field(default_factory=dict)
    host_seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    copy_bytes: int = 0


class Contenders(NamedTuple):
    """Functions of one case that compute the same, and what kept the others out.

    Args:
        upstream: gradients of the outputs, one list a set of inputs; empty where there is no backward pass.
    """

    functions: dict[str, Function]
    errors: dict[str, Exception]
    upstream: list[list[Tensor]]


def measured(case: Case, device: torch.device, *, seconds: float) -> dict[str, CaseTimings]:
    """By pass: every function of a case, in turn with the others and a copy, for about `seconds` a pass.

    A function that fails, or computes something else than the first, is left out: its error is kept.
    """
    draw = Draw(device)
    sets = [case.inputs(draw)]
    sets += [case.inputs(draw) for _ in range(_sets(sets[0], device) - 1)]
    functions, errors, upstream = contenders(case, sets, draw)
    timings = {}
    for which in case.passes:
        prepared = {
            name: _prepared(case, function, sets, upstream, which)
            for name, function in functions.items()
            if case.has(which, name)
        }
        timings[which] = _in_turn(prepared, device, seconds)
        timings[which].errors |= errors
    return timings


def contenders(case: Case, sets: list[tuple[Any, ...]], draw: Draw) -> Contenders:
    """The functions of a case that compute on its first inputs what the first of them does."""
    for inputs in sets:
        for tensor in inputs[: case.differentiated]:
            tensor.requires_grad_()
    group = Contenders({}, {}, [])
    expected: list[Tensor] = []
    for name, make in case.functions(draw.device).items():
        try:
            function = make()
            if case.differentiated and not group.upstream:
                outputs = tensors(function(*_fresh(sets[0])))
                group.upstream.extend([draw.normal(*out.shape, dtype=out.dtype) for out in outputs] for _ in sets)
            backward = case.has("backward", name)
            results = _results(case, function, sets[0], group.upstream if backward else [])
            if not group.functions:
                expected = results
            _check_equal(name, results, expected if backward else expected[: len(results)])
            group.functions[name] = function
        except Exception as error:  # whatever it is: it is reported, and ends in the exit code
            group.errors[name] = error
    return group


def _prepared(
    case: Case, function: Function, sets: list[tuple[Any, ...]], upstream: list[list[Tensor]], which: str
) -> PrepareCall:
    """A function that makes the call of a round ready: on the next inputs, for a backward pass after a forward pass."""

    def ready(round_: int) -> Call:
        place = round_ % len(sets)
        inputs = _fresh(sets[place]) if case.consumed else sets[place]
        if which == "forward":
            return lambda: function(*inputs)
        outputs = tensors(function(*inputs))
        leaves = inputs[: case.differentiated]
        return lambda: torch.autograd.grad(outputs, leaves, upstream[place])

    return ready


def _in_turn(prepared: Mapping[str, PrepareCall], device: torch.device, seconds: float) -> CaseTimings:
    """Samples of all functions and of the copy: there and back again, so that each follows each."""
    stopwatch = Stopwatch(device, reads=True)
    size = COPY_BYTES[device.type]
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    everyone: dict[str, PrepareCall] = {**prepared, COPY: lambda _: lambda: target.copy_(source)}
    timings = CaseTimings(copy_bytes=2 * size)
    overwrites = dict.fromkeys(everyone, 1)
    with _without_collection():
        for name, ready in everyone.items():
            timings.warm_up[name] = []
            while not is_warm(timings.warm_up[name]) and len(timings.warm_up[name]) < MOST_WARM_UP:
                timings.warm_up[name].append(stopwatch.sample(ready(len(timings.warm_up[name]))))
            if device.type == "cuda":
                host = median(stopwatch.host_sample(ready(place)) for place in range(HOST_SAMPLES))
                overwriting = median(stopwatch.sample(stopwatch.overwrite) for _ in range(HOST_SAMPLES))
                timings.host_seconds[name] = host
                overwrites[name] = 1 + math.ceil(HOST_AHEAD * host / overwriting)
            timings.seconds[name] = []
        start = time.perf_counter()
        for round_ in range(MOST_ROUNDS):
            if round_ >= LEAST_ROUNDS and time.perf_counter() - start > seconds:
                break
            for name in list(everyone) if round_ % 2 == 0 else list(reversed(everyone)):
                work = everyone[name](round_)
                timings.seconds[name].append(stopwatch.sample(work, overwrites=overwrites[name]))
    return timings


@contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _results(case: Case, function: Function, inputs: tuple[Any, ...], upstream: list[list[Tensor]]) -> list[Tensor]:
    """Results of a function, its inputs afterwards unless it spoils them, and the gradients for `upstream`."""
    copies = _fresh(inputs)
    outputs = tensors(function(*copies))
    if not case.differentiated:
        return [*outputs, *([] if case.consumed else tensors(copies))]
    if not upstream:
        return outputs
    return [*outputs, *torch.autograd.grad(outputs, copies[: case.differentiated], upstream[0])]


def _check_equal(name: str, results: list[Tensor], expected: list[Tensor]) -> None:
    """Nothing where a function computes what the first one does.

    Raises:
        UnequalWorkError: it does not.
    """
    if len(results) != len(expected):
        raise UnequalWorkError(f"{name}: {len(results)} results, {len(expected)} of the first function")
    for number, (result, other) in enumerate(zip(results, expected, strict=True)):
        if result.shape != other.shape:
            raise UnequalWorkError(f"{name}: result {number} has shape {tuple(result.shape)}, not {tuple(other.shape)}")
        if result.is_floating_point():
            wide, exact = result.detach().float(), other.detach().float()
            apart = float((wide - exact).norm() / exact.norm().clamp(min=1e-30)) if result.numel() else 0.0
        else:
            apart = float((result != other).float().mean()) if result.numel() else 0.0
        if not apart <= SAME:
            raise UnequalWorkError(f"{name}: result {number} is {apart:.2g} off that of the first function")


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a tensor, or in nested lists and tuples of them, in order; None has none."""
    if isinstance(value, Tensor):
        return [value]
    return [] if value is None else [tensor for part in value for tensor in tensors(part)]


def _fresh(value: Any) -> Any:
    """Copies of all tensors in nested lists and tuples, leaves of autograd as they were."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return type(value)(_fresh(part) for part in value)


def _sets(inputs: tuple[Any, ...], device: torch.device) -> int:
    """Sets of inputs to take turns: enough to push each other out of the caches, two at least."""
    size = sum(tensor.nbytes for tensor in tensors(inputs))
    return min(MOST_ROUNDS, max(2, math.ceil(ROTATED_CACHES * last_cache_bytes(device) / size)))


def last_cache_bytes(device: torch.device) -> int:
    """Bytes of the last cache before memory, 32 MiB where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max((cache.size for cache in later_caches()), default=2**25)
