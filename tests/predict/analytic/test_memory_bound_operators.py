from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Moments, Position, Precision, QueryKeyNorm, Recipe, Residual, Workload
from suite.predict.analytic.memory_bound_operators import (
    BACKWARD_SHARES,
    backward_operator_bytes,
    embedding_bytes,
    layer_operator_bytes,
    loss_bytes,
    score_operator_bytes,
    update_element_bytes,
)
from tests.support.machines import Case, cases
from tests.support.strategies import BLOOM


def moved(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def empty(precision: Precision, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32 if precision is Precision.FP32 else torch.float16, device="meta")


def dropped(x: torch.Tensor) -> int:
    return moved(x, *torch.native_dropout(x, 0.1, True))


def executed_layer_bytes(architecture: Architecture, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of inputs and outputs of each operator, of tensors as PyTorch would make them on one rank."""
    precision, t = recipe.precision, layout.tensor_parallel
    b, s = layout.micro_batch, architecture.sequence // layout.context_parallel
    d, a, k = architecture.head_dim, architecture.heads // t, max(architecture.kv_heads // t, 1)
    biased = architecture.bias
    x = empty(precision, s // t if layout.sequence_parallel else s, b, architecture.hidden)
    branch, inner = torch.empty_like(x), empty(precision, s, b, architecture.ffn_hidden // t)
    norms = 1 if architecture.shared_norm else 2
    found = {"norm": norms * moved(x, functional.layer_norm(x, x.shape[-1:]))}
    if architecture.residual is Residual.PARALLEL:
        found["residual add"] = moved(x, branch, branch, x + branch + branch)
    else:
        found["residual add"] = 2 * moved(x, branch, x + branch)
    gate = [torch.empty_like(inner)] if architecture.activation.gated else []
    found["activation"] = moved(inner, *gate, functional.gelu(inner))
    if recipe.hidden_dropout:
        found["dropout"] = 2 * dropped(x)
    vectors = [empty(precision, (a + 2 * k) * d)] if biased.attention else []
    vectors += [empty(precision, (1 + len(gate)) * inner.shape[-1])] if biased.feed_forward else []
    vectors += [empty(precision, architecture.hidden)] * (biased.projection + biased.feed_forward)
    if vectors:
        found["bias"] = moved(*vectors)
    if architecture.query_key_norm is not QueryKeyNorm.NONE:
        normed = [empty(precision, s, b, heads, d) for heads in (a, k)]
        found["query, key norm"] = moved(*normed, *(functional.rms_norm(part, part.shape[-1:]) for part in normed))
    if architecture.position is Position.ROTARY:
        rotated = [empty(precision, s, b, heads, architecture.rotary_dim or 0) for heads in (a, k)]
        found["rotary"] = moved(*rotated, *(part * 1 for part in rotated))
    if not layout.fused_attention:
        scores = empty(precision, b, a, s, architecture.sequence)
        found["softmax"] = moved(scores, scores.softmax(-1))
        if recipe.attention_dropout:
            found["attention dropout"] = dropped(scores)
    return found


@given(cases(), st.data())
def test_a_layers_bytes_are_those_of_the_tensors_that_its_operators_read_and_write(
    case: Case, data: st.DataObject
) -> None:
    architecture, recipe, layout, _ = case
    biased = st.none() | st.booleans()
    architecture = msgspec.structs.replace(
        architecture,
        head_dim=data.draw(st.sampled_from([2, 8])),
        kv_heads=data.draw(st.sampled_from([architecture.kv_heads, 1])),
        attention_bias=data.draw(biased),
        projection_bias=data.draw(biased),
        feed_forward_bias=data.draw(biased),
        shared_norm=architecture.residual is Residual.PARALLEL and data.draw(st.booleans()),
        query_key_norm=data.draw(st.sampled_from(QueryKeyNorm)),
    )
    expected = executed_layer_bytes(architecture, recipe, layout)
    assert layer_operator_bytes(Workload(architecture, recipe, layout)) == expected
    on_scores = {name: size for name, size in expected.items() if name in ("softmax", "attention dropout")}
    assert score_operator_bytes(Workload(architecture, recipe, layout)) == on_scores


def executed_backward_bytes(*leaves: torch.Tensor, of: Callable[..., torch.Tensor], keeps: int) -> int:
    """Bytes of what a derivative reads (`keeps` tensors as large as the output, the output's gradient) and writes."""
    found = of(*leaves)
    gradients = torch.autograd.grad(found, leaves, torch.empty_like(found))
    return moved(*[found] * keeps, found, *gradients)


@pytest.mark.parametrize(
    ("operator", "of", "inputs", "keeps"),
    [
        ("norm", lambda x: functional.layer_norm(x, x.shape[-1:]), 1, 1),  # x
        ("activation", functional.gelu, 1, 1),  # x
        ("query, key norm", lambda x: functional.rms_norm(x, x.shape[-1:]), 1, 1),  # x
        ("compression norm", lambda x: functional.rms_norm(x, x.shape[-1:]), 1, 1),  # x
        ("softmax", lambda x: x.softmax(-1), 1, 1),  # y
        ("router", lambda x: x.softmax(-1), 1, 1),  # y
        ("shared gate", torch.sigmoid, 1, 1),  # y
        ("rotary", lambda x: 2 * x, 1, 0),
        ("dispatch", lambda x: x[torch.randperm(4)], 1, 0),
        ("gated", lambda x, gate: functional.silu(gate) * x, 2, 2),  # both
    ],
)
def test_a_backward_pass_moves_what_its_derivative_reads_and_writes(
    operator: str, of: Callable[..., torch.Tensor], inputs: int, keeps: int
) -> None:
    leaves = [torch.empty(4, 8, requires_grad=True) for _ in range(inputs)]
    forward = moved(*leaves, of(*leaves))
    share = 5 / 3 if operator == "gated" else BACKWARD_SHARES[operator]
    assert executed_backward_bytes(*leaves, of=of, keeps=keeps) == pytest.approx(share * forward)


@given(cases())
def test_backward_bytes_are_those_of_the_forward_pass_by_operator(case: Case) -> None:
    workload = Workload(*case[:3])
    forward = layer_operator_bytes(workload)
    backward = backward_operator_bytes(workload, forward)
    assert set(backward) == set(forward)
    for name, size in backward.items():
        gated = name == "activation" and workload.architecture.activation.gated
        assert size == pytest.approx((5 / 3 if gated else BACKWARD_SHARES[name]) * forward[name])


def test_the_sum_of_experts_outputs_reads_each_and_writes_each_gradient() -> None:
    tokens = moved(empty(BLOOM.recipe.precision, BLOOM.architecture.sequence, BLOOM.architecture.hidden))
    for chosen in (1, 2, 8):
        architecture = msgspec.structs.replace(BLOOM.architecture, experts=8, experts_per_token=chosen)
        workload = Workload(architecture, BLOOM.recipe, Layout())
        forward = layer_operator_bytes(workload)
        assert forward["combine"] == (chosen + 1) * tokens
        # of a router that learns: each output and the gradient of the sum are read, each output's gradient is written
        assert backward_operator_bytes(workload, forward)["combine"] == pytest.approx((2 * chosen + 1) * tokens)


@given(cases())
def test_bytes_before_and_behind_the_layers_are_those_of_their_tensors(case: Case) -> None:
    architecture, recipe, layout, _ = case
    precision, t = recipe.precision, layout.tensor_parallel
    b, s = layout.micro_batch, architecture.sequence // layout.context_parallel
    whole = empty(precision, s, b, architecture.hidden)
    x = empty(precision, s // t if layout.sequence_parallel else s, b, architecture.hidden)
    before = moved(whole, torch.empty_like(whole))  # the rows, and what they are copied to
    if architecture.position is Position.LEARNED:
        before += moved(x, torch.empty_like(x), x + x)
    if architecture.embedding_norm:
        before += moved(x, functional.layer_norm(x, x.shape[-1:]))
    if recipe.embedding_dropout:
        before += dropped(x)
    assert embedding_bytes(Workload(architecture, recipe, layout)) == before
    logits = empty(precision, s, b, architecture.padded_vocabulary // t)
    assert loss_bytes(Workload(architecture, recipe, layout)) == moved(
        x, functional.layer_norm(x, x.shape[-1:]), logits
    )


# what clipping and Adam read and then write of one parameter, in bytes
UPDATES: dict[Precision, tuple[Iterable[int], Iterable[int]]] = {
    # gradient (norm), gradient, weight, moments; weight, moments
    Precision.FP32: ((4, 4, 4, 4, 4), (4, 4, 4)),
    # gradient (norm), gradient, master weight, moments; master weight, weight, moments
    Precision.BF16: ((4, 4, 4, 4, 4), (4, 2, 4, 4)),
    Precision.FP16: ((2, 2, 4, 4, 4), (4, 2, 4, 4)),
    # gradient; its copy; copy (norm), copy, master weight, moments; master weight, weight, moments
    Precision.FP16_GRADIENT_COPY: ((2, 4, 4, 4, 4, 4), (4, 4, 2, 4, 4)),
    # gradient (norm), gradient, weight, moments; weight, moments
    Precision.FP16_NO_MASTER: ((2, 2, 2, 4, 4), (2, 4, 4)),
    # the same, with moments of 2 bytes
    Precision.BF16_PURE: ((2, 2, 2, 2, 2), (2, 2, 2)),
}


def test_an_update_reads_and_writes_each_value_once() -> None:
    assert {precision: update_element_bytes(precision) for precision in Precision} == {
        precision: sum(read) + sum(written) for precision, (read, written) in UPDATES.items()
    }
    # the two moments come last on both sides: 2 in place of 4 bytes each
    assert {precision: update_element_bytes(precision, Moments.BF16) for precision in Precision} == {
        precision: sum(sum(sizes[:-2]) + 2 + 2 for sizes in map(tuple, sides)) for precision, sides in UPDATES.items()
    }


def test_latent_attention_norms_compressed_states_and_turns_keys_that_heads_share() -> None:
    """24 tokens over 2 ranks: 20 + 10 compressed columns; 2 of 4 heads of 12, and the keys of one, a third turned."""
    shape = msgspec.structs.replace(
        BLOOM.architecture,
        **{"hidden": 96, "heads": 4, "kv_heads": 4, "head_dim": 12, "sequence": 8, "position": Position.ROTARY},
        **{"rotary_dim": 4, "query_rank": 20, "key_value_rank": 10, "value_head_dim": 6},
    )
    for sequence_parallel, shards in ((False, 1), (True, 2)):
        layout = Layout(micro_batch=3, tensor_parallel=2, sequence_parallel=sequence_parallel)
        moved = layer_operator_bytes(Workload(shape, BLOOM.recipe, layout))
        assert moved["compression norm"] == 2 * 2 * 24 * (20 + 10) // shards
        assert moved["rotary"] == 2 * 2 * 24 * (2 * 12 + 12) // 3
