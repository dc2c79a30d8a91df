"""Stored weights and the precision of their gradients."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from reference_runs.layout import Recomputation
from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import DTYPES, WeightGroup, prepare_arithmetic, store_weights
from suite.paths import ROOT
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

TOKENS = torch.arange(64).view(2, 32)
SCALED = [precision for precision in Precision if precision.scaled]
FP16 = pytest.mark.parametrize("precision", SCALED)


def _stored(precision: Precision, *, reduced: bool = False) -> tuple[Decoder, list[WeightGroup]]:
    plan = small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, "precision": precision})
    decoder = Decoder(plan.architecture, plan.recipe)
    decoder.recompute(Recomputation.FULL)
    initialise(decoder, plan.recipe, seed=2)
    return decoder, store_weights([decoder], plan.recipe, shards=3, device=torch.device("cpu"), reduced=reduced)


def _leaves(groups: list[WeightGroup]) -> list[nn.Parameter]:
    return [leaf for group in groups for leaf in group.leaves]


def _gradients(groups: list[WeightGroup]) -> list[torch.Tensor]:
    return [leaf.grad.clone() for group in groups for leaf in group.leaves if leaf.grad is not None]


@pytest.mark.parametrize("reduced", [False, True])
def test_bf16_gradients_accumulate_in_fp32(reduced: bool) -> None:
    decoder, groups = _stored(Precision.BF16, reduced=reduced)
    passes = []
    for tokens in (TOKENS, TOKENS.flip(1)):
        decoder(tokens, tokens).backward()
        passes.append(_gradients(groups))
        for group in groups:
            for leaf in group.leaves:
                leaf.grad = None
    for tokens in (TOKENS, TOKENS.flip(1)):
        decoder(tokens, tokens).backward()
    together = _gradients(groups)
    assert all(g.dtype is torch.float32 for g in together)
    assert all(torch.equal(a + b, c) for a, b, c in zip(*passes, together, strict=True))
    # each pass alone is exact in bf16 (except where two uses of one weight were added), the sum is not
    sums = zip(passes[0], passes[1], strict=True)
    assert any(not torch.equal(a + b, (a + b).bfloat16().float()) for a, b in sums)


@FP16
def test_fp16_gradients_accumulate_in_fp16(precision: Precision) -> None:
    decoder, groups = _stored(precision)
    decoder(TOKENS, TOKENS).backward()
    first = _gradients(groups)
    decoder(TOKENS, TOKENS).backward()
    assert all(gradient.dtype is torch.float16 for gradient in first)
    # twice the same gradient is a sum without rounding; a table with two uses adds one of them at a time
    assert decoder.embedding is not None
    tied = [leaf is decoder.embedding.weight for leaf in _leaves(groups)]
    assert sum(tied) == 1
    for is_tied, once, twice in zip(tied, first, _gradients(groups), strict=True):
        assert is_tied or torch.equal(once + once, twice)


def test_stand_ins_have_the_gradients_of_the_weights_themselves() -> None:
    gradients = []
    for reduced in (False, True):
        decoder, groups = _stored(Precision.BF16, reduced=reduced)
        for tokens in (TOKENS, TOKENS.flip(1)):
            decoder(tokens, tokens).backward()
        gradients.append(_gradients(groups))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(Precision.FP32, torch.float32), (Precision.BF16, torch.bfloat16)]
    + [(precision, torch.float16) for precision in SCALED],
)
def test_weights_lie_in_the_flat_buffers_and_leaves_take_no_storage_of_their_own(
    precision: Precision, dtype: torch.dtype, reduced: bool
) -> None:
    decoder, groups = _stored(precision, reduced=reduced)
    flats = {group.flat.untyped_storage().data_ptr() for group in groups}
    if reduced and precision is Precision.BF16:  # what DistributedDataParallel sees has the gradient's dtype
        assert all(leaf.element_size() == leaf.untyped_storage().nbytes() == 4 for leaf in _leaves(groups))
    else:
        assert {leaf.untyped_storage().data_ptr() for leaf in _leaves(groups)} == flats
    weights = [
        module.weight for module in decoder.modules() if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding))
    ]
    assert {weight.untyped_storage().data_ptr() for weight in weights} == flats
    assert all(group.flat.dtype is dtype and group.flat.numel() % 3 == 0 for group in groups)
    assert [group.weight_decay for group in groups] == [0.1, 0.0]


def test_a_shared_parameter_is_stored_once_and_its_gradient_is_that_of_both_uses() -> None:
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    value = table.weight.detach().clone()
    model = nn.Sequential(table, head)
    (group,) = store_weights([model], recipe, shards=1, device=torch.device("cpu"))
    assert torch.equal(group.flat, value.flatten())
    (leaf,) = group.leaves
    assert [parameter is leaf for parameter in model.parameters()] == [True]
    model(torch.tensor([0, 3])).sum().backward()
    # the sum over all outputs of W_i . W_v is (sum over v of W_v) . W_i for each of the rows i that are read
    expected = value[[0, 3]].sum(0).expand(5, 3).clone()
    expected[[0, 3]] += value.sum(0)
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, expected, rtol=0, atol=10 * 2**-24 * value.abs().sum().item())
    group.flat.mul_(2)
    assert torch.equal(table.weight, 2 * value)
    assert torch.equal(head.weight, 2 * value)


def test_several_models_lie_in_one_buffer_a_group_in_their_order() -> None:
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    models: list[nn.Module] = [nn.Linear(3, 2), nn.Linear(2, 4)]
    values = {name: [model.get_parameter(name).detach().clone() for model in models] for name in ("weight", "bias")}
    groups = store_weights(models, recipe, shards=1, device=torch.device("cpu"))
    for group, name in zip(groups, ("weight", "bias"), strict=True):
        assert torch.equal(group.flat, torch.cat([value.flatten() for value in values[name]]))
        assert [leaf.shape for leaf in group.leaves] == [value.shape for value in values[name]]


def test_a_distributed_weight_is_read_through_its_function_and_the_others_are_not() -> None:
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    model = nn.Linear(3, 2)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    (matrices, vectors) = store_weights(
        [model], recipe, shards=1, device=torch.device("cpu"), as_dtensor={id(model.weight): lambda read: 3 * read}
    )
    assert torch.equal(model.weight, 3 * weight)
    assert torch.equal(model.bias, bias)
    model(torch.ones(1, 3)).sum().backward()
    for group, gradient in ((matrices, torch.full((2, 3), 3.0)), (vectors, torch.ones(2))):
        assert group.leaves[0].grad is not None
        assert torch.equal(group.leaves[0].grad, gradient)


def test_stored_fp32_weights_have_the_gradients_of_the_plain_model() -> None:
    stored, _ = _stored(Precision.FP32)
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    plain = Decoder(plan.architecture, plan.recipe)
    initialise(plain, plan.recipe, seed=2)
    for decoder in (stored, plain):
        decoder(TOKENS, TOKENS).backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, leaf in stored.named_parameters():
        grad = expected[name.replace("parametrizations.", "").replace(".original", "")]
        assert leaf.grad is not None
        assert grad is not None
        # the tied embedding's two uses are added in another order
        assert torch.allclose(leaf.grad, grad, rtol=2**-22, atol=2**-22 * grad.abs().max().item())


SAYS = """
import os, torch
from kernels import half_matmul
from suite.execute.precision import DTYPES, prepare_arithmetic
for precision in DTYPES:
    if not os.fork():  # the choice holds for a process
        print(prepare_arithmetic(precision, torch.device("cpu")), half_matmul._through_fp32, sep="\\n", flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def said() -> dict[Precision, tuple[str, str]]:
    """Words of each precision's process about itself, and the dtypes that it multiplies through fp32."""
    out = subprocess.run([sys.executable, "-c", SAYS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = iter(out.stdout.splitlines())
    return {precision: (next(lines), next(lines)) for precision in DTYPES}


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        (Precision.FP32, ["fp32 products by the device"]),
        (Precision.BF16, ["bf16 products by the device", "bf16 products through fp32 (this CPU has no bf16 matrix"]),
    ]
    + [
        (precision, ["fp16 products by the device", "fp16 products through fp32 (this CPU has no fp16 matrix"])
        for precision in SCALED
    ],
)
def test_the_record_says_how_products_are_computed(
    precision: Precision, words: list[str], said: dict[Precision, tuple[str, str]]
) -> None:
    line, replaced = said[precision]
    assert line.startswith(tuple(words))
    expected = f"{{{DTYPES[precision]}}}" if "through" in line else "set()"
    assert replaced == expected
    assert prepare_arithmetic(precision, torch.device("cuda")) == words[0]
