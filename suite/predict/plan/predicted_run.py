"""The answer of `predict` about one run, as its options ask."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.catalog import check_layout, miniatures, reference_run
from reference_runs.configurations.models import run_called
from reference_runs.errors import InputError
from reference_runs.incomplete import NotPredicted
from reference_runs.layout import Layout, layout_text, named_fields, parse_layout
from reference_runs.miniature import miniature
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from reference_runs.stack import NO_KEEPING
from suite.machine.profile import DISTURBED_SHARE, Profile, disturbed, read, unsuitable
from suite.metrics.comparison import Row, compare
from suite.metrics.figures import Quantity
from suite.predict.analytic.memory_uncertainty import Fitting, PeakUncertainty, peak_kind, peak_uncertainty
from suite.predict.analytic.offload import has_time
from suite.predict.analytic.usable_memory import UsableMemory, usable_memory
from suite.predict.machine_model.from_profile import profiled_machine
from suite.predict.machine_model.intervals import step_interval
from suite.predict.machine_model.model import RunMachine, run_machine
from suite.predict.machine_model.unsaid_layout import as_executed, usual_layout
from suite.predict.plan.asked import (
    USUAL_ACCELERATOR,
    AskedTraining,
    Assumed,
    another_number,
    asked_run,
    check_micro_batch,
    machine_assumptions,
    with_products,
)
from suite.predict.plan.plan import question_of
from suite.predict.plan.search import search
from suite.predict.recorded_run.figures import Prices, predicted_figures
from suite.predict.recorded_run.from_slice import SlicedStep, sliced_step
from suite.predict.recorded_run.prediction import RunPrediction, prediction_without_layout, run_prediction
from suite.predict.recorded_run.published import (
    figures_at_published_times,
    implausible_time,
    measured_elsewhere,
    measured_figures,
    published_figures,
)
from suite.predict.recorded_run.slice_parts import MeasuredSlice

_REFUSED_OF_MINIATURES = ("on", "machine", "layout", "network", "stack", "products", "gpus")
_OF_THE_ACCELERATOR = (Quantity.MFU, Quantity.HFU, Quantity.ENERGY_JOULES)  # by its data sheet


class Predicted(NamedTuple):
    """One run's comparison, and what its breakdown is printed from; a miniature has rows alone.

    Args:
        missing: what is not predicted, with the reason.
        is_of_record: of the recorded machine and layout, so that it compares with what was published.
        remark: what the published step time contradicts.
        sliced: the step, where parts of it were measured.
        request: the request, with what was assumed of it and a layout that was searched.
        assumed: what neither run nor request says.
        notes: what a reader may not expect of the answers.
    """

    rows: list[Row]
    run: ReferenceRun | None = None
    layout: Layout | None = None
    machine: RunMachine | None = None
    prediction: RunPrediction | None = None
    missing: tuple[str, ...] = ()
    is_of_record: bool = True
    remark: str | None = None
    sliced: SlicedStep | None = None
    request: PredictionRequest | None = None
    assumed: tuple[Assumed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def memory(self) -> UsableMemory | None:
        """Memory of the accelerator; None where it is not known."""
        return usable_memory(self.machine.accelerator.board) if self.machine else None

    @property
    def memory_bytes(self) -> float | None:
        """Bytes of it that are usable."""
        return self.memory.usable if self.memory else None

    @property
    def uncertainty(self) -> float | None:
        """Relative error of the step time that is to be expected; None where it is not known."""
        if self.sliced:
            return self.sliced.high_seconds / self.sliced.step_seconds - 1
        return self.machine.uncertainty if self.machine else None

    @property
    def step_interval(self) -> tuple[float, float] | None:
        """Least and most seconds of the step, its 80 % interval; None where no step is predicted."""
        if self.sliced:
            return self.sliced.low_seconds, self.sliced.high_seconds
        if self.run is None or self.machine is None or self.prediction is None or self.prediction.step is None:
            return None
        return step_interval(self.prediction.step, self.run.architecture, self.machine.beyond_tables)

    @property
    def peak_uncertainty(self) -> PeakUncertainty:
        """The uncertainty of the peak, as the stack's memory is predicted."""
        return peak_uncertainty(peak_kind(self.machine.stack.switches.keeping if self.machine else NO_KEEPING))

    @property
    def peak_interval(self) -> tuple[float, float] | None:
        """Least and most bytes at the fullest instant, its 80 % interval; None where no memory is predicted."""
        return None if self.peak_bytes is None else self.peak_uncertainty.interval(self.peak_bytes)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of step time and peak, as far as they are predicted."""
        found = {Quantity.STEP_SECONDS: self.step_interval, Quantity.PEAK_BYTES: self.peak_interval}
        return {quantity: interval for quantity, interval in found.items() if interval}

    @property
    def peak_bytes(self) -> float | None:
        """Bytes of the fullest stage at its fullest instant; None where no memory is predicted."""
        memory = self.prediction.memory if self.prediction else ()
        return max((stage.peak for stage in memory), default=None)

    @property
    def fitting(self) -> Fitting | None:
        """Whether the fullest stage fits; None where its peak or the accelerator is not known."""
        peak, usable = self.peak_bytes, self.memory_bytes
        return None if peak is None or usable is None else self.peak_uncertainty.fitting(peak, usable)


class PredictionRequest(NamedTuple):
    """Options of `predict`; None where an option is absent.

    Args:
        machine: profile of the machine to predict for.
        network: bytes per second out of a node.
        gpus: accelerators; a run without a layout for as many gets the fastest that fits.
        training: values in place of the run's own.
    """

    on: str | None
    machine: Profile | None
    layout: str | None
    network: float | None
    prices: Prices
    stack: str | None
    products: ProductFormat | None = None
    slices: tuple[MeasuredSlice, ...] = ()
    gpus: int | None = None
    training: AskedTraining = AskedTraining()

    @property
    def is_of_record(self) -> bool:
        """Whether the run's own machine, software and training are asked about."""
        changes = (self.on, self.machine, self.network, self.stack, self.products)
        return not any(changes) and self.training == AskedTraining()


def undisturbed_profile(path: Path) -> Profile:
    """The profile in a file, if it is whole and others left the processors alone while it was measured."""
    profile = read(path)
    if why := unsuitable(profile):
        raise InputError("a partial machine profile", got=f"one {why}", allowed="a whole one", where=str(path))
    if why := disturbed(profile):
        allowed = f"at most {DISTURBED_SHARE:.0%} together, calibrate again while nothing else runs"
        raise InputError("a disturbed machine profile", got=f"one {why}", allowed=allowed, where=str(path))
    return profile


def predicted_run(name: str, request: PredictionRequest) -> Predicted:
    """The comparison of a run with what was published of it; of a miniature its figures.

    Args:
        name: of a recorded run, of a miniature, a run file, or a model or its config.json that a formula describes.

    Raises:
        InputError: no such run, or something of the request that it does not have, or that does not go with it.
    """
    minis = miniatures()
    if name in minis:
        return _predicted_miniature(name, request)
    return prediction_of_run(run_called(name, sequence=request.training.sequence, also=minis), request)


def prediction_of_run(run: ReferenceRun, request: PredictionRequest, *, by_stage: bool = True) -> Predicted:
    """The comparison of a run's facts with what was published of it.

    Args:
        by_stage: with the figures of single stages and of messages.

    Raises:
        InputError: something of the request does not go with the run.
    """
    recorded = run.recorded_layout
    run, layout, request, assumed, notes = _settled(with_products(run, request.products), request)
    is_recorded_layout = layout == recorded
    absent = NotPredicted()
    missing = [] if layout else ["memory, traffic, step time: no layout divides model, batch and accelerators"]
    machine = None
    with absent.unless("machine"):
        machine = requested_machine(run, layout, request)
        if machine is None:
            missing.append("no accelerator is recorded: give one with --on")
        elif machine.missing:
            missing.append(f"{machine.missing}: give the --network of a node")
        elif layout and machine.machine and not has_time(layout, machine.machine):
            missing.append(f"step time: transfers to and from the host are not described (offloaded: {layout.offload})")
    if layout and machine:
        assumed += machine_assumptions(machine, ranks=layout.ranks)
        layout = as_executed(run, layout, layout_words(run, request), machine.stack)
        machine, of_memory = machine.with_memory_for(Workload(run.architecture, run.recipe, layout))
        notes += of_memory
    able = machine.machine if machine else None
    keeping = machine.stack.switches.keeping if machine else None
    predicted = (
        run_prediction(Workload(run.architecture, run.recipe, layout), able, absent, keeping=keeping)
        if layout
        else prediction_without_layout(run.architecture, run.recipe, absent)
    )
    if not run.architecture.norm.before:
        missing.append(f"first_loss: the formula holds for pre-norm, not for {run.architecture.norm}")
    elif run.architecture.experts is not None or run.architecture.key_value_rank is not None:
        of = "latent attention" if run.architecture.experts is None else "experts"
        missing.append(f"first_loss: the formula holds for dense layers, not for {of}")
    predicted, sliced = _sliced(run, layout, machine, predicted, request.slices)
    left = predicted_figures(run, layout, able, predicted, request.prices, absent, by_stage=by_stage)
    right = published_figures(run)
    remark = None
    is_of_record = is_recorded_layout and request.is_of_record
    if machine and sliced and not is_accelerator(sliced.device, machine.accelerator.name):
        is_of_record = False
        left = [figure for figure in left if figure.quantity not in _OF_THE_ACCELERATOR]
        missing.append(f"mfu, hfu, energy: the slice was measured on {sliced.device}, no {machine.accelerator.name}")
    if is_of_record or (run.unpublished and request.is_of_record):
        peak = machine.peak if machine else None
        measured = measured_figures(run, able) if is_of_record and not sliced else ([], [])
        for computed, published in (figures_at_published_times(run, predicted, peak), measured):
            left += computed
            right += published
        remark = implausible_time(run, peak)
    elif run.recorded_layout is not None:
        right = [measured_elsewhere(figure, run) for figure in right]
    rows = compare(left, right, left_name="predicted", right_name="published", judge=False)
    reasons = (*missing, *absent.reasons)
    return Predicted(
        rows, run, layout, machine, predicted, reasons, is_of_record, remark, sliced, request, assumed, notes
    )


class _AskedLayout(NamedTuple):
    """The run with what was asked and assumed, its layout, and the request with both; see `Predicted`."""

    run: ReferenceRun
    layout: Layout | None
    request: PredictionRequest
    assumed: tuple[Assumed, ...]
    notes: tuple[str, ...]


def _settled(run: ReferenceRun, request: PredictionRequest) -> _AskedLayout:
    """The run and its layout as asked for; a layout that neither gives is the fastest that fits.

    Raises:
        InputError: a layout that model, batch or accelerators are not divided by.
    """
    asked_layout = requested_layout(run, request)
    on = USUAL_ACCELERATOR if request.machine is not None else request.on  # a profile has its own, of any name
    asked = asked_run(run, request.training, on=on, ranks=request.gpus, layout=asked_layout)
    run, assumed = asked.run, asked.assumed
    if request.machine is None:
        request = request._replace(on=asked.on)
    if asked_layout is not None:
        check_layout(Workload(run.architecture, run.recipe, asked_layout), "--layout" if request.layout else run.where)
        return _AskedLayout(run, asked_layout, request, assumed, asked.notes)
    layout = _fastest_layout(run, request, asked.ranks)
    if layout is None:
        return _AskedLayout(run, None, request, assumed, asked.notes)
    request = request._replace(layout=layout_text(layout, complete=True))
    if layout.ranks > 1:
        assumed += (Assumed("this layout: the fastest that fits", "--layout"),)
    return _AskedLayout(run, layout, request, assumed, asked.notes)


def requested_layout(run: ReferenceRun, request: PredictionRequest) -> Layout | None:
    """The layout that options or run give; None: none, or of another number of accelerators than is asked for.

    Raises:
        InputError: words that are no layout, or one of another number of accelerators than --gpus.
    """
    layout, training = parsed_layout(run, request), request.training
    if layout is None:
        return None
    if request.gpus not in (None, layout.ranks):
        if request.layout is None:
            return None
        raise another_number(layout, request.layout, request.gpus or 0)
    if training.micro_batch is not None:
        layout = msgspec.structs.replace(layout, micro_batch=training.micro_batch, accumulation=None)
    if training.batch is not None:
        layout = msgspec.structs.replace(layout, accumulation=None)
    return layout


def _fastest_layout(run: ReferenceRun, request: PredictionRequest, ranks: int) -> Layout | None:
    """The fastest layout that fits on so many accelerators, else the one of least memory; None: none divides."""
    machine = requested_machine(run, Layout(data_parallel=ranks), request)
    if machine is None or machine.machine is None:
        return Layout(fused_attention=usual_layout(run, request.stack).fused_attention) if ranks == 1 else None
    micro_batch = request.training.micro_batch
    check_micro_batch(run.recipe.global_batch, micro_batch)
    fixed = {} if micro_batch is None else {"micro_batch": micro_batch}
    found = search(question_of(run, machine, ranks=ranks, fixed=fixed, global_batch=None), top=1)
    best = found.best[0] if found.best else found.smallest
    return None if best is None else best.layout


def _predicted_miniature(name: str, request: PredictionRequest) -> Predicted:
    from suite.predict.executed_run.counts import prediction  # of miniatures alone

    of_training = {f"--{name.replace('_', '-')}": value for name, value in request.training._asdict().items()}
    of_request = {f"--{name}": getattr(request, name) for name in _REFUSED_OF_MINIATURES}
    for given, value in {**of_request, "--from": request.slices, **of_training}.items():
        if value not in (None, ()):
            raise InputError(
                "is for recorded runs and run files", got=f"{given} with the miniature {name}", where=given
            )
    small = miniature(reference_run(miniatures()[name]), "cpu", ranks=2)
    return Predicted(
        compare(prediction(small.workload), [], left_name="predicted", right_name="published", judge=False)
    )


def _sliced(
    run: ReferenceRun,
    layout: Layout | None,
    machine: RunMachine | None,
    predicted: RunPrediction,
    slices: tuple[MeasuredSlice, ...],
) -> tuple[RunPrediction, SlicedStep | None]:
    """The prediction with the step that follows from measured slices, where there are any."""
    if not slices:
        return predicted, None
    if layout is None or machine is None or machine.machine is None or predicted.step is None:
        raise InputError("no step time of the run is predicted: see `predict` without --from", where="--from")
    workload = Workload(run.architecture, run.recipe, layout)
    step, sliced = sliced_step(run.name, workload, machine.machine, slices, uncertainty=machine.uncertainty)
    return predicted._replace(step=step), sliced


def requested_machine(run: ReferenceRun, layout: Layout | None, request: PredictionRequest) -> RunMachine | None:
    """The machine that is asked for, the run's own by default; None where neither names an accelerator."""
    if request.machine is not None:
        return profiled_machine(
            request.machine, run, layout, network_bytes_per_second=request.network, stack_name=request.stack
        )
    return run_machine(
        run.cluster,
        run.recipe.precision,
        run.recipe.product_format,
        ranks=layout.ranks if layout else 1,
        accelerator_name=request.on,
        network_bytes_per_second=request.network,
        software=run.software,
        stack_name=request.stack,
        stages=layout is not None and layout.pipeline_stages > 1,
        architecture=run.architecture,
    )


def layout_words(run: ReferenceRun, request: PredictionRequest) -> str | None:
    """The words of `--layout`; of attention those of the measured slice, where neither words nor record say it."""
    words = request.layout
    if words is None or run.recorded_layout is not None or not request.slices:
        return words
    if "fused_attention" in named_fields(words, where="--layout"):
        return words
    return f"{words},{'fused' if request.slices[0].job.layout.fused_attention else 'unfused'}"


def parsed_layout(run: ReferenceRun, request: PredictionRequest) -> Layout | None:
    """The recorded layout, or the one of the words that were given; None where neither is known."""
    words = layout_words(run, request)
    return run.recorded_layout if words is None else parse_layout(words, base=usual_layout(run, request.stack))


def is_accelerator(device: str, name: str) -> bool:
    """Whether a device, as its driver calls it, is the catalog's accelerator of that name."""
    try:
        return accelerator(device).name == name
    except InputError:
        return False
