"""Rules by which any configuration becomes a miniature."""

from __future__ import annotations

from typing import Any

from suite.execute.trace.miniature import MOST_EXPERTS, VOCABULARY, WINDOW, miniature


def small(**values: Any) -> dict[str, Any]:
    """The keys that changed."""
    scaled, changed = miniature(values)
    assert {each.key.partition(".")[0] for each in changed} == {k for k in values if scaled.get(k) != values[k]}
    return {key: value for key, value in scaled.items() if value != values[key]}


def test_the_group_of_heads_and_their_size_stay() -> None:
    llama = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}
    assert small(**llama, head_dim=128) == {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
    }
    alike = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32}
    assert small(**alike) == {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
    # a size that is no divisor of the width: a multiple of 16
    assert small(hidden_size=3584, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944) == {
        "hidden_size": 896,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "intermediate_size": 4736,
    }


def test_a_layer_of_every_kind_stays_and_lists_of_layers_follow() -> None:
    kinds = ["mamba", "mamba", "attention", "mamba", "mlp", "mamba"]
    got = small(num_hidden_layers=6, layer_types=kinds, mlp_only_layers=[1, 4], hybrid_override_pattern="MM*M-M")
    assert got == {
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mlp"],
        "mlp_only_layers": [1, 3],
        "hybrid_override_pattern": "MM*-",
    }
    assert small(num_hidden_layers=32, attn_layer_period=8, attn_layer_offset=4) == {"num_hidden_layers": 8}
    assert small(num_hidden_layers=61, first_k_dense_replace=3) == {"num_hidden_layers": 4}


def test_layers_with_keys_of_their_own_stay_and_so_do_those_that_share_keys_and_values() -> None:
    own = {"02": {"head_dim": 512}, "05": {"head_dim": 512}}
    assert small(num_hidden_layers=6, per_layer_config=own) == {
        "num_hidden_layers": 2,
        "per_layer_config": {"1": {"head_dim": 512}},
    }
    kinds = ["window", "full", "window", "full", "window", "full"]
    assert small(num_hidden_layers=6, layer_types=kinds, num_kv_shared_layers=3) == {
        "num_hidden_layers": 4,
        "layer_types": ["window", "full", "full", "window"],
        "num_kv_shared_layers": 2,
    }


def test_widths_that_grouped_gemms_take_remain_so() -> None:
    shape = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    assert small(moe_intermediate_size=7688, **shape)["moe_intermediate_size"] == 976
    assert small(moe_intermediate_size=7676, **shape)["moe_intermediate_size"] == 960


def test_heads_of_codegen_are_a_multiple_of_four() -> None:
    shape = {"n_embd": 4096, "n_head": 16}
    assert small(**shape) == {"n_embd": 512, "n_head": 2}
    assert small(model_type="codegen", **shape) == {"n_embd": 1024, "n_head": 4}


def test_experts_keep_the_share_that_a_token_uses() -> None:
    assert small(num_experts=8, num_experts_per_tok=2) == {}
    assert small(n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4) == {
        "n_routed_experts": 32,
        "num_experts_per_tok": 1,
        "topk_group": 2,
    }
    assert small(num_local_experts=128, num_experts_per_tok=1) == {"num_local_experts": MOST_EXPERTS}


def test_vocabulary_windows_and_token_numbers_shrink_and_weights_are_not_quantised() -> None:
    got = small(
        vocab_size=128256,
        bos_token_id=128000,
        eos_token_id=[128001, 5],
        pad_token_id=None,
        sliding_window=4096,
        text_config={"model_type": "text", "vocab_size": 5000, "max_position_embeddings": 4096},
    )
    assert got == {
        "vocab_size": VOCABULARY,
        "bos_token_id": VOCABULARY - 1,
        "eos_token_id": [VOCABULARY - 1, 5],
        "sliding_window": WINDOW,
        "text_config": {"model_type": "text", "vocab_size": VOCABULARY, "max_position_embeddings": 4096},
    }
    scaled, changed = miniature({"quantization_config": {"bits": 4}})
    assert scaled == {}
    assert [each.key for each in changed] == ["quantization_config"]
