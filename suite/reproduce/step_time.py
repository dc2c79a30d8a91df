"""Step time of a reproduction: predicted from this machine's profile, as shares of peaks, and next to the measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import dense_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.job.options import Averaging, KernelChoice
from suite.machine.cpu_speed import AtCpuSpeed, SpeedSample, slowdown
from suite.machine.devices import usable_cores
from suite.machine.half_precision import WORK_DTYPES, kernels_for
from suite.machine.profile import Profile
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import MeasuredTimes, Oversubscribed
from suite.metrics.comparison import Row
from suite.metrics.figures import OF_DATASHEET, Figure, Quantity, StepTerm, of_job
from suite.predict.executed_run.step_time import time_figures
from suite.predict.machine_model.from_profile import known_accelerator
from suite.predict.simulation.step_correction import nearest_reference_step, step_correction, uncertainty
from suite.predict.simulation.step_time import StepConditions
from suite.reproduce.plan import Plan

CPU_SPEED_REASON = "seconds of a fixed computation, over its seconds in the calibration (docs/step_time.md); not judged"
AT_CPU_SPEED_REASON = "the calibrated machine with its processors at that speed; not judged"
OF_ACHIEVABLE = "of the achievable matrix rate"
EXPLAINED = tuple(term.value for term in StepTerm if term is not StepTerm.UNEXPLAINED)
_SHARE_OF = {Quantity.MODEL_FLOP_PER_SECOND: Quantity.MFU, Quantity.HARDWARE_FLOP_PER_SECOND: Quantity.HFU}


def predicted_times(plan: Plan, profile: Profile | None, sample_seconds: float = 0.0) -> list[Figure]:
    """Predicted step time with its terms, rates, and their shares of peaks; nothing without a profile.

    Raises:
        InputError: the profile lacks an operation, or has no times of the kernels.
    """
    if profile is None:
        return []
    check_timed(plan)
    times = time_figures_of(plan, profile, factor=correction_factor(plan, profile), sample_seconds=sample_seconds)
    return times + utilisation(times, peaks_of(plan, profile))


def check_timed(plan: Plan) -> None:
    """Refuse what no calibration has times of.

    Raises:
        InputError: other kernels than PyTorch's, another averaging than the exact one, products in a format of their
            own, or ranks that share a GPU.
    """
    if plan.shares_devices:
        what, got = "no times of ranks that share a GPU", f"{plan.layout.ranks} ranks"
        raise InputError(what, got=got, where="--share-devices")
    if plan.recipe.product_format.casts:
        what, got = "products without a measured time", plan.recipe.product_format.value
        raise InputError(what, got=got, allowed="none", where="--gemm-dtype")
    if plan.kernels is not KernelChoice.TORCH:
        raise InputError("kernels without a measured time", got=plan.kernels, allowed="torch", where="--kernels")
    if plan.averaging is not Averaging.EXACT:
        where = "--optimizer, --gradient-compression"
        raise InputError("averaging without a measured time", got=plan.averaging, allowed="exact", where=where)


def peaks_of(plan: Plan, profile: Profile) -> list[Peak]:
    """The peak rates that a plan's utilisation is a share of."""
    return peaks(profile, plan.recipe.precision, ranks=plan.layout.ranks, cores=_cores(plan))


def _cores(plan: Plan) -> int:
    """Cores of all ranks together: hosts that ssh enters have as many as this one."""
    return usable_cores() * max(1, len(plan.host_names))


class CpuSpeedFigures(NamedTuple):
    """Figures of the processors' slowdown since the calibration, and of the step at that speed."""

    predicted: list[Figure]
    measured: list[Figure]


def at_cpu_speed(
    plan: Plan, profile: Profile, speed: SpeedSample, measured: list[Figure], *, sample_seconds: float = 0.0
) -> CpuSpeedFigures:
    """Slowdown and step time at the CPU speed of `measured`.

    Nothing where the profile has no speed, or the step is not predicted. `speed` is of the steps in `measured`.
    """
    calibrated = profile.cpu_speed(ranks=plan.layout.ranks)
    if calibrated is None:
        return CpuSpeedFigures([], [])
    slower = slowdown(speed, calibrated)
    factor = correction_factor(plan, profile)  # measured while steps and parts ran at the same CPU speed
    slowed = time_figures_of(plan, AtCpuSpeed(profile, slower), factor=factor, sample_seconds=sample_seconds)
    expected, took = of_job(slowed, Quantity.STEP_SECONDS), of_job(measured, Quantity.STEP_SECONDS)
    if expected is None or took is None:
        return CpuSpeedFigures([], [])
    kinds = msgspec.structs.asdict(slower)
    return CpuSpeedFigures(
        predicted=[
            *(Figure(quantity=Quantity.CPU_SLOWDOWN, term=kind, value=1.0, why=CPU_SPEED_REASON) for kind in kinds),
            Figure(quantity=Quantity.STEP_SECONDS_AT_CPU_SPEED, value=expected, why=AT_CPU_SPEED_REASON),
        ],
        measured=[
            *(Figure(quantity=Quantity.CPU_SLOWDOWN, term=kind, value=value) for kind, value in kinds.items()),
            Figure(quantity=Quantity.STEP_SECONDS_AT_CPU_SPEED, value=took),
        ],
    )


def correction_factor(plan: Plan, profile: Profile) -> float:
    """Measured over modelled seconds of the nearest reference training step; 1 where none was timed.

    Raises:
        InputError: the profile lacks an operation.
    """
    timed = _reference_step(plan, profile)
    if timed is None:
        return 1.0
    return step_correction(profile, timed, kernels=kernels_for(timed.step.recipe.precision, plan.device)).factor


def step_uncertainty(plan: Plan, profile: Profile) -> float | None:
    """Share of a plan's predicted step by which measured ones may differ; None: not known, on CUDA."""
    timed = _reference_step(plan, profile)
    return None if timed is None else uncertainty(timed, profile.checks)


def _reference_step(plan: Plan, profile: Profile) -> TimedReferenceStep | None:
    return nearest_reference_step(
        profile.reference_steps, ranks=min(plan.layout.ranks, _cores(plan)), compiled=plan.compiled
    )


def time_figures_of(
    plan: Plan, measured: MeasuredTimes, *, factor: float = 1.0, sample_seconds: float = 0.0
) -> list[Figure]:
    """Step time of a plan from measured times, multiplied by `factor`.

    Raises:
        InputError: it lacks an operation.
    """
    if plan.device == "cpu":
        measured = Oversubscribed(measured, cores=_cores(plan))
    return time_figures(
        measured,
        plan.workload,
        plan.step_options,
        StepConditions(sample_seconds=sample_seconds, cores=usable_cores(), correction_factor=factor),
    )


class Peak(NamedTuple):
    """A rate of one accelerator that others are shares of.

    Args:
        name: what the share is of: the figure's term.
    """

    name: str
    flop_per_second: float


def peaks(profile: Profile, precision: Precision, *, ranks: int, cores: int) -> list[Peak]:
    """The data sheet's dense peak where the catalog knows the GPU, and the highest rate that products reached.

    The latter with as many ranks at once: see `Profile.achievable_flop_per_second`. With more ranks than cores, ranks
    share the rate.

    Raises:
        InputError: no product in that precision was measured.
    """
    at_once = min(ranks, cores) if profile.fingerprint.device == "cpu" else ranks
    rate = profile.achievable_flop_per_second(WORK_DTYPES[precision], ranks=at_once) * at_once / ranks
    achievable = Peak(OF_ACHIEVABLE, rate)
    device = known_accelerator(profile)
    if device is None:
        return [achievable]
    return [Peak(OF_DATASHEET, dense_peak_flop_per_second(device, WORK_DTYPES[precision])), achievable]


def utilisation(figures: Sequence[Figure], of: Iterable[Peak]) -> list[Figure]:
    """mfu and hfu for each flop rate of the job among `figures` and each peak; the peak's name is their term."""
    return [
        Figure(quantity=_SHARE_OF[figure.quantity], term=peak.name, value=figure.value / peak.flop_per_second)
        for figure in figures
        if figure.quantity in _SHARE_OF and figure.rank is None and figure.term is None
        for peak in of
    ]


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step time and its prediction.

    Args:
        difference: measured less predicted seconds of the step.
        term: whose measured seconds are furthest from the predicted ones; `residual` how far, with its sign.
        unexplained_seconds: of the measured step, in no term.
    """

    predicted_seconds: float
    measured_seconds: float
    difference: float
    term: str
    residual: float
    unexplained_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def unexplained_share(self) -> float:
        """Unexplained share of the measured step, without sign."""
        return abs(self.unexplained_seconds) / self.measured_seconds


def residuals(rows: Sequence[Row]) -> Residuals | None:
    """Residuals of the job's rows; None where step time was not predicted or not split."""
    of_job = [row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None]
    predicted = {row.term: row.left for row in of_job if row.left is not None}
    measured = {row.term: row.right for row in of_job if row.right is not None}
    terms = {term: measured[term] - predicted[term] for term in EXPLAINED if term in predicted and term in measured}
    if None not in predicted or not measured.get(None) or not terms:
        return None
    furthest = max(terms, key=lambda term: abs(terms[term]))
    return Residuals(
        predicted_seconds=predicted[None],
        measured_seconds=measured[None],
        difference=measured[None] - predicted[None],
        term=furthest,
        residual=terms[furthest],
        unexplained_seconds=measured.get(StepTerm.UNEXPLAINED.value, 0.0),
    )
