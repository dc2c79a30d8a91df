"""A borrowed recipe is another run's, fact by fact, and never in place of what is known."""

from __future__ import annotations

import msgspec

from reference_runs.borrowed_recipe import borrowed_facts, borrowed_source
from reference_runs.catalog import reference_run
from reference_runs.sourced import Kind, Sourced

LENDER = reference_run("gpt3-175b")


def test_every_fact_that_is_not_known_is_borrowed_with_its_unit_and_its_kind_there() -> None:
    known = {"recipe.init_std": Sourced(kind=Kind.STATED, source="config", value=0.5, unit="1")}
    facts = borrowed_facts(LENDER, known)
    recorded = {key for key, fact in LENDER.facts.items() if key.startswith("recipe.") and fact.value is not None}
    assert facts.keys() == recorded - known.keys()
    for key, fact in facts.items():
        there = LENDER.facts[key]
        assert (fact.kind, fact.value, fact.unit) == (Kind.ASSUMED, there.value, there.unit)
        assert fact.why.endswith(f"where it is {there.kind.value}")
        assert fact.effect
        assert fact.source.split()[0] in borrowed_source(LENDER)


def test_what_the_lender_does_not_know_is_not_borrowed() -> None:
    unknown = Sourced(kind=Kind.NOT_PUBLISHED, source="paper")
    lender = msgspec.structs.replace(LENDER, facts=LENDER.facts | {"recipe.tokens": unknown})
    assert "recipe.tokens" not in borrowed_facts(lender, {})


def test_a_borrowed_decay_is_the_same_share_of_another_training() -> None:
    """GPT-3's decay of 260 billion tokens, of 300, in samples of 2,048: of sequences twice as long half as many."""
    twice = Sourced(kind=Kind.STATED, source="config", value=4096, unit="token")
    tenth = Sourced(kind=Kind.STATED, source="card", value=30_000_000_000, unit="token")
    samples = LENDER.recipe.decay
    for known, wanted in (
        ({}, samples),
        ({"architecture.sequence": twice}, round(samples / 2)),
        ({"architecture.sequence": twice, "recipe.tokens": tenth}, round(samples / 20)),
    ):
        assert borrowed_facts(LENDER, known)["recipe.decay"].value == wanted
