"""The figures of a run's prediction, and of its publication, under the same names."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import FlopConvention, Measurement, Recipe, ReferenceRun
from reference_runs.sourced import Kind, Sourced
from suite.figures import Figure, Quantity
from suite.predict.economics import (
    accelerator_cost,
    accelerator_seconds,
    energy_cost,
    energy_joules,
    training_seconds,
    training_steps,
)
from suite.predict.flop import conventional_flop
from suite.predict.initial_loss import FIRST_LOSS_REASON, FIRST_LOSS_TOLERANCE
from suite.predict.machine import Machine
from suite.predict.run_prediction import RunPrediction
from suite.predict.step import flop_per_second, hfu, mfu, tokens_per_second
from suite.predict.traffic import sent_bytes

MODEL_CONVENTION = "all matrix products, full attention square, head included, no recomputation"
HARDWARE_CONVENTION = "as model_flop, and recomputation"
PLAIN = "plain machine"
AT_PUBLISHED_TIME = "at the published step time"

_RECOMPUTED = FlopConvention.MEGATRON_RECOMPUTED


class Prices(NamedTuple):
    """What a training is charged at, in one currency; None where nothing is charged.

    Args:
        accelerator_hour: price of one accelerator for an hour.
        kilowatt_hour: price of energy.
        power_usage_effectiveness: what the building draws for each joule that its machines draw; 1: machines alone.
    """

    accelerator_hour: float | None = None
    kilowatt_hour: float | None = None
    power_usage_effectiveness: float = 1.0


NO_PRICES = Prices()


def model_convention(convention: FlopConvention) -> FlopConvention:
    """The convention of the MFU of a source whose rates count as `convention`: without recomputation."""
    return FlopConvention.MEGATRON_MODEL if convention is _RECOMPUTED else convention


def predicted_figures(
    run: ReferenceRun,
    recipe: Recipe,
    layout: Layout | None,
    machine: Machine | None,
    prediction: RunPrediction,
    prices: Prices = NO_PRICES,
) -> list[Figure]:
    """Every predicted figure of `run` under a layout and on a machine, in the order of the vocabulary.

    Flop rates, MFU and HFU are counted under the convention of the published ones (Megatron-LM's equation 3 where none
    is published).
    """
    figures = [Figure(quantity=Quantity.PARAMETERS, value=sum(prediction.parameters.values()))]
    figures.append(Figure(quantity=Quantity.MODEL_FLOP, value=prediction.model_flop, convention=MODEL_CONVENTION))
    figures += [
        Figure(quantity=Quantity.MODEL_FLOP, value=flop, term=name, convention=name)
        for name, flop in prediction.flop.items()
        if name != _RECOMPUTED.value
    ]
    if prediction.hardware_flop is not None:
        figures.append(
            Figure(quantity=Quantity.HARDWARE_FLOP, value=prediction.hardware_flop, convention=HARDWARE_CONVENTION)
        )
    if layout is not None and layout.recomputation is Recomputation.FULL:
        flop = prediction.flop[_RECOMPUTED.value]
        figures.append(
            Figure(quantity=Quantity.HARDWARE_FLOP, value=flop, term=_RECOMPUTED.value, convention=_RECOMPUTED.value)
        )
    if prediction.first_loss is not None:
        figures.append(
            Figure(
                quantity=Quantity.FIRST_LOSS,
                value=prediction.first_loss,
                tolerance=FIRST_LOSS_TOLERANCE,
                why=FIRST_LOSS_REASON,
            )
        )
    convention = run.reported.total_flop_convention or run.reported.flop_convention or _RECOMPUTED
    steps = training_steps(tokens=recipe.tokens, global_batch=recipe.global_batch, sequence=run.architecture.sequence)
    figures.append(
        Figure(
            quantity=Quantity.TRAINING_FLOP,
            value=prediction.flop[convention.value] * steps,
            convention=convention.value,
        )
    )
    figures += _memory_figures(prediction)
    if layout is not None:
        figures += _traffic_figures(layout, prediction)
        figures += _time_figures(run, recipe, layout, machine, prediction, prices)
    return figures


def _memory_figures(prediction: RunPrediction) -> list[Figure]:
    """State, activations and peak: the largest over stages, then every stage's; the fullest stage's parts."""
    if not prediction.memory:
        return []
    figures: list[Figure] = []
    by_quantity = {
        Quantity.WEIGHT_BYTES: [m.weights for m in prediction.memory],
        Quantity.GRADIENT_BYTES: [m.gradients for m in prediction.memory],
        Quantity.OPTIMIZER_BYTES: [m.gradient_copy + m.master_weights + m.moments for m in prediction.memory],
        Quantity.ACTIVATION_BYTES: [m.activations + m.logits for m in prediction.memory],
        Quantity.PEAK_BYTES: [m.peak for m in prediction.memory],
    }
    for quantity, values in by_quantity.items():
        figures.append(Figure(quantity=quantity, value=max(values)))
        figures += [Figure(quantity=quantity, value=value, stage=stage) for stage, value in enumerate(values)]
    if prediction.reserved_bytes is not None:
        figures.append(
            Figure(
                quantity=Quantity.PEAK_BYTES,
                value=prediction.reserved_bytes,
                term="reserved",
                convention="PyTorch's caching allocator without fragmentation",
            )
        )
    return figures


def _traffic_figures(layout: Layout, prediction: RunPrediction) -> list[Figure]:
    """Payload, messages and sent bytes by axis and operation: the largest over stages, then each stage's."""
    per_stage: list[Figure] = []
    for stage, entries in prediction.traffic.items():
        for entry in entries:
            values = {
                Quantity.PAYLOAD_BYTES: entry.payload_bytes,
                Quantity.MESSAGES: entry.messages,
                Quantity.SENT_BYTES: sent_bytes(entry, layout),
            }
            per_stage += [
                Figure(quantity=quantity, value=value, axis=entry.axis, operation=entry.operation, stage=stage)
                for quantity, value in values.items()
            ]
    largest: dict[tuple[object, ...], Figure] = {}
    for figure in per_stage:
        key = (figure.quantity, figure.axis, figure.operation)
        if key not in largest or figure.value > largest[key].value:
            largest[key] = figure
    whole = [Figure(quantity=f.quantity, value=f.value, axis=f.axis, operation=f.operation) for f in largest.values()]
    return whole + per_stage


def _time_figures(
    run: ReferenceRun,
    recipe: Recipe,
    layout: Layout,
    machine: Machine | None,
    prediction: RunPrediction,
    prices: Prices,
) -> list[Figure]:
    figures: list[Figure] = []
    if prediction.bubble_fraction is not None:
        figures.append(Figure(quantity=Quantity.BUBBLE_FRACTION, value=prediction.bubble_fraction))
    if prediction.step is None or machine is None:
        return figures
    step, accelerators, sequence = prediction.step.total_seconds, layout.ranks, run.architecture.sequence
    figures.append(Figure(quantity=Quantity.STEP_SECONDS, value=step, convention=PLAIN))
    figures += [
        Figure(quantity=Quantity.STEP_SECONDS, value=seconds, term=name.removesuffix("_seconds"))
        for name, seconds in prediction.step._asdict().items()
        if seconds
    ]
    figures += rate_figures(
        run, recipe, prediction, step_seconds=step, accelerators=accelerators, machine=machine, term=None
    )
    seconds = training_seconds(
        tokens=recipe.tokens, global_batch=recipe.global_batch, sequence=sequence, step_seconds=step
    )
    figures.append(Figure(quantity=Quantity.TRAINING_SECONDS, value=seconds, why="without stops and batch ramp-up"))
    held = accelerator_seconds(accelerators=accelerators, seconds=seconds)
    figures.append(Figure(quantity=Quantity.ACCELERATOR_SECONDS, value=held, why="without stops and batch ramp-up"))
    if prices.accelerator_hour is not None:
        cost = accelerator_cost(accelerator_seconds=held, price_per_accelerator_hour=prices.accelerator_hour)
        figures.append(Figure(quantity=Quantity.COST, value=cost, term="accelerators", why="at the price given"))
    if machine.watts is not None:
        energy = energy_joules(
            accelerator_seconds=held,
            watts=machine.watts,
            power_share=machine.power_share,
            power_usage_effectiveness=prices.power_usage_effectiveness,
        )
        overhead = f"power usage effectiveness {prices.power_usage_effectiveness:g}"
        figures.append(Figure(quantity=Quantity.ENERGY_JOULES, value=energy, why=f"accelerators alone, {overhead}"))
        if prices.kilowatt_hour is not None:
            cost = energy_cost(energy_joules=energy, price_per_kilowatt_hour=prices.kilowatt_hour)
            figures.append(Figure(quantity=Quantity.COST, value=cost, term="energy", why="at the price given"))
    return figures


def rate_figures(
    run: ReferenceRun,
    recipe: Recipe,
    prediction: RunPrediction,
    *,
    step_seconds: float,
    accelerators: int,
    machine: Machine,
    term: str | None,
) -> list[Figure]:
    """Tokens per second, flop rates, MFU and HFU that follow from a step time, under the published convention."""
    convention = run.reported.flop_convention or _RECOMPUTED
    needed = prediction.flop[model_convention(convention).value]
    executed = prediction.flop[_RECOMPUTED.value]
    peak = machine.peak_flop_per_second
    figures = [
        Figure(
            quantity=Quantity.TOKENS_PER_SECOND,
            value=tokens_per_second(
                samples=recipe.global_batch, sequence=run.architecture.sequence, step_seconds=step_seconds
            ),
            term=term,
        ),
        Figure(
            quantity=Quantity.MODEL_FLOP_PER_SECOND,
            value=flop_per_second(flop=needed, step_seconds=step_seconds, accelerators=accelerators),
            term=term,
            convention=model_convention(convention).value,
        ),
        Figure(
            quantity=Quantity.MFU,
            value=mfu(
                model_flop=needed, step_seconds=step_seconds, accelerators=accelerators, peak_flop_per_second=peak
            ),
            term=term,
            convention=model_convention(convention).value,
        ),
    ]
    if convention is _RECOMPUTED:
        figures += [
            Figure(
                quantity=Quantity.HARDWARE_FLOP_PER_SECOND,
                value=flop_per_second(flop=executed, step_seconds=step_seconds, accelerators=accelerators),
                term=term,
                convention=convention.value,
            ),
            Figure(
                quantity=Quantity.HFU,
                value=hfu(
                    hardware_flop=executed,
                    step_seconds=step_seconds,
                    accelerators=accelerators,
                    peak_flop_per_second=peak,
                ),
                term=term,
                convention=convention.value,
            ),
        ]
    return figures


def published_figures(run: ReferenceRun) -> list[Figure]:
    """What was published of the run's outcome."""
    reported, convention = run.reported, run.reported.flop_convention
    rate = convention.value if convention else None
    needed = model_convention(convention).value if convention else None
    total = reported.total_flop_convention.value if reported.total_flop_convention else None
    published = (
        (Quantity.PARAMETERS, "parameters", None),
        (Quantity.PEAK_BYTES, "peak_bytes", None),
        (Quantity.STEP_SECONDS, "step_seconds", None),
        (Quantity.TOKENS_PER_SECOND, "tokens_per_second", None),
        (Quantity.MODEL_FLOP_PER_SECOND, "model_flop_per_second", needed),
        (Quantity.HARDWARE_FLOP_PER_SECOND, "hardware_flop_per_second", rate),
        (Quantity.MFU, "mfu", needed),
        (Quantity.HFU, "hfu", rate),
        (Quantity.TRAINING_FLOP, "total_flop", total),
        (Quantity.TRAINING_SECONDS, "duration", None),
        (Quantity.ACCELERATOR_SECONDS, "accelerator_seconds", None),
    )
    return [
        Figure(
            quantity=quantity,
            value=value,
            convention=counted,
            why=_origin(run.facts[f"reported.{key}"]),
        )
        for quantity, key, counted in published
        if (value := getattr(reported, key)) is not None
    ]


def _origin(fact: Sourced) -> str:
    return fact.source if fact.kind is Kind.DERIVED else f"published in {fact.source}"


def figures_at_published_times(
    run: ReferenceRun, prediction: RunPrediction, machine: Machine | None
) -> tuple[list[Figure], list[Figure]]:
    """Rates that follow from published step times by arithmetic alone, and the rates that were published with them.

    They hold without a model of the machine: flop of a step under the source's convention, over its own step time.
    """
    computed: list[Figure] = []
    published: list[Figure] = []
    reported, convention = run.reported, run.reported.flop_convention
    accelerators = run.cluster.accelerators if run.cluster else None
    if machine is not None and reported.step_seconds is not None and accelerators is not None:
        computed += rate_figures(
            run,
            run.recipe,
            prediction,
            step_seconds=reported.step_seconds,
            accelerators=accelerators,
            machine=machine,
            term=AT_PUBLISHED_TIME,
        )
        rates = {computed_figure.quantity for computed_figure in computed}
        published += [
            msgspec.structs.replace(figure, term=AT_PUBLISHED_TIME, why="")
            for figure in published_figures(run)
            if figure.quantity in rates
        ]
    if convention is None:
        return computed, published
    if machine is not None and reported.step_seconds is None and reported.accelerator_seconds and reported.mfu:
        steps = run.recipe.tokens / (run.recipe.global_batch * run.architecture.sequence)
        counted = model_convention(convention)
        share = mfu(
            model_flop=prediction.flop[counted.value] * steps,
            step_seconds=reported.accelerator_seconds,
            accelerators=1,
            peak_flop_per_second=machine.peak_flop_per_second,
        )
        term = "published accelerator time"
        computed.append(Figure(quantity=Quantity.MFU, value=share, term=term, convention=counted.value))
        published.append(Figure(quantity=Quantity.MFU, value=reported.mfu, term=term, convention=counted.value))
    for measured in run.measured:
        if measured.step_seconds is None or measured.hardware_flop_per_second is None:
            continue
        flop = conventional_flop(run.architecture, samples=measured.global_batch, convention=convention)
        rate = flop_per_second(flop=flop, step_seconds=measured.step_seconds, accelerators=measured.accelerators)
        term = _measurement(measured)
        quantity = Quantity.HARDWARE_FLOP_PER_SECOND
        computed.append(Figure(quantity=quantity, value=rate, term=term, convention=convention.value))
        published.append(
            Figure(
                quantity=quantity,
                value=measured.hardware_flop_per_second,
                term=term,
                convention=convention.value,
            )
        )
    return computed, published


def _measurement(measured: Measurement) -> str:
    return f"{measured.accelerators} accelerators, batch {measured.global_batch}, {measured.step_seconds:g} s"
