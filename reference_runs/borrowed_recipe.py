"""The recipe of a recorded run, assumed for a model whose own recipe is not known."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind, Sourced, Value

SOURCE = "borrowed"  # a key of the sources of the file that borrows
_LENGTHS = ("recipe.tokens", "architecture.sequence")
EFFECT = "losses; of batch, tokens and precision flop, bytes and time too"


def borrowed_facts(run: ReferenceRun, known: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Facts of the recipe of `run` that are not among the `known` ones, each assumed, with its kind there."""
    return {
        key: Sourced(
            kind=Kind.ASSUMED,
            source=f"{SOURCE} {key}",
            value=_own_decay(fact.value, run.facts, known) if key == "recipe.decay" else fact.value,
            unit=fact.unit,
            why=f"the recipe is not known; that of {run.name} is taken, where it is {fact.kind.value}",
            effect=fact.effect or EFFECT,
        )
        for key, fact in run.facts.items()
        if key.startswith("recipe.") and key not in known and fact.value is not None
    }


def _own_decay(decay: Value, lender: Mapping[str, Sourced], known: Mapping[str, Sourced]) -> Value:
    """Samples of the learning rate's decay that are the same share of this model's training as of the lender's."""
    values = [facts[key].value for key in _LENGTHS for facts in ({**lender, **known}, lender)]
    lengths = [value for value in (decay, *values) if isinstance(value, int)]
    if len(lengths) < 1 + len(values):
        return decay
    there, own_tokens, tokens_there, own_sequence, sequence_there = lengths
    return round(Fraction(there * own_tokens * sequence_there, tokens_there * own_sequence))


def borrowed_source(run: ReferenceRun) -> dict[str, str]:
    """The entry of the sources that those facts need."""
    return {SOURCE: f"the recipe of {run.title}, reference run {run.name}"}
