"""Why a model type is not described, in words that name the part of the model that no key of a run file means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from reference_runs.errors import nearest
from reference_runs.hugging_face.configuration import NotDescribedError

_STATES = "linear attention or state-space layers"
# Parts of models by the model types that have them; those that a key of the configuration names are in `_part`.
_PARTS = {
    "soft caps of logits and scores, or norms on both sides of each part": ("gemma2", "gemma3_text", "vaultgemma"),
    "windows or positions on some layers alone": ("cohere2", "smollm3", "llama4_text", "ministral3", "exaone4"),
    "factors on embeddings, residuals and logits": ("granite", "granitemoe", "cohere", "minicpm", "minicpm3"),
    _STATES: (
        *("mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "rwkv"),
        *("granitemoehybrid", "qwen3_5_text", "lfm2", "recurrent_gemma", "minimax", "kimi_linear"),
    ),
    "sparse attention": ("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "doge"),
    "queries and keys that are normed whole, beside experts": ("olmoe",),
    "norms on both sides of each part": ("glm4",),
}
_OF_PICTURES = ("vision_config", "visual", "image_token_id", "image_token_index", "mm_vision_tower", "vision_tower")
_OF_SOUND = ("audio_config", "audio_token_id", "num_mel_bins")
_OF_STATES = ("ssm_cfg", "state_size", "mamba_d_state", "mamba_d_conv", "linear_num_key_heads", "attn_layer_indices")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "deberta-v2")
_PLAIN_LAYERS = ("full_attention", "attention", "dense", "sparse")


def refused_type(kind: str, values: Mapping[str, Any], families: Mapping[str, object], where: str) -> NotDescribedError:
    """The refusal of a model type that none of the `families` reads, with its reason."""
    what, instead = f"model_type {kind!r} is not described", "`predict` and `fit` trace it"
    if (part := _part(kind, values)) is not None:
        line = f"{what}: it has {part}, and no key of a run file means that; {instead}"
        return NotDescribedError(line, reason=part, where=where)
    return NotDescribedError(
        f"{what}: no model of that type was read; {instead}",
        reason=f"none was compared with model type {kind!r}",
        meant=nearest(kind, families),
        where=where,
    )


def _part(kind: str, values: Mapping[str, Any]) -> str | None:
    """The part of the model that is not described, in words; None where it is not known."""
    if any(values.get(key) is not None for key in _OF_PICTURES):
        return "a vision part"
    if any(values.get(key) is not None for key in _OF_SOUND):
        return "an audio part"
    if values.get("is_encoder_decoder") or kind in _ENCODERS:
        return "an encoder"
    by_name = next((part for part, kinds in _PARTS.items() if kind in kinds), None)
    layers = _layers(values.get("layer_types") or values.get("layers_block_type"))
    if by_name is not None and not (by_name == _STATES and layers):
        return by_name
    if layers:
        return layers
    if any(values.get(key) is not None for key in _OF_STATES):
        return _STATES
    if any(values.get(key) for key in ("final_logit_softcapping", "attn_logit_softcapping")):
        return "soft caps of logits or scores"
    return None


def _layers(kinds: object) -> str:
    """How many layers are of which kind: "linear attention in 36 of 48 layers"; empty: all attend to everything."""
    counts = Counter(str(kind) for kind in kinds) if isinstance(kinds, list) else Counter[str]()
    total = counts.total()
    special = [(kind, count) for kind, count in counts.items() if kind not in _PLAIN_LAYERS]
    return ", ".join(f"{kind.replace('_', ' ')} in {count} of {total} layers" for kind, count in special)
