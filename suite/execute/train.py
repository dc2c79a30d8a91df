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
from torch.nn.parallel import DistributedDataParallel

from reference_runs.catalog import accumulation
from suite.execute.corpus import TokenStream, first_sample
from suite.execute.measure import clock
from suite.execute.measure.counters import (
    CollectiveCounter,
    KeptForBackward,
    distinct_elements,
    flop_counter,
    forget_peak_memory,
    peak_memory_bytes,
    storage_bytes,
)
from suite.execute.measure.fingerprint import environment
from suite.execute.model.objective import causal_lm_loss
from suite.execute.optimizer import learning_rate
from suite.execute.parallel.mesh import DATA, axis_of_group
from suite.execute.parallel.parallelize import Training
from suite.execute.rank import NotFiniteError
from suite.job import COUNTED_STEPS, WARM_UP_STEPS, Event, Finished, Job, Phase, Step, StepKind


def train(
    job: Job,
    training: Training,
    mesh: DeviceMesh,
    device: torch.device,
    *,
    arithmetic: str,
    report: Callable[[Event], None],
) -> Finished:
    """Run the job's steps on this rank and return what was counted.

    Steps 0 and 1 warm up, 0 eagerly and 1 compiled where asked for. Step 2 runs under the collective counter and step 3
    under the flop counter (eagerly): they train like the others, but their times are kept apart. After the last step,
    two more passes count what belongs to no step: model flop, without recomputation, and what autograd keeps.

    Raises:
        NotFiniteError: the loss became NaN or infinite.
    """
    steps = _Steps(job, training, mesh, device)
    counter = CollectiveCounter(axis_of_group(mesh))
    flop = flop_counter()
    sent_before = clock.interface_sent_bytes(job.interface)
    gradients = 0
    for step in range(job.steps):
        kind, mode = _kind(step), _mode(step, counter, flop)
        start = clock.now(device)
        with mode:
            loss = steps.forward_and_backward(step)
            gradients = storage_bytes(leaf.grad for leaf in training.leaves if leaf.grad is not None)
            mean = steps.update(step, loss)
        seconds = clock.now(device) - start
        if step == WARM_UP_STEPS + COUNTED_STEPS - 1:
            sent_before = clock.interface_sent_bytes(job.interface)
            forget_peak_memory(device)
        report(Step(step, kind, mean, seconds, time.time()))
    sent = clock.interface_sent_bytes(job.interface)
    peak = peak_memory_bytes(device)
    timed = job.steps - WARM_UP_STEPS - COUNTED_STEPS
    report(Phase("count model flop and activations", time.time()))
    return Finished(
        coordinates={DATA: mesh.get_local_rank(DATA)},
        parameters=distinct_elements(training.leaves),
        model_flop=_counted_model_flop(steps, training),
        hardware_flop=flop.get_total_flops(),
        weight_bytes=storage_bytes(group.flat for group in training.groups),
        gradient_bytes=gradients,
        optimizer_bytes=_optimizer_bytes(training),
        collectives=counter.collectives(),
        interface_sent_bytes=None if sent is None or sent_before is None else (sent - sent_before) / timed,
        activation_bytes=_counted_activation_bytes(steps, training),
        peak_bytes=peak,
        arithmetic=arithmetic,
        environment=environment(device),
        time=time.time(),
    )


def _kind(step: int) -> StepKind:
    if step < WARM_UP_STEPS:
        return StepKind.WARM_UP
    return StepKind.COUNTED if step < WARM_UP_STEPS + COUNTED_STEPS else StepKind.TIMED


@contextmanager
def _eagerly(mode: AbstractContextManager[object]) -> Iterator[None]:
    """`mode` around eager execution: the flop counter sees operators, not compiled regions."""
    with torch.compiler.set_stance("force_eager"), mode:
        yield


def _mode(
    step: int, counter: AbstractContextManager[object], flop: AbstractContextManager[object]
) -> AbstractContextManager[object]:
    if step == 0:
        # DistributedDataParallel arranges its buckets in the order in which the first backward pass makes gradients
        # ready; a compiled block makes all of its own ready at once, in the arbitrary order of a heap
        return _eagerly(nullcontext())
    if step == WARM_UP_STEPS:
        return counter
    return _eagerly(flop) if step == WARM_UP_STEPS + 1 else nullcontext()


def _optimizer_bytes(training: Training) -> int:
    """Storages of the optimizer's state, and of the masters where they are not the weights themselves."""
    weights = {group.flat.untyped_storage().data_ptr() for group in training.groups}
    masters = [m for m in training.optimizer.masters if m.untyped_storage().data_ptr() not in weights]
    state = [value for values in training.optimizer.adamw.state.values() for value in values.values()]
    return storage_bytes([*masters, *(value for value in state if isinstance(value, Tensor))])


def _counted_model_flop(steps: _Steps, training: Training) -> int:
    """Flop of a step of this rank without recomputation: those of one sample, for each of its samples.

    One sample at a time, because a whole micro-batch without recomputation may not fit where training does.
    """
    flop = flop_counter()
    recompute, training.decoder.recompute = training.decoder.recompute, False
    with _eagerly(flop):
        steps.sample_loss(samples=1).backward()
    training.decoder.recompute = recompute
    return int(flop.get_total_flops()) * steps.micro_batches * steps.job.layout.micro_batch


def _counted_activation_bytes(steps: _Steps, training: Training) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch, executed eagerly."""
    kept = KeptForBackward([*(group.flat for group in training.groups), *training.leaves])
    with _eagerly(kept.hooks()):
        steps.sample_loss(samples=steps.job.layout.micro_batch)
    return kept.bytes()


class _Steps:
    """Forward, backward and update of one rank, given the step's number."""

    def __init__(self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        self.job = job
        self.training = training
        self.device = device
        self.mesh = mesh
        self.rank = mesh.get_local_rank(DATA)
        self.micro_batches = accumulation(job.recipe, job.layout)
        self.stream = TokenStream(job.tokens_file, tokens=job.tokens, sequence=job.architecture.sequence, seed=job.seed)

    def forward_and_backward(self, step: int) -> Tensor:
        """Accumulate the gradient of this rank's micro-batches; returns the mean of their losses, detached.

        The last micro-batch's backward pass all-reduces the gradient.
        """
        losses = []
        for micro_batch in range(self.micro_batches):
            last = micro_batch == self.micro_batches - 1
            with self._synchronised(last):
                tokens, targets = self._micro_batch(step, micro_batch)
                loss = causal_lm_loss(self.training.module(tokens), targets) / self.micro_batches
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def sample_loss(self, *, samples: int) -> Tensor:
        """Loss of the first samples of the stream, on this rank's decoder alone: nothing is reduced."""
        tokens, targets = self.stream.micro_batch(0, samples)
        return causal_lm_loss(self.training.decoder(tokens.to(self.device)), targets.to(self.device))

    def update(self, step: int, loss: Tensor) -> float:
        """Mean loss over ranks; then clip, update, and clear the gradients."""
        own = loss.clone()
        if self.job.layout.data_parallel > 1:
            dist.all_reduce(loss, group=self.mesh.get_group(DATA))
            loss /= self.job.layout.data_parallel
        mean = loss.item()
        if not math.isfinite(mean):
            ours = not math.isfinite(own.item())
            raise NotFiniteError(f"loss is {own.item()} at step {step} (mean over ranks: {mean})", own=ours)
        torch.nn.utils.clip_grad_norm_(self.training.leaves, self.job.recipe.gradient_clip)
        self.training.optimizer.step(learning_rate(self.job.recipe, step))
        for leaf in self.training.leaves:
            leaf.grad = None
        return mean

    def _synchronised(self, reduce: bool) -> AbstractContextManager[object]:
        module = self.training.module
        if isinstance(module, DistributedDataParallel) and not reduce:
            return module.no_sync()
        return nullcontext()

    def _micro_batch(self, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        samples = self.job.layout.micro_batch
        first = first_sample(
            step,
            micro_batch,
            rank=self.rank,
            per_rank=self.micro_batches,
            samples=samples,
            global_batch=self.job.recipe.global_batch,
        )
        tokens, targets = self.stream.micro_batch(first, samples)
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
