"""Linear attention's products are split by heads and stages; its counts are those of the rule written out."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.architecture_choices import LinearRule
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import ReferenceRun, Workload
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.adapters import adapter_parameters
from suite.predict.analytic.flop import layer_forward_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.linear_attention import (
    CHUNKS,
    linear_activation_bytes,
    linear_forward_flop,
    linear_rule_bytes,
    linear_state_bytes,
)
from suite.predict.analytic.memory_bound_operators import layer_operator_bytes
from suite.predict.analytic.parameters import parameter_count, rank_parameters
from suite.predict.analytic.serving import sequence_cache_bytes
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds
from suite.predict.analytic.traffic import tensor_parallel_messages

RUN = reference_run("qwen3-next-80b-a3b")
HYBRID = reference_run("nemotron-h-56b")
LINEAR, STATES = RUN.architecture.other_kind, HYBRID.architecture.other_kind
CHUNK = CHUNKS[LinearRule.GATED_DELTA]


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


def test_scan_of_a_state_space_model_equals_its_recurrence_and_has_the_flop_of_its_chunks() -> None:
    """Heads of x [S, v, w] share B and C [S, d]: h = a h + B x^T, y = h^T C (arXiv 2405.21060, section 6)."""
    chunk, heads = CHUNKS[LinearRule.STATE_SPACE], 3
    torch.manual_seed(0)
    x, decays = (
        torch.randn(2 * chunk, heads, 10, dtype=torch.float64),
        torch.rand(2 * chunk, heads, dtype=torch.float64),
    )
    keys, queries = (torch.randn(2 * chunk, 24, dtype=torch.float64) for _ in range(2))
    expected, state = [], torch.zeros(heads, 24, 10, dtype=torch.float64)
    for x_t, a_t, b_t, c_t in zip(x, decays, keys, queries, strict=True):
        state = a_t[:, None, None] * state + torch.einsum("d,vw->vdw", b_t, x_t)
        expected.append(torch.einsum("vdw,d->vw", state, c_t))
    outputs, state = [], torch.zeros(heads, 24, 10, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        for x_c, a_c, b_c, c_c in zip(
            x.split(chunk), decays.split(chunk), keys.split(chunk), queries.split(chunk), strict=True
        ):
            scores, x_h, sums = c_c @ b_c.T, x_c.transpose(0, 1), a_c.log().cumsum(0).T
            within = (sums[:, :, None] - sums[:, None, :]).exp().tril()
            answered = torch.bmm(c_c.expand(heads, -1, -1), state) * sums.exp()[:, :, None]
            outputs.append((torch.bmm(scores * within, x_h) + answered).transpose(0, 1))
            update = torch.bmm(b_c.T.expand(heads, -1, -1), x_h * (sums[:, -1:] - sums).exp()[:, :, None])
            state = state * sums[:, -1].exp()[:, None, None] + update
    torch.testing.assert_close(torch.cat(outputs), torch.stack(expected))
    shape = msgspec.structs.replace(
        STATES, sequence=2 * chunk, linear_heads=heads, linear_key_heads=1, linear_key_dim=24, linear_value_dim=10
    )
    assert counter.get_total_flops() == sum(linear_forward_flop(shape, samples=1).values())


@pytest.mark.parametrize("run", [RUN, HYBRID], ids=["qwen3-next", "nemotron-h"])
@pytest.mark.parametrize("tensor_parallel", [1, 2, 8])
def test_products_of_the_ranks_are_the_layers_flop(tensor_parallel: int, run: ReferenceRun) -> None:
    for kind, _ in layer_kinds(run.architecture):
        layout = Layout(tensor_parallel=tensor_parallel, micro_batch=2)
        products = layer_products(Workload(kind, run.recipe, layout))
        assert ("expansion" in products) == kind.feeds_forward
        whole = layer_forward_flop(kind, samples=2)
        for part in [name for name in products if name.startswith("attention") or name == "projection"]:
            number, rows, columns, depth = products[part]
            assert tensor_parallel * 2 * number * rows * columns * depth == whole[part], part
        if tensor_parallel <= kind.kv_heads or kind.linear:
            number, rows, columns, depth = products["query, key, value"]
            assert tensor_parallel * 2 * number * rows * columns * depth == whole["query, key, value"]


@pytest.mark.parametrize(("run", "layers"), [(RUN, [12, 36]), (HYBRID, [10, 54])], ids=["qwen3-next", "nemotron-h"])
@pytest.mark.parametrize("stages", [1, 4, 6, 7, 12, 16, 48])
def test_stages_have_all_layers_and_parameters_of_both_kinds(stages: int, run: ReferenceRun, layers: list[int]) -> None:
    layout = Layout(pipeline_stages=stages)
    by_stage = [stage_layer_kinds(run.architecture, layout, stage=stage) for stage in range(stages)]
    assert [sum(kinds[place].layers for kinds in by_stage) for place in (0, 1)] == layers
    stored = sum(rank_parameters(run.architecture, layout, stage=stage).all for stage in range(stages))
    assert stored == parameter_count(run.architecture)


def test_layers_of_attention_alone_send_half_and_keep_no_feed_forward_part() -> None:
    """118 layers of one part each: 2 messages forward and 2 backward of 64 pairs, less those of 10 missing parts."""
    workload = Workload(HYBRID.architecture, HYBRID.recipe, HYBRID.layout)
    counted = tensor_parallel_messages(workload, stage=0)
    assert (counted.inputs, counted.output_gradients, counted.gathers) == (118, 118, 3 * 118 + 3)
    attention, states = (kind for kind, _ in layer_kinds(HYBRID.architecture))
    alone, both = (layer_operator_bytes(workload._replace(architecture=kind)) for kind in (attention, states))
    assert (2 * alone["norm"], 2 * alone["residual add"], alone["activation"]) == (
        both["norm"],
        both["residual add"],
        0,
    )
    kept = layer_activation_bytes(workload._replace(architecture=attention))
    assert "feed-forward input" not in kept
    assert kept["attention input"] > 0


def test_a_state_space_layer_keeps_what_its_kernels_read_again() -> None:
    """Convolution's input, gate, step of each head, output of the scan, and what the projection reads."""
    tokens, values, keys = 16, 256 * 64, 8 * 256
    kept = linear_activation_bytes(STATES, tokens=tokens, element=2, ranks=1)
    assert sum(kept.values()) == 2 * tokens * (2 * keys + 3 * values + 256)
    # x, B, C and y in 16 bits; the state of each chunk four times in fp32
    assert linear_rule_bytes(STATES, tokens=256, element=2) == 256 * 4 * (keys + values) + 2 * 16 * 256 * values


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
