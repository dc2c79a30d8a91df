"""Stored weights and their fp32 gradients."""

from __future__ import annotations

import torch
from torch import nn

from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.objective import causal_lm_loss
from suite.execute.precision import WeightGroup, store_weights
from tests.launches import FP32_WITHOUT_DROPOUT, small_plan

TOKENS = torch.arange(64).view(2, 32)


def _stored(precision: Precision) -> tuple[Decoder, list[WeightGroup]]:
    plan = small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, "precision": precision})
    torch.manual_seed(2)
    decoder = Decoder(plan.architecture, plan.recipe, recompute=True)
    initialise(decoder, plan.recipe)
    return decoder, store_weights(decoder, plan.recipe, shards=3, device=torch.device("cpu"))


def _gradients(groups: list[WeightGroup]) -> list[torch.Tensor]:
    return [leaf.grad.clone() for group in groups for leaf in group.leaves if leaf.grad is not None]


def test_bf16_gradients_accumulate_in_fp32() -> None:
    decoder, groups = _stored(Precision.BF16)
    passes = []
    for tokens in (TOKENS, TOKENS.flip(1)):
        causal_lm_loss(decoder(tokens), tokens).backward()
        passes.append(_gradients(groups))
        for group in groups:
            for leaf in group.leaves:
                leaf.grad = None
    for tokens in (TOKENS, TOKENS.flip(1)):
        causal_lm_loss(decoder(tokens), tokens).backward()
    together = _gradients(groups)
    assert all(g.dtype is torch.float32 for g in together)
    assert all(torch.equal(a + b, c) for a, b, c in zip(*passes, together, strict=True))
    # each pass alone is exact in bf16 (except where two uses of one weight were added), the sum is not
    sums = zip(passes[0], passes[1], strict=True)
    assert any(not torch.equal(a + b, (a + b).bfloat16().float()) for a, b in sums)


def test_leaves_take_no_storage_and_weights_lie_in_the_flat_buffers() -> None:
    decoder, groups = _stored(Precision.BF16)
    assert all(leaf.untyped_storage().nbytes() == 4 for group in groups for leaf in group.leaves)
    flats = {group.flat.untyped_storage().data_ptr() for group in groups}
    weights = [
        module.weight for module in decoder.modules() if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding))
    ]
    assert {weight.untyped_storage().data_ptr() for weight in weights} == flats
    assert all(group.flat.dtype is torch.bfloat16 and group.flat.numel() % 3 == 0 for group in groups)
    assert [group.weight_decay for group in groups] == [0.1, 0.0]


def test_writing_the_flat_buffer_changes_what_the_model_computes() -> None:
    decoder, groups = _stored(Precision.FP32)
    before = decoder(TOKENS)
    groups[0].flat.mul_(2)
    assert not torch.equal(before, decoder(TOKENS))


def test_stored_fp32_weights_have_the_gradients_of_the_plain_model() -> None:
    stored, _ = _stored(Precision.FP32)
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    torch.manual_seed(2)
    plain = Decoder(plan.architecture, plan.recipe, recompute=False)
    initialise(plain, plan.recipe)
    for decoder in (stored, plain):
        causal_lm_loss(decoder(TOKENS), TOKENS).backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, leaf in stored.named_parameters():
        grad = expected[name.replace("parametrizations.", "").replace(".original", "")]
        assert leaf.grad is not None
        assert grad is not None
        # the tied embedding's two uses are added in another order
        assert torch.allclose(leaf.grad, grad, rtol=2**-22, atol=2**-22 * grad.abs().max().item())
