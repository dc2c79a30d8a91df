"""Linear layers with epilogues compute, keep, and count what PyTorch's operators do, here by their plain way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear
from torch.utils.flop_counter import FlopCounterMode

from kernels import linear_epilogues
from kernels.linear_epilogues import (
    _linear_gelu,
    _linear_gelu_backward,
    _linear_gradients,
    fused_linear,
    gelu_feed_forward,
    why_not,
)
from kernels.operator import UnsupportedInputError
from tests.kernels.agreement import DEVICE, FAST_CHECKS, normal

Layer = Callable[..., Tensor]
SHAPES = [(2, 5, 24), (40, 24), (40,), (24, 40), (24,)]  # of x, weights and biases


def given(*, biases: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = SHAPES if biases else [shape for shape in SHAPES if len(shape) > 1]
    return [normal(*shape, dtype=dtype, seed=number) for number, shape in enumerate(shapes)]


def plain(x: Tensor, *weights: Tensor) -> Tensor:
    expansion, contraction = (weights[:2], weights[2:]) if len(weights) == 4 else (weights[:1], weights[1:])
    return linear(gelu(linear(x, *expansion), approximate="tanh"), *contraction)


def fused(x: Tensor, *weights: Tensor) -> Tensor:
    if len(weights) == 4:
        return gelu_feed_forward(x, (weights[0], weights[1]), (weights[2], weights[3]), tuned=False)
    return gelu_feed_forward(x, (weights[0], None), (weights[1], None), tuned=False)


def plain_linear(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    return linear(x, weight, *bias)


def with_gradients(function: Layer, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, normal(*out.shape, dtype=out.dtype, seed=7))]


# Dynamo (torch 2.13) makes an instance of what it traces, and Inductor scripts
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
def test_output_and_gradients_are_those_of_pytorchs_layers(biases: bool, compiled: bool) -> None:
    inputs = given(biases=biases)
    function = torch.compile(fused, fullgraph=True, dynamic=False) if compiled else fused
    for found, right in zip(with_gradients(function, inputs), with_gradients(plain, inputs), strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_a_layer_s_gradients_are_those_of_pytorchs(fuses: bool, biases: bool) -> None:
    x, weight, *others = given(biases=biases)
    inputs = [x, weight, *others[:biases]]

    def layer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return fused_linear(x, weight, bias, fused=fuses, tuned=False)

    for found, right in zip(with_gradients(layer, inputs), with_gradients(plain_linear, inputs), strict=True):
        torch.testing.assert_close(found, right)


def flop(function: Layer, inputs: list[Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        with_gradients(function, inputs)
    return counter.get_total_flops()


def test_flop_are_counted_as_pytorchs() -> None:
    inputs = given(biases=True)
    rows, columns, width = 10, 24, 40
    assert flop(fused, inputs) == flop(plain, inputs) == 3 * 2 * 2 * rows * columns * width


def kept(function: Layer, inputs: list[Tensor]) -> dict[int, int]:
    """Storages that autograd keeps, without those of the inputs but x: bytes by address."""
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = function(*leaves)
    assert out.requires_grad
    weights = {leaf.untyped_storage().data_ptr() for leaf in leaves[1:]}
    return {place: tensor.untyped_storage().nbytes() for place, tensor in storages.items() if place not in weights}


def test_what_is_kept_for_the_backward_pass_is_what_pytorch_keeps() -> None:
    inputs = given(biases=True)
    sizes = sorted(kept(fused, inputs).values())
    assert sizes == sorted(kept(plain, inputs).values()) == [4 * 10 * 24, 4 * 10 * 40, 4 * 10 * 40]


def test_the_operators_are_registered_as_pytorch_wants_them() -> None:
    x, weight, dy = (normal(*shape, dtype=torch.float32) for shape in ((10, 24), (40, 24), (10, 40)))
    for with_bias in (True, False):
        torch.library.opcheck(_linear_gradients, (dy, x, with_bias, False), test_utils=FAST_CHECKS)
        bias = normal(40, dtype=torch.float32) if with_bias else None
        torch.library.opcheck(_linear_gelu, (x, weight, bias, False), test_utils=FAST_CHECKS)
    torch.library.opcheck(
        _linear_gelu_backward, (x, normal(24, 40, dtype=torch.float32), dy, False), test_utils=FAST_CHECKS
    )


def test_no_token_gives_an_empty_output_and_gradients_of_zeros() -> None:
    x, *weights = given(biases=True)
    out, of_x, *of_weights = with_gradients(fused, [x[:0], *weights])
    assert (out.shape, of_x.shape) == ((0, 5, 24), (0, 5, 24))
    assert all(not gradient.any() for gradient in of_weights)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(
        UnsupportedInputError, match="dtype of x: allowed float32, bfloat16, float16, got torch.float64"
    ):
        fused(*given(biases=True, dtype=torch.float64))


@pytest.mark.skipif(DEVICE == "cuda", reason="of machines without a GPU")
def test_without_a_gpu_the_words_say_so() -> None:
    assert why_not(torch.device("cpu")) == "no CUDA device"


def test_an_error_of_cuda_in_the_self_check_is_a_reason_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: torch.device) -> dict[str, bool]:
        raise torch.AcceleratorError("CUDA error: no kernel image\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(linear_epilogues, "library", lambda: None)
    monkeypatch.setattr(linear_epilogues, "_agreements", fails)
    why_not.cache_clear()
    assert why_not(torch.device("cuda", 5)) == "cuBLASLt: CUDA error: no kernel image"
    why_not.cache_clear()
