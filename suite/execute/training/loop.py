"""The training loop of one rank: warm-up, counted and timed steps, each reported as it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from reference_runs.layout import Recomputation
from suite.execute.measure import clock
from suite.execute.measure.counters import (
    CollectiveCounter,
    KeptForBackward,
    flop_counter,
    storage_bytes,
)
from suite.execute.measure.cpu_speed import LAPS_AROUND, SpeedSampler
from suite.execute.measure.environment import environment
from suite.execute.measure.host_syncs import SynchronisationCounter
from suite.execute.measure.peak_memory import AllocatedPeak, resident_bytes
from suite.execute.measure.phases import Part
from suite.execute.measure.profiler import ProfiledSteps
from suite.execute.measure.step_terms import term_seconds
from suite.execute.measure.system_load import SharedProcessors
from suite.execute.parallel.mesh import axis_of_group, coordinates, slowest
from suite.execute.parallel.parallelize import Training
from suite.execute.rank import NotFiniteError
from suite.execute.training.step import Steps
from suite.job.events import Event, Finished, Phase, Step, StepKind
from suite.job.training_job import COUNTED_STEPS, PROFILED_STEPS, Job


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

    Steps 0 and 1 warm up, 0 eagerly and 1 compiled where asked for; so do all steps that average exactly in a run that
    mostly does not, and the first that does not. The next step runs under the collective counter, the one behind it
    (eagerly) as a window of `peak`, the third (eagerly) under the flop counter: they train like the others, but their
    times are kept apart. The window has a step of its own because DTensor takes other ways under a counter: up to 8 %
    less memory on two tensor-parallel ranks. A step that an overflow skips counts nothing: the next one does.

    Where 3 steps or more are left, the last two run under a profiler, which tells what the phases of the timed ones
    were spent on.
    After the last step, two more passes count what belongs to no step: model flop, without recomputation, and what
    autograd keeps.

    Raises:
        NotFiniteError: the loss became NaN or infinite, or no loss scale kept the gradients finite.
    """
    steps = Steps(job, training, mesh, device)
    waits = SynchronisationCounter(device, steps.phases)
    counter = CollectiveCounter(axis_of_group(mesh, training.embedding_group))
    flop = flop_counter()
    sent_before = clock.interface_sent_bytes(job.interface)
    gradients = 0
    profiled = ProfiledSteps(device, job.trace, dist.get_rank())
    phases: list[dict[Part, float]] = []
    in_profile: list[dict[Part, float]] = []
    timed_seconds: list[float] = []
    usual_seconds = math.inf
    resident: int | None = None
    shared = SharedProcessors()
    pacer = SpeedSampler(device)
    to_count: list[Callable[[], AbstractContextManager[object]]] = [
        lambda: _both(counter, waits),
        lambda: _eagerly(peak.window()),
        lambda: _eagerly(flop),
    ]
    sent = None
    for step in range(job.steps):
        warming_up = step < job.warm_up_steps or not steps.compressed
        kind = StepKind.WARM_UP if warming_up else StepKind.COUNTED if to_count else StepKind.TIMED
        if kind is StepKind.TIMED and timed_seconds and step >= job.steps - PROFILED_STEPS and _is_profiled(job):
            kind = StepKind.PROFILED
            if not in_profile:
                pacer.laps(LAPS_AROUND)
                profiled.start()
                steps.phases.in_profile = True
        # DistributedDataParallel arranges its buckets in the order in which the first backward pass makes gradients
        # ready; a compiled block makes all of its own ready at once, in the arbitrary order of a heap
        usual = _eagerly(nullcontext()) if step == 0 else nullcontext()
        if kind is StepKind.TIMED and not timed_seconds:
            resident = resident_bytes()  # laps have tensors of their own
            shared.start()
            pacer.laps(LAPS_AROUND)
        start = clock.now(device)
        with to_count[0]() if kind is StepKind.COUNTED else usual:
            loss = steps.forward_and_backward()
            if kind is StepKind.COUNTED:
                gradients = storage_bytes(leaf.gradient for leaf in training.leaves)
            outcome = steps.update(loss)
        seconds = clock.now(device) - start
        usual_seconds = min(usual_seconds, seconds)
        if kind is StepKind.TIMED:
            timed_seconds.append(seconds)
            phases.append(steps.phases.seconds())
            shared.lap()
            sent = clock.interface_sent_bytes(job.interface)
            pacer.behind_a_step()
        if kind is StepKind.PROFILED:
            in_profile.append(steps.phases.seconds())
        if kind is StepKind.COUNTED and not outcome.skipped:
            del to_count[0]
            everyone = dist.group.WORLD
            if not to_count and pacer.takes_laps and everyone is not None:
                pacer.expect(*slowest(everyone, usual_seconds))
            sent_before = clock.interface_sent_bytes(job.interface)
            if len(to_count) == 1:
                peak.finish()
        if warming_up and step >= job.warm_up_steps - 1 and steps.compressed:
            peak.settle()
        norm = outcome.gradient_norm if math.isfinite(outcome.gradient_norm) else None
        report(Step(step, kind, outcome.loss, seconds, time.time(), norm, outcome.loss_scale, outcome.skipped))
    if not in_profile:
        pacer.laps(LAPS_AROUND)
    if not timed_seconds:
        raise NotFiniteError(f"so many of {job.steps} steps overflowed that none is left to time", own=False)
    terms: dict[str, float] = {}
    if in_profile:
        report(Phase("read the profile", time.time()))
        steps.phases.in_profile = False
        profiled.stop({part: sum(seconds[part] for seconds in in_profile) for part in Part})
        if profiled.shares is not None:
            terms = term_seconds(timed_seconds, phases, profiled.shares, profiled_steps=len(in_profile))
    report(Phase("count model flop and activations", time.time()))
    pipelined = [] if training.pipeline is None else phases
    return Finished(
        coordinates=coordinates(mesh),
        parameters=sum(leaf.local.numel() for leaf in training.leaves),
        own_parameters=sum(leaf.local.numel() for leaf in training.leaves if leaf.own),
        model_flop=_counted_model_flop(steps),
        hardware_flop=flop.get_total_flops(),
        weight_bytes=storage_bytes(training.weights),
        gradient_bytes=gradients,
        optimizer_bytes=storage_bytes(training.optimizer.state_tensors),
        collectives=counter.collectives(),
        interface_sent_bytes=None if sent is None or sent_before is None else (sent - sent_before) / len(phases),
        activation_bytes=_counted_activation_bytes(steps),
        peak_bytes=peak.bytes,
        worked_seconds=[seconds[Part.FORWARD] + seconds[Part.BACKWARD] for seconds in pipelined],
        pipeline_seconds=[seconds[Part.PIPELINE] for seconds in pipelined],
        arithmetic=arithmetic,
        environment=environment(device),
        time=time.time(),
        term_seconds=terms,
        no_terms=profiled.failure,
        shared=shared.since_start,
        resident_bytes=resident,
        reserved_bytes=peak.reserved_bytes,
        synchronisations=waits.count,
        pace=pacer.pace,
    )


def _is_profiled(job: Job) -> bool:
    return job.steps >= job.warm_up_steps + COUNTED_STEPS + 1 + PROFILED_STEPS


@contextmanager
def _both(first: AbstractContextManager[object], second: AbstractContextManager[object]) -> Iterator[None]:
    with first, second:
        yield


@contextmanager
def _eagerly(mode: AbstractContextManager[object]) -> Iterator[None]:
    """`mode` around eager execution: counters see operators, not compiled regions."""
    with torch.compiler.set_stance("force_eager"), mode:
        yield


def _counted_model_flop(steps: Steps) -> int:
    """Flop of a step of this rank without recomputation: those of one sample, for each of its samples.

    One sample at a time, because a whole micro-batch without recomputation may not fit where training does.
    """
    flop = flop_counter(recomputes=False)
    layout = steps.job.layout
    for chunk in steps.training.chunks:
        chunk.recompute(Recomputation.NONE)
    # DTensor computes new shapes once more, to know how they are placed: count the second pass
    for mode in (nullcontext(), flop) if layout.tensor_parallel > 1 else (flop,):
        with _eagerly(mode):
            for output in steps.chunk_outputs(samples=1):
                output.backward(torch.ones_like(output))
    for chunk in steps.training.chunks:
        chunk.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
    return int(flop.get_total_flops()) * steps.micro_batches * layout.micro_batch


def _counted_activation_bytes(steps: Steps) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch, executed eagerly."""
    training = steps.training

    def weights() -> Iterator[Tensor]:
        yield from training.weights
        for chunk in training.chunks:
            yield from chunk.parameters()  # gathered ones, while fully sharded blocks compute

    kept = KeptForBackward(weights)
    with _eagerly(kept.hooks()):
        outputs = list(steps.chunk_outputs(samples=steps.job.layout.micro_batch))
    assert outputs
    return kept.bytes()
