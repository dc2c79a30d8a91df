"""How exact a kernel must be: against float64 from the same rounded inputs, at most twice as far off as torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.operator import UnsupportedInputError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Function = Callable[..., Any]
FAST_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")  # of opcheck, without the slow one


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Standard normal numbers, rounded to `dtype`, the same for every dtype."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def outputs_and_gradients(function: Function, inputs: Sequence[Tensor], upstream: Sequence[Tensor]) -> list[Tensor]:
    """Outputs of a function of tensors, and the gradients of all inputs for `upstream` gradients of the outputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    gradients = torch.autograd.grad(
        outputs, leaves, [g.to(out.dtype) for g, out in zip(upstream, outputs, strict=True)]
    )
    return [*(out.detach() for out in outputs), *gradients]


def less_exact_than_torch(
    kernel: Function,
    plain: Function,
    inputs: Sequence[Tensor],
    upstream: Sequence[Tensor],
    *,
    roundings: int = 1,
    cancelling: float = 0.0,
) -> list[str]:
    """The kernel's outputs and gradients that are more than twice as far from float64 as torch's arithmetic in fp32.

    Torch's results are `plain` computed in fp32 and rounded once to the inputs' dtype, as its own GPU kernels do; the
    distance is the largest over a tensor. Where torch happens to be closer than one rounding of the largest value, or
    sqrt(M) roundings of a sum of M terms in fp32, that counts in its place.

    Args:
        roundings: how many in fp32 stand for one, where a value goes through twice as many on its way: torch's own
            luck with the largest of few values is no measure of them.
        cancelling: the largest of the numbers whose difference a result is, where the result is 0: a GPU rounds one
            of two equal products, and not the other (fused multiply-add).
    """
    exact = outputs_and_gradients(plain, [t.double() for t in inputs], [g.double() for g in upstream])
    torchs = outputs_and_gradients(plain, [t.float() for t in inputs], [g.float() for g in upstream])
    own = outputs_and_gradients(kernel, inputs, upstream)
    wrong = []
    for place, (result, wide, true) in enumerate(zip(own, torchs, exact, strict=True)):
        if result.shape != true.shape:
            wrong.append(f"result {place}: shape {tuple(result.shape)}, not {tuple(true.shape)}")
            continue
        if not true.numel():
            continue
        terms = max(1.0, max(g.numel() for g in upstream) / true.numel())
        roundoff = max(torch.finfo(result.dtype).eps, roundings * terms**0.5 * torch.finfo(torch.float32).eps) / 2
        bound = 2 * max(_distance(wide.to(result.dtype), true), roundoff * max(cancelling, float(true.abs().max())))
        if not _distance(result, true) <= bound:  # also where it is not a number
            wrong.append(f"result {place}: {_distance(result, true):.3g} > {bound:.3g}")
    return wrong


def assert_as_exact_as_torch(*arguments: Any, **options: Any) -> None:
    """No output and no gradient is less exact than torch's; arguments as of `less_exact_than_torch`."""
    assert less_exact_than_torch(*arguments, **options) == []


def assert_same(own: Tensor, other: Tensor) -> None:
    """The same numbers from inputs that lie in another way: bit by bit where the interpreter computes.

    On a GPU the compiler adds in an order that depends on how rows lie: then within 4 roundings of the largest value.
    """
    if DEVICE == "cpu":
        assert torch.equal(own, other)
        return
    assert own.shape == other.shape
    most = 4 * torch.finfo(own.dtype).eps * float(other.detach().abs().max())
    assert _distance(own, other.double()) <= most, f"{_distance(own, other.double()):.3g} > {most:.3g}"


def assert_as_exact_as_torch_in_the_mean(
    kernel: Function, plain: Function, draws: Sequence[Sequence[Tensor]], upstream: Sequence[Tensor]
) -> None:
    """Over several draws of fp32 inputs, the root mean square of the distances is at most twice that of torch's.

    A distance is the largest over a tensor, over the float64 tensor's largest value; torch's counts as one rounding at
    least. For sums with few results that nearly cancel, where one draw says more of torch's luck with it than of the
    kernel: of 40 draws of logits of 4 hidden numbers 2 had more than twice torch's error, and 3 of another 40 in the
    weights' gradient; in the mean of 8 the ratio was 0.9 to 1.7 (5 shapes, 20 times 8 draws each, 2026-11-24).
    """
    squares: list[list[tuple[float, float]]] = []
    for inputs in draws:
        exact = outputs_and_gradients(plain, [t.double() for t in inputs], [g.double() for g in upstream])
        torchs, own = (outputs_and_gradients(function, inputs, upstream) for function in (plain, kernel))
        squares.append(
            [
                (_relative(result, true) ** 2, max(_relative(wide, true), torch.finfo(torch.float32).eps / 2) ** 2)
                for result, wide, true in zip(own, torchs, exact, strict=True)
            ]
        )
    for place, pairs in enumerate(zip(*squares, strict=True)):
        ours, torchs_own = (sum(column) / len(draws) for column in zip(*pairs, strict=True))
        ratio = (ours / torchs_own) ** 0.5
        assert ratio <= 2, f"result {place}: {ratio:.3g} times torch's distance"


def _relative(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    assert one.isfinite().all()
    return _distance(one, other) / (float(other.abs().max()) or 1.0)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other).abs().max())


def assert_refused(function: Callable[..., Any], cases: Iterable[tuple[Sequence[Any], Mapping[str, Any], str]]) -> None:
    """Each input, positional and by name, is refused in one line that names the function and the wrong property."""
    for arguments, options, named in cases:
        with pytest.raises(UnsupportedInputError, match=f"^{function.__name__}: {named}: allowed .*, got .*$"):
            function(*arguments, **options)
