"""Other numbers of accelerators: days of the fastest layout of each, against their number and against what it costs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text, parse_layout
from suite.predict.plan.asked import asked_run, with_products
from suite.predict.plan.frontier import frontier
from suite.predict.plan.plan import OtherNumber, machine_of, other_numbers, question_of
from suite.predict.recorded_run.figures import Prices
from suite.report.explore.presets import Version, described_run, tokens_are_known, version_of
from suite.report.explore.state import ExploreState, address, complete_text
from suite.report.explore.view import recorded_layout, training_of
from suite.report.explore.words import in_controls
from suite.report.plots.plan import spent

Numbers = dict[str, Any]


def ranks_of(state: ExploreState) -> int:
    """Accelerators of a state's first layout."""
    recorded = recorded_layout(state.run)
    return (parse_layout(state.layout, base=recorded) if state.layout else recorded).ranks


def searched_for(state: ExploreState) -> str:
    """Everything that the numbers of a state depend on, as one text: layouts of as many accelerators share it."""
    asked = msgspec.structs.replace(state, layout="", other=None)
    return f"{address(asked)}&accelerators={ranks_of(state)}"


def numbers(state: ExploreState) -> Numbers:
    """The fastest layout of each number of accelerators around the state's, as `plan --numbers` finds them.

    `wrong` alone where there are none.
    """
    return _kept_numbers(state, version_of(state.run))


@lru_cache(32)
def _kept_numbers(state: ExploreState, _version: Version) -> Numbers:
    try:
        return _numbers(state)
    except InputError as error:
        return {"wrong": list(map(in_controls, error.lines))}


def _numbers(state: ExploreState) -> Numbers:
    if state.tokens is None and not tokens_are_known(state.run):
        raise InputError("it is not known how many tokens this row's model was trained on")
    run, asked = described_run(state.run), ranks_of(state)
    found_run = asked_run(with_products(run, state.products), training_of(state), on=state.on, ranks=asked)
    run = found_run.run
    machine = machine_of(run, found_run.on, asked, state.network, state.stack)
    question = question_of(run, machine, ranks=asked, fixed={}, global_batch=None)
    found = other_numbers(question, tokens=run.recipe.tokens, prices=Prices(state.price))
    if not found:
        raise InputError("no layout of any of these numbers of accelerators fits")
    best = frontier(found, spent, lambda each: each.planned.training.days)
    return {
        "wrong": [],
        "searched": searched_for(state),
        "words": f"{run.name} on {machine.accelerator.name}, around {asked:,}; layouts of {machine.stack.name}",
        "rows": [_row(each, state, is_best=each in best, is_asked=each.ranks == asked) for each in found],
    }


def _row(each: OtherNumber, state: ExploreState, *, is_best: bool, is_asked: bool) -> dict[str, Any]:
    layout, training = each.planned.found.layout, each.planned.training
    shown = msgspec.structs.replace(state, layout=complete_text(layout), other=None)
    return {
        "accelerators": each.ranks,
        "days": training.days,
        "accelerator_seconds": training.accelerator_seconds,
        "cost": training.cost,
        "mfu": each.planned.found.figures.mfu,
        "layout": layout_text(msgspec.structs.replace(layout, bucket_bytes=Layout().bucket_bytes)),  # the run's own
        "address": address(shown),
        "best": is_best,
        "asked": is_asked,
    }
