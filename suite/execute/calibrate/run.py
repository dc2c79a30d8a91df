"""Measures the tasks of a calibration on one rank; several ranks measure at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, product

import msgspec
import torch
import torch.distributed as dist

from suite.execute.calibrate import host_calls, operators
from suite.execute.calibrate.collectives import TimedCollective, collective, collective_repetitions
from suite.execute.calibrate.moments import RankComparison
from suite.execute.calibrate.operators import DTYPES, Inputs
from suite.execute.calibrate.reference_step import ReferenceTraining
from suite.execute.calibrate.stopwatch import HOST_BYTES, MOST_OVERWRITTEN, OPERATORS_BYTES, Stopwatch
from suite.execute.measure.clock import Call
from suite.execute.measure.cpu_speed import MOST_SAMPLES_IN_A_ROW, SpeedSampler
from suite.execute.measure.system_load import GpuLog, SharedProcessors, environment, own_seconds, processor_facts
from suite.execute.parallel.mesh import slowest
from suite.execute.precision import products_through_fp32
from suite.job.calibration_job import Calibrated, CalibrationJob, Task, TimedTask
from suite.job.events import Event, Phase
from suite.machine import cpu_caches
from suite.machine.operations import COLLECTIVES, HOST_CALLS
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions

SEED = 20261121
TASKS_BETWEEN_SAMPLES = 8  # four samples at a time
TIMED: dict[str, Callable[[Subject, tuple[int, ...], Inputs], Call]] = {
    "product": operators.product,
    "square_product": operators.square_product,
    "batched_product": operators.batched_product,
    "attention": operators.attention,
    **dict.fromkeys((*operators.ONE_TENSOR, "add", "from_fp32"), operators.elementwise),
    **dict.fromkeys(("zeros", "permuted", "bias", "accumulate"), operators.without_autograd),
    **dict.fromkeys(("column_sum", "vector_norm"), operators.without_autograd),
    **dict.fromkeys((*operators.NORMS, "softmax", "cross_entropy", "embedding"), operators.rows),
    **dict.fromkeys(("copy", "triad"), operators.memory),
    **dict.fromkeys(("host_to_device", "device_to_host"), operators.transfer),
    **dict.fromkeys(("adam", "adam_tensors"), operators.adam),
    "calls": host_calls.calls,
    **dict.fromkeys(("view", "engine", "module"), host_calls.chained),
    "weight_read": host_calls.weight_reads,
    "checkpoint": host_calls.checkpoints,
    "region": host_calls.regions,
}


class Bench:
    """One rank's stopwatch and inputs, and the process groups of the ranks that measure at once.

    Attributes:
        control: by number of ranks, a gloo group for decisions, also on CUDA: a rank that waits must not occupy its
            GPU. `everyone` is that of all ranks.
    """

    def __init__(self, job: CalibrationJob, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        self._inputs = Inputs(device)
        self._compiled: dict[tuple[Subject, tuple[int, ...]], Call] = {}
        self._seconds: dict[tuple[Subject, tuple[int, ...]], float] = {}  # of a call, in the previous round
        self.everyone = dist.new_group(backend="gloo")
        self.control: dict[int, dist.ProcessGroup] = {}
        self._groups: dict[int, dist.ProcessGroup] = {}
        # A gloo group is made by its members alone: on CUDA PyTorch lets the others split NCCL's communicator, which
        # waits for the members for ever. Its name has the number of groups so far, which is the same on all members
        # where the largest is made first (torch 2.11 to 2.13: _new_process_group_helper, _hash_ranks_to_str)
        for ranks in sorted({task.subject.ranks for task in job.tasks}, reverse=True):
            self.control[ranks] = dist.new_group(list(range(ranks)), backend="gloo", use_local_synchronization=True)
            self._groups[ranks] = dist.new_group(list(range(ranks)))
        self._alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]

    def repetitions(self, task: Task, sizes: tuple[int, ...], *, briefly: bool) -> Repetitions:
        """The repetitions of one point of a task. The ranks that take part start together.

        Args:
            briefly: with few warm-up calls (more where they waited for pages) and few timed calls.
        """
        subject, seconds = task.subject, task.point_seconds
        control = self.control[subject.ranks]
        timed = self._timed(subject, sizes)
        # all ranks use the same number, and no rank starts before the last one has arrived
        (longest,) = slowest(control, self._seconds.get((subject, sizes), 0.0))
        if isinstance(timed, TimedCollective):
            known = longest if briefly else None
            repetitions = collective_repetitions(timed, self._watch, control, point_seconds=seconds, known=known)
        else:
            sample: Callable[[Call], float] = self._watch.host_sample
            if subject.operation not in HOST_CALLS:
                sample = partial(self._watch.cold_sample, overwrites=self._watch.overwrites_for(timed))
            repetitions = self._watch.repetitions(timed, point_seconds=seconds, briefly=briefly, sample=sample)
        self._seconds[subject, sizes] = min(repetitions.seconds)
        return repetitions

    def operator(self, task: Task, sizes: tuple[int, ...]) -> Call:
        """The call of an operator's task."""
        return TIMED[task.subject.operation](task.subject, sizes, self._inputs)

    def _timed(self, subject: Subject, sizes: tuple[int, ...]) -> Call | TimedCollective:
        """The call with its inputs; a compiled call is that of the previous round."""
        if subject.operation in COLLECTIVES:
            return collective(subject, sizes, self._inputs, self._groups[subject.ranks])
        if subject.operation == "sharded_unit":
            return host_calls.sharded_units(subject, sizes, self._inputs, self._alone)
        call = self._compiled.get((subject, sizes)) or TIMED[subject.operation](subject, sizes, self._inputs)
        if subject.compiled:
            self._compiled[subject, sizes] = call
        return call


def calibrate(
    job: CalibrationJob, device: torch.device, report: Callable[[Event], None], blocks: ReferenceTraining
) -> Calibrated:
    """Measure the job's tasks round by round and report each; return the state of the machine during the measurement.

    The first round times every point, whatever the budget. A task that begins late in it is timed briefly.

    Args:
        blocks: of the job's reference steps, spread evenly over each round. The first round has all of them, later
            rounds have as many as fit into `reference_seconds`.
    """
    facts, gpu, processors = _prepared(device), GpuLog(device), SharedProcessors()
    rank, bench = dist.get_rank(), Bench(job, device)
    samplers = {ranks: SpeedSampler(device) for ranks in bench.control}
    moments = RankComparison(job, bench.everyone, bench.operator)
    gc.collect()
    gc.disable()  # its pauses belong to no point
    processors.start()
    start, cpu_seconds_before = time.perf_counter(), own_seconds()
    due, done, hurried, first_round_seconds = due_shares(job), 0, 0, 0.0
    blocks_before, moments_before = block_positions(due, job.blocks), block_positions(due, job.moments)
    for repeat, (number, task) in product(range(job.rounds), enumerate(job.tasks)):
        report(Phase(str(task.subject), time.time()))
        if repeat == 0 and number in moments_before:
            moments.measure()
        # the same numbers on all ranks, which wait here for each other
        spent, block_seconds, next_block_seconds = slowest(
            bench.everyone, time.perf_counter() - start - moments.seconds, blocks.seconds, blocks.next_seconds
        )
        if repeat > 0 and spent > job.budget_seconds:
            break
        room = (
            block_seconds + next_block_seconds <= job.reference_seconds
            and spent + next_block_seconds <= job.budget_seconds
        )
        if number in blocks_before and (repeat == 0 or room):
            blocks.train_block()
        task_budget = job.budget_seconds - max(block_seconds, job.reference_seconds)
        late = repeat == 0 and spent - block_seconds > due[number] * task_budget
        hurried += late
        gpu.sample()
        if rank < task.subject.ranks:
            torch.set_num_threads(task.threads)
            if number % TASKS_BETWEEN_SAMPLES == 0:
                samplers[task.subject.ranks].take_samples(MOST_SAMPLES_IN_A_ROW)
            briefly = late or (repeat > 0 and task.subject.operation in COLLECTIVES)
            points = tuple(bench.repetitions(task, sizes, briefly=briefly) for sizes in task.sizes)
            report(TimedTask(number, repeat, points, time.time()))
        done += 1
        if done == len(job.tasks):
            (first_round_seconds,) = slowest(bench.everyone, time.perf_counter() - start - moments.seconds)
    dist.barrier(group=bench.everyone)
    gpu.sample()
    processors.update()
    shared = processors.since_start
    if device.type == "cuda" and gpu.why_none:
        facts["gpu_log"] = gpu.why_none
    return Calibrated(
        seconds=time.perf_counter() - start,
        shared=shared and msgspec.structs.replace(shared, own=own_seconds() - cpu_seconds_before),
        environment=facts
        | {"rounds": f"{done / len(job.tasks):.1f}"}
        | _budget_facts(job, hurried=hurried, first_round_seconds=first_round_seconds),
        gpus=gpu.samples,
        cpu_speed={ranks: sampler.median for ranks, sampler in samplers.items() if sampler.median is not None},
        moments=moments.of_rank,
        time=time.time(),
    )


def _prepared(device: torch.device) -> dict[str, str]:
    """Set up random numbers, compilation and arithmetic; return facts of machine and settings as texts."""
    torch.manual_seed(SEED)
    torch._functorch.config.donated_buffer = False  # a compiled backward pass is repeated on the same inputs
    facts = environment(device) | processor_facts()
    for name, dtype in DTYPES.items():  # products as a training run computes them
        facts[f"{name}_products"] = "through fp32" if products_through_fp32(dtype, device) else "by the device"
    if device.type == "cpu":
        facts["overwritten_bytes"] = (
            f"{min(cpu_caches.share_bytes(), HOST_BYTES)} by each thread, {OPERATORS_BYTES} at most before "
            f"operators, {MOST_OVERWRITTEN} at most by a rank; what an operator follows on is written again"
        )
    return facts


def due_shares(job: CalibrationJob) -> list[float]:
    """The share of the first round's time after which each task should have ended: each point has an equal share."""
    points = [len(task.sizes) for task in job.tasks]
    return [done / sum(points) for done in accumulate(points)]


def block_positions(due: list[float], count: int) -> frozenset[int]:
    """Indices of the tasks before which a block is trained: at the middles of `count` equal parts of a round."""
    middles = [(part + 0.5) / count for part in range(count)]
    return frozenset(next(number for number, share in enumerate(due) if share >= middle) for middle in middles)


def _budget_facts(job: CalibrationJob, *, hurried: int, first_round_seconds: float) -> dict[str, str]:
    """How the first round was shortened to keep the budget, or exceeded it, as texts; empty where neither happened."""
    facts, budget = {}, f"{job.budget_seconds:.0f} s"
    if hurried:
        facts["hurried"] = (
            f"{hurried} of {len(job.tasks)} operations of the first round were timed briefly, so that it ends within "
            f"{budget}: three calls to warm up, or more that wait for memory, and two repetitions at least"
        )
    if first_round_seconds > job.budget_seconds:
        facts["over_budget"] = (
            f"the first round took {first_round_seconds:.0f} s where {budget} were planned: processors are slower, "
            f"busier, or shared by more ranks ({job.ranks}) than planned for, and every point is timed at least once"
        )
    return facts
