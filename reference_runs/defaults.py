"""Keys that a run file may leave out: they follow from other values, or are as in most runs. Each becomes a fact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reference_runs.architecture import Position
from reference_runs.run import Objective
from reference_runs.sourced import Kind, Sourced, Value


class Default(NamedTuple):
    """Value that a key is taken to have where the file leaves it out.

    Args:
        value: from the values that the section has; None where it does not follow from them.
        words: where the value comes from.
        effect: what it changes where it is wrong; empty where it cannot be.
    """

    value: Callable[[Mapping[str, Any]], Value | None]
    words: str
    effect: str = ""


def _head_dim(given: Mapping[str, Any]) -> int | None:
    hidden, heads = given.get("hidden", 0), given.get("heads", 0)
    follows = bool(hidden and heads) and not _is_latent(given)
    return hidden // heads if follows and hidden % heads == 0 else None


def _rotary_dim(given: Mapping[str, Any]) -> int | None:
    return given.get("head_dim") if _rotates(given) and not _is_latent(given) else None


def _rotates(given: Mapping[str, Any]) -> bool:
    return given.get("position") is Position.ROTARY


def _is_latent(given: Mapping[str, Any]) -> bool:
    """Whether keys come from a latent vector: heads are as wide as their two parts then."""
    return given.get("key_value_rank") is not None


def _usual(value: Value, effect: str) -> Default:
    return Default(lambda _: value, "usual", effect)


DEFAULTS: dict[str, dict[str, Default]] = {
    "architecture": {
        "head_dim": Default(_head_dim, "hidden / heads"),
        "kv_heads": Default(lambda given: given.get("heads"), "equal to heads"),
        "padded_vocabulary": Default(lambda given: given.get("vocabulary"), "equal to vocabulary"),
        "rotary_dim": Default(_rotary_dim, "the whole head_dim", "losses"),
        "rotary_base": Default(lambda given: 10000.0 if _rotates(given) else None, "usual", "losses"),
        "norm_epsilon": _usual(1e-5, "losses"),
        "embedding_norm": _usual(False, "parameters, by one norm; activations"),
        "residual": _usual("sequential", "losses; messages of tensor parallelism"),
        "mask": _usual("causal", "losses; flop of attention"),
    },
    "recipe": {
        "objective": Default(
            lambda given: None if "mean_span" in given else Objective.CAUSAL_LM.value, "with a causal mask", "losses"
        ),
        "decay_of_vectors": _usual(False, "groups of the optimizer: padding of sharded state, messages of ZeRO-1"),
        "embedding_dropout": _usual(0.0, "activations, by one mask"),
        "hidden_dropout": _usual(0.0, "activations, by two masks a layer"),
        "attention_dropout": _usual(0.0, "activations, by one mask a layer"),
    },
}


def default_facts(section: str, given: Mapping[str, Any]) -> dict[str, Sourced]:
    """Facts of the keys that a section with the values `given` leaves out."""
    known, facts = dict(given), {}
    for key, default in DEFAULTS.get(section, {}).items():
        if key in given or (value := default.value(known)) is None:
            continue
        known[key] = value
        source = f"default: {default.words}"
        if default.effect:
            why = "left out, and so in most runs"
            facts[key] = Sourced(kind=Kind.ASSUMED, source=source, value=value, why=why, effect=default.effect)
        else:
            facts[key] = Sourced(kind=Kind.DERIVED, source=source, value=value)
    return facts
