"""How long a step takes on a machine whose capabilities were measured, term by term."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.options import Optimization, StepOptions
from suite.machine.timing_tables import MeasuredTimes, Subject
from suite.predict.analytic.process_groups import group_ranks, key_value_copies
from suite.predict.simulation.cost_model import CostModel
from suite.predict.simulation.operator_calls import (
    ChunkCalls,
    batch_tensor_bytes,
    loading_calls,
    micro_batch_calls,
    update_calls,
)
from suite.predict.simulation.pipeline_schedule import Durations, flop_durations, idle_fraction
from suite.predict.simulation.replicated_schedule import replica_steps
from suite.predict.simulation.traffic import executed_traffic_of_dtypes


class StepSeconds(NamedTuple):
    """Seconds of one rank's step by term, in the order of `StepTerm`; they sum to the step."""

    data_loading: float
    copy: float
    forward: float
    backward: float
    communication: float
    bubble: float
    optimizer: float
    overhead: float

    @property
    def step(self) -> float:
        """Seconds of the step."""
        return sum(self)


class StepConditions(NamedTuple):
    """Conditions of a step's time besides a profile.

    Args:
        sample_seconds: to read and tokenise a sample's documents, where the script does so.
        cores: that the ranks and their workers share.
        correction_factor: how many times as long what is timed alone takes within a step (see step_correction.py).
    """

    sample_seconds: float = 0.0
    cores: int = 1
    correction_factor: float = 1.0


DEFAULT_CONDITIONS = StepConditions()


class _Passes(NamedTuple):
    """Seconds of a stage's micro-batches, all of a step; `durations` of the mean micro-batch by chunk's number."""

    forward: float
    backward: float
    overhead: float
    durations: dict[int, tuple[float, float]]

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.overhead


def step_seconds(
    measured: MeasuredTimes, workload: Workload, options: StepOptions, conditions: StepConditions = DEFAULT_CONDITIONS
) -> list[StepSeconds]:
    """Seconds of a step of every pipeline stage's ranks, by term.

    With m micro-batches, and the operator calls of a micro-batch through the rank's chunks, all of it
    `correction_factor` times, but for what tokenising takes:
        data loading        m batches made on the host, see `loading_seconds`; 0 on CUDA where they are pinned: the host
                            makes the next one while the device computes, which is overhead
        copy                their tensors to the device, on CUDA, from pageable memory; 0 where they are pinned: each is
                            copied while the device computes on the one before it
        forward, backward   sums over the calls, each at its own sizes; backward with recomputation
        overhead            what the host does for them: all of it on a CPU, on CUDA what it takes longer than the
                            device, by micro-batch and for the update (`CostModel.exposed_overhead`)
        communication       the rank's messages, each as long as the mean of its kind (axis, operation, element type);
                            none hidden where ranks compute on processors, which also carry the messages
        bubble              the time in which the schedule leaves the rank idle, with the mean micro-batch of each
                            chunk: from the first pass of all stages to the last one, less the rank's own passes
        optimizer           the update's calls; what the host does for them belongs to the overhead

    Raises:
        InputError: the profile lacks one of the operations.
    """
    cost = CostModel(measured, workload, cuda=options.kernels.cuda)
    training = options.training_options
    making = cost.overhead(loading_calls(workload))
    ahead = options.kernels.cuda and training.pinned and not (training.tokenises or training.workers)
    copying = 0.0
    if options.kernels.cuda and not training.pinned:
        sent = Subject(operation="host_to_device", variant="pageable", ranks=workload.layout.ranks)
        copying = sum(measured.seconds(sent, size) for size in batch_tensor_bytes(workload))
    stages: list[StepSeconds] = []
    passes: list[_Passes] = []
    for stage in range(workload.layout.pipeline_stages):
        micro_batches = accumulation(workload.recipe, workload.layout.at_stage(stage))
        chunks = micro_batch_calls(workload.at_stage(stage), options, stage=stage)
        captured = Optimization.MICRO_BATCH_GRAPH in training.optimizations
        passes.append(_passes(cost, chunks, micro_batches, besides=making if ahead else 0.0, captured=captured))
        update = update_calls(workload.at_stage(stage), training, stage=stage, replica=0)
        stages.append(
            StepSeconds(
                data_loading=0.0 if ahead else micro_batches * making,
                copy=micro_batches * copying,
                forward=passes[-1].forward,
                backward=passes[-1].backward,
                communication=_communication(measured, workload, options, stage=stage),
                bubble=0.0,
                optimizer=cost.arithmetic(update, backward=False),
                overhead=passes[-1].overhead + cost.exposed_overhead(update, waits=training.synchronises),
            )
        )
    if workload.layout.pipeline_stages > 1:
        stages = _with_bubbles(stages, passes, workload)
    stages = [StepSeconds(*(conditions.correction_factor * seconds for seconds in stage)) for stage in stages]
    if training.tokenises or training.workers:
        stages = _with_loading(stages, workload, options, conditions)
    longest = max(stage.step for stage in stages)
    return [stage._replace(communication=stage.communication + longest - stage.step) for stage in stages]


def epilogue_seconds(measured: MeasuredTimes, workload: Workload, options: StepOptions) -> float:
    """Seconds of a step that are bytes which epilogues move beside their GEMMs', on the stage that has most of them.

    By so much a step is shorter if the arithmetic of GEMMs hides all of them.
    """
    if Optimization.EPILOGUES not in options.training_options.optimizations:
        return 0.0
    cost = CostModel(measured, workload, cuda=options.kernels.cuda)
    of_stages = []
    for stage in range(workload.layout.pipeline_stages):
        at = workload.at_stage(stage)
        seconds = sum(
            times * cost.seconds(call)
            for chunk in micro_batch_calls(at, options, stage=stage)
            for (_, call), times in chunk.calls.items()
            if call.operation == "epilogue"
        )
        of_stages.append(accumulation(at.recipe, at.layout) * seconds)
    return max(of_stages)


def _passes(
    cost: CostModel, chunks: list[ChunkCalls], micro_batches: int, *, besides: float, captured: bool
) -> _Passes:
    """Passes of a stage; the last micro-batch apart, whose gradients are reduced.

    Args:
        besides: seconds of the host for each micro-batch, in addition to its chunks.
        captured: whether they are launched as graphs.
    """
    forward = backward = overhead = 0.0
    durations: dict[int, tuple[float, float]] = {}
    for place, chunk in enumerate(chunks):
        more = 0.0 if place else besides
        of_host = (micro_batches - 1) * cost.exposed_overhead(chunk.calls, besides=more, captured=captured)
        of_host += cost.exposed_overhead(chunk.last, besides=more, captured=captured)
        chunk_forward = micro_batches * cost.arithmetic(chunk.calls, backward=False)
        chunk_backward = (micro_batches - 1) * cost.arithmetic(chunk.calls, backward=True)
        chunk_backward += cost.arithmetic(chunk.last, backward=True)
        durations[chunk.number] = chunk_forward / micro_batches, (chunk_backward + of_host) / micro_batches
        forward += chunk_forward
        backward += chunk_backward
        overhead += of_host
    return _Passes(forward, backward, overhead, durations)


def _with_bubbles(stages: list[StepSeconds], passes: list[_Passes], workload: Workload) -> list[StepSeconds]:
    """The stages of a pipeline with the time that each is idle; the weights' half of a backward pass is as its flop."""
    layout, flop = workload.layout, flop_durations(workload)
    by_chunk = {chunk: seconds for of_stage in passes for chunk, seconds in of_stage.durations.items()}
    forward, backward = zip(*(by_chunk[chunk] for chunk in sorted(by_chunk)), strict=True)
    weight = [whole * half / all_ for whole, half, all_ in zip(backward, flop.weight, flop.backward, strict=True)]
    durations, micro_batches = Durations(list(forward), list(backward), weight), accumulation(workload.recipe, layout)
    if layout.stage_replicas is None:
        idle = idle_fraction(layout, durations, micro_batches=micro_batches)
        whole = sum(of_stage.seconds for of_stage in passes) / layout.pipeline_stages / (1 - idle)
    else:
        whole = replica_steps(layout, durations, micro_batches=micro_batches).seconds
    return [
        stage._replace(bubble=max(0.0, whole - of_stage.seconds))  # less than 0 by rounding alone
        for stage, of_stage in zip(stages, passes, strict=True)
    ]


def _with_loading(
    stages: list[StepSeconds], workload: Workload, options: StepOptions, conditions: StepConditions
) -> list[StepSeconds]:
    """The stages of a script that tokenises, or that has workers make its batches."""
    layout, training, cores = workload.layout, options.training_options, conditions.cores
    samples = accumulation(workload.recipe, layout) * layout.micro_batch
    tokenising = samples * conditions.sample_seconds * training.tokenises
    return [
        stage._replace(
            data_loading=loading_seconds(
                stage.data_loading + tokenising,
                training=stage.step - stage.data_loading,
                workers=training.workers,
                cores=cores,
                ranks=layout.ranks,
                threads=max(1, cores // layout.ranks),
                cuda=options.kernels.cuda,
            )
        )
        for stage in stages
    ]


def loading_seconds(
    making: float, *, training: float, workers: int, cores: int, ranks: int, threads: int, cuda: bool
) -> float:
    """Seconds that a step is longer for its batches.

    With M seconds to make a rank's batches on one core, T seconds of training, w workers of each of n ranks of t
    threads each, c cores, f = (c - n t) / n cores of each rank in addition to its threads, at most w, and x = M - f T:
        M                               without workers: nothing else happens meanwhile
        max(min(x / (f + 1), T), x / w) with them, where x > 0; else 0
    x is what is left to make when the workers on those f cores made what they can while the rank trains. One more
    shares a core with a thread of the rank, half each, and the other threads wait for that one at the next barrier: in
    2 y seconds the worker does y of its work, the rank y of its own, and the f others f y more than x counts. So
    x = (f + 1) y, and y is lost. With every core in use, f = 0, nothing is gained up to M = T: a step is M + T. More
    workers then share the cores of threads that wait anyway: no more than T is lost, until the rank waits for batches,
    x / w. With a GPU every worker has a core of its own, f = w: max(0, M / w - T).

    Assumed: a queue that is full until the rank waits, so that each batch that is taken asks for one more, and one
    worker of a rank works at a time as long as M < T; cores shared fairly; w <= f + t; ranks that wait for each other
    at every step, so that f is rounded down: a core for one of them alone gains nothing.
    """
    if not workers:
        return making
    free_cores = workers if cuda else min(workers, max(0, cores - ranks * threads) // ranks)
    left = max(0.0, making - free_cores * training)
    return max(min(left / (free_cores + 1), training), left / workers)


def _communication(measured: MeasuredTimes, workload: Workload, options: StepOptions, *, stage: int) -> float:
    """Seconds of all messages of one rank of `stage`.

    Each takes as long as if it were the mean of its axis, operation and element type. All-reduce and reduce-scatter add
    in that type; what only moves bytes takes as long in every type, and is measured in fp32.
    """
    seconds, tensor_parallel = 0.0, workload.layout.tensor_parallel
    copies = key_value_copies(workload.architecture, tensor_parallel=tensor_parallel)
    typed = executed_traffic_of_dtypes(workload, options, stage=stage, replica=0)
    for element_type, traffic in typed.items():
        for axis, operation, payload, messages in traffic:
            dtype = element_type if operation in ("all_reduce", "reduce_scatter") else "fp32"
            ranks, share = group_ranks(workload.layout.at_stage(stage), axis, head_copies=copies), 1.0
            if operation == "send":
                ranks, share = 2, 0.5  # a call is a message and its answer
            subject = Subject(operation=operation, dtype=dtype, ranks=ranks)
            seconds += share * messages * measured.seconds(subject, payload / messages)
    return seconds
