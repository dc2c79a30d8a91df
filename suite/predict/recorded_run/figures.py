"""The figures of a run's prediction: every quantity, by term, axis and stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.incomplete import NotPredicted
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import FlopConvention, ReferenceRun, Workload
from reference_runs.stack import NO_KEEPING
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.flop import HARDWARE_CONVENTION, MODEL_CONVENTION, forward_flop
from suite.predict.analytic.flop_conventions import model_convention
from suite.predict.analytic.initial_loss import FIRST_LOSS_REASON, FIRST_LOSS_TOLERANCE
from suite.predict.analytic.machine import AcceleratorPeak, Machine
from suite.predict.analytic.parameters import active_parameter_count, padding_parameters, rank_parameters
from suite.predict.analytic.process_groups import key_value_copies, sent_bytes
from suite.predict.analytic.traffic import step_traffic
from suite.predict.analytic.training_cost import (
    accelerator_cost,
    accelerator_seconds,
    energy_cost,
    energy_joules,
    flop_per_second,
    tokens_per_second,
    training_seconds,
    training_steps,
    utilization,
)
from suite.predict.recorded_run.prediction import RunPrediction

RECOMPUTED = ", and recomputation"
MEASURED_PEAK = "; of the highest matrix rate measured, not of a data sheet's peak"
MODEL = "machine model"
PART_OF_PARAMETERS = "part of parameters"
PART_OF_MODEL_FLOP = "part of model_flop"
PART_OF_PEAK = "part of the fullest instant"
OF_A_RANK = "stored by a rank"
OF_A_LAYER = "one layer, one micro-batch, without recomputation"

_RECOMPUTED = FlopConvention.MEGATRON_RECOMPUTED


class Prices(NamedTuple):
    """Prices of a training, in one currency; None where nothing is charged.

    Args:
        accelerator_hour: price of one accelerator for an hour.
        kilowatt_hour: price of energy.
        power_usage_effectiveness: what the building draws for each joule that its machines draw; 1: machines alone.
    """

    accelerator_hour: float | None = None
    kilowatt_hour: float | None = None
    power_usage_effectiveness: float = 1.0


NO_PRICES = Prices()


def predicted_figures(
    run: ReferenceRun,
    layout: Layout | None,
    machine: Machine | None,
    prediction: RunPrediction,
    prices: Prices = NO_PRICES,
    absent: NotPredicted | None = None,
    *,
    by_stage: bool = True,
) -> list[Figure]:
    """Every predicted figure of `run` under a layout and on a machine. `absent` collects what the recipe lacks.

    Not `by_stage`, those of single stages, of layers and of messages are left out, which are most.

    Flop rates, MFU and HFU are counted under the convention of the published ones; where none is published, as
    model_flop and hardware_flop are.
    """
    absent = absent or NotPredicted()
    figures = [*_parameter_figures(run, layout, prediction), *_flop_figures(run, layout, prediction)]
    if prediction.first_loss is not None:
        tolerance, why = FIRST_LOSS_TOLERANCE, FIRST_LOSS_REASON
        loss = prediction.first_loss
        figures.append(Figure(Quantity.FIRST_LOSS, loss, tolerance=tolerance, why=why))
    with absent.unless("flop of the training"):
        figures.append(_training_flop_figure(run, layout, prediction))
    if layout is not None:
        workload = Workload(run.architecture, run.recipe, layout)
        if prediction.memory:
            of_memory = _memory_figures(workload, machine, prediction) if by_stage else _fullest(machine, prediction)
            figures += of_memory
        if prediction.traffic and by_stage:
            figures += _traffic_figures(workload)
        figures += _step_figures(run, layout, machine, prediction)
        with absent.unless("time of the training"):
            figures += _training_figures(run, layout, machine, prediction, prices)
    return figures


def _parameter_figures(run: ReferenceRun, layout: Layout | None, prediction: RunPrediction) -> Iterator[Figure]:
    """Parameters of the whole model, of each part, without padding, and of a rank of each stage."""
    total, padding = sum(prediction.parameters.values()), padding_parameters(run.architecture)
    yield Figure(Quantity.PARAMETERS, total)
    if run.architecture.experts is not None:
        yield Figure(Quantity.PARAMETERS, active_parameter_count(run.architecture), term="that a token passes")
    for part, count in prediction.parameters.items():
        yield Figure(Quantity.PARAMETERS, count, term=part, convention=PART_OF_PARAMETERS)
    if padding:
        term = "without vocabulary rows that no token has"
        yield Figure(Quantity.PARAMETERS, total - padding, term=term)
    for stage in range(layout.pipeline_stages) if layout is not None else ():
        count = rank_parameters(run.architecture, layout or Layout(), stage=stage).all
        yield Figure(Quantity.PARAMETERS, count, stage=stage, convention=OF_A_RANK)


def _flop_figures(run: ReferenceRun, layout: Layout | None, prediction: RunPrediction) -> Iterator[Figure]:
    """Flop of a step: under every convention, of each part, and with recomputation; none where the batch lacks."""
    if prediction.model_flop is None:
        return
    yield Figure(Quantity.MODEL_FLOP, prediction.model_flop, convention=MODEL_CONVENTION)
    for name, flop in prediction.flop.items():
        if name != _RECOMPUTED.value:
            yield Figure(Quantity.MODEL_FLOP, flop, term=name, convention=name)
    for part, flop in forward_flop(run.architecture, samples=run.recipe.global_batch).items():
        passes = 3 if run.recipe.adapter_rank is None or part.startswith("attention") else 2
        yield Figure(Quantity.MODEL_FLOP, passes * flop, term=part, convention=PART_OF_MODEL_FLOP)
    if prediction.hardware_flop is not None:
        yield Figure(Quantity.HARDWARE_FLOP, prediction.hardware_flop, convention=HARDWARE_CONVENTION)
    if layout is not None and layout.recomputation is Recomputation.FULL:
        name = _RECOMPUTED.value
        yield Figure(Quantity.HARDWARE_FLOP, prediction.flop[name], term=name, convention=name)


def _training_flop_figure(run: ReferenceRun, layout: Layout | None, prediction: RunPrediction) -> Figure:
    """Flop of the whole training, under the convention of the published total."""
    recipe = run.recipe
    convention = run.reported.total_flop_convention or run.reported.flop_convention
    if convention is _RECOMPUTED and not _recomputes(layout):
        convention = FlopConvention.MEGATRON_MODEL
    steps = training_steps(tokens=recipe.tokens, global_batch=recipe.global_batch, sequence=run.architecture.sequence)
    assert prediction.model_flop is not None  # whoever has steps has a batch
    flop = prediction.flop[convention.value] if convention else prediction.model_flop
    counted = convention.value if convention else MODEL_CONVENTION
    return Figure(Quantity.TRAINING_FLOP, flop * steps, convention=counted)


def _recomputes(layout: Layout | None) -> bool:
    """Whether the layers are computed once more: what Megatron-LM's equation 3 with factor 96 supposes."""
    return layout is None or layout.recomputation is Recomputation.FULL


def _by_quantity(prediction: RunPrediction) -> dict[Quantity, list[float]]:
    return {
        Quantity.WEIGHT_BYTES: [m.weights for m in prediction.memory],
        Quantity.GRADIENT_BYTES: [m.gradients for m in prediction.memory],
        Quantity.OPTIMIZER_BYTES: [m.optimizer for m in prediction.memory],
        Quantity.ACTIVATION_BYTES: [m.activations + m.logits for m in prediction.memory],
        Quantity.PEAK_BYTES: [m.peak for m in prediction.memory],
    }


def _fullest(machine: Machine | None, prediction: RunPrediction) -> Iterator[Figure]:
    """State, activations and peak: the largest over stages."""
    for quantity, values in _by_quantity(prediction).items():
        over = machine is not None and quantity is Quantity.PEAK_BYTES and max(values) > machine.memory_bytes
        why = (
            f"does not fit: {machine.memory_bytes:,.0f} bytes of the accelerator are usable" if over and machine else ""
        )
        yield Figure(quantity, max(values), why=why)


def _memory_figures(workload: Workload, machine: Machine | None, prediction: RunPrediction) -> list[Figure]:
    """State, activations and peak: the largest over stages, then every stage's with its parts and instants.

    Activations also by kind, of one layer and micro-batch.
    """
    figures: list[Figure] = []
    by_quantity = _by_quantity(prediction)
    for whole in _fullest(machine, prediction):
        figures.append(whole)
        figures += [
            Figure(whole.quantity, value, stage=stage) for stage, value in enumerate(by_quantity[whole.quantity])
        ]
    for stage, memory in enumerate(prediction.memory):
        figures += [
            Figure(Quantity.PEAK_BYTES, getattr(memory, instant), stage=stage, term=instant)
            for instant in ("after_forward", "after_backward", "at_update")
        ]
        figures += [
            Figure(Quantity.PEAK_BYTES, value, stage=stage, term=part, convention=PART_OF_PEAK)
            for part, value in memory.fullest_instant()[1].items()
            if value
        ]
    keeping = machine.stack.keeping if machine else NO_KEEPING
    figures += [
        Figure(Quantity.ACTIVATION_BYTES, value, term=kind, convention=OF_A_LAYER)
        for kind, value in layer_activation_bytes(workload, keeping).items()
    ]
    return figures


def _traffic_figures(workload: Workload) -> list[Figure]:
    """Payload, messages and sent bytes by axis and operation: the largest over stages, then each stage's."""
    recipe, layout = workload.recipe, workload.layout
    per_stage: list[Figure] = []
    micro_batches = accumulation(recipe, layout)
    copies = key_value_copies(workload.architecture, tensor_parallel=layout.tensor_parallel)
    for stage in range(layout.pipeline_stages):
        for entry in step_traffic(workload, stage=stage, micro_batches=micro_batches):
            values = {
                Quantity.PAYLOAD_BYTES: entry.payload_bytes,
                Quantity.MESSAGES: entry.messages,
                Quantity.SENT_BYTES: sent_bytes(entry, layout, head_copies=copies),
            }
            per_stage += [
                Figure(quantity, value, axis=entry.axis, operation=entry.operation, stage=stage)
                for quantity, value in values.items()
            ]
    largest: dict[tuple[object, ...], Figure] = {}
    for figure in per_stage:
        key = (figure.quantity, figure.axis, figure.operation)
        if key not in largest or figure.value > largest[key].value:
            largest[key] = figure
    whole = [Figure(f.quantity, f.value, axis=f.axis, operation=f.operation) for f in largest.values()]
    return whole + per_stage


def _step_figures(
    run: ReferenceRun, layout: Layout, machine: Machine | None, prediction: RunPrediction
) -> Iterator[Figure]:
    """Seconds of a step by term, and the rates that follow."""
    if prediction.bubble_fraction is not None:
        yield Figure(Quantity.BUBBLE_FRACTION, prediction.bubble_fraction)
    if prediction.step is None or machine is None:
        return
    step = prediction.step.total_seconds
    yield Figure(Quantity.STEP_SECONDS, step, convention=MODEL)
    for name, seconds in prediction.step._asdict().items():
        if seconds:
            yield Figure(Quantity.STEP_SECONDS, seconds, term=name.removesuffix("_seconds"))
    yield from rate_figures(
        run, layout, prediction, step_seconds=step, accelerators=layout.ranks, peak=machine.peak, term=None
    )


def _training_figures(
    run: ReferenceRun, layout: Layout, machine: Machine | None, prediction: RunPrediction, prices: Prices
) -> list[Figure]:
    """Time, cost and energy of the whole training."""
    if prediction.step is None or machine is None:
        return []
    seconds = training_seconds(
        tokens=run.recipe.tokens,
        global_batch=run.recipe.global_batch,
        sequence=run.architecture.sequence,
        step_seconds=prediction.step.total_seconds,
    )
    figures = [Figure(Quantity.TRAINING_SECONDS, seconds, why="without stops and batch ramp-up")]
    held = accelerator_seconds(accelerators=layout.ranks, seconds=seconds)
    figures.append(Figure(Quantity.ACCELERATOR_SECONDS, held, why="without stops and batch ramp-up"))
    if prices.accelerator_hour is not None:
        cost = accelerator_cost(accelerator_seconds=held, price_per_accelerator_hour=prices.accelerator_hour)
        figures.append(Figure(Quantity.COST, cost, term="accelerators", why="at the price given"))
    if machine.watts is not None:
        energy = energy_joules(
            accelerator_seconds=held,
            watts=machine.watts,
            power_share=machine.power_share,
            power_usage_effectiveness=prices.power_usage_effectiveness,
        )
        overhead = f"power usage effectiveness {prices.power_usage_effectiveness:g}"
        figures.append(Figure(Quantity.ENERGY_JOULES, energy, why=f"accelerators alone, {overhead}"))
        if prices.kilowatt_hour is not None:
            cost = energy_cost(energy_joules=energy, price_per_kilowatt_hour=prices.kilowatt_hour)
            figures.append(Figure(Quantity.COST, cost, term="energy", why="at the price given"))
    return figures


def rate_figures(
    run: ReferenceRun,
    layout: Layout | None,
    prediction: RunPrediction,
    *,
    step_seconds: float,
    accelerators: int,
    peak: AcceleratorPeak | None,
    term: str | None,
) -> list[Figure]:
    """Tokens per second, flop rates, MFU and HFU that follow from a step time, under the published convention.

    Without one as model_flop and hardware_flop. HFU counts the flop of the MFU and what is recomputed, so that without
    recomputation both are the same; Megatron-LM's equation 3 has a factor of its own for full recomputation.
    Without a peak no shares of it, without a layout nothing of what is recomputed. MFU and HFU are shares of the peak
    in the precision's dtype, also where products have a format of their own; then there are those of its peak besides.
    """
    convention = run.reported.flop_convention
    assert prediction.model_flop is not None  # a step has a batch
    needed, needed_as = prediction.model_flop * 1.0, MODEL_CONVENTION
    executed, executed_as = prediction.hardware_flop and float(prediction.hardware_flop), HARDWARE_CONVENTION
    if convention is not None:
        needed_as = model_convention(convention).value
        needed = prediction.flop[needed_as]
        if executed is not None:
            executed = needed + (executed - prediction.model_flop)
            executed_as = f"{needed_as}{RECOMPUTED}"
    if convention is _RECOMPUTED and _recomputes(layout):
        executed, executed_as = prediction.flop[convention.value], convention.value
    tokens = tokens_per_second(
        samples=run.recipe.global_batch, sequence=run.architecture.sequence, step_seconds=step_seconds
    )
    counted = [(Quantity.MODEL_FLOP_PER_SECOND, Quantity.MFU, needed, needed_as)]
    if executed is not None:
        counted.append((Quantity.HARDWARE_FLOP_PER_SECOND, Quantity.HFU, executed, executed_as))
    figures = [Figure(Quantity.TOKENS_PER_SECOND, tokens, term=term)]
    for quantity, _, flop, counted_as in counted:
        rate = flop_per_second(flop=flop, step_seconds=step_seconds, accelerators=accelerators)
        figures.append(Figure(quantity, rate, term=term, convention=counted_as))
    if peak is None:
        return figures
    of_peak = MEASURED_PEAK if peak.is_measured else ""
    own_peak = f"of the peak in {run.recipe.product_format.peak_dtype}"
    shares = [(peak.flop_per_second, term)]
    if peak.product_flop_per_second is not None:
        shares.append((peak.product_flop_per_second, f"{term}, {own_peak}" if term else own_peak))
    for highest, share_term in shares:
        for _, quantity, flop, counted_as in counted:
            share = utilization(
                flop=flop, step_seconds=step_seconds, accelerators=accelerators, peak_flop_per_second=highest
            )
            figures.append(Figure(quantity, share, term=share_term, convention=counted_as + of_peak))
    return figures
