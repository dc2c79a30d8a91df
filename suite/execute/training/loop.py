"""The training loop of one rank: warm-up, counted, timed and profiled steps, each reported as it ends."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from reference_runs.layout import Recomputation
from suite.execute.measure import clock
from suite.execute.measure.counters import KeptForBackward, LocalFlopCounter, eagerly, storage_bytes
from suite.execute.measure.peak_memory import AllocatedPeak
from suite.execute.measure.phases import Part
from suite.execute.measure.system_load import environment
from suite.execute.parallel.mesh import DATA, TENSOR, coordinates
from suite.execute.parallel.parallelize import Training
from suite.execute.rank import NotFiniteError
from suite.execute.training.asynchronous_step import AsynchronousSteps
from suite.execute.training.captured_step import CapturedSteps
from suite.execute.training.checkpoint import CheckpointedTraining
from suite.execute.training.instruments import StepClocks, StepCounters, StepProfile
from suite.execute.training.outcome import StepOutcome
from suite.execute.training.pipeline_times import pipeline_times
from suite.execute.training.slice_step import SliceSteps, slice_times
from suite.execute.training.step import Steps
from suite.execute.training.step_plan import StepPlan
from suite.execute.training.store_step import StoreSteps
from suite.job.events import Event, Finished, Phase, Step, StepKind
from suite.job.options import Optimization
from suite.job.training_job import Job


def train(
    job: Job,
    training: Training,
    mesh: DeviceMesh,
    device: torch.device,
    *,
    peak: AllocatedPeak,
    arithmetic: str,
    report: Callable[[Event], None],
) -> Finished:
    """Run the job's steps on this rank and return what was counted.

    `StepPlan` says what each step is for. Counted steps train like the others, but their times are kept apart. Passes
    after the last step count model flop and activations. Once a slice's minutes are over and a step is timed, no
    further one is taken.

    Raises:
        NotFiniteError: the loss became NaN or infinite, or no loss scale kept the gradients finite.
    """
    steps = _kind_of_steps(job, training)(job, training, mesh, device)
    checkpoints = CheckpointedTraining(steps, report)
    plan = _rest(job, checkpoints, peak)
    counters, clocks, profile = StepCounters(steps, mesh, peak), StepClocks(steps), StepProfile(steps)
    purpose = plan.purpose(plan.first, averages_as_asked=steps.averages_as_asked)
    unreported: deque[tuple[int, StepKind, float]] = deque()

    def report_steps(outcomes: list[StepOutcome]) -> None:
        for outcome in outcomes:
            step, kind, seconds = unreported.popleft()
            norm = outcome.gradient_norm if math.isfinite(outcome.gradient_norm) else None
            report(Step(step, kind, outcome.loss, seconds, time.time(), norm, outcome.loss_scale, outcome.skipped))

    last = math.inf if job.slice is None or job.slice.minutes is None else time.monotonic() + 60 * job.slice.minutes
    for step in plan.numbers:
        if clocks.step_seconds and _is_over(steps, last):
            break
        checkpoints.before(counted=purpose.kind is StepKind.COUNTED)
        clocks.before(purpose)
        profile.before(purpose)
        start = clock.now(device)
        with counters.around(purpose):
            loss = steps.forward_and_backward()
            counters.before_update(purpose)
            outcomes = steps.update(loss)
        seconds = clock.now(device) - start
        skipped = any(outcome.skipped for outcome in outcomes)
        plan.done(purpose, skipped=skipped)
        following = plan.purpose(step + 1, averages_as_asked=steps.averages_as_asked)
        clocks.after(purpose, seconds, skipped=skipped)
        profile.after(purpose)
        counters.after(purpose, following, skipped=skipped)
        unreported.append((step, purpose.kind, seconds))
        report_steps(outcomes)
        checkpoints.after(step + 1, report_steps)
        purpose = following
    report_steps(steps.remaining())
    clocks.finish()
    checkpoints.wait()
    steps.finish(report)
    if not (clocks.step_seconds or plan.first):
        raise NotFiniteError(f"so many of {job.steps} steps overflowed that none is left to time", at_fault=False)
    if profile.phase_seconds:
        report(Phase("read the profile", time.time()))
    terms = profile.term_seconds(clocks) if profile.phase_seconds else {}
    report(Phase("count model flop and activations", time.time()))
    finished = _finished(steps, mesh, counters, clocks, profile, terms, arithmetic)
    if isinstance(steps, SliceSteps):
        steps.wait_for_others()
    return finished


def _rest(job: Job, checkpoints: CheckpointedTraining, peak: AllocatedPeak) -> StepPlan:
    """The plan of the steps from the last checkpoint on; where nothing but its rehearsal warms up, that has settled."""
    first = checkpoints.resume()
    rehearsed = first > 0 and checkpoints.rehearses
    plan = StepPlan(steps=job.steps, warm_up_steps=job.warm_up_steps, first=first, rehearsed=rehearsed)
    if plan.purpose(first, averages_as_asked=True).kind is StepKind.COUNTED:
        peak.settle()
    return plan


def _is_over(steps: Steps, last: float) -> bool:
    """Whether a slice's time is over for any of its processes, which then all stop."""
    return last < math.inf and isinstance(steps, SliceSteps) and steps.any_says(time.monotonic() >= last)


def _kind_of_steps(job: Job, training: Training) -> type[Steps]:
    if training.kind_of_steps is not None:
        return training.kind_of_steps
    if job.slice is not None:
        return SliceSteps
    if job.synchronisation is not None:
        return StoreSteps
    if Optimization.MICRO_BATCH_GRAPH in job.training_options.optimizations:
        return CapturedSteps
    return Steps if training.without_flush is None else AsynchronousSteps


def _finished(
    steps: Steps,
    mesh: DeviceMesh,
    counters: StepCounters,
    clocks: StepClocks,
    profile: StepProfile,
    terms: dict[str, float],
    arithmetic: str,
) -> Finished:
    """Results of the instruments, and the counts of the passes after the last step."""
    training = steps.training
    pipelined = clocks.phase_seconds if training.pipeline or training.without_flush else []
    samples = steps.micro_batches * steps.job.layout.micro_batch
    computed_rows, flop = counters.computed_rows, samples * model_flop_of_sample(steps)
    computed_rows["model_flop"] = training.computed_rows.counted
    activations = activation_bytes(steps)
    computed_rows["activation_bytes"] = training.computed_rows.counted
    biases = sum(router.bias.numel() for router in training.routers if router.bias is not None)
    first = mesh.get_local_rank(DATA) == mesh.get_local_rank(TENSOR) == 0  # every other rank has all of them too
    return Finished(
        coordinates=coordinates(mesh, steps.job.layout),
        parameters=sum(leaf.local.numel() for leaf in training.leaves) + biases,
        own_parameters=sum(leaf.counted_of(leaf.local).numel() for leaf in training.leaves if leaf.counted)
        + (biases if first else 0),
        model_flop=flop,
        hardware_flop=counters.flop.get_total_flops(),
        weight_bytes=storage_bytes(training.weights),
        gradient_bytes=counters.gradient_bytes,
        optimizer_bytes=storage_bytes(training.optimizer.state_tensors),
        collectives=steps.with_store(counters.collectives.collectives()),
        interface_sent_bytes=clocks.interface_sent_bytes(),
        activation_bytes=activations,
        peak_bytes=counters.peak.bytes,
        worked_seconds=[seconds[Part.FORWARD] + seconds[Part.BACKWARD] for seconds in pipelined],
        pipeline_seconds=[seconds[Part.PIPELINE] for seconds in pipelined],
        arithmetic="; ".join(filter(None, (arithmetic, steps.how_executed))),
        environment=environment(steps.device),
        time=time.time(),
        term_seconds=terms,
        no_terms=profile.profiler.failure,
        device_kernels=profile.profiler.kernels,
        shared=clocks.processors.since_start,
        resident_bytes=clocks.resident_bytes,
        reserved_bytes=counters.peak.reserved_bytes,
        routed=counters.routed,
        computed_rows=computed_rows if steps.job.layout.expert_parallel > 1 else {},
        packed=steps.packed_documents(),
        slice_times=slice_times(training, clocks.part_seconds),
        pipeline_times=pipeline_times(clocks.passes, pipelined, steps.device) if pipelined else None,
        weight_versions=None if training.without_flush is None else training.without_flush.own.weights.stored,
        staleness=steps.staleness,
        store_work=steps.store_work(),
        synchronisations=counters.synchronisations.count,
        cpu_speed=clocks.speed.median,
        counted=bool(clocks.step_seconds),
    )


def model_flop_of_sample(steps: Steps, *, through_modules: bool = False) -> int:
    """Flop of a pass of one sample on this rank, forward and backward, without recomputation.

    Of one alone, because a whole micro-batch without recomputation may not fit where training does.

    Args:
        through_modules: whether gradients are reduced, as in a step.
    """
    flop = LocalFlopCounter(recomputes=False)
    layout = steps.job.layout
    for chunk in steps.training.chunks:
        chunk.recompute(Recomputation.NONE)
        for context in chunk.contexts:
            context.pads = False
    steps.training.computed_rows.clear()
    with eagerly(), _scores_stored(steps.device), flop:
        for output in steps.chunk_outputs(samples=1, through_modules=through_modules):
            output.backward(torch.ones_like(output))
    for chunk in steps.training.chunks:
        chunk.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
        for context in chunk.contexts:
            context.pads = True
    return int(flop.get_total_flops())


@contextmanager
def _scores_stored(device: torch.device) -> Iterator[None]:
    """Within this a CPU's fused attention may store the scores: without padding its kernel knows no two head sizes."""
    before = torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(before or device.type == "cpu")
    try:
        yield
    finally:
        torch.backends.cuda.enable_math_sdp(before)


def activation_bytes(steps: Steps) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch, executed eagerly."""

    modules = [module for chunk in steps.training.chunks for module in chunk.modules()]

    def weights() -> Iterator[Tensor]:
        yield from steps.training.weights
        for module in modules:  # gathered ones, while fully sharded blocks compute
            yield from (parameter for parameter in module._parameters.values() if parameter is not None)

    kept = KeptForBackward(weights)
    steps.training.computed_rows.clear()
    with eagerly(), kept.hooks():
        outputs = list(steps.chunk_outputs(samples=steps.job.layout.micro_batch))
    assert outputs
    return kept.bytes()
