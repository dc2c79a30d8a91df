from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from reference_runs.catalog import reference_run
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.predict.plan.changes import helpful_changes
from suite.predict.plan.search import Found, search
from suite.predict.recorded_run.sweep import layout_figures
from tests.predict.plan.test_search import Question, asked_questions, question
from tests.support.examples import examples


@examples(10)
@given(asked_questions)
def test_no_change_that_is_allowed_and_fits_makes_the_best_layout_faster(asked: Question) -> None:
    """The best layout is the best of all that the search varies; the batch and the network it does not."""
    result = search(asked, top=1)
    if not result.best:
        return
    for change in helpful_changes(asked, result.best[0], top=100):
        if not change.words.startswith(("global batch", "network")):
            assert not (change.fits and change.allowed), change


def test_a_change_does_what_the_layout_with_it_does() -> None:
    asked = question(8)
    layout = parse_layout("dp8,recompute-full,micro1", base=asked.base)
    workload = Workload(asked.architecture, asked.recipe, layout)
    found = Found(layout, layout_figures(workload, asked.machine))
    changes = {change.words: change for change in helpful_changes(asked, found, top=100)}
    change = changes["recompute-full -> recompute-none"]
    other = layout_figures(
        workload._replace(layout=parse_layout("dp8,recompute-none,micro1", base=asked.base)), asked.machine
    )
    assert change.time == pytest.approx(other.step_seconds / found.figures.step_seconds - 1)
    assert change.more_bytes == pytest.approx(other.peak_bytes - found.figures.peak_bytes)
    assert change.fits
    assert change.allowed
    times = [each.time for each in helpful_changes(asked, found, top=3)]
    assert times == sorted(times)
    assert len(times) == 3


def test_twice_the_batch_is_compared_by_token() -> None:
    """A pipeline of few micro-batches waits less with twice as many: the step is longer, a token's time is shorter."""
    run = reference_run("bloom-176b")
    asked = question(8)
    asked = asked._replace(architecture=run.architecture, recipe=run.recipe, ranks=384)
    layout = msgspec.structs.replace(run.layout, micro_batch=16, accumulation=None)
    workload = Workload(run.architecture, run.recipe, layout)
    found = Found(layout, layout_figures(workload, asked.machine))
    words = f"global batch {run.recipe.global_batch:,} -> {2 * run.recipe.global_batch:,} samples"
    change = {each.words: each for each in helpful_changes(asked, found, top=100)}[words]
    doubled = msgspec.structs.replace(run.recipe, global_batch=2 * run.recipe.global_batch)
    figures = layout_figures(workload._replace(recipe=doubled), asked.machine)
    assert change.time == pytest.approx(figures.step_seconds / 2 / found.figures.step_seconds - 1)
    assert change.time < 0
