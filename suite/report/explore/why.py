"""The origin of a figure: its formula, the numbers that go into it here, and the derivation with its source."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity
from suite.predict.analytic.collective_time import all_reduce_seconds, group, ring_pass_seconds, tree_depth
from suite.predict.analytic.exposed_messages import exposed_data_parallel_seconds
from suite.predict.analytic.flop import hardware_flop, model_flop
from suite.predict.analytic.flop_conventions import conventional_flop
from suite.predict.analytic.gemm import arithmetic_intensity, gemm_seconds
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.megatron_layers import kept_by_layer
from suite.predict.analytic.memory import state_bytes
from suite.predict.analytic.parameters import parameter_counts
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, bubble_fraction, micro_batches_in_flight, waits_of_a_pass
from suite.predict.analytic.stage_memory import buffer_bytes, stage_memory
from suite.predict.analytic.step_time import StepTime, step_time
from suite.predict.analytic.traffic import pipeline_traffic, step_traffic, tensor_parallel_traffic, zero_traffic
from suite.predict.analytic.training_cost import (
    accelerator_cost,
    accelerator_seconds,
    energy_joules,
    tokens_per_second,
    training_seconds,
    utilization,
)
from suite.predict.recorded_run.figures import MEASURED_PEAK, RECOMPUTED
from suite.predict.simulation.pipeline_schedule import flop_durations, timed_passes
from suite.report.explore.machine_use import LinkTraffic, RooflinePoint
from suite.report.explore.view import View

FUNCTIONS: dict[str, tuple[Callable[..., Any] | type, ...]] = {
    Quantity.PARAMETERS: (parameter_counts,),
    Quantity.PEAK_BYTES: (stage_memory, state_bytes, kept_by_layer, micro_batches_in_flight, buffer_bytes),
    Quantity.STEP_SECONDS: (step_time, StepTime, exposed_data_parallel_seconds),
    Quantity.TOKENS_PER_SECOND: (tokens_per_second,),
    Quantity.MFU: (utilization, model_flop, conventional_flop),
    Quantity.HFU: (utilization, hardware_flop, conventional_flop),
    Quantity.BUBBLE_FRACTION: (bubble_fraction,),
    Quantity.TRAINING_SECONDS: (training_seconds,),
    Quantity.ACCELERATOR_SECONDS: (accelerator_seconds,),
    Quantity.ENERGY_JOULES: (energy_joules,),
    Quantity.COST: (accelerator_cost,),
    "schedule": (timed_passes, flop_durations),
    "traffic": (
        step_traffic,
        zero_traffic,
        tensor_parallel_traffic,
        pipeline_traffic,
        all_reduce_seconds,
        ring_pass_seconds,
        group,
    ),
    "roofline": (layer_products, arithmetic_intensity, gemm_seconds),
}
SUM = "sum"


class Number(NamedTuple):
    """One of the numbers that go into a formula."""

    name: str
    value: float
    unit: str


class Why(NamedTuple):
    """A figure's formula with its numbers.

    Args:
        formula: in Python, {0} being the first number; `SUM`: all of them added up.
    """

    formula: str
    numbers: list[Number]


def derivations() -> dict[str, list[dict[str, str]]]:
    """Derivations of each figure or part of the page: title, source (empty: from other parts), and whole text."""
    return {str(key): [_derivation(inspect.getdoc(each) or "") for each in of] for key, of in FUNCTIONS.items()}


_SOURCE = re.compile(r"^Source(?: of that)?: (.+?)(?=\n\n|\n[A-Z]\w+:|\Z)", re.MULTILINE | re.DOTALL)

_SENTENCE_END = re.compile(r"(?<!\bal)\. (?=[A-Z])")


def _derivation(text: str) -> dict[str, str]:
    """Parts of a docstring."""
    sources = (_SENTENCE_END.split(" ".join(found.split()))[0].rstrip(".") for found in _SOURCE.findall(text))
    title = text.partition("\n")[0].rstrip(".")  # with `code`
    return {"title": title, "source": "; ".join(sources), "text": text}


class Worked(NamedTuple):
    """A formula of a part of the page, worked through for one of its rows.

    Args:
        name: of the result.
    """

    name: str
    value: float
    unit: str
    why: Why


def worked_traffic(rows: Sequence[LinkTraffic]) -> list[Worked]:
    """Seconds of the messages that take longest."""
    longest = max(rows, key=lambda row: row.seconds, default=None)
    if longest is None:
        return []
    numbers = [
        Number("ranks", longest.ranks, "1"),
        Number("messages", longest.messages, "1"),
        Number("latency of a message", longest.latency_seconds, "s"),
        Number("bytes of a step", longest.payload_bytes, "byte"),
        Number("bytes a second of a rank", longest.bytes_per_second, "byte/s"),
    ]
    ring = "({0} - 1) * {1} * {2} + ({0} - 1) / {0} * {3} / {4}"
    if longest.operation == "all_reduce":
        formula, levels = f"2 * ({ring})", tree_depth(longest.ranks)
        transfer = longest.payload_bytes / longest.bytes_per_second
        tree = 2 * (levels * longest.messages * longest.latency_seconds + transfer)
        if math.isclose(tree, longest.seconds, rel_tol=1e-12):
            formula = "2 * ({5} * {1} * {2} + {3} / {4})"
            numbers.append(Number("levels of the tree", levels, "1"))
    elif longest.operation == "send":
        formula = "{1} * {2} + {3} / {4}"
    else:
        formula = ring
    name = f"{longest.axis} {longest.operation.replace('_', '-')}"
    return [Worked(name, longest.seconds, "s", Why(formula, numbers))]


def worked_roofline(points: Sequence[RooflinePoint], machine: Machine) -> list[Worked]:
    """The first GEMM's flop a byte, and the ridge from which on arithmetic limits it."""
    first = next((point for point in points if point.sizes), None)
    if first is None or first.sizes is None:
        return []
    m, n, k = first.sizes
    sizes = [Number("M", m, "1"), Number("N", n, "1"), Number("K", k, "1")]
    read = Number("bytes read and written", 2 * m * n * k / first.intensity, "byte")
    bandwidth = Number("memory bandwidth", machine.memory_bytes_per_second, "byte/s")
    peak = Number("peak of an accelerator", first.ridge * machine.memory_bytes_per_second, "flop/s")
    return [
        Worked(f"{first.part}, flop a byte", first.intensity, "1", Why("2 * {0} * {1} * {2} / {3}", [*sizes, read])),
        Worked("ridge, flop a byte", first.ridge, "1", Why("{0} / {1}", [peak, bandwidth])),
    ]


def why(view: View, row: Row) -> Why:
    """The formula of a row of a layout's prediction, and the numbers that it has here."""
    predicted = view.predicted
    assert predicted is not None
    assert predicted.prediction is not None
    quantity = Quantity(row.quantity)
    if quantity is Quantity.STEP_SECONDS:
        return Why(SUM, [Number(name, seconds, "s") for name, seconds in view.terms.items()])
    if quantity is Quantity.PARAMETERS:
        return Why(SUM, [Number(name, count, "1") for name, count in predicted.prediction.parameters.items()])
    if quantity is Quantity.PEAK_BYTES:
        _, parts = max(view.stages, key=lambda stage: stage.peak).fullest_instant()
        return Why(SUM, [Number(name, value, "byte") for name, value in parts.items() if value])
    return _OF_STEP[quantity](view, row)


def _layout(view: View) -> Layout:
    assert view.predicted is not None
    assert view.predicted.layout is not None
    return view.predicted.layout


def _left(view: View, quantity: Quantity) -> float:
    return next(row.left for row in view.rows if row.quantity == quantity and row.left is not None)


def _step(view: View) -> Number:
    return Number("seconds of a step", _left(view, Quantity.STEP_SECONDS), "s")


def _samples(view: View) -> list[Number]:
    assert view.predicted is not None
    assert view.predicted.run is not None
    run = view.predicted.run
    return [
        Number("samples of a step", run.recipe.global_batch, "1"),
        Number("tokens of a sample", run.architecture.sequence, "1"),
    ]


def _accelerators(view: View) -> Number:
    return Number("accelerators", _layout(view).ranks, "1")


def _rate(view: View, _: Row) -> Why:
    return Why("{0} * {1} / {2}", [*_samples(view), _step(view)])


def _share(view: View, row: Row) -> Why:
    assert view.predicted is not None
    assert view.predicted.prediction is not None
    assert view.predicted.machine is not None
    assert view.predicted.machine.peak is not None
    arithmetic, peak = view.predicted.prediction, view.predicted.machine.peak
    model = float(arithmetic.model_flop or 0)
    convention = (row.convention or "").removesuffix(MEASURED_PEAK)
    flop = arithmetic.flop.get(convention.removesuffix(RECOMPUTED), model)
    if convention.endswith(RECOMPUTED):
        flop += (arithmetic.hardware_flop or 0) - model
    numbers = [
        Number(f"flop of a step ({convention})", flop, "flop"),
        _step(view),
        _accelerators(view),
        Number("peak of an accelerator", peak.flop_per_second, "flop/s"),
    ]
    return Why("{0} / ({1} * {2} * {3})", numbers)


def _bubble(view: View, _: Row) -> Why:
    layout = _layout(view)
    assert view.predicted is not None
    assert view.predicted.run is not None
    if layout.schedule in NO_FLUSH:
        return Why("0 * {0}", [Number("nothing waits without flush; stages", layout.pipeline_stages, "1")])
    numbers = [
        Number("stages", layout.pipeline_stages, "1"),
        Number("waits that fill a pass", waits_of_a_pass(layout), "1"),
        Number("chunks of a stage", layout.virtual_stages, "1"),
        Number("micro-batches", accumulation(view.predicted.run.recipe, layout), "1"),
    ]
    return Why("({0} - 1) / ({1} * {2} * {3} + {0} - 1)", numbers)


def _training(view: View, _: Row) -> Why:
    assert view.predicted is not None
    assert view.predicted.run is not None
    tokens = Number("tokens to train on", view.predicted.run.recipe.tokens, "1")
    return Why("ceil({0} / ({1} * {2})) * {3}", [tokens, *_samples(view), _step(view)])


def _held(view: View, _: Row) -> Why:
    seconds = Number("seconds of the training", _left(view, Quantity.TRAINING_SECONDS), "s")
    return Why("{0} * {1}", [_accelerators(view), seconds])


def _energy(view: View, _: Row) -> Why:
    assert view.predicted is not None
    assert view.predicted.machine is not None
    assert view.predicted.machine.machine is not None
    machine = view.predicted.machine.machine
    numbers = [
        Number("GPU-hours", _left(view, Quantity.ACCELERATOR_SECONDS), "accelerator s"),
        Number("watts of an accelerator", machine.watts or 0.0, "W"),
        Number("share that it draws on average", machine.power_share, "1"),
    ]
    return Why("{0} * {1} * {2}", numbers)


def _cost(view: View, row: Row) -> Why:
    hours = _left(view, Quantity.ACCELERATOR_SECONDS) / 3600
    price = (row.left or 0.0) / hours
    return Why("{0} * {1}", [Number("GPU-hours", hours, "1"), Number("price of a GPU-hour", price, "1")])


_OF_STEP: dict[Quantity, Callable[[View, Row], Why]] = {
    Quantity.TOKENS_PER_SECOND: _rate,
    Quantity.MFU: _share,
    Quantity.HFU: _share,
    Quantity.BUBBLE_FRACTION: _bubble,
    Quantity.TRAINING_SECONDS: _training,
    Quantity.ACCELERATOR_SECONDS: _held,
    Quantity.ENERGY_JOULES: _energy,
    Quantity.COST: _cost,
}
