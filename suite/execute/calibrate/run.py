"""Measures what a job's tasks name, as one rank among those that measure at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, product
from typing import Protocol

import torch
import torch.distributed as dist

from kernels.half_matmul import compute_products_through_fp32, has_instructions
from suite.execute.calibrate import host_calls, matmul, operators
from suite.execute.calibrate.collectives import TimedCollective, collective, collective_repetitions
from suite.execute.calibrate.matmul import DTYPES, Inputs
from suite.execute.calibrate.stopwatch import HOST_BYTES, MOST_OVERWRITTEN, OPERATORS_BYTES, Stopwatch
from suite.execute.measure.clock import Work
from suite.execute.measure.cpu_speed import LAPS_IN_A_ROW, SpeedSampler
from suite.execute.measure.environment import environment
from suite.execute.measure.system_load import GpuLog, ProcessorTime, own_seconds, processor_facts, processor_time
from suite.execute.parallel.mesh import slowest
from suite.job.calibration_job import Calibrated, CalibrationJob, Task, TimedTask
from suite.job.events import Event, Phase
from suite.machine import cpu_caches
from suite.machine.operations import COLLECTIVES, HOST_CALLS
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions

SEED = 20261121
TASKS_BETWEEN_LAPS = 8  # of 6 ms, four at a time: as many as one after every second task
TIMED: dict[str, Callable[[Subject, tuple[int, ...], Inputs], Work]] = {
    "product": matmul.product,
    "square_product": matmul.square_product,
    "batched_product": matmul.batched_product,
    "attention": matmul.attention,
    **dict.fromkeys((*operators.ONE_TENSOR, "add", "from_fp32"), operators.elementwise),
    **dict.fromkeys(("zeros", "permuted", "bias", "accumulate"), operators.without_autograd),
    **dict.fromkeys(("column_sum", "vector_norm"), operators.without_autograd),
    **dict.fromkeys(("layer_norm", "softmax", "cross_entropy", "embedding"), operators.rows),
    **dict.fromkeys(("copy", "triad"), operators.memory),
    **dict.fromkeys(("host_to_device", "device_to_host"), operators.transfer),
    **dict.fromkeys(("adam", "adam_tensors"), operators.adam),
    "calls": host_calls.calls,
    **dict.fromkeys(("view", "engine", "module"), host_calls.chained),
    "weight_read": host_calls.weight_reads,
    "checkpoint": host_calls.checkpoints,
    "region": host_calls.regions,
}


class Bursts(Protocol):
    """Training steps that are timed between the tasks, a few at a time.

    Attributes:
        seconds: that bursts have taken.
        next_seconds: that the next one will take.
    """

    seconds: float
    next_seconds: float

    def burst(self) -> None:
        """Some steps of each; all ranks call it together."""


class Bench:
    """One rank's place: its clock, its inputs, and the groups of the ranks that measure at once.

    Groups of control messages are gloo's, also on CUDA: a rank that waits must not occupy its GPU.
    """

    def __init__(self, job: CalibrationJob, device: torch.device) -> None:
        self.device = device
        self.watch = Stopwatch(device)
        self.inputs = Inputs(device)
        self._compiled: dict[tuple[Subject, tuple[int, ...]], Work] = {}
        self._seconds: dict[tuple[Subject, tuple[int, ...]], float] = {}  # of a call, in the round before
        self.everyone = dist.new_group(backend="gloo")
        self.agree: dict[int, dist.ProcessGroup] = {}
        self.exchange: dict[int, dist.ProcessGroup] = {}
        for ranks in sorted({task.subject.ranks for task in job.tasks}):
            self.agree[ranks] = dist.new_group(list(range(ranks)), backend="gloo")
            self.exchange[ranks] = dist.new_group(list(range(ranks)))
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self.alone = groups[dist.get_rank()]

    def repeated(self, task: Task, *, briefly: bool) -> tuple[Repetitions, ...]:
        """The repetitions of all points of a task; the ranks that take part start each point together.

        Args:
            briefly: with few calls to warm up, more where they waited for pages, and few timed at least.
        """
        return tuple(self._point(task, sizes, briefly=briefly) for sizes in task.sizes)

    def _point(self, task: Task, sizes: tuple[int, ...], *, briefly: bool) -> Repetitions:
        subject, seconds = task.subject, task.point_seconds
        agree = self.agree[subject.ranks]
        timed = self._timed(subject, sizes)
        # what all of them go by is the same; and no rank begins before the last one has got here
        (longest,) = slowest(agree, self._seconds.get((subject, sizes), 0.0))
        if isinstance(timed, TimedCollective):
            found = collective_repetitions(
                timed, self.watch, agree, point_seconds=seconds, known=longest if briefly else None
            )
        else:
            sample: Callable[[Work], float] = self.watch.host_sample
            if subject.operation not in HOST_CALLS:
                sample = partial(self.watch.cold_sample, overwrites=self.watch.overwrites_for(timed))
            found = self.watch.repetitions(timed, point_seconds=seconds, briefly=briefly, sample=sample)
        self._seconds[subject, sizes] = min(found.seconds)
        return found

    def _timed(self, subject: Subject, sizes: tuple[int, ...]) -> Work | TimedCollective:
        """The call, its inputs made; of a compiled one that of the round before."""
        if subject.operation in COLLECTIVES:
            return collective(subject, sizes, self.inputs, self.exchange[subject.ranks])
        if subject.operation == "sharded_unit":
            return host_calls.sharded_units(subject, sizes, self.inputs, self.alone)
        if (subject, sizes) in self._compiled:
            return self._compiled[subject, sizes]
        work = TIMED[subject.operation](subject, sizes, self.inputs)
        if subject.compiled:
            self._compiled[subject, sizes] = work
        return work


def calibrate(job: CalibrationJob, device: torch.device, report: Callable[[Event], None], bursts: Bursts) -> Calibrated:
    """Measure the job's tasks round by round, reporting each, and return what the machine went through meanwhile.

    The first round times every point, whatever the budget. A task of it that begins late is timed briefly.

    Args:
        bursts: of the job's trials, evenly spread over each round: all of the first one's, of later ones' as many as
            fit into their time.
    """
    facts, gpu = _prepared(device), GpuLog(_uuid(device))
    rank, bench = dist.get_rank(), Bench(job, device)
    pacers = {ranks: SpeedSampler(device) for ranks in bench.agree}
    gc.collect()
    gc.disable()  # its pauses belong to no point
    before, start, own = processor_time(), time.perf_counter(), own_seconds()
    due, done, hurried, first_round_seconds = due_shares(job), 0, 0, 0.0
    bursts_before = places_of_bursts(due, job.bursts)
    for repeat, (number, task) in product(range(job.rounds), enumerate(job.tasks)):
        report(Phase(str(task.subject), time.time()))
        # the same on all ranks, which wait here
        spent, tried, trying = slowest(bench.everyone, time.perf_counter() - start, bursts.seconds, bursts.next_seconds)
        if repeat > 0 and spent > job.budget_seconds:
            break
        room = tried + trying <= job.trial_seconds and spent + trying <= job.budget_seconds
        if number in bursts_before and (repeat == 0 or room):
            bursts.burst()
        late = repeat == 0 and spent - tried > due[number] * (job.budget_seconds - max(tried, job.trial_seconds))
        hurried += late
        gpu.sample()
        if rank < task.subject.ranks:
            torch.set_num_threads(task.threads)
            if number % TASKS_BETWEEN_LAPS == 0:
                pacers[task.subject.ranks].laps(LAPS_IN_A_ROW)
            briefly = late or (repeat > 0 and task.subject.operation in COLLECTIVES)
            report(TimedTask(number, repeat, bench.repeated(task, briefly=briefly), time.time()))
        done += 1
        if done == len(job.tasks):
            (first_round_seconds,) = slowest(bench.everyone, time.perf_counter() - start)
    dist.barrier(group=bench.everyone)
    gpu.sample()
    busy, steal, total = _since(before)
    if device.type == "cuda" and gpu.why_none:
        facts["gpu_log"] = gpu.why_none
    return Calibrated(
        seconds=time.perf_counter() - start,
        cpu_seconds=own_seconds() - own,
        busy_seconds=busy,
        steal_seconds=steal,
        all_seconds=total,
        environment=facts
        | {"rounds": f"{done / len(job.tasks):.1f}"}
        | _haste(job, hurried=hurried, first_round_seconds=first_round_seconds),
        gpus=gpu.samples,
        pace={ranks: pacer.pace for ranks, pacer in pacers.items() if pacer.pace is not None},
        time=time.time(),
    )


def _prepared(device: torch.device) -> dict[str, str]:
    """Set up random numbers, compilation and arithmetic; facts of machine and settings, as texts."""
    torch.manual_seed(SEED)
    torch._functorch.config.donated_buffer = False  # a compiled backward pass is repeated on what it was given
    facts = environment(device) | processor_facts() | _arithmetic(device)
    if device.type == "cpu":
        facts["overwritten_bytes"] = (
            f"{min(cpu_caches.share_bytes(), HOST_BYTES)} by each thread, {OPERATORS_BYTES} at most before "
            f"operators, {MOST_OVERWRITTEN} at most by a rank; what an operator follows on is written again"
        )
    return facts


def _uuid(device: torch.device) -> str | None:
    """Of a GPU, as its driver has it; None on a CPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


def _since(before: ProcessorTime | None) -> tuple[float | None, float | None, float | None]:
    """Busy, stolen and all seconds of the processors since `before`; None where the system does not say."""
    after = processor_time()
    if before is None or after is None:
        return None, None, None
    return after.busy - before.busy, after.steal - before.steal, after.all - before.all


def due_shares(job: CalibrationJob) -> list[float]:
    """Of the first round's time, by when each task should have ended, so that the round ends within it.

    Each point has the same part of it: on 2 cores, beside other work, no task ended later than that part of the whole
    round (481 tasks, 3032 points, 50 s; AMD EPYC, 2026-11-23).
    """
    points = [len(task.sizes) for task in job.tasks]
    return [done / sum(points) for done in accumulate(points)]


def places_of_bursts(due: list[float], count: int) -> frozenset[int]:
    """The tasks before which trials are trained: in the middles of so many equal parts of a round."""
    middles = [(part + 0.5) / count for part in range(count)]
    return frozenset(next(number for number, share in enumerate(due) if share >= middle) for middle in middles)


def _haste(job: CalibrationJob, *, hurried: int, first_round_seconds: float) -> dict[str, str]:
    """What the budget cost the first round, or the round the budget, in words; empty where it was enough."""
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


def _arithmetic(device: torch.device) -> dict[str, str]:
    """Choose for every 16-bit dtype how its products are computed, as a training run in it does; in words."""
    facts = {}
    for name, dtype in DTYPES.items():
        through_fp32 = device.type == "cpu" and name != "fp32" and not has_instructions(dtype)
        if through_fp32:
            compute_products_through_fp32(dtype)
        facts[f"{name}_products"] = "through fp32" if through_fp32 else "by the device"
    return facts
