"""A block of column- and row-parallel layers, whose ranks lie side by side in one process, against the formula.

Shape letters: R tensor-parallel ranks, S positions, P positions of a rank, D hidden, H a rank's query, key and value
columns, F a rank's feed-forward columns. Every tensor has the ranks first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, layer_norm
from torch.utils.checkpoint import checkpoint

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Precision, Residual, Workload
from suite.predict.analytic.experts import chosen_experts
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.traffic import activation_message_bytes, gathered_expert_tokens, step_traffic
from tests.support.strategies import BLOOM, routed_architectures

RANKS, POSITIONS, HIDDEN, WIDTH, LAYERS = 2, 4, 6, 8, 2
MATRICES = ("query_key_value", "projection", "expansion", "contraction")


class Wires:
    """Collectives among the ranks of a stacked tensor: what they return, and bytes and messages of each."""

    def __init__(self) -> None:
        self.payload_bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def _hand_over(self, operation: str, whole: Tensor) -> None:
        self.payload_bytes[operation] += whole.element_size() * whole[0].numel()
        self.messages[operation] += 1

    def all_reduce(self, x: Tensor) -> Tensor:
        self._hand_over("all_reduce", x)
        return x.sum(0, keepdim=True).expand_as(x).contiguous()

    def all_gather(self, x_RPD: Tensor) -> Tensor:
        gathered = x_RPD.flatten(0, 1).expand(RANKS, -1, -1).contiguous()
        self._hand_over("all_gather", gathered)
        return gathered

    def reduce_scatter(self, x_RSD: Tensor) -> Tensor:
        self._hand_over("reduce_scatter", x_RSD)
        return x_RSD.sum(0).reshape(RANKS, -1, HIDDEN)


class ColumnParallel(torch.autograd.Function):
    """x W with the columns of W over the ranks: f, then the product. Shoeybi et al. 2019, figure 3."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, wires: Wires, sequence_parallel: bool) -> Tensor:
        ctx.save_for_backward(x, w)  # with sequence parallelism a rank keeps its own positions only
        ctx.wires, ctx.sequence_parallel = wires, sequence_parallel
        return (wires.all_gather(x) if sequence_parallel else x) @ w

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (of_output,), (x, w) = gradients, ctx.saved_tensors
        whole = ctx.wires.all_gather(x) if ctx.sequence_parallel else x
        join = ctx.wires.reduce_scatter if ctx.sequence_parallel else ctx.wires.all_reduce
        return join(of_output @ w.mT), whole.mT @ of_output, None, None


class Joined(torch.autograd.Function):
    """g: the sum of the ranks' parts, behind row-parallel layers."""

    @staticmethod
    def forward(ctx: Any, parts_RSD: Tensor, wires: Wires, sequence_parallel: bool) -> Tensor:
        ctx.wires, ctx.sequence_parallel = wires, sequence_parallel
        return wires.reduce_scatter(parts_RSD) if sequence_parallel else wires.all_reduce(parts_RSD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (of_output,) = gradients
        return ctx.wires.all_gather(of_output) if ctx.sequence_parallel else of_output.clone(), None, None


class Split(NamedTuple):
    """A block's weights by name: matrices as each rank has them, norms and masks as every rank has them."""

    matrices: list[dict[str, Tensor]]
    norms: list[dict[str, Tensor]]
    masks: list[Tensor] | None


def attention_core(qkv: Tensor) -> Tensor:
    """Causal attention of one head; query, key and value side by side in the last dim."""
    query, key, value = qkv.chunk(3, dim=-1)
    later = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
    return (query @ key.mT).masked_fill(later, -torch.inf).softmax(-1) @ value


def parallel_model(x: Tensor, split: Split, layout: Layout, residual: Residual, wires: Wires) -> Tensor:
    """The hidden states behind all layers, on every rank."""

    def layer(x: Tensor, place: int) -> Tensor:
        weights, norms = split.matrices[place], split.norms[place]

        def column(x: Tensor, norm: str, matrix: str) -> Tensor:
            normed = layer_norm(x, (HIDDEN,)) * norms[norm]
            out: Tensor = ColumnParallel.apply(normed, weights[matrix], wires, layout.sequence_parallel)  # type: ignore[no-untyped-call]  # of torch
            return out

        def added(x: Tensor, parts: Tensor) -> Tensor:
            joined: Tensor = Joined.apply(parts, wires, layout.sequence_parallel)  # type: ignore[no-untyped-call]  # of torch
            return x + (joined * split.masks[place] if split.masks else joined)

        qkv = column(x, "attention", "query_key_value")
        selective = layout.recomputation is Recomputation.SELECTIVE
        context = checkpoint(attention_core, qkv, use_reentrant=False) if selective else attention_core(qkv)
        attended = context @ weights["projection"]
        if residual is Residual.SEQUENTIAL:
            x = added(x, attended)
        fed = gelu(column(x, "feed-forward", "expansion")) @ weights["contraction"]
        return added(x, fed if residual is Residual.SEQUENTIAL else attended + fed)

    def group(x: Tensor, first: int) -> Tensor:
        for place in range(first, min(first + layout.checkpoint_layers, LAYERS)):
            x = layer(x, place)
        return x

    for first in range(0, LAYERS, layout.checkpoint_layers):
        full = layout.recomputation is Recomputation.FULL
        x = checkpoint(group, x, first, use_reentrant=False) if full else group(x, first)
    return x


def single_model(
    x: Tensor, matrices: list[dict[str, Tensor]], norms: list[dict[str, Tensor]], masks: Any, residual: Residual
) -> Tensor:
    """The same on one device, with whole matrices: heads are the ranks' column blocks."""
    for place, (weights, norm) in enumerate(zip(matrices, norms, strict=True)):
        mask = masks[place] if masks else 1

        def normed(x: Tensor, scale: Tensor) -> Tensor:
            return layer_norm(x, (HIDDEN,)) * scale

        heads = (normed(x, norm["attention"]) @ weights["query_key_value"]).chunk(RANKS, dim=-1)
        attended = torch.cat([attention_core(head) for head in heads], dim=-1) @ weights["projection"]
        middle = x + attended * mask
        read = middle if residual is Residual.SEQUENTIAL else x
        fed = gelu(normed(read, norm["feed-forward"]) @ weights["expansion"]) @ weights["contraction"]
        x = middle + fed * mask
    return x


def traffic_of_training(layout: Layout, residual: Residual, *, dropout: bool) -> Wires:
    """Messages of the ranks in a forward and backward pass whose results are those of one device."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    columns = {"query_key_value": 3 * HIDDEN, "projection": HIDDEN, "expansion": WIDTH, "contraction": HIDDEN}
    rows = {"query_key_value": HIDDEN, "projection": HIDDEN, "expansion": HIDDEN, "contraction": WIDTH}
    matrices = [{name: drawn(rows[name], columns[name]).requires_grad_() for name in MATRICES} for _ in range(LAYERS)]
    norms = [{name: drawn(HIDDEN).requires_grad_() for name in ("attention", "feed-forward")} for _ in range(LAYERS)]
    masks = [(drawn(POSITIONS, HIDDEN) > -1) * 1.2 for _ in range(LAYERS)] if dropout else None
    x_SD, seed_SD = drawn(POSITIONS, HIDDEN).requires_grad_(), drawn(POSITIONS, HIDDEN)
    out_SD = single_model(x_SD, matrices, norms, masks, residual)
    out_SD.backward(seed_SD)

    def ranked(whole: Tensor) -> Tensor:
        """Positions of each rank with sequence parallelism, else a copy for each."""
        stacked = whole.detach().unflatten(0, (RANKS, -1)) if layout.sequence_parallel else torch.stack([whole] * RANKS)
        return stacked.detach().clone()

    def shares(name: str, whole: Tensor) -> Tensor:
        """Columns of the first product, rows of the second, one rank's behind another's."""
        return torch.stack(whole.detach().chunk(RANKS, dim=1 if columns[name] > HIDDEN else 0))

    def copies(whole: Tensor) -> Tensor:
        return torch.stack([whole.detach()[None]] * RANKS).requires_grad_()

    split = Split(
        [{name: shares(name, whole).requires_grad_() for name, whole in layer.items()} for layer in matrices],
        [{name: copies(whole) for name, whole in layer.items()} for layer in norms],
        [ranked(mask) for mask in masks] if masks else None,
    )
    wires = Wires()
    x = ranked(x_SD).requires_grad_()
    out = parallel_model(x, split, layout, residual, wires)
    out.backward(ranked(seed_SD))

    def equal(found: Tensor | None, expected: Tensor | None) -> None:
        # fewer than 10**4 float64 operations of numbers below 10**3, where a sum that lacks a rank is off by about 1
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

    def gradient(parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return parameter.grad

    equal(out, ranked(out_SD))
    equal(x.grad, ranked(gradient(x_SD)))
    for layer, whole_layer in zip(split.matrices, matrices, strict=True):
        for name in MATRICES:
            equal(layer[name].grad, shares(name, gradient(whole_layer[name])))
    of_norms = torch.cat([gradient(scale)[:, 0] for layer in split.norms for scale in layer.values()], dim=1)
    if layout.sequence_parallel:
        of_norms = wires.all_reduce(of_norms)
    equal(of_norms, torch.cat([gradient(scale) for layer in norms for scale in layer.values()]).expand(RANKS, -1))
    return wires


ARCHITECTURE: Architecture = msgspec.structs.replace(
    BLOOM.architecture,
    layers=3 * LAYERS,
    hidden=HIDDEN,
    heads=RANKS,
    kv_heads=RANKS,
    head_dim=HIDDEN // RANKS,
    ffn_hidden=WIDTH,
    sequence=POSITIONS,
)


@pytest.mark.parametrize("residual", Residual)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("recomputation", "checkpoint_layers"), [("none", 1), ("selective", 1), ("full", 1), ("full", 2)]
)
@pytest.mark.parametrize("dropout", [False, True])
def test_a_layer_hands_over_what_its_ranks_need_to_compute_as_one_device(
    residual: Residual, sequence_parallel: bool, recomputation: str, checkpoint_layers: int, dropout: bool
) -> None:
    # the second of three stages: layers and nothing else
    layout = Layout(
        tensor_parallel=RANKS,
        pipeline_stages=3,
        sequence_parallel=sequence_parallel,
        recomputation=Recomputation(recomputation),
        checkpoint_layers=checkpoint_layers,
    )
    shape = msgspec.structs.replace(ARCHITECTURE, residual=residual)
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.FP32)
    predicted = [
        entry for entry in step_traffic(Workload(shape, recipe, layout), stage=1, micro_batches=1) if entry.axis == "tp"
    ]
    wires = traffic_of_training(layout, residual, dropout=dropout)
    messages = {entry.operation: entry.messages for entry in predicted}
    payload = {entry.operation: entry.payload_bytes for entry in predicted}
    joined = "reduce_scatter" if sequence_parallel else "all_reduce"
    hidden_states = 4 * POSITIONS * HIDDEN
    if recomputation == "full" and not dropout:
        # checkpoint stops in front of the last g of each group, which nothing needs
        groups = LAYERS // checkpoint_layers
        messages[joined] -= groups
        payload[joined] -= groups * hidden_states
    if sequence_parallel:
        # the tiny block has norm scales and no biases
        del payload["all_reduce"], wires.payload_bytes["all_reduce"]
    assert wires.messages == messages
    # predicted in fp32, computed in float64
    assert wires.payload_bytes == {operation: 2 * size for operation, size in payload.items()}


@given(routed_architectures(tensor_parallel=2), st.sampled_from([*Recomputation]))
def test_around_experts_every_message_has_more_bytes_by_the_experts_of_a_token(
    shape: Architecture, recomputation: Recomputation
) -> None:
    """Layer by layer and message by message: a token goes to k experts, and once to the shared ones."""
    layout = Layout(tensor_parallel=2, sequence_parallel=True, recomputation=recomputation)
    workload = Workload(shape, BLOOM.recipe, layout)
    message, share = activation_message_bytes(workload), chosen_experts(shape)
    more = message * (share.numerator - share.denominator) // share.denominator
    more += message if shape.shared_experts else 0
    messages, routed = Counter[str](), shape.layers - (shape.dense_layers or 0)
    for _ in range(routed + repeated_layers(recomputation, routed)):
        messages.update(["gathered", "reduced"])  # the input, the output
    for _ in range(routed):
        messages.update(["gathered", "gathered", "reduced"])  # gradient of the output; input again, its gradient
    found = gathered_expert_tokens(workload, stage=0)
    assert found == (more * messages["gathered"], more * messages["reduced"])
