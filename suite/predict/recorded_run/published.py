"""Published outcomes of a run as figures, and arithmetic that follows from them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.incomplete import missing_keys
from reference_runs.layout import layout_text
from reference_runs.run import PublishedMeasurement, ReferenceRun, Workload
from reference_runs.sourced import Kind, Sourced
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.flop_conventions import causal_half_flop, conventional_flop, model_convention
from suite.predict.analytic.machine import AcceleratorPeak, Machine
from suite.predict.analytic.training_cost import flop_per_second, implausible_share, utilization
from suite.predict.recorded_run.figures import MODEL, rate_figures
from suite.predict.recorded_run.prediction import RunPrediction, run_prediction

AT_PUBLISHED_TIME = "at the published step time"
AT_PUBLISHED_RATE = "at the published tokens per second"
AT_PUBLISHED_ACCELERATOR_TIME = "at the published accelerator time"
FROM_SAMPLES = "from published samples per second"
BY_ARITHMETIC = (AT_PUBLISHED_TIME, AT_PUBLISHED_RATE, AT_PUBLISHED_ACCELERATOR_TIME, FROM_SAMPLES)


def published_figures(run: ReferenceRun) -> list[Figure]:
    """Figures of the run's published outcome."""
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
        Figure(quantity, value, convention=counted, why=_origin(run.facts[f"reported.{key}"]))
        for quantity, key, counted in published
        if (value := getattr(reported, key)) is not None
    ]


def _origin(fact: Sourced) -> str:
    return fact.source if fact.kind is Kind.DERIVED else f"published in {fact.source}"


OF_THE_MODEL = (Quantity.PARAMETERS, Quantity.TRAINING_FLOP)  # whatever the machine and the layout


def measured_where(run: ReferenceRun) -> str | None:
    """The recorded machine and layout in words; None where they are not recorded."""
    if run.recorded_layout is None or run.cluster is None:
        return None
    return f"on {run.recorded_layout.ranks} {run.cluster.accelerator}, {layout_text(run.recorded_layout)}"


def measured_elsewhere(figure: Figure, run: ReferenceRun) -> Figure:
    """A published figure next to a prediction for another machine or layout: it says where it was measured."""
    where = measured_where(run)
    if where is None or figure.quantity in OF_THE_MODEL:
        return figure
    return msgspec.structs.replace(figure, why=f"published {where}")


ComputedPublished = tuple[Figure, Figure]  # computed and published


def figures_at_published_times(
    run: ReferenceRun, prediction: RunPrediction, peak: AcceleratorPeak | None
) -> tuple[list[Figure], list[Figure]]:
    """Rates that follow from published step times by arithmetic alone, and the rates that were published with them.

    They hold without a model of the machine, and of its network: flop of a step under the source's convention, over its
    own step time; shares where the accelerator's peak is known.
    """
    computed, published = _at_step_time(run, prediction, peak)
    pairs = [*_at_accelerator_time(run, prediction, peak), *_at_measured_times(run)]
    return computed + [pair[0] for pair in pairs], published + [pair[1] for pair in pairs]


def _published_accelerators(run: ReferenceRun) -> int | None:
    """How many accelerators the published step time is of: those of the cluster, else of the recorded layout."""
    if run.cluster is not None and run.cluster.accelerators is not None:
        return run.cluster.accelerators
    return run.recorded_layout.ranks if run.recorded_layout else None


def _published_step(run: ReferenceRun) -> tuple[float, str] | None:
    """Seconds of a step as published, or as published tokens per second say, and which of the two; None: neither.

    Raises:
        MissingFactError: a published rate of a run without a batch.
    """
    if run.reported.step_seconds is not None:
        return run.reported.step_seconds, AT_PUBLISHED_TIME
    if run.reported.tokens_per_second is not None:
        tokens = run.recipe.global_batch * run.architecture.sequence
        return tokens / run.reported.tokens_per_second, AT_PUBLISHED_RATE
    return None


def _at_step_time(
    run: ReferenceRun, prediction: RunPrediction, peak: AcceleratorPeak | None
) -> tuple[list[Figure], list[Figure]]:
    """Rates of a step that takes as long as the published one."""
    reported, accelerators = run.reported, _published_accelerators(run)
    if accelerators is None or prediction.model_flop is None or (step := _published_step(run)) is None:
        return [], []
    seconds, term = step
    computed = rate_figures(
        run, run.recorded_layout, prediction, step_seconds=seconds, accelerators=accelerators, peak=peak, term=term
    )
    rates = {figure.quantity for figure in computed}
    published = [
        msgspec.structs.replace(figure, term=term, why="")
        for figure in published_figures(run)
        if figure.quantity in rates
    ]
    if reported.samples_per_second is not None:
        tokens = reported.samples_per_second * run.architecture.sequence
        same = next(figure for figure in computed if figure.quantity is Quantity.TOKENS_PER_SECOND)
        computed.append(msgspec.structs.replace(same, term=FROM_SAMPLES))
        published.append(Figure(Quantity.TOKENS_PER_SECOND, tokens, term=FROM_SAMPLES))
    return computed, published


def implausible_time(run: ReferenceRun, peak: AcceleratorPeak | None) -> str | None:
    """In words, that a published step time or rate is too fast for the flop that no kernel can leave out; None: not so.

    That is the model flop with what a mask leaves of the attention square, see `causal_half_flop`.
    """
    accelerators = _published_accelerators(run)
    if peak is None or accelerators is None or "global_batch" in missing_keys(run.recipe):
        return None
    if (step := _published_step(run)) is None:
        return None
    words = implausible_share(
        flop=causal_half_flop(run.architecture, samples=run.recipe.global_batch),
        step_seconds=step[0],
        accelerators=accelerators,
        peak=peak.product_flop_per_second or peak.flop_per_second,
    )
    return words and f"{step[1]} {words}"


def _at_accelerator_time(
    run: ReferenceRun, prediction: RunPrediction, peak: AcceleratorPeak | None
) -> Iterator[ComputedPublished]:
    """MFU of a whole training that takes the published accelerator-hours, where no step time is published."""
    reported, convention = run.reported, run.reported.flop_convention
    if convention is None or peak is None or reported.step_seconds is not None:
        return
    if not reported.accelerator_seconds or not reported.mfu or missing_keys(run.recipe):
        return
    steps = run.recipe.tokens / (run.recipe.global_batch * run.architecture.sequence)
    counted = model_convention(convention)
    share = utilization(
        flop=prediction.flop[counted.value] * steps,
        step_seconds=reported.accelerator_seconds,
        accelerators=1,
        peak_flop_per_second=peak.flop_per_second,
    )
    computed = Figure(Quantity.MFU, share, term=AT_PUBLISHED_ACCELERATOR_TIME, convention=counted.value)
    yield computed, msgspec.structs.replace(computed, value=reported.mfu)


def _at_measured_times(run: ReferenceRun) -> Iterator[ComputedPublished]:
    """Flop rates of the recorded measurements that have both a step time and a rate."""
    convention = run.reported.flop_convention
    for measured in run.measured:
        if convention is None or measured.step_seconds is None or measured.hardware_flop_per_second is None:
            continue
        flop = conventional_flop(run.architecture, samples=measured.global_batch, convention=convention)
        computed = Figure(
            Quantity.HARDWARE_FLOP_PER_SECOND,
            flop_per_second(flop=flop, step_seconds=measured.step_seconds, accelerators=measured.accelerators),
            term=_measurement(measured),
            convention=convention.value,
        )
        yield computed, msgspec.structs.replace(computed, value=measured.hardware_flop_per_second)


def measured_figures(run: ReferenceRun, machine: Machine | None) -> tuple[list[Figure], list[Figure]]:
    """Predicted and published step time (or, where that is not published, flop rate) of each recorded measurement.

    Each is predicted under its own layout and batch; none where the layout cannot be divided so.
    """
    pairs = [] if machine is None else list(_of_measurements(run, machine))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _of_measurements(run: ReferenceRun, machine: Machine) -> Iterator[ComputedPublished]:
    convention = run.reported.flop_convention
    known = run.recorded_layout is not None and not missing_keys(run.recipe)
    for measured in run.measured if known else ():
        workload = _of_measurement(run.workload, measured)
        if workload.layout.ranks != measured.accelerators:
            continue
        check_layout(workload, run.where)
        step = run_prediction(workload, machine).step
        if step is None:
            continue
        term = f"predicted: {_measurement(measured)}"
        if measured.step_seconds is not None:
            computed = Figure(Quantity.STEP_SECONDS, step.total_seconds, term=term, convention=MODEL)
            yield computed, msgspec.structs.replace(computed, value=measured.step_seconds, convention=None)
        elif measured.hardware_flop_per_second is not None and convention is not None:
            flop = conventional_flop(run.architecture, samples=measured.global_batch, convention=convention)
            rate = flop_per_second(flop=flop, step_seconds=step.total_seconds, accelerators=measured.accelerators)
            computed = Figure(Quantity.HARDWARE_FLOP_PER_SECOND, rate, term=term, convention=convention.value)
            yield computed, msgspec.structs.replace(computed, value=measured.hardware_flop_per_second)


_OF_LAYOUT = (
    "micro_batch",
    "tensor_parallel",
    "pipeline_stages",
    "virtual_stages",
    "context_parallel",
    "expert_parallel",
)


def _of_measurement(workload: Workload, measured: PublishedMeasurement) -> Workload:
    """The run's workload, with what the measurement records of its own."""
    architecture, recipe, layout = workload
    changes = {name: value for name in _OF_LAYOUT if (value := getattr(measured, name)) is not None}
    shape = {name: value for name in ("sequence", "layers") if (value := getattr(measured, name)) is not None}
    architecture = msgspec.structs.replace(architecture, **shape)
    changed = msgspec.structs.replace(layout, data_parallel=measured.data_parallel, accumulation=None, **changes)
    return Workload(architecture, msgspec.structs.replace(recipe, global_batch=measured.global_batch), changed)


def _measurement(measured: PublishedMeasurement) -> str:
    time = "" if measured.step_seconds is None else f", {measured.step_seconds:g} s"
    shape = "" if measured.sequence is None else f", sequence {measured.sequence}"
    shape += "" if measured.layers is None else f", {measured.layers} layers"
    return f"{measured.accelerators} accelerators, batch {measured.global_batch}{shape}{time}"
