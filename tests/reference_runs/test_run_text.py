"""Facts that are written as a run file are read again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import load, reference_run, run_names
from reference_runs.incomplete import missing_keys
from reference_runs.run_text import run_text
from reference_runs.sourced import Sourced

ANYTHING = st.text(st.characters(codec="utf-8"), max_size=30)


@pytest.mark.parametrize("name", run_names())
def test_the_facts_of_a_recorded_run_are_read_again(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = reference_run(name)
    facts = {
        key: msgspec.structs.replace(fact, readings=())
        for key, fact in run.facts.items()
        if not key.startswith("measured")
    }
    path = tmp_path_factory.mktemp("run") / "again.toml"
    path.write_text(run_text(run.title, run.sources, facts, comments=["written again"]), encoding="utf-8")
    again = load(path)
    assert (again.facts, again.title, again.sources) == (facts, run.title, run.sources)
    assert (again.architecture, again.reported) == (run.architecture, run.reported)
    assert missing_keys(again.recipe) == missing_keys(run.recipe)
    assert missing_keys(run.recipe) or again.recipe == run.recipe


@given(title=ANYTHING.filter(bool), note=ANYTHING, document=ANYTHING, comment=ANYTHING)
def test_any_text_is_read_again(
    title: str, note: str, document: str, comment: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    facts = {key: fact for key, fact in reference_run("gpt2-124m").facts.items() if key.startswith("architecture.")}
    facts = {
        key: Sourced(kind=fact.kind, source="a", value=fact.value, unit=fact.unit, note=note, why="w", effect="e")
        for key, fact in facts.items()
    }
    path = tmp_path_factory.getbasetemp() / "any.toml"
    text = run_text(title, {"a": document}, facts, comments=[comment])
    path.write_text(text, encoding="utf-8", newline="")
    again = load(path)
    assert (again.title, again.sources["a"]) == (title, document)
    assert {key: again.facts[key] for key in facts} == facts
