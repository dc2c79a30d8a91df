"""The miniature of any configuration of transformers: which keys become smaller, and by which rule.

Rules go by the names that transformers' classes share. Keys that no rule names stay as they are: the size of a head,
of a state, of a convolution, positions, activations, norms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from suite.job.trace_job import ScaledKey

VOCABULARY = 1024
WINDOW = 48  # tokens, fewer than a sample of a launch has, so that a window still hides some
LEAST_LAYERS, MOST_LAYERS = 2, 12
MOST_GROUP = 8  # query heads that share a key-value head
WIDTH = 256  # aimed at: below it nothing shrinks
MOST_EXPERTS = 32
WIDTH_STEP = 16

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_KEY_VALUE = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "num_selected_experts")
_WIDTHS = re.compile(
    r"hidden_size|n_embd|n_inner|d_model|dim|ffn_dim|d_ff|inner_dim|(\w+_)?(intermediate|ffn|embedding)_size|\w+_hidden_size"
    r"|(\w+_)?ffn_hidden_size|\w+_intermediate_size|(\w+_)?lora_rank|\w+_proj_dim|lru_width|mamba_d_ssm|hidden_size_per_\w+"
)
_HEAD_COUNTS = re.compile(
    r"(\w+_)?(num|n)_(\w+_)?heads?(_kv)?|(mamba_|ssm_)?n_groups|attention_heads|multi_query_group_num"
)
_PERIODS = re.compile(r"\w+(_period|_interval|_pattern|_step|_every_n_layers|_freq|_frequency)")
_WINDOWS = re.compile(r"sliding_window(_size)?|attention_window_size|attention_chunk_size|window_size|local_attention")
_TOKEN = re.compile(r"\w+_token_(id|index)")
_OF_LAYERS = re.compile(r"layer|type|pattern|block")
_OWN = "per_layer_config"  # keys of single layers, by the number of the layer in decimal digits
_SHARING = "num_kv_shared_layers"  # the last ones, which use the keys and values of earlier ones
_CYCLES = re.compile(r"_?block_types|\w+_pattern")  # lists that are repeated over the layers

WIDTH_RULE = "width: divided like the query heads, to a multiple of 16"
HEADS_RULE = (
    f"heads: as few as make a width of {WIDTH}, at least 2; up to {MOST_GROUP} queries share a key-value head, as given"
)
LAYERS_RULE = "layers: the first of every kind, at least 2"
EXPERTS_RULE = "experts: 2 for each token, or 1 of many; as many as keep the share that a token uses, at most 32"
VOCABULARY_RULE = f"vocabulary: at most {VOCABULARY:,}"
TOKEN_RULE = "token numbers: within the vocabulary"
WINDOW_RULE = f"windows: at most {WINDOW} tokens, so that they hide some"
LEFT_OUT_RULE = "weights are not quantised"


class _Scaling(NamedTuple):
    """How a configuration is scaled.

    Args:
        divisor: of widths and heads.
        layers: numbers of those that stay; None: it has none.
        of_layers: how many there are.
    """

    divisor: Fraction
    layers: tuple[int, ...] | None
    of_layers: int
    key_value: tuple[int, int] | None
    experts: tuple[int, int] | None


def miniature(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[ScaledKey, ...]]:
    """The scaled configuration, and what became of each key that changed; nested configurations by themselves.

    Args:
        values: all keys, those that have their default too.
    """
    scaled: list[ScaledKey] = []
    return _scaled(values, scaled, ""), tuple(scaled)


def _scaled(values: Mapping[str, Any], changes: list[ScaledKey], path: str) -> dict[str, Any]:
    shape = _shape(values)
    small = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and "model_type" in value:
            small[key] = _scaled(value, changes, f"{path}{key}.")
            continue
        if key == "quantization_config":
            changes.append(ScaledKey(path + key, None, None, LEFT_OUT_RULE))
            continue
        small[key], rule = _value(key, value, shape)
        if small[key] != value:
            changes.append(ScaledKey(path + key, value, small[key], rule))
    return small


def _shape(values: Mapping[str, Any]) -> _Scaling:
    heads, width = _first(values, _HEADS), _first(values, _WIDTH)
    groups = _first(values, _KEY_VALUE) or heads
    divisor, key_value = Fraction(1), None
    if heads and groups:
        ratio = heads / groups
        fewest = 4 if values.get("model_type") == "codegen" else 2  # its class splits the heads into four groups
        least = max(fewest, math.ceil(min(ratio, MOST_GROUP)), math.ceil(WIDTH * heads / width) if width else fewest)
        even = (n for n in range(least, 2 * least) if heads % n == 0 and (n % ratio == 0 or ratio > MOST_GROUP))
        small = min(heads, next(even, least))
        divisor = Fraction(heads, small)
        key_value = (groups, max(1, round(small / ratio)))
    elif width and width > WIDTH:
        divisor = Fraction(width, WIDTH)
    layers = _first(values, _LAYERS) or 0
    experts, chosen = _first(values, _EXPERTS), _first(values, _CHOSEN)
    few = None
    if experts and experts > 1:
        used = chosen or 1
        taken = min(used, 2 if experts / used <= 8 else 1)
        few = (min(MOST_EXPERTS, experts, math.ceil(taken * experts / used)), taken)
    return _Scaling(divisor, _kept_layers(values, layers) if layers else None, layers, key_value, few)


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these keys that has a number."""
    found = (values[name] for name in names if name in values)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool) and value), None)


def _kept_layers(values: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Numbers of the layers that stay: the first of each kind, as lists over layers say, and of each period."""
    lists = [value for key, value in values.items() if _is_over_layers(key, value, layers)]
    numbers = [value for key, value in values.items() if _is_of_layers(key, value, layers)]
    own = {int(number): repr(each) for number, each in (values.get(_OWN) or {}).items()}
    sharing = layers - (values.get(_SHARING) or 0)
    kinds = [
        (*(repr(each[n]) for each in lists), *(n in each for each in numbers), own.get(n), n >= sharing)
        for n in range(layers)
    ]
    periods = [v for k, v in values.items() if _PERIODS.fullmatch(k) and type(v) is int and 1 < v <= MOST_LAYERS]
    periods += [len(v) for k, v in values.items() if _CYCLES.fullmatch(k) and isinstance(v, (list, tuple)) and v]
    dense = values.get("first_k_dense_replace")
    if not lists and (periods or dense):
        return tuple(range(min(layers, max(LEAST_LAYERS, *periods, dense + 1 if dense else 0))))
    first = sorted({kind: n for n, kind in reversed(list(enumerate(kinds)))}.values())
    first += [n for n in range(layers) if n not in first][: max(0, LEAST_LAYERS - len(first))]
    return tuple(sorted(first[:MOST_LAYERS]))


def _is_over_layers(key: str, value: object, layers: int) -> bool:
    """Whether a key's value has an entry for each layer; of few layers also by its name, as others are as long."""
    named = bool(_OF_LAYERS.search(key))
    listed = isinstance(value, (list, tuple)) and (named or layers > MOST_LAYERS)
    return (listed or (isinstance(value, str) and "pattern" in key)) and len(value) == layers > 1  # type: ignore[arg-type]


def _is_of_layers(key: str, value: object, layers: int) -> bool:
    """Whether a key's value is a list of numbers of layers."""
    named = "layer" in key or key.endswith(("_indices", "_indexes"))
    return named and isinstance(value, (list, tuple)) and len(value) < layers and all(type(n) is int for n in value)


def _value(key: str, value: Any, shape: _Scaling) -> tuple[Any, str]:
    """The value in the miniature, and the rule."""
    if shape.layers is not None:
        if _is_over_layers(key, value, shape.of_layers):
            cut = [value[n] for n in shape.layers]
            cut = [_size(key, each, shape)[0] for each in cut]
            return "".join(cut) if isinstance(value, str) else cut, LAYERS_RULE
        if _is_of_layers(key, value, shape.of_layers):
            return [shape.layers.index(n) for n in value if n in shape.layers], LAYERS_RULE
        if key == _SHARING and value:
            return sum(n >= shape.of_layers - value for n in shape.layers), LAYERS_RULE
        if key == _OWN and value:
            kept = {str(shape.layers.index(int(n))): own for n, own in value.items() if int(n) in shape.layers}
            return {n: {k: _size(k, v, shape)[0] for k, v in own.items()} for n, own in kept.items()}, LAYERS_RULE
    if isinstance(value, (list, tuple)) and _TOKEN.fullmatch(key):
        return [_size(key, each, shape)[0] for each in value], TOKEN_RULE
    return _size(key, value, shape)


def _size(key: str, value: Any, shape: _Scaling) -> tuple[Any, str]:
    if type(value) is not int or value <= 0:
        return value, ""
    if key in _LAYERS and shape.layers is not None:
        return len(shape.layers), LAYERS_RULE
    if key in ("first_k_dense_replace", "num_dense_layers", "n_dense_layers") and shape.layers is not None:
        return min(value, len(shape.layers) - 1), LAYERS_RULE
    if key in (*_KEY_VALUE, *_HEADS) and shape.key_value is not None and value == shape.key_value[0]:
        return (shape.key_value[1] if key in _KEY_VALUE else _divided(value, shape.divisor, 1)), HEADS_RULE
    if shape.experts is not None and (rule := _EXPERT_KEYS.get(key)):
        return rule(value, *shape.experts), EXPERTS_RULE
    if "vocab_size" in key:
        return min(value, VOCABULARY), VOCABULARY_RULE
    if _TOKEN.fullmatch(key):
        return min(value, VOCABULARY - 1), TOKEN_RULE
    if _WINDOWS.fullmatch(key):
        return min(value, WINDOW), WINDOW_RULE
    if _HEAD_COUNTS.fullmatch(key):
        return _divided(value, shape.divisor, 1), HEADS_RULE
    if _WIDTHS.fullmatch(key):
        return _divided(value, shape.divisor, WIDTH_STEP), WIDTH_RULE
    return value, ""


def _divided(value: int, divisor: Fraction, step: int) -> int:
    """The value over the divisor, rounded up to a multiple of `step` unless it is whole.

    A width that is a multiple of 8, as grouped GEMMs need it, remains one.
    """
    quotient = value / divisor
    misaligned = step > 1 and value % 8 == 0 and quotient % 8 != 0
    if quotient.denominator == 1 and not misaligned:
        return int(quotient)
    return min(value, math.ceil(quotient / step) * step)


# by key: value, experts and experts of a token there will be -> its value
_EXPERT_KEYS: Mapping[str, Callable[[int, int, int], int]] = {
    **dict.fromkeys(_EXPERTS, lambda value, experts, _chosen: min(value, experts)),
    **dict.fromkeys(_CHOSEN, lambda value, _experts, chosen: min(value, chosen)),
    "n_group": lambda value, experts, _chosen: math.gcd(value, max(1, experts // 2)),
    "topk_group": lambda value, _experts, _chosen: min(value, 2),
}
