"""The recipe of a recorded run, assumed for a model whose own recipe is not known."""

from __future__ import annotations

from collections.abc import Mapping

from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind, Sourced

SOURCE = "borrowed"  # a key of the sources of the file that borrows
EFFECT = "losses; of batch, tokens and precision flop, bytes and time too"


def borrowed_facts(run: ReferenceRun, known: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Facts of the recipe of `run` that are not among the `known` ones, each assumed, with its kind there."""
    return {
        key: Sourced(
            kind=Kind.ASSUMED,
            source=f"{SOURCE} {key}",
            value=fact.value,
            unit=fact.unit,
            why=f"the recipe is not known; that of {run.name} is taken, where it is {fact.kind.value}",
            effect=fact.effect or EFFECT,
        )
        for key, fact in run.facts.items()
        if key.startswith("recipe.") and key not in known and fact.value is not None
    }


def borrowed_source(run: ReferenceRun) -> dict[str, str]:
    """The entry of the sources that those facts need."""
    return {SOURCE: f"the recipe of {run.title}, reference run {run.name}"}
