"""Model types outside transformers whose model is one that transformers has, by another name."""

from __future__ import annotations

ALIASES = {
    "Yi": "llama",  # 01-ai/Yi-6B and -34B; the same files were published as llama later
    "internlm2": "llama",  # queries, keys and values are one packed matrix: as many elements and products
    "kimi_k2": "deepseek_v3",  # its configuration names DeepseekV3ForCausalLM
}


def known_type(kind: str) -> str:
    """The type that a model's type is by another name, or itself."""
    return ALIASES.get(kind, kind)
