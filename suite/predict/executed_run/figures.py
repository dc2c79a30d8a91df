"""What arithmetic expects of a launch, and its comparison with the launch: the rows that decide whether it passes."""

from __future__ import annotations

import msgspec

from suite.job.options import Averaging, KernelChoice, Update
from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row, compare
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.counts import prediction
from suite.predict.executed_run.memory import memory_figures
from suite.predict.simulation.state import executed_state, parameter_tensors_of_rank


def expected_figures(job: Job, *, kernels: Kernels, cores: int) -> list[Figure]:
    """Everything but times that is predicted of a job: counts, state, traffic, memory, and the first loss.

    Args:
        kernels: of the machine that runs it.
        cores: of that machine, that the ranks may use.
    """
    options = job.step_options(kernels)
    alone = job.device == "cuda" or job.layout.ranks <= cores
    predicted = countable(job.averaging, prediction(job.workload, options, own_processors=alone))
    if job.script.update is Update.ADAFACTOR:
        predicted = [_of_adafactor(job, figure) for figure in predicted]
    if job.kernels is KernelChoice.TORCH:  # what Triton's keep and need is not described
        memory = memory_figures(job.workload, options)
        # nor what other ways of averaging take in passing
        exact = job.averaging is Averaging.EXACT
        predicted += [figure for figure in memory if exact or figure.quantity is not Quantity.PEAK_BYTES]
    return predicted


def _of_adafactor(job: Job, figure: Figure) -> Figure:
    """A figure, or what Adafactor keeps and computes in place of Adam; a script's update is that of one rank.

    The product of rows and columns, which estimates a matrix's second moment, is one of matrices: 2 flop an element.
    """
    if figure.quantity is Quantity.HARDWARE_FLOP and figure.term is None:
        tensors = parameter_tensors_of_rank(job.architecture, job.layout, stage=0)
        flop = 2 * sum(tensor.elements for tensor in tensors if tensor.matrix)
        return msgspec.structs.replace(figure, value=figure.value + flop)
    if figure.quantity is Quantity.OPTIMIZER_BYTES:
        state = executed_state(job.workload, stage=0, replica=0, update=job.script.update)
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
