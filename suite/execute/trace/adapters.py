"""LoRA by peft's own modules: linear layers that are frozen, in four bits perhaps, beside adapters that are trained."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from suite.execute.trace.sources import SourceError, one_line
from suite.job.trace_job import Adapters

NF4 = "nf4"
ALL_LINEAR = "all-linear"  # peft's word for every linear layer but the head


def adapt(module: nn.Module, layers: Sequence[nn.Module], adapters: Adapters, *, sharded: bool) -> None:
    """Freeze a module's weights, and give its linear layers adapters, as peft makes them.

    peft leaves a Hugging Face model's head alone. Of another module those linear layers are meant that are in decoder
    layers, if it has some.

    Args:
        sharded: whether FSDP2 shards it, which wants one dtype of all that a unit trains. Else adapters are in fp32.

    Raises:
        SourceError: the module has no such linear layers.
    """
    from peft import LoraConfig, get_peft_model

    names = [name for name, _ in _linear_layers(module, layers)]
    if adapters.quantised:
        for name in names:
            module.set_submodule(name, in_four_bits(module.get_submodule(name)))
        module.is_loaded_in_4bit = True  # type: ignore[assignment]  # by which peft chooses its own module
        _expand_products()
    targets = list(adapters.targets) or (ALL_LINEAR if _is_of_transformers(module) else names)
    config = LoraConfig(r=adapters.rank, target_modules=targets)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = get_peft_model(module, config, autocast_adapter_dtype=not sharded)
    except Exception as error:
        raise SourceError(f"peft gives it no adapters: {one_line(error)}", "--lora-targets") from error
    # peft is silent where some targets match; of mixtures it has taken names for those of stacked experts by now
    named = config.target_modules if adapters.targets else ()
    matched = adapted.base_model.targeted_module_names
    if missing := [each for each in named if not any(f".{name}".endswith(f".{each}") for name in matched)]:
        raise SourceError(f"it has no linear layer named {', '.join(sorted(missing))}", "--lora-targets")


def elements(module: nn.Module) -> Counter[tuple[str, bool]]:
    """Elements of a module's parameters, each once, by dtype and whether they are trained; nf4: four bits."""
    packed = {id(each.weight): state for each in module.modules() if (state := _state(each)) is not None}
    found = Counter[tuple[str, bool]]()
    for parameter in module.parameters():
        dtype, number = str(parameter.dtype).removeprefix("torch."), parameter.numel()
        if (state := packed.get(id(parameter))) is not None:
            dtype, number = NF4, torch.Size(state.shape).numel()
        found[dtype, parameter.requires_grad] += number
    return found


def scales(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors beside packed weights: scales, their own scales, and the tables of both; each with its module's path."""
    for name, each in module.named_modules():
        if (state := _state(each)) is not None:
            inner = state.state2
            yield from ((name, part) for part in (state.absmax, state.code, state.offset, inner.absmax, inner.code))


def _state(module: nn.Module) -> Any:
    """bitsandbytes' description of packed weights; None where there are none."""
    state = getattr(module, "quant_state", None)
    return None if isinstance(state, nn.Module) else state


def _linear_layers(module: nn.Module, layers: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    kinds: tuple[type[nn.Module], ...] = (nn.Linear,)
    left_out: object = None
    within = {id(each) for layer in layers for each in layer.modules()}
    if _is_of_transformers(module):
        from transformers.pytorch_utils import Conv1D

        kinds, left_out, within = (nn.Linear, Conv1D), module.get_output_embeddings(), set()  # type: ignore[operator]
    for name, each in module.named_modules():
        if isinstance(each, kinds) and each is not left_out and (not within or id(each) in within):
            yield name, each


def _is_of_transformers(module: nn.Module) -> bool:
    return hasattr(module, "get_output_embeddings")


def in_four_bits(layer: nn.Module) -> nn.Module:
    """The layer as bitsandbytes stores it: NF4 in blocks of 64, whose scales are quantised in blocks of 256.

    Its class for parameters takes no tensor without memory, and FSDP2 replaces parameters: so the scales belong to the
    module.
    """
    from bitsandbytes import matmul_4bit
    from bitsandbytes.functional import quantize_4bit
    from bitsandbytes.nn import Linear4bit

    class Packed(Linear4bit):  # type: ignore[misc]  # bitsandbytes is untyped here
        """Linear layer with packed weights that has their scales."""

        def forward(self, x: Tensor) -> Tensor:
            product = matmul_4bit(x.to(self.compute_dtype), self.weight, quant_state=self.quant_state, bias=self.bias)
            return cast(Tensor, product.to(x.dtype))

    weight: Tensor = layer.weight.detach()  # type: ignore[operator]  # a linear layer's
    weight = weight if isinstance(layer, nn.Linear) else weight.t()  # GPT-2's are the other way round
    with unset_fake_temporarily():
        packed = Packed(weight.shape[1], weight.shape[0], bias=False, compute_dtype=torch.bfloat16, device="meta")
    data, packed.quant_state = quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type=NF4)
    packed.weight = nn.Parameter(data, requires_grad=False)
    packed.weight.compress_statistics, packed.weight.quant_type = True, NF4  # peft asks
    packed.bias = layer.bias
    return packed


def _expand_products() -> None:
    """Have products of packed weights run as their kernel for CUDA does: unpack into 16 bits, then multiply."""
    from bitsandbytes.backends.default.ops import _gemm_4bit_default_impl

    mock.patch.object(torch.ops.bitsandbytes.gemm_4bit, "default", _gemm_4bit_default_impl).start()
