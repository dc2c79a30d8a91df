"""The parts of a mixture's experts on tensor-parallel ranks, each computed alone: together they are the whole."""

from __future__ import annotations

from typing import cast

import msgspec
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from reference_runs.architecture import Architecture
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.experts import Experts
from suite.execute.parallel.tensor_parallel_experts import split_experts
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan
from tests.support.strategies import routed_architectures

ROUNDING = 1e-5
RECIPE = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe


class RankOf:
    """A mesh with all that the split asks for."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks

    def size(self) -> int:
        return self._ranks

    def get_local_rank(self) -> int:
        return self._rank


def mixture(architecture: Architecture, *, rank: int = 0, ranks: int = 1) -> tuple[str, Experts, dict[str, int]]:
    """The last layer's experts on a rank, which sends nothing, their name, and the dims along which they are split."""
    decoder = Decoder(architecture, RECIPE)
    initialise(decoder, msgspec.structs.replace(RECIPE, init_std=architecture.hidden**-0.5), seed=3)
    dims: dict[str, int] = {}
    if ranks > 1:
        dims = split_experts(decoder, cast(DeviceMesh, RankOf(rank, ranks)), sequence_parallel=False)
    name = f"blocks.{architecture.layers - 1}.feed_forward"
    layer = decoder.get_submodule(name)
    assert isinstance(layer, Experts)
    layer.entered = layer.left = None
    return name, layer, dims


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 3).flatmap(lambda t: st.tuples(st.just(t), routed_architectures(tensor_parallel=t))), st.data())
def test_outputs_and_gradients_of_the_ranks_add_up_to_those_of_one(
    drawn: tuple[int, Architecture], data: st.DataObject
) -> None:
    ranks, architecture = drawn
    architecture = msgspec.structs.replace(architecture, layers=architecture.dense_layers + 1)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(2, data.draw(st.integers(1, 5)), architecture.hidden)
    upstream = torch.randn_like(x)

    def run(layer: Experts) -> tuple[torch.Tensor, torch.Tensor]:
        given_x = x.clone().requires_grad_()
        out = layer(given_x)
        out.backward(upstream)
        assert given_x.grad is not None
        return out.detach(), given_x.grad

    name, whole, _ = mixture(architecture)
    out, gradient = run(whole)
    parts = [mixture(architecture, rank=rank, ranks=ranks) for rank in range(ranks)]
    runs = [run(layer) for _, layer, _ in parts]
    assert_sum([each for each, _ in runs], out)
    assert_sum([each for _, each in runs], gradient)
    of_scores = float(x.norm() * upstream.norm()) * sum(float(each.norm()) for each, _ in runs)
    for owner, parameter in whole.named_parameters():
        held = [cast(torch.Tensor, layer.get_parameter(owner).grad) for _, layer, _ in parts]
        dim = parts[0][2].get(f"{name}.{owner}")
        assert parameter.grad is not None
        if dim is None:  # what all ranks have whole, of whose gradient each has a part
            assert owner in ("router.weight", "shared_gate.weight")
            assert_sum(held, parameter.grad, size=of_scores)
        else:
            stacked = (architecture.experts or 0) if owner.startswith("experts.") else 1
            joined = torch.cat([each.unflatten(0, (stacked, -1)) for each in held], dim + 1).flatten(0, 1)
            assert_sum([joined], parameter.grad)


def assert_sum(parts: list[torch.Tensor], whole: torch.Tensor, *, size: float | None = None) -> None:
    """Parts may cancel: what rounding leaves is small beside them, or beside `size` of the factors of their terms."""
    size = sum(float(part.norm()) for part in parts) if size is None else size
    assert float((torch.stack(parts).sum(0) - whole).norm()) <= ROUNDING * size
