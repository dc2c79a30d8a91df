from __future__ import annotations

import msgspec
import pytest

from reference_runs.architecture import Activation, Architecture, Mask, Norm, QueryKeyNorm, Residual
from reference_runs.catalog import layout_mistakes, reference_run
from reference_runs.errors import InputError, InputMistakesError
from reference_runs.layout import Layout
from reference_runs.run import Workload

BLOOM = reference_run("bloom-176b")
NEOX = reference_run("gpt-neox-20b")


def changed(base: Architecture, **fields: object) -> Architecture:
    return msgspec.structs.replace(base, **fields)


@pytest.mark.parametrize(
    ("base", "fields", "complaint"),
    [
        (BLOOM, {"kv_heads": 9}, "architecture.kv_heads does not divide heads = 112; got 9"),
        (BLOOM, {"shared_norm": True}, "architecture.shared_norm needs residual parallel; got true"),
        (
            BLOOM,
            {"shared_norm": True, "residual": Residual.PARALLEL, "norm": Norm.DEEP_NORM},
            "architecture.shared_norm needs a norm before the block",
        ),
        (BLOOM, {"norm_bias": True, "norm": Norm.PRE_RMS_NORM}, "norm_bias needs a LayerNorm, not pre-rms-norm"),
        (BLOOM, {"norm_bias": True, "norm_gain": False}, "architecture.norm_bias needs norm_gain"),
        (BLOOM, {"sliding_window": 64, "mask": Mask.PREFIX}, "architecture.sliding_window needs mask causal; got 64"),
        (BLOOM, {"full_every": 2}, "architecture.full_every needs sliding_window or linear_heads; got 2"),
        (BLOOM, {"linear_heads": 4}, "architecture.linear_key_heads, architecture.linear_key_dim, "),
        (BLOOM, {"expert_bias": True}, "architecture.expert_bias; got true, allowed: with routed experts alone"),
        (BLOOM, {"rotary_scaling_factor": 8.0}, "rotary_scaling_*: all four or none, with rotary positions"),
        (NEOX, {"rotary_scaling_factor": 8.0}, "rotary_scaling_*: all four or none"),
        (
            NEOX,
            {f"rotary_scaling_{name}": v for name, v in (("factor", 8), ("low", 4), ("high", 1), ("sequence", 8192))},
            "rotary_scaling_low; got 4, allowed: below rotary_scaling_high = 1",
        ),
    ],
)
def test_a_contradiction_is_refused_by_its_key(base: object, fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        changed(base.architecture, **fields).check("here")  # type: ignore[attr-defined]
    assert complaint in str(refusal.value)


def test_all_contradictions_come_at_once() -> None:
    with pytest.raises(InputMistakesError) as refusal:
        changed(BLOOM.architecture, kv_heads=9, shared_norm=True, padded_vocabulary=1).check("here")
    assert len(refusal.value.lines) == 3


@pytest.mark.parametrize("biases", [False, True])
def test_a_place_without_a_word_of_its_own_has_biases_as_the_model(biases: bool) -> None:
    plain = changed(BLOOM.architecture, biases=biases)
    assert plain.bias == (biases, biases, biases, biases, False)
    qwen = changed(plain, attention_bias=True, projection_bias=False, feed_forward_bias=False, norm_bias=False)
    assert qwen.bias == (True, False, False, False, False)
    assert not changed(plain, norm=Norm.PRE_RMS_NORM).bias.norm
    assert not changed(plain, norm_gain=False).bias.norm
    assert changed(plain, head_bias=True).bias.head


def test_the_activations_that_gate_have_two_expansions() -> None:
    assert {a for a in Activation if a.gated} == {Activation.GEGLU, Activation.GEGLU_TANH, Activation.SWIGLU}


@pytest.mark.parametrize(("kv_heads", "complaints"), [(8, 0), (4, 0), (1, 0), (16, 0), (7, 1), (112, 0)])
def test_tensor_parallelism_divides_key_value_heads_or_is_a_multiple_of_them(kv_heads: int, complaints: int) -> None:
    architecture = changed(BLOOM.architecture, kv_heads=kv_heads)
    layout = Layout(tensor_parallel=16, micro_batch=2)
    assert len(list(layout_mistakes(Workload(architecture, BLOOM.recipe, layout), "here"))) == complaints


def test_a_norm_of_whole_projections_is_not_split() -> None:
    architecture = changed(BLOOM.architecture, query_key_norm=QueryKeyNorm.PROJECTION)
    mistakes = [
        [str(mistake) for mistake in layout_mistakes(Workload(architecture, BLOOM.recipe, layout), "here")]
        for layout in (Layout(), Layout(tensor_parallel=2))
    ]
    assert mistakes[0] == []
    assert len(mistakes[1]) == 1
    assert "query_key_norm" in mistakes[1][0]


@pytest.mark.parametrize(("window", "every", "full"), [(None, None, 70), (64, None, 0), (64, 2, 35), (64, 4, 17)])
def test_every_so_many_layers_one_is_without_the_window(window: int | None, every: int | None, full: int) -> None:
    assert changed(BLOOM.architecture, sliding_window=window, full_every=every).full_layers == full


NEXT = reference_run("qwen3-next-80b-a3b").architecture


def test_layers_of_two_kinds_are_those_with_linear_attention_and_every_fourth() -> None:
    assert [layer for layer in range(12) if NEXT.is_of_first_kind(layer)] == [3, 7, 11]
    assert NEXT.first_kind_layers == NEXT.full_layers == 12
    assert (NEXT.first_kind.linear, NEXT.other_kind.linear, NEXT.linear) == (False, True, False)
    assert (NEXT.first_kind.query_width, NEXT.other_kind.query_width) == (16 * 256, 16 * 128)
    assert (NEXT.first_kind.context_width, NEXT.other_kind.context_width) == (16 * 256, 32 * 128)
    deepseek = reference_run("deepseek-v3").architecture
    assert deepseek.other_kind is deepseek
    assert deepseek.first_kind == deepseek.of_dense_layers


def test_linear_attention_is_split_by_its_heads_and_not_by_positions() -> None:
    run = reference_run("qwen3-next-80b-a3b")
    for layout, complaint in (
        (Layout(tensor_parallel=32), "linear_key_heads = 16; got 32"),
        (Layout(context_parallel=2), "context_parallel with linear attention: not described; got 2"),
    ):
        mistakes = map(str, layout_mistakes(Workload(run.architecture, run.recipe, layout), "here"))
        assert any(complaint in mistake for mistake in mistakes)
