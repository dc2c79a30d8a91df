"""Differences by who executes a run: the stack that would change it most, and the effect of each other choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.incomplete import NotPredicted
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from suite.predict.machine_model.rival_stacks import rival_stacks
from suite.predict.machine_model.unsaid_layout import as_executed
from suite.predict.plan.asked import with_products
from suite.predict.plan.predicted_run import (
    Predicted,
    PredictionRequest,
    layout_words,
    requested_layout,
    requested_machine,
)
from suite.predict.recorded_run.prediction import run_prediction

LEAST_CHANGE = 0.005  # of step time or peak; less is no change


class Departure(NamedTuple):
    """Effect of another choice on a run: shares of the step time and of the peak by which both change.

    Args:
        choice: in words.
        time: None where no step is predicted.
        peak: of the fullest rank's memory; None where none is predicted.
    """

    choice: str
    time: float | None
    peak: float | None

    @property
    def size(self) -> float:
        """The larger of both changes."""
        return max(abs(self.time or 0.0), abs(self.peak or 0.0))

    @property
    def words(self) -> str:
        """Both changes in words, such as "17.1 % more time"; what does not change is left out."""
        known = [(name, change) for name, change in (("time", self.time), ("memory", self.peak)) if change is not None]
        parts = [
            f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'} {name}"
            for name, change in known
            if abs(change) >= LEAST_CHANGE
        ]
        if parts or self.time is not None:
            return ", ".join(parts) or "no change"
        return f"no step time is predicted to compare{', the same memory' if known else ''}"


class _TimeAndPeak(NamedTuple):
    seconds: float | None
    peak: float | None


def _as_recorded(run: ReferenceRun) -> ReferenceRun:
    """The run with the format of products that its file records."""
    fact = run.facts.get("recipe.product_format")
    recorded = ProductFormat.NONE if fact is None else ProductFormat(str(fact.value))
    return with_products(run, recorded)


def _outcome(run: ReferenceRun, layout: Layout, request: PredictionRequest) -> _TimeAndPeak:
    """Step time and peak of the run as requested, in the layout as its stack executes it.

    Raises:
        InputError: something of the request does not go with the run.
    """
    run = with_products(run, request.products)
    found = requested_machine(run, layout, request)
    if found is not None:
        layout = as_executed(run, layout, layout_words(run, request), found.stack)
    workload = Workload(run.architecture, run.recipe, layout)
    keeping = found.stack.switches.keeping if found else None
    predicted = run_prediction(workload, found.machine if found else None, NotPredicted(), keeping=keeping)
    return _TimeAndPeak(
        predicted.step.total_seconds if predicted.step else None,
        max((stage.peak for stage in predicted.memory), default=None),
    )


def _ratio(changed: float | None, before: float | None) -> float | None:
    return None if changed is None or not before else changed / before - 1


def most_changing_stack(predicted: Predicted, request: PredictionRequest) -> Departure | None:
    """The stack, of those that execute the layout, that changes step time or peak most; None: none does, or no time.

    Of a machine's profile none is computed: it was measured with its own software.
    """
    run, machine = predicted.run, predicted.machine
    layout = requested_layout(run, request) if run else None
    if run is None or layout is None or machine is None or machine.machine is None or request.machine is not None:
        return None
    run = _as_recorded(run)
    before = _outcome(run, layout, request)
    found: list[Departure] = []
    for name in rival_stacks(machine.stack.name, machine.accelerator, layout):
        after = _outcome(run, layout, request._replace(stack=name))
        found.append(Departure(name, _ratio(after.seconds, before.seconds), _ratio(after.peak, before.peak)))
    return max(found, key=lambda each: each.size, default=None)


def departures(predicted: Predicted, request: PredictionRequest) -> list[Departure]:
    """Effects of a stack, an accelerator and a format of products that were asked for, each alone against the record.

    Each is taken back alone, and the others stay; a record that lacks what is taken back is left out.
    """
    run, machine = predicted.run, predicted.machine
    layout = requested_layout(run, request) if run else None
    if run is None or layout is None or machine is None or request.machine is not None:
        return []
    run = _as_recorded(run)
    found: list[Departure] = []
    for words, recorded in _taken_back(run, layout, machine.stack.name, machine.accelerator.name, request):
        try:
            asked, before = _outcome(run, layout, request), _outcome(run, layout, recorded)
        except InputError:  # products that the run's own accelerator has not: both in the recorded format
            if request.products is None or recorded.products is not request.products:
                continue
            asked, before = (_outcome(run, layout, each._replace(products=None)) for each in (request, recorded))
        found.append(Departure(words, _ratio(asked.seconds, before.seconds), _ratio(asked.peak, before.peak)))
    return found


def _taken_back(
    run: ReferenceRun, layout: Layout, stack: str, accelerator: str, request: PredictionRequest
) -> Iterator[tuple[str, PredictionRequest]]:
    """Each option that differs from the record, in words, and the request without it."""
    if request.stack is not None:
        own = requested_machine(run, layout, request._replace(stack=None, products=None))
        if own is not None and own.stack.name != stack:
            yield f"stack {stack} in place of {own.stack.name}", request._replace(stack=None)
    if request.on is not None and run.cluster is not None:
        own = requested_machine(run, layout, request._replace(on=None, products=None))
        if own is not None and own.accelerator.name != accelerator:
            software = "" if own.stack.name == stack else f", and stack {stack} in place of {own.stack.name}"
            yield f"{accelerator} in place of {own.accelerator.name}{software}", request._replace(on=None)
    recorded = run.recipe.product_format
    if request.products is not None and request.products is not recorded:
        wide = recorded.value if recorded.casts else f"{run.recipe.precision.value} alone"
        products = request.products.value if request.products.casts else f"{run.recipe.precision.value} alone"
        yield f"products in {products} in place of {wide}", request._replace(products=ProductFormat(recorded))
