from __future__ import annotations

from typing import Any

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from reference_runs.run import Architecture, Position
from suite.execute.model.decoder import Decoder
from suite.predict.parameters import parameter_count, parameter_counts, parameter_tensors
from tests.strategies import BLOOM, architectures


def meta_decoder(architecture: Architecture) -> Decoder:
    with torch.device("meta"):
        return Decoder(architecture, BLOOM.recipe, recompute=False)


class FirstUses(TorchFunctionMode):
    """Names of parameters in the order in which operations that compute something receive them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names_of = {id(parameter): name for name, parameter in model.named_parameters()}
        self.order: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if resolve_name(func) is not None:
            for value in [*args, *(kwargs or {}).values()]:
                if id(value) in self.names_of:
                    self.order.setdefault(self.names_of[id(value)])
        return func(*args, **(kwargs or {}))


def names_in_order_of_use(architecture: Architecture) -> list[str]:
    model = Decoder(architecture, BLOOM.recipe, recompute=False)
    with FirstUses(model) as uses:
        model(torch.zeros(1, architecture.sequence, dtype=torch.long))
    return list(uses.order)


@given(architectures())
def test_the_count_equals_the_elements_of_the_model(architecture: Architecture) -> None:
    elements = sum(parameter.numel() for parameter in meta_decoder(architecture).parameters())
    assert parameter_count(architecture) == elements
    assert sum(tensor.elements for tensor in parameter_tensors(architecture)) == elements


@given(architectures())
def test_every_tensor_has_the_name_and_size_of_the_models(architecture: Architecture) -> None:
    built = {name: (p.numel(), p.dim() > 1) for name, p in meta_decoder(architecture).named_parameters()}
    assert {tensor.name: (tensor.elements, tensor.matrix) for tensor in parameter_tensors(architecture)} == built


@given(architectures())
def test_tensors_stand_in_the_order_in_which_the_forward_pass_reads_them(architecture: Architecture) -> None:
    assert [tensor.name for tensor in parameter_tensors(architecture)] == names_in_order_of_use(architecture)


@given(architectures(), st.integers(1, 200), st.integers(1, 200))
def test_parameters_are_additive_in_layers(architecture: Architecture, first: int, second: int) -> None:
    def count(layers: int) -> int:
        return parameter_count(msgspec.structs.replace(architecture, layers=layers))

    assert count(first + second) - count(first) == second * (count(2) - count(1))


@given(architectures())
def test_the_parts_sum_to_the_tensors_of_their_names(architecture: Architecture) -> None:
    sums: dict[str, int] = dict.fromkeys(parameter_counts(architecture), 0)
    for tensor in parameter_tensors(architecture):
        owner = tensor.name.rsplit(".", 1)[0].split(".")
        part = owner[0] if owner[0] in ("embedding", "position", "embedding_norm", "head") else owner[-1]
        if len(owner) > 2:
            part = owner[2]
        part = (
            "norm" if part.endswith("norm") and part != "embedding_norm" else part.replace("embedding_", "embedding ")
        )
        sums[part.replace("feed_forward", "feed-forward")] += tensor.elements
    assert sums == parameter_counts(architecture)


@given(architectures())
def test_the_published_closed_form_holds_for_blooms_kind(architecture: Architecture) -> None:
    h = architecture.hidden
    same_kind = msgspec.structs.replace(
        architecture,
        ffn_hidden=4 * h,
        position=Position.ALIBI,
        embedding_norm=True,
        biases=True,
        tied_embeddings=True,
    )
    layers, rows = architecture.layers, architecture.padded_vocabulary
    assert parameter_count(same_kind) == layers * (12 * h**2 + 13 * h) + rows * h + 4 * h


def test_bloom_has_its_published_count() -> None:
    assert parameter_count(BLOOM.architecture) == BLOOM.reported.parameters == 176_247_271_424
