"""Figures that arithmetic expects of a launch, and their comparison with it: the rows that decide whether it passes."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Offload
from reference_runs.run import Workload
from suite.job.options import Averaging, KernelChoice, StepOptions, Update
from suite.job.slice import WITHIN_LAYERS
from suite.job.training_job import Job
from suite.machine.gpu import HEAD_DIM_STEP, SdpaBackend, sdpa_backend
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row, compare
from suite.metrics.figures import ACTIVATIONS, ALLOCATED, Figure, Quantity, of_processes, with_maximum_over_ranks
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.executed_run.counts import figures_at, of_every_rank, prediction
from suite.predict.executed_run.parameter_store import store_figures, stored_workload
from suite.predict.simulation.state import RankPosition, executed_state, parameter_tensors_of_rank, rank_position
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes

MEMORY_TOLERANCE = 0.02
ATTENTION_IN_PASSING = 1.6e6  # bytes at most, see `AttentionOperators.attention`; a slice's peak may lie there
ACTIVATION_REASON = "the same operators keep the same tensors; the tolerance is for other versions of them"
PEAK_REASON = "every block of a step but the smallest; communication threads free theirs a little late"
UNPROVEN = "not judged: {} is not proven"


def expected_figures(job: Job, *, kernels: Kernels, cores: int) -> list[Figure]:
    """Everything but times that is predicted of a job: counts, state, traffic, memory, and the first loss.

    Args:
        kernels: of the machine that runs it.
        cores: of that machine, that the ranks may use.
    """
    options = job.step_options(kernels)
    if job.slice is not None:
        return of_processes([_of_slice(job, rank, options) for rank in job.slice.places])
    if job.synchronisation is not None:
        memory = memory_figures(stored_workload(job.workload), memory_options(options, job.kernels))
        # what the threads of a store take in passing is not described
        kept = [figure for figure in memory if figure.quantity is not Quantity.PEAK_BYTES]
        return store_figures(job.workload, options) + kept
    alone = job.device == "cuda" or job.layout.ranks <= cores
    predicted = countable(job.averaging, prediction(job.workload, options, own_processors=alone))
    if job.training_options.update is Update.ADAFACTOR:
        predicted = [_of_adafactor(job, figure) for figure in predicted]
    if job.kernels is KernelChoice.TORCH or job.device == "cuda":  # of Triton's on a CPU their references run
        memory = memory_figures(job.workload, memory_options(options, job.kernels))
        # what other ways of averaging take in passing is not described
        exact = job.averaging is Averaging.EXACT
        predicted += [figure for figure in memory if exact or figure.quantity is not Quantity.PEAK_BYTES]
    return predicted


def _of_slice(job: Job, rank: int, options: StepOptions) -> list[Figure]:
    """Counts of one rank, without messages to ranks that other layers or samples are on."""
    position, memory = rank_position(job.layout, rank), memory_options(options, job.kernels)
    tolerance, why = _judged_peak(job.workload, options)
    peak = peak_figure(job.workload, position, memory, tolerance=tolerance, why=why, sliced=True)
    if job.layout.fused_attention and job.device == "cpu" and MEMORY_TOLERANCE * peak.value < ATTENTION_IN_PASSING:
        why = UNPROVEN.format("what a CPU's fused attention holds in passing")
        peak = msgspec.structs.replace(peak, tolerance=None, why=why)
    figures = [*figures_at(job.workload, position, options), activation_figure(job.workload, position, memory), peak]
    sent = Quantity.SENT_BYTES
    return [f for f in figures if f.quantity is not sent and (f.axis is None or f.axis in WITHIN_LAYERS)]


def memory_options(options: StepOptions, kernels: KernelChoice) -> StepOptions:
    """`options` as memory depends on them."""
    return msgspec.structs.replace(options, triton=kernels is KernelChoice.TRITON)


def _of_adafactor(job: Job, figure: Figure) -> Figure:
    """A figure, or what Adafactor keeps and computes in place of Adam; a script's update is that of one rank.

    The product of rows and columns, which estimates a matrix's second moment, is one of matrices: 2 flop an element.
    """
    if figure.quantity is Quantity.HARDWARE_FLOP and figure.term is None:
        tensors = parameter_tensors_of_rank(job.architecture, job.layout, stage=0)
        flop = 2 * sum(tensor.elements for tensor in tensors if tensor.matrix)
        return msgspec.structs.replace(figure, value=figure.value + flop)
    if figure.quantity is Quantity.OPTIMIZER_BYTES:
        state = executed_state(job.workload, stage=0, replica=0, update=job.training_options.update)
        return msgspec.structs.replace(figure, value=state.optimizer_bytes)
    return figure


def countable(averaging: Averaging, figures: list[Figure]) -> list[Figure]:
    """The figures that can be counted with this averaging: all, but with PowerSGD.

    PyTorch's hook multiplies and sends in the threads in which its messages end, where no counter looks: what it sends
    shows on a network interface alone, in `sent_bytes`.
    """
    if averaging is not Averaging.POWER_SGD:
        return figures
    hidden = {(Quantity.PAYLOAD_BYTES, "dp"), (Quantity.MESSAGES, "dp"), (Quantity.HARDWARE_FLOP, None)}
    return [figure for figure in figures if (figure.quantity, figure.axis) not in hidden]


def judged(expected: list[Figure], times: list[Figure], measured: list[Figure]) -> list[Row]:
    """Predicted figures, with the times that a profile gave, compared with the measured ones."""
    return compare([*expected, *times], measured, left_name="predicted", right_name="measured", judge=True)


def memory_figures(workload: Workload, options: StepOptions) -> list[Figure]:
    """Activation bytes and peak bytes of each rank, after the largest over ranks; for layouts that `describes_ranks`.

    No peak where activations are offloaded: what comes back to the device in the backward pass, weights among it, is
    not described. Nor where state is, on a GPU: what is of it on the device, and for how long, is not described.
    Each is a simulation of a step, 0.01 to 0.5 s, so that they do not belong to `prediction`.
    """
    tolerance, why = _judged_peak(workload, options)
    has_state_elsewhere = options.kernels.cuda and workload.layout.offload is not Offload.NONE
    without_peak = options.training_options.offloads_activations or has_state_elsewhere

    def memory_at(position: RankPosition) -> list[Figure]:
        activations = activation_figure(workload, position, options)
        if without_peak:
            return [activations]
        return [activations, peak_figure(workload, position, options, tolerance=tolerance, why=why)]

    return with_maximum_over_ranks(of_every_rank(workload.layout, memory_at))


def _judged_peak(workload: Workload, options: StepOptions) -> tuple[float | None, str]:
    """The tolerance of a peak, None where it is not judged, and why."""
    unproven = unproven_peak(workload, options.kernels)
    return (None, UNPROVEN.format(unproven)) if unproven else (MEMORY_TOLERANCE, PEAK_REASON)


def activation_figure(workload: Workload, position: RankPosition, options: StepOptions) -> Figure:
    """Activation bytes of a rank at one position, without its number."""
    kept = executed_activation_bytes(workload, options, stage=position.stage)
    tolerance, why = MEMORY_TOLERANCE, ACTIVATION_REASON
    return Figure(Quantity.ACTIVATION_BYTES, kept, convention=ACTIVATIONS, tolerance=tolerance, why=why)


def peak_figure(
    workload: Workload,
    position: RankPosition,
    options: StepOptions,
    *,
    tolerance: float | None,
    why: str,
    sliced: bool = False,
) -> Figure:
    """Peak bytes of a rank at one position, without its number."""
    peak = executed_peak_bytes(workload, options, stage=position.stage, replica=position.replica, sliced=sliced)
    return Figure(Quantity.PEAK_BYTES, peak, convention=ALLOCATED, tolerance=tolerance, why=why)


def unproven_peak(workload: Workload, kernels: Kernels) -> str | None:
    """Reason why a run's peak is not judged; None where it was compared with PyTorch's allocator.

    Compared on CPUs: the miniatures on one rank and on two of each axis, experts shared out over two among them. Not
    ZeRO-2 and 3 over several ranks, nor gradients that are reduce-scattered: gloo's threads send them while the rank
    computes on, and hold messages and their copies a while longer. Of 30 ranks' peaks (three launches of five runs on 2
    ranks, 300,000 to 1,500,000 parameters, 2026-11-26) 14 were the predicted ones to 500 bytes, 10 larger by one to
    three whole messages of a unit, and 6, of a mixture with ZeRO-2, by as much as the gradient of its contractions,
    which is predicted since. Of mixtures, whose layers have many weights for their activations, that was 2 to 14 %.
    Compared on simulated GPUs, where PyTorch's caching allocator is the real one: the same, and ZeRO-3. What
    cuDNN's attention takes only a GPU will show.
    """
    recipe, layout = workload.recipe, workload.layout
    if kernels.cuda:
        backend = sdpa_backend(
            kernels.gpu,
            half=WEIGHT_ELEMENT_BYTES[recipe.precision] < FP32,
            head_dim=workload.architecture.fused_head_dim,
            dropout=recipe.attention_dropout,
        )
        if layout.fused_attention and backend is SdpaBackend.CUDNN:
            return "cuDNN's workspace"
        padded = layout.fused_attention and workload.architecture.fused_head_dim % HEAD_DIM_STEP > 0
        return "attention padded by PyTorch" if padded else None
    if recipe.product_format.casts:
        return "what this CPU takes for products in 8 bits"
    if layout.zero_stage >= 2 and layout.state_ranks > 1:
        return "fully sharded state"
    if layout.scatters_gradients:
        return "reduce-scattered gradients"
    return None
