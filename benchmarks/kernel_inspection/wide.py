"""Launches beyond those of the runs on one GPU: full widths of the recorded runs, and kernels that no run launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.kernel_inspection.launches import KernelLaunch, counted, launches_noted
from kernels import (
    adamw,
    bias_activation,
    cross_entropy,
    geglu,
    gradient_norm,
    layer_norm,
    masked_softmax,
    parallel_layer_norms,
    residual_layer_norm,
    residual_rms_norm,
    rms_norm,
    sign_pack,
    swiglu,
)

WIDE = "full width"
ROWS = 4096  # two sequences of 2048
HIDDEN_SIZES = (5120, 6144, 12_288, 14_336, 20_480)  # codegeex, gpt-neox, glm and opt, bloom, mt-nlg
LLAMA_SIZES = (4096, 8192, 16_384)  # LLaMA-2 7B, 70B, Llama 3.1 405B
VOCABULARIES = (50_257, 150_528, 250_880)  # GPT-2's without padding, glm's, bloom's
ELEMENTS = 1 << 27  # of a flat buffer
EPSILON = 1e-5
ALPHA = 11.8  # of DeepNorm in GLM-130B
RANKS = 8


def _leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]


def _backward(*outputs: Tensor) -> None:
    torch.autograd.backward(outputs, [torch.empty_like(out) for out in outputs])


def _norms(columns: int) -> None:
    x, f, weight, bias, weight2, bias2 = _leaves(*((ROWS, columns),) * 2, *((columns,),) * 4)
    _backward(layer_norm.layer_norm(x, weight, bias, EPSILON))
    _backward(*residual_layer_norm.residual_layer_norm(x, f, weight, bias, EPSILON, keep_sum=True))
    _backward(residual_layer_norm.residual_layer_norm(x, f, weight, bias, EPSILON, alpha=ALPHA))
    if columns == 6144:  # GPT-NeoX's, the one run with a parallel residual of its own norms
        _backward(*parallel_layer_norms.parallel_layer_norms(x, weight, bias, weight2, bias2, EPSILON))


def _root_mean_squares(columns: int) -> None:
    x, f, weight = _leaves((ROWS, columns), (ROWS, columns), (columns,))
    _backward(rms_norm.rms_norm(x, weight, EPSILON))
    _backward(*residual_rms_norm.residual_rms_norm(x, f, weight, EPSILON))


def _activations(columns: int) -> None:
    x, bias = _leaves((ROWS, columns), (columns,))
    for activation in ("gelu", "gelu_tanh", "fast_gelu", "relu", "relu_squared"):
        _backward(bias_activation.bias_activation(x, bias, activation))
    _backward(geglu.geglu(x, bias))
    _backward(geglu.geglu(x, bias, tanh=True))
    _backward(swiglu.swiglu(x, bias))


def _softmax(length: int) -> None:
    (scores,) = _leaves((1, 16, length, length))
    prefix = torch.empty(1, dtype=torch.int64)
    _backward(masked_softmax.masked_softmax(scores, 0.125, causal=True))
    _backward(masked_softmax.masked_softmax(scores, 0.125, causal=True, prefix_B=prefix))


def _loss(columns: int) -> None:
    (logits,) = _leaves((ROWS, columns))
    cross_entropy.cross_entropy(logits * 1, torch.empty(ROWS, dtype=torch.int64)).backward()


def _flat() -> None:
    """On tensors of memory that is never touched: what asks for addresses takes no fake ones."""
    w, g, m, v = (torch.empty(ELEMENTS) for _ in range(4))
    settings: dict[str, Any] = {
        "step": 1,
        "learning_rate": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }
    adamw.adamw(w, g, m, v, **settings)
    half = torch.empty(ELEMENTS, dtype=torch.bfloat16)
    adamw.adamw(w, half, m, v, copies=torch.empty_like(half), gradient_factor=torch.ones(()), **settings)
    gradient_norm.gradient_norm(g)
    gradient_norm.gradient_norm(half)


def _one_bit() -> None:
    sign_pack.sign_pack(torch.empty(ELEMENTS), torch.empty(ELEMENTS))
    packed = torch.empty(RANKS, ELEMENTS // 8, dtype=torch.uint8)
    sign_pack.sign_unpack(packed, torch.empty(RANKS), ELEMENTS)


def _calls() -> Iterator[Callable[[], None]]:
    for columns in HIDDEN_SIZES:
        yield partial(_norms, columns)
    for columns in LLAMA_SIZES:
        yield partial(_root_mean_squares, columns)
    yield partial(_activations, 4 * HIDDEN_SIZES[0])
    yield partial(_softmax, 2048)
    for columns in VOCABULARIES:
        yield partial(_loss, columns)
    yield _one_bit


def wide_launches() -> list[KernelLaunch]:
    """One launch each, in the order of the functions above."""
    found: list[KernelLaunch] = []
    with launches_noted(WIDE, found):
        with FakeTensorMode():
            for call in _calls():
                call()
        _flat()
    return counted(found)
