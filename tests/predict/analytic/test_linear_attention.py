"""Linear attention's products are split by heads and stages; its counts are those of the rule written out."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.analytic.adapters import adapter_parameters
from suite.predict.analytic.flop import layer_forward_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.linear_attention import (
    CHUNK,
    linear_activation_bytes,
    linear_forward_flop,
    linear_state_bytes,
)
from suite.predict.analytic.parameters import parameter_count, rank_parameters
from suite.predict.analytic.serving import sequence_cache_bytes
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds

RUN = reference_run("qwen3-next-80b-a3b")
LINEAR = RUN.architecture.other_kind


def chunked_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The rule of one head without decays, [S, d], [S, d], [S, w], in chunks: arXiv 2412.06464, equations 8 to 10."""
    state, outputs = torch.zeros(k.shape[1], v.shape[1], dtype=q.dtype), []
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril(-1)
    for q_c, k_c, v_c in zip(q.split(CHUNK), k.split(CHUNK), v.split(CHUNK), strict=True):
        system = (k_c @ k_c.T).masked_fill(~below, 0) + torch.eye(CHUNK, dtype=q.dtype)
        solved = torch.linalg.solve_triangular(system, torch.cat([v_c, k_c], dim=1), upper=False)
        new = solved[:, : v.shape[1]] - solved[:, v.shape[1] :] @ state
        outputs.append(q_c @ state + (q_c @ k_c.T).tril() @ new)
        state = state + k_c.T @ new
    return torch.cat(outputs)


def recurrent_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same position by position: S += k (v - S^T k)^T, o = S^T q."""
    state, outputs = torch.zeros(k.shape[1], v.shape[1], dtype=q.dtype), []
    for q_t, k_t, v_t in zip(q, k, v, strict=True):
        state = state + torch.outer(k_t, v_t - state.T @ k_t)
        outputs.append(state.T @ q_t)
    return torch.stack(outputs)


def test_flop_are_those_of_the_rule_in_chunks() -> None:
    shape = msgspec.structs.replace(
        LINEAR, sequence=2 * CHUNK, linear_heads=1, linear_key_heads=1, linear_key_dim=24, linear_value_dim=40
    )
    torch.manual_seed(0)
    q, k, v = (torch.randn(2 * CHUNK, size, dtype=torch.float64) for size in (24, 24, 40))
    k = torch.nn.functional.normalize(k, dim=1)
    with FlopCounterMode(display=False) as counter:
        out = chunked_rule(q, k, v)
    torch.testing.assert_close(out, recurrent_rule(q, k, v))
    assert counter.get_total_flops() == sum(linear_forward_flop(shape, samples=1).values())


@pytest.mark.parametrize("tensor_parallel", [1, 2, 16])
def test_products_of_the_ranks_are_the_layers_flop(tensor_parallel: int) -> None:
    for kind, _ in layer_kinds(RUN.architecture):
        layout = Layout(tensor_parallel=tensor_parallel, micro_batch=2)
        products = layer_products(Workload(kind, RUN.recipe, layout))
        whole = layer_forward_flop(kind, samples=2)
        for part in [name for name in products if name.startswith("attention") or name == "projection"]:
            number, rows, columns, depth = products[part]
            assert tensor_parallel * 2 * number * rows * columns * depth == whole[part], part
        if tensor_parallel <= kind.kv_heads or kind.linear:
            number, rows, columns, depth = products["query, key, value"]
            assert tensor_parallel * 2 * number * rows * columns * depth == whole["query, key, value"]


@pytest.mark.parametrize("stages", [1, 4, 6, 7, 12, 16, 48])
def test_stages_have_all_layers_and_parameters_of_both_kinds(stages: int) -> None:
    layout = Layout(pipeline_stages=stages)
    by_stage = [stage_layer_kinds(RUN.architecture, layout, stage=stage) for stage in range(stages)]
    assert [sum(kinds[place].layers for kinds in by_stage) for place in (0, 1)] == [12, 36]
    stored = sum(rank_parameters(RUN.architecture, layout, stage=stage).all for stage in range(stages))
    assert stored == parameter_count(RUN.architecture)


def test_ranks_share_what_a_layer_keeps_and_the_state_of_a_sequence() -> None:
    whole, part = (linear_activation_bytes(LINEAR, tokens=128, element=2, ranks=ranks) for ranks in (1, 4))
    assert whole == {kind: 4 * size for kind, size in part.items()}
    state = linear_state_bytes(LINEAR, element_bytes=2)
    assert state == 2 * (32 * 128 * 128 + 3 * (2 * 2048 + 4096))
    # keys and values of 2 heads of 256 in 12 layers, and the states of 36
    assert sequence_cache_bytes(RUN.architecture, context=1000) == 12 * 1000 * 2 * 2 * 512 + 36 * state


def test_adapters_are_of_the_modules_linear_layers() -> None:
    """in_proj_qkvz, in_proj_ba, out_proj; q_proj with the gate, k_proj, v_proj, o_proj; router, gate of the shared
    expert; gate and up of each expert together, with twice the rank, and its down."""
    linear = (12288 + 2048) + (64 + 2048) + (2048 + 4096)
    full = (8192 + 2048) + 2 * (512 + 2048) + (2048 + 4096)
    mixture = (512 + 2048) + (1 + 2048) + 512 * (2 * (2048 + 2 * 512) + (512 + 2048))
    assert adapter_parameters(RUN.architecture, rank=1) == 36 * linear + 12 * full + 48 * mixture
