"""Where a figure comes from: the function that computes it, its derivation, and the numbers that go into it here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from reference_runs.layout import Layout
from reference_runs.units import printed
from suite.metrics.figures import Quantity
from suite.predict.analytic.flop import hardware_flop, model_flop
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.parameters import parameter_counts
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.stage_memory import fullest_instant, stage_memory
from suite.predict.analytic.step_time import step_time
from suite.predict.analytic.training_cost import (
    accelerator_cost,
    accelerator_seconds,
    energy_joules,
    tokens_per_second,
    training_seconds,
    utilization,
)
from suite.report.explore.view import View

FUNCTIONS: dict[Quantity, tuple[Callable[..., Any], ...]] = {
    Quantity.PARAMETERS: (parameter_counts,),
    Quantity.PEAK_BYTES: (stage_memory,),
    Quantity.STEP_SECONDS: (step_time,),
    Quantity.TOKENS_PER_SECOND: (tokens_per_second,),
    Quantity.MFU: (utilization, model_flop),
    Quantity.HFU: (utilization, hardware_flop),
    Quantity.BUBBLE_FRACTION: (bubble_fraction,),
    Quantity.TRAINING_SECONDS: (training_seconds,),
    Quantity.ACCELERATOR_SECONDS: (accelerator_seconds,),
    Quantity.ENERGY_JOULES: (energy_joules,),
    Quantity.COST: (accelerator_cost,),
}


class Why(NamedTuple):
    """Of one figure.

    Args:
        functions: their names, with modules.
        derivation: their docstrings: formula, meaning of the letters, source.
        numbers: what goes into it here, by name.
    """

    functions: tuple[str, ...]
    derivation: str
    numbers: dict[str, str]


def why(view: View, quantity: Quantity) -> Why:
    """Where the figure of a layout's prediction comes from."""
    functions = FUNCTIONS[quantity]
    named = tuple(f"{function.__module__}.{function.__name__}" for function in functions)
    derivation = "\n\n".join(inspect.getdoc(function) or "" for function in functions)
    return Why(named, derivation, _numbers(view, quantity))


def _numbers(view: View, quantity: Quantity) -> dict[str, str]:
    predicted = view.predicted
    if predicted is None or predicted.run is None or predicted.layout is None:
        return {}
    layout, machine, arithmetic = predicted.layout, predicted.machine, predicted.prediction
    if quantity is Quantity.STEP_SECONDS:
        return {name: f"{printed(seconds, 's')} s" for name, seconds in view.terms.items()}
    if quantity is Quantity.PEAK_BYTES and view.stages:
        fullest = max(view.stages, key=lambda stage: stage.peak)
        instant, parts = fullest_instant(fullest)
        sizes = {name: f"{value / 2**30:,.2f} GiB" for name, value in parts.items() if value}
        return {"stage": str(list(view.stages).index(fullest)), "instant": instant, **sizes}
    if quantity is Quantity.PARAMETERS and arithmetic:
        return {name: printed(count, "1") for name, count in arithmetic.parameters.items()}
    rows = {row.quantity: row.left for row in view.rows}
    known = {
        "accelerators": printed(layout.ranks, "1"),
        "samples a step": printed(predicted.run.recipe.global_batch, "1"),
        "tokens of a sample": printed(predicted.run.architecture.sequence, "1"),
        **({"seconds of a step": printed(rows["step_seconds"], "s")} if "step_seconds" in rows else {}),
    }
    if arithmetic and quantity in (Quantity.MFU, Quantity.HFU):
        flop = arithmetic.model_flop if quantity is Quantity.MFU else arithmetic.hardware_flop
        known["flop of a step"] = printed(flop and float(flop), "flop")
        known |= _peak(machine.machine if machine else None)
    if quantity is Quantity.BUBBLE_FRACTION:
        known |= _pipeline(layout)
    if quantity in (Quantity.TRAINING_SECONDS, Quantity.ACCELERATOR_SECONDS, Quantity.ENERGY_JOULES, Quantity.COST):
        known["tokens of the training"] = printed(float(predicted.run.recipe.tokens), "1")
    return known


def _peak(machine: Machine | None) -> dict[str, str]:
    return (
        {}
        if machine is None
        else {"peak of an accelerator": f"{printed(machine.peak_flop_per_second, 'flop/s')}flop/s"}
    )


def _pipeline(layout: Layout) -> dict[str, str]:
    return {"stages": printed(layout.pipeline_stages, "1"), "chunks of a stage": printed(layout.virtual_stages, "1")}
