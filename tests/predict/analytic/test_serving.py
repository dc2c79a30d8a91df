"""The memory of serving: published caches of a token, and laws of splitting and windows."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from suite.predict.analytic.serving import held_positions, prefill_bytes, sequence_cache_bytes, token_cache_bytes
from tests.support.strategies import routed_architectures, varied_architectures

# Bytes of bf16 cache a token. DeepSeek-AI 2025, arXiv 2505.09343, table 1 (stated); LLaMA-2 7B: 32 layers of 32 heads
# of 128 (derived from its configuration); OPT-13B: Kwon et al. 2023, arXiv 2309.06180, section 3 (stated: 800 KB, of 40
# layers of 5,120), whose shape per layer is that of LLaMA-2 13B.
PUBLISHED = {
    "deepseek-v3": 70_272,
    "llama3.1-70b": 327_680,
    "llama3.1-405b": 516_096,
    "llama2-7b": 2**19,
    "llama2-13b": 800 * 2**10,
}


def test_caches_of_a_token_are_the_published_ones() -> None:
    assert {name: token_cache_bytes(reference_run(name).architecture) for name in PUBLISHED} == PUBLISHED


@given(st.integers(0, 3).flatmap(lambda power: st.tuples(st.just(2**power), varied_architectures())))
def test_ranks_hold_every_head_once_or_each_a_copy(drawn) -> None:
    ranks, shape = drawn
    shape = msgspec.structs.replace(shape, kv_heads=4, heads=4 * shape.heads)
    whole, rank = token_cache_bytes(shape), token_cache_bytes(shape, tensor_parallel=ranks)
    assert ranks * rank == whole * max(1, ranks // 4)
    assert token_cache_bytes(shape, element_bytes=1) * 2 == whole


@given(routed_architectures(), st.integers(1, 8))
def test_every_rank_holds_the_whole_latent_state(shape, ranks: int) -> None:
    if shape.key_value_rank is not None:
        assert token_cache_bytes(shape, tensor_parallel=ranks) == token_cache_bytes(shape)


@given(varied_architectures(), st.integers(1, 20), st.integers(1, 20))
def test_a_window_bounds_what_a_sequence_holds(shape, context: int, more: int) -> None:
    held = sequence_cache_bytes(shape, context=context)
    longer = sequence_cache_bytes(shape, context=context + more)
    assert held <= longer <= held + more * token_cache_bytes(shape)
    if shape.sliding_window is not None:
        bound = (shape.sliding_window - 1) * token_cache_bytes(shape)
        assert longer == min(bound, (context + more) * token_cache_bytes(shape))
        assert held_positions(shape, context=10**9) == shape.sliding_window - 1


@given(varied_architectures(tensor_parallel=4), st.integers(1, 50))
def test_activations_grow_with_tokens_and_shrink_with_ranks(shape, tokens: int) -> None:
    one = prefill_bytes(shape, tokens=1)
    assert prefill_bytes(shape, tokens=tokens) == tokens * one
    assert 3 * 2 * shape.hidden <= prefill_bytes(shape, tokens=1, tensor_parallel=4) <= one


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 100), st.integers(1, 300))
def test_layers_without_the_window_hold_every_position(layers: int, every: int, window: int, context: int) -> None:
    gpt_oss = reference_run("gpt-oss-120b").architecture
    shape = msgspec.structs.replace(gpt_oss, layers=layers, sliding_window=window, full_every=every)
    of_layer = 2 * 2 * 8 * 64  # keys and values of 8 heads of 64, in 16 bits
    held = [context if (layer + 1) % every == 0 else min(context, window - 1) for layer in range(layers)]
    assert sequence_cache_bytes(shape, context=context) == of_layer * sum(held)
