"""fp32 sums of gradients over micro-batches, added to within the compiled backward pass of each block.

Autograd adds a bf16 gradient to an fp32 one in two kernels of its own for each weight and micro-batch: one widens it,
one adds. Of P weights they move 6 P and 12 P bytes. Inside a block's graph the compiler adds in one pass, 10 P, and for
a vector where the gradient is reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from suite.execute.precision import GRADIENT_DTYPES, share_classes


class _AddedGradient(torch.autograd.Function):
    """The weight. Its gradient is added to `sums`, and the leaf gets none."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(sums)
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        (sums,) = ctx.saved_tensors
        sums.add_(gradients[0])
        return None, None


def _read(leaf: Tensor, sums: Tensor) -> Tensor:
    weight: Tensor = _AddedGradient.apply(leaf, sums)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return weight


torch.compiler.allow_in_graph(_read)  # Dynamo would break the graph at the addition; AOTAutograd traces it


class SummingReader(nn.Module):
    """Parametrization: the leaf; during a step that sums, one whose gradient is added to `sums`."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Tensor | None = None

    def forward(self, leaf: Tensor) -> Tensor:
        return leaf if self.sums is None else _read(leaf, self.sums)


class StepSums(Protocol):
    """Gradients that a step's micro-batches are added to."""

    def begin(self) -> None:
        """Make them zeros, before the first micro-batch."""

    def hand_over(self) -> None:
        """Make them the leaves' gradients, after the last micro-batch."""


class GradientSums:
    """The sums of all weights of some blocks, which exist while a step accumulates, or stay where they are.

    The leaves have no gradient meanwhile: Dynamo traces none whose dtype is another than its tensor's.
    A backward pass must follow its forward pass before the next one begins, as without a pipeline.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self._readers: list[tuple[nn.Parameter, SummingReader]] = []
        self._kept: list[Tensor] | None = None
        for block in blocks:
            for module in list(block.modules()):
                for name, leaf in list(module.named_parameters(recurse=False)):
                    reader = SummingReader()
                    parametrize.register_parametrization(module, name, reader, unsafe=True)
                    self._readers.append((leaf, reader))
            share_classes(block)

    @property
    def leaves(self) -> set[nn.Parameter]:
        """The leaves whose gradients are summed."""
        return {leaf for leaf, _ in self._readers}

    def keep(self) -> None:
        """From now on sums of every step lie where the first ones do."""
        self._kept = self._new()

    def release(self) -> None:
        """From now on they lie anywhere again."""
        self._kept = None

    def _new(self) -> list[Tensor]:
        dtypes = GRADIENT_DTYPES
        return [torch.empty_like(leaf, dtype=dtypes[leaf.dtype], requires_grad=False) for leaf, _ in self._readers]

    def begin(self) -> None:
        """Sums of zeros, before the first micro-batch."""
        sums = self._new() if self._kept is None else self._kept
        torch._foreach_zero_(sums)
        for (_, reader), of_leaf in zip(self._readers, sums, strict=True):
            reader.sums = of_leaf

    def hand_over(self) -> None:
        """The leaves' gradients are the sums, after the last micro-batch."""
        for leaf, reader in self._readers:
            leaf.grad, reader.sums = reader.sums, None
