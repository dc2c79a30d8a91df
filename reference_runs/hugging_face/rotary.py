"""Rotary positions of a configuration: the rotated part of a head, the base, and the scaling of frequencies."""

from __future__ import annotations

import json
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
EXTENDING = ("yarn", "dynamic")  # the context of a model that was trained before on shorter sequences, without scaling
TYPES = {"default": (), "llama3": tuple(BANDS.values())}  # with what each is given by
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
) -> None:
    """Record rotary positions, of `share` of a head by default, or of `rotated` dimensions.

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
    _scaling(parameters)


def _parameters(c: Configuration) -> _Parameters:
    for key in KEYS:
        if (given := c.raw(key)) is not None:
            if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
                raise c.refusal(key, allowed="one object with a rope_type, for all layers")
            return _Parameters(c, key, given)
    return _Parameters(c, KEYS[0], {})


def _scaling(parameters: _Parameters) -> None:
    """Llama 3's bands of wavelengths; nothing for the default, and where a shorter sequence is trained without it."""
    c, key, given = parameters
    kind, trained_on = given.get("rope_type", given.get("type", "default")), given.get(BANDS["rotary_scaling_sequence"])
    if kind in EXTENDING and isinstance(trained_on, int) and c.sequence is not None and c.sequence <= trained_on:
        c.notes.append(f"{key}: {kind} is left out: sequences of up to {trained_on} tokens are trained without it")
        return
    if kind not in TYPES:
        allowed = ", ".join(TYPES)
        if kind in EXTENDING and isinstance(trained_on, int):
            allowed += f", or --sequence {trained_on} or less, as it was trained before its context was extended"
        raise InputError(f"{key}.rope_type", got=json.dumps(kind), allowed=allowed, where=c.where)
    for name in sorted(given.keys() - {*OF_ANY, *TYPES[kind]}):
        allowed = ", ".join((*OF_ANY, *TYPES[kind]))
        raise InputError(f"{key}: unknown key {name!r} with rope_type {kind}", allowed=allowed, where=c.where)
    for field, name in BANDS.items() if kind == "llama3" else ():
        if (fact := parameters.number(name)) is None:
            raise InputError(f"missing key '{key}.{name}'", where=c.where)
        c.put(field, fact)
