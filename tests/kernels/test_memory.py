"""Kernels write all elements of their results, and nothing before or after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.adamw import adamw
from kernels.cross_entropy import loss_and_gradient
from kernels.gradient_norm import gradient_norm
from kernels.masked_softmax import masked_softmax
from kernels.rotary import rotary
from kernels.row_norm import MOST_COLUMNS_HELD
from kernels.sign_pack import sign_pack, sign_unpack
from tests.kernels.agreement import DEVICE, normal, outputs_and_gradients
from tests.kernels.row_kernels import KERNELS
from tests.kernels.tokens import tokens

EDGE = 8192  # bytes before and after each tensor, more than any row or vector here
MARK = 0x7F  # of every byte: in floats not a number


class GuardedMemory:
    """Tensors whose neighbouring bytes are known, and their own too until they are written."""

    def __init__(self) -> None:
        self._bytes: list[tuple[Tensor, int]] = []

    def empty(self, shape: Sequence[int] | int, *, dtype: torch.dtype, device: object) -> Tensor:
        """As torch.empty, with an edge on both sides."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(sizes) * dtype.itemsize
        padded = -(-size // 16) * 16
        memory = torch.full((EDGE + padded + EDGE,), MARK, dtype=torch.uint8, device=device)  # type: ignore[call-overload]
        self._bytes.append((memory, size))
        return memory[EDGE : EDGE + padded].view(dtype)[: math.prod(sizes)].view(sizes)

    def holding(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor."""
        return self.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    def check(self) -> None:
        """No edge has changed."""
        for memory, size in self._bytes:
            assert bool((memory[:EDGE] == MARK).all()), "written before a tensor"
            assert bool((memory[EDGE + size :] == MARK).all()), "written after a tensor"


@contextmanager
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedMemory]:
    memory = GuardedMemory()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", memory.empty)
        yield memory
    memory.check()


LONG = MOST_COLUMNS_HELD + 900  # columns of rows that are read in pieces, forward and backward
OF_ROWS = {
    "layer_norm": [(3, 38), (133, 16), (2, LONG)],
    "rms_norm": [(3, 38)],
    "residual_layer_norm, scaled": [(3, 38)],
    "residual_layer_norm, sum kept": [(3, 38)],
    "residual_rms_norm": [(3, 38)],
    "parallel_layer_norms": [(3, 38), (2, LONG)],
    "gelu": [(3, 38), (133, 16), (2, 1100)],
    "swiglu": [(3, 38), (133, 16), (2, 2100)],
}
TABLE = normal(2, 19, 24, dtype=torch.float32, seed=5)
CALLS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    f"{name} {rows} x {columns}": (KERNELS[name].kernel, KERNELS[name].inputs(rows, columns, dtype=torch.bfloat16))
    for name, sizes in OF_ROWS.items()
    for rows, columns in sizes
} | {
    "softmax": (lambda x: masked_softmax(x, 0.3, causal=True), [normal(1, 2, 19, 19, dtype=torch.bfloat16)]),
    "rotary": (
        lambda q, k: rotary(q, k, TABLE),
        [normal(1, count, 19, 38, dtype=torch.bfloat16, seed=count) for count in (5, 3)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_written_whole_and_nothing_beside_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, inputs = CALLS[name]
    outputs = function(*inputs)
    shapes = [each.shape for each in ([outputs] if isinstance(outputs, Tensor) else outputs)]
    upstream = [normal(*shape, dtype=torch.float32, seed=9) for shape in shapes]
    plain = outputs_and_gradients(function, inputs, upstream)
    with guarded(monkeypatch) as memory:
        own = outputs_and_gradients(function, [memory.holding(each) for each in inputs], upstream)
    for one, other in zip(own, plain, strict=True):
        assert torch.equal(one, other)


def test_what_is_overwritten_ends_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(37,), (1025,), (2, 3)]
    settings: dict[str, Any] = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}
    for of_step in (shapes, shapes[1:2]):
        with guarded(monkeypatch) as memory:
            w, g, m, v = ([memory.holding(torch.ones(shape, device=DEVICE)) for shape in of_step] for _ in range(4))
            copies = [memory.holding(torch.ones(shape, dtype=torch.bfloat16, device=DEVICE)) for shape in of_step]
            adamw(w, g, m, v, copies=copies, step=1, **settings)
            assert gradient_norm(g).isfinite()
    for elements in (13, 1030):
        with guarded(monkeypatch) as memory:
            value, error = (memory.holding(torch.ones(elements, device=DEVICE)) for _ in range(2))
            packed, scale = sign_pack(value, error)
            assert float(scale) == 2
            assert bool((sign_unpack(packed[None], scale[None], elements) == 2).all())
    for columns, vocabulary in ((38, 37), (40, 40), (9000, 8900)):
        logits, targets = normal(3, columns, dtype=torch.bfloat16), tokens(3, vocabulary)
        plain = loss_and_gradient(logits.clone(), targets, vocabulary=vocabulary)
        with guarded(monkeypatch) as memory:
            own = loss_and_gradient(memory.holding(logits), targets, vocabulary=vocabulary)
        assert all(torch.equal(one, other) for one, other in zip(own, plain, strict=True))


def test_the_guard_sees_what_is_written_beside_a_tensor() -> None:
    for place, words in ((-1, "before"), (10, "after")):
        memory = GuardedMemory()
        tensor = memory.empty(10, dtype=torch.bfloat16, device=DEVICE)
        memory.check()
        torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + place).fill_(1.0)
        with pytest.raises(AssertionError, match=words):
            memory.check()
