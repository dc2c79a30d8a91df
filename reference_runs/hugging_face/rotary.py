"""Rotary positions of a configuration: the rotated part of a head, the base, and the scaling of frequencies."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import Configuration
from reference_runs.sourced import Kind, Sourced

KEYS = ("rope_parameters", "rope_scaling")  # transformers from version 5 on, and before
BANDS = {
    "rotary_scaling_factor": "factor",
    "rotary_scaling_low": "low_freq_factor",
    "rotary_scaling_high": "high_freq_factor",
    "rotary_scaling_sequence": "original_max_position_embeddings",
}
OF_YARN = {name: BANDS[name] for name in ("rotary_scaling_factor", "rotary_scaling_sequence")}
EXTENDING = ("yarn", "dynamic")  # the context of a model that may have been trained before on shorter sequences
NEEDED: dict[str, dict[str, str]] = {"default": {}, "llama3": BANDS, "yarn": OF_YARN}  # facts, and their keys
OPTIONAL = {"yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")}
OF_ANY = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


class _Parameters(NamedTuple):
    """The object of the rotary parameters, and the key that it stands under."""

    c: Configuration
    key: str
    given: dict[str, Any]

    def number(self, name: str) -> Sourced | None:
        """The number of that name; None where it is not given."""
        value = self.given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{self.key}.{name}", got=json.dumps(value), allowed="a number", where=self.c.where)
        return Sourced(kind=Kind.STATED, source=f"config {self.key}.{name}", value=value)


def rotary(
    c: Configuration,
    *,
    base: float = 10000.0,
    base_key: str = "rope_theta",
    share: float = 1.0,
    share_key: str = "partial_rotary_factor",
    rotated: Sourced | None = None,
    scales_scores: bool = False,
) -> None:
    """Record rotary positions, of `share` of a head by default, or of `rotated` dimensions.

    Args:
        scales_scores: whether the family's attention multiplies its scores by the square of YaRN's mscale_all_dim form.

    Raises:
        InputError: a scaling that no key of a run file describes.
    """
    parameters = _parameters(c)
    c.put("position", c.model("rotary"))
    c.put("rotary_base", parameters.number("rope_theta") or c.number(base_key, default=base))
    if rotated is None:
        part = parameters.number("partial_rotary_factor") or c.number(share_key, default=share)
        assert isinstance(part.value, (int, float))
        of_head = "the whole head_dim" if part.value == 1 else f"head_dim * {part.value}"
        rotated = c.derived(int(c.known("head_dim") * part.value), f"{of_head} ({part.source})")
    c.put("rotary_dim", rotated)
    _scaling(parameters, scales_scores=scales_scores)


def _parameters(c: Configuration) -> _Parameters:
    for key in KEYS:
        if (given := c.raw(key)) is not None:
            if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
                raise c.refusal(key, allowed="one object with a rope_type, for all layers")
            return _Parameters(c, key, given)
    return _Parameters(c, KEYS[0], {})


def _scaling(parameters: _Parameters, *, scales_scores: bool) -> None:
    """Llama 3's bands of wavelengths, or YaRN; nothing for the default, and where a shorter sequence is trained without
    it.
    """
    c, key, given = parameters
    kind, trained_on = given.get("rope_type", given.get("type", "default")), given.get(BANDS["rotary_scaling_sequence"])
    if kind in EXTENDING and isinstance(trained_on, int) and c.sequence is not None and c.sequence <= trained_on:
        c.notes.append(f"{key}: {kind} is left out: sequences of up to {trained_on} tokens are trained without it")
        return
    if kind not in NEEDED:
        allowed = ", ".join(NEEDED)
        if kind in EXTENDING and isinstance(trained_on, int):
            allowed += f", or --sequence {trained_on} or less, as it was trained before its context was extended"
        raise InputError(f"{key}.rope_type", got=json.dumps(kind), allowed=allowed, where=c.where)
    known = (*OF_ANY, *NEEDED[kind].values(), *OPTIONAL.get(kind, ()))
    for name in sorted(given.keys() - {*known}):
        raise InputError(f"{key}: unknown key {name!r} with rope_type {kind}", allowed=", ".join(known), where=c.where)
    for field, name in NEEDED[kind].items():
        if (fact := parameters.number(name)) is None:
            raise InputError(f"missing key '{key}.{name}'", where=c.where)
        c.put(field, fact)
    if kind == "yarn":
        _yarn(parameters, scales_scores=scales_scores)


def _yarn(parameters: _Parameters, *, scales_scores: bool) -> None:
    """YaRN's ramp, and the factors of rotated queries and keys, and of scores, as transformers derives them.

    With m(x) = 0.1 x ln(factor) + 1, queries and keys are multiplied by attention_factor, or m(mscale) over
    m(mscale_all_dim) where both are given, or m(1); scores of DeepSeek's by m(mscale_all_dim)^2 besides.
    """
    c, key, given = parameters
    truncate = given.get("truncate", True)
    if not isinstance(truncate, bool):
        raise InputError(f"{key}.truncate", got=json.dumps(truncate), allowed="true, false", where=c.where)
    kind, name = ("yarn", "rope_type") if truncate else ("yarn-unrounded", "truncate")
    c.put("rotary_scaling", Sourced(kind=Kind.STATED, source=f"config {key}.{name}", value=kind))
    for field, name, usual in (("low", "beta_slow", 1.0), ("high", "beta_fast", 32.0)):
        default = Sourced(kind=Kind.STATED, source=f"transformers default: {key} has no {name}", value=usual)
        c.put(f"rotary_scaling_{field}", parameters.number(name) or default)
    factor, one, other = (_value(parameters.number(name)) for name in ("factor", "mscale", "mscale_all_dim"))

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    ratio, words = (scale(one) / scale(other), "mscale and mscale_all_dim") if one and other else (scale(1), "factor")
    amplitude = parameters.number("attention_factor") or c.derived(ratio, f"0.1 ln(factor) + 1 of {key}: {words}")
    if amplitude.value != 1:
        c.put("rotary_scaling_amplitude", amplitude)
    if scales_scores and other:
        c.put("score_scale", c.derived(scale(other) ** 2, f"(0.1 mscale_all_dim ln(factor) + 1)^2 of {key}"))


def _value(fact: Sourced | None) -> float:
    """The number of a fact; 0 where it is not given."""
    return float(fact.value) if fact is not None and isinstance(fact.value, (int, float)) else 0.0
