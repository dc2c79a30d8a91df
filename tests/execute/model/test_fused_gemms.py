"""Blocks whose linear layers are cuBLASLt's train as PyTorch's do: here by the plain way, with the same operators."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
import torch
from torch import Tensor, nn

from kernels import linear_epilogues
from reference_runs.layout import Recomputation
from reference_runs.run import Activation, Precision
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.fused_gemms import EpilogueLinear, fuse_gemms, fuse_layers, how_computed
from suite.execute.parallel.gradient_sums import GradientSums
from suite.execute.precision import store_weights
from suite.job.options import Optimization
from tests.support.launches import small_plan

CPU = torch.device("cpu")
BOTH = (Optimization.EPILOGUES, Optimization.TUNED_GEMMS)
RECIPE = {"precision": Precision.BF16, "hidden_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
WAYS = {
    "epilogues": {"through_gelu": True, "sums_biases": True, "tuned": False},
    "tuned": {"through_gelu": False, "sums_biases": False, "tuned": True},
    "both": {"through_gelu": True, "sums_biases": True, "tuned": True},
}


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def model(way: str = "", *, reduced: bool = False, recomputation: Recomputation = Recomputation.NONE) -> Decoder:
    """A small GPT-2 over the flat store of its weights; `reduced`: whose leaves are stand-ins."""
    plan = small_plan(ranks=1, recipe=RECIPE)
    decoder = Decoder(msgspec.structs.replace(plan.architecture, layers=2), plan.recipe)
    decoder.recompute(recomputation)
    initialise(decoder, plan.recipe, seed=1)
    if way:
        fuse_layers(decoder.blocks, **WAYS[way])
    store_weights([decoder], plan.recipe, shards=1, device=CPU, reduced=reduced)
    return decoder


def step(decoder: Decoder, sums: GradientSums | None = None) -> tuple[Tensor, list[Tensor]]:
    """Loss, and gradients in the order of the parameters' names, of two micro-batches."""
    generator, losses = torch.Generator().manual_seed(2), []
    if sums is not None:
        sums.begin()
    for _ in range(2):
        tokens = torch.randint(600, (2, 33), generator=generator)
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        losses.append(loss.detach())
    if sums is not None:
        sums.hand_over()
    named = {
        name.replace("parametrizations.", "").removesuffix(".original"): p for name, p in decoder.named_parameters()
    }
    gradients = [named[name].grad for name in sorted(named)]
    return torch.stack(losses), [gradient for gradient in gradients if gradient is not None]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reduced", [False, True], ids=["leaves", "stand-ins"])
def test_loss_and_gradients_are_those_of_pytorchs_layers(way: str, reduced: bool) -> None:
    loss, gradients = step(model(reduced=reduced))
    fused_loss, fused = step(model(way, reduced=reduced))
    assert torch.equal(loss, fused_loss)
    assert len(fused) == len(gradients)
    for found, right in zip(fused, gradients, strict=True):
        torch.testing.assert_close(found, right, rtol=2.0**-8, atol=2.0**-8 * float(right.abs().max()))


@pytest.mark.parametrize("recomputation", [Recomputation.SELECTIVE, Recomputation.FULL])
def test_recomputation_gives_the_same(recomputation: Recomputation) -> None:
    loss, gradients = step(model("both"))
    again, recomputed = step(model("both", recomputation=recomputation))
    assert torch.equal(loss, again)
    assert all(map(torch.equal, gradients, recomputed))


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_compiled_blocks_add_the_same_gradients_to_their_sums() -> None:
    loss, gradients = step(model("both"))
    decoder = model("both")
    sums = GradientSums(decoder.blocks.values())
    for block in decoder.blocks.values():
        block.compile(backend="aot_eager", fullgraph=True)
    compiled_loss, compiled = step(decoder, sums)
    torch.testing.assert_close(compiled_loss, loss, rtol=2.0**-8, atol=0)
    for found, right in zip(compiled, gradients, strict=True):
        torch.testing.assert_close(found, right, rtol=2.0**-8, atol=2.0**-8 * float(right.abs().max()))


def classes(layers: nn.Module) -> Counter[str]:
    return Counter(type(module).__name__ for module in layers.modules() if isinstance(module, nn.Linear))


def test_layers_without_bias_of_odd_width_or_with_another_activation_stay_as_they_are() -> None:
    plan = small_plan(ranks=1, recipe=RECIPE)
    usual = msgspec.structs.replace(plan.architecture, layers=1)
    decoders = [
        Decoder(msgspec.structs.replace(usual, **changes), plan.recipe)
        for changes in ({}, {"biases": False}, {"ffn_hidden": usual.ffn_hidden + 4}, {"activation": Activation.RELU})
    ]
    found = []
    for decoder in decoders:
        fuse_layers(decoder.blocks, through_gelu=True, sums_biases=True, tuned=False)
        block = decoder.blocks["0"]
        found.append((classes(decoder.blocks)["EpilogueLinear"], block.feed_forward.through_gelu is not None))
    assert found == [(4, True), (0, True), (2, False), (4, True)]
    assert isinstance(decoders[0].head, nn.Linear)
    assert not isinstance(decoders[0].head, EpilogueLinear)


def test_what_a_device_cannot_do_is_said_and_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = model()
    fuse_gemms([decoder], BOTH, CPU)
    assert classes(decoder.blocks) == {"Linear": 8}
    assert how_computed(BOTH, CPU) == "without epilogues, tuned-gemms: no CUDA device"
    assert how_computed((), CPU) == ""
    monkeypatch.setattr(linear_epilogues, "why_not", lambda _: "")
    fuse_gemms([decoder], BOTH, CPU)
    assert classes(decoder.blocks) == {"EpilogueLinear": 8}
    assert how_computed((Optimization.TUNED_GEMMS,), CPU) == "weight gradients by the fastest of cuBLASLt's algorithms"
