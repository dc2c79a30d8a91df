"""Where weights are stored, in what precision, and in what precision their gradients accumulate.

Weights of one optimizer group lie in one flat buffer, so that a shard is a slice and an all-gather fills it in place.
The leaves of autograd are parameters that view it. In bf16 their gradients accumulate over micro-batches in fp32
(`grad_dtype`), in the fp16 precisions in fp16.

DistributedDataParallel refuses a gradient of another dtype than its parameter's. To reduce fp32 gradients of bf16
weights, as BLOOM's BF16_Optimizer does, the leaves are stand-ins without storage, in fp32. A weight is then read
through `ReadWeight`, whose backward pass widens the gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.utils import parametrize

from kernels.half_matmul import compute_products_through_fp32, has_instructions
from reference_runs.run import Precision, Recipe

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.FP16_GRADIENT_COPY: torch.float16,
    Precision.FP16_NO_MASTER: torch.float16,
}
GRADIENT_DTYPES = {torch.float32: torch.float32, torch.bfloat16: torch.float32, torch.float16: torch.float16}
AsDTensor = Callable[[Tensor], Tensor]  # makes a DTensor of this rank's part of a weight
Model = TypeVar("Model", bound=nn.Module)
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class WeightGroup:
    """Weights with one weight decay: the flat buffer (padded to a multiple of the shards) and the leaves in it.

    Args:
        apart: whether they are of experts that ranks share out, so that other ranks have the same than of the rest.
    """

    weight_decay: float
    flat: Tensor
    leaves: list[nn.Parameter]
    apart: bool = False


class ReadWeight(torch.autograd.Function):
    """The stored weight. Its gradient goes to the leaf, in the leaf's dtype."""

    @staticmethod
    def forward(_ctx: Any, _leaf: Tensor, stored: Tensor) -> Tensor:
        return stored.view_as(stored)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(GRADIENT_DTYPES[gradients[0].dtype]), None


def stored_weights(group: WeightGroup) -> list[Tensor]:
    """The stored weight of each leaf: a view of the flat buffer."""
    sizes = [leaf.numel() for leaf in group.leaves]
    parts = group.flat[: sum(sizes)].split(sizes)
    return [part.view(leaf.shape) for part, leaf in zip(parts, group.leaves, strict=True)]


class LeafReader(nn.Module):
    """Parametrization: the weight that a module computes with, made of its leaf.

    Args:
        stored: the weight, where the leaf is a stand-in.
        as_dtensor: makes a DTensor of the weight, where tensor-parallel ranks hold its parts.
    """

    def __init__(self, *, stored: Tensor | None = None, as_dtensor: AsDTensor | None = None) -> None:
        super().__init__()
        self.stored = stored
        self.as_dtensor = as_dtensor

    def forward(self, leaf: Tensor) -> Tensor:
        weight = leaf
        if self.stored is not None:
            weight = ReadWeight.apply(leaf, self.stored)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return weight if self.as_dtensor is None else self.as_dtensor(weight)


def store_weights(
    models: list[nn.Module],
    recipe: Recipe,
    *,
    shards: int,
    device: torch.device,
    as_dtensor: Mapping[int, AsDTensor] | None = None,
    reduced: bool = False,
    apart: Set[int] = frozenset(),
    apart_shards: int = 1,
) -> list[WeightGroup]:
    """Move the weights of `models`, in order, into flat buffers of the recipe's precision on `device`.

    A parameter that several modules share is stored once and has one leaf, which all of them read.

    Args:
        as_dtensor: id of a parameter -> makes a DTensor of its stored weight.
        reduced: whether DistributedDataParallel reduces the gradients.
        apart: ids of parameters of experts that ranks share out, which have so many shards.

    Returns the groups: weights that decay, those apart after the others, then those that do not; an empty group is left
    out.
    """
    dtype = DTYPES[recipe.precision]
    stand_in = reduced and GRADIENT_DTYPES[dtype] != dtype
    readers: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for model in models:
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                readers.setdefault(parameter, []).append((module, name))
    groups: list[WeightGroup] = []
    for decaying, is_apart in itertools.product((True, False), (False, True)):
        members = [
            parameter
            for parameter in readers
            if (parameter.dim() > 1 or recipe.decay_of_vectors) == decaying and (id(parameter) in apart) == is_apart
        ]
        if not members:
            continue
        elements, parts = sum(parameter.numel() for parameter in members), apart_shards if is_apart else shards
        flat = torch.zeros(-(-elements // parts) * parts, dtype=dtype, device=device)
        leaves: list[nn.Parameter] = []
        offset = 0
        for parameter in members:
            stored = flat[offset : offset + parameter.numel()].view(parameter.shape)
            stored.copy_(parameter.data)
            offset += parameter.numel()
            distribute = (as_dtensor or {}).get(id(parameter))
            leaves.append(_leaf(readers[parameter], stored, distribute, stand_in=stand_in))
        groups.append(WeightGroup(recipe.weight_decay if decaying else 0.0, flat, leaves, is_apart))
    for model in models:
        share_classes(model)
    return groups


def _leaf(
    readers: list[tuple[nn.Module, str]], stored: Tensor, as_dtensor: AsDTensor | None, *, stand_in: bool
) -> nn.Parameter:
    """The leaf of one stored weight, which the modules of `readers` read under their names from now on."""
    gradient_dtype = GRADIENT_DTYPES[stored.dtype]
    if stand_in:
        leaf = nn.Parameter(torch.zeros((), dtype=gradient_dtype, device=stored.device).expand(stored.shape))
    else:
        leaf = nn.Parameter(stored)
        leaf.grad_dtype = gradient_dtype
    for module, name in readers:
        if stand_in:
            reader = LeafReader(stored=stored, as_dtensor=as_dtensor)
            parametrize.register_parametrization(module, name, reader, unsafe=True)
            module.parametrizations[name].original = leaf  # type: ignore[index,union-attr]  # ModuleDict of lists
        else:
            module.register_parameter(name, leaf)
            if as_dtensor is not None:
                reader = LeafReader(as_dtensor=as_dtensor)
                parametrize.register_parametrization(module, name, reader, unsafe=True)
    return leaf


def on_device(model: Model, device: torch.device) -> Model:
    """`model` on `device`. One that is there stays as it is: tensors without memory cannot be replaced."""
    is_there = all(tensor.device == device for tensor in (*model.parameters(), *model.buffers()))
    return model if is_there else model.to(device)


_SHARED: dict[tuple[type, tuple[str, ...]], type] = {}


def share_classes(model: nn.Module) -> None:
    """Give one class to all modules of `model` of one kind with the same parametrized parameters.

    parametrize makes a class for each module, with properties that differ in the parameter's name alone; torch.compile
    would compile every block anew, up to its limit of 8, and execute the others eagerly.
    """
    for module in model.modules():
        if parametrize.is_parametrized(module):
            shared = type(module)
            names = tuple(sorted(module.parametrizations))  # type: ignore[arg-type]  # a ModuleDict
            module.__class__ = _SHARED.setdefault((shared.__bases__[0], names), shared)


def sharded_policy(precision: Precision) -> MixedPrecisionPolicy:
    """Dtypes that fully sharded units gather and reduce: 16-bit weights, gradients in fp32, in fp16 recipes in fp16."""
    return MixedPrecisionPolicy(
        param_dtype=None if precision is Precision.FP32 else DTYPES[precision],
        reduce_dtype=torch.float32 if precision is Precision.BF16 else None,
        cast_forward_inputs=False,
    )


def prepare_arithmetic(precision: Precision, device: torch.device) -> str:
    """Choose how matrix products in `precision` are computed on `device`; return it in words for the record."""
    name = _NAMES.get(DTYPES[precision], "fp32")
    if products_through_fp32(DTYPES[precision], device):
        return f"{name} products through fp32 (this CPU has no {name} matrix instructions)"
    return f"{name} products by the device"


def products_through_fp32(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of `dtype` are computed through fp32 from now on: on a CPU without instructions for it."""
    through_fp32 = device.type == "cpu" and dtype in _NAMES and not has_instructions(dtype)
    if through_fp32:
        compute_products_through_fp32(dtype)
    return through_fp32
