"""One training step of one rank: micro-batches forward and backward, then the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from reference_runs.catalog import global_batch_at
from suite.execute.data.loader import Batches, CopiedAhead, batches
from suite.execute.data.token_stream import TokenBatch, packed_documents
from suite.execute.measure.counters import runs_eagerly
from suite.execute.measure.phases import Part, Phases
from suite.execute.optim.learning_rate import (
    gradient_factor,
    gradient_factor_on_device,
    learning_rate,
    logged_weight_norm,
    squared_norm_by_parameter,
)
from suite.execute.optim.loss_scale import LossScaleError, loss_scale
from suite.execute.optim.one_pass_update import update_norm
from suite.execute.parallel.gradient_sums import StepSums
from suite.execute.parallel.local_parameter import LocalParameter
from suite.execute.parallel.mesh import CONTEXT, DATA, EXPERT, EXPERT_DATA, PIPELINE, TENSOR, coordinates
from suite.execute.parallel.one_bit_optimizer import OneBitMasters
from suite.execute.parallel.parallelize import Training
from suite.execute.parallel.parameter_store import ParameterStore
from suite.execute.parallel.sharded_adamw import TensorAdamW
from suite.execute.precision import DTYPES
from suite.execute.rank import NotFiniteError
from suite.execute.training.outcome import StepOutcome, updates_before_reading
from suite.execute.training.random_state import random_state
from suite.job.checkpoints import OF_JOB, Progress
from suite.job.events import CountedCollective, Event, PackedDocuments, StoreWork
from suite.job.options import Averaging
from suite.job.slice import SlicePart
from suite.job.training_job import Job


class Steps:
    """Forward, backward and update of one rank, step after step.

    Attributes:
        step: number of the next step.
        micro_batches: of this rank in the last step.
        phases: the clock of the step's phases.
        how_executed: in words for the record, where steps are executed in another way from the first timed one on.
        averages_as_asked: whether the last step averaged gradients as the job says. 1-bit Adam averages exactly during
            its warm-up; skipped steps prolong it.
    """

    def __init__(
        self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device, stream: Batches | None = None
    ) -> None:
        self.job = job
        self.training = training
        self.device = device
        self.step = 0
        self.micro_batches = 0
        self.how_executed = ""
        self.phases = Phases(device)
        self._mesh = mesh
        self._samples_seen = 0
        self._global_batch = 0
        self._samples_trained = 0
        index = coordinates(mesh, job.layout)
        self._replica = mesh.get_local_rank(DATA) // job.layout.context_parallel
        self._stream = stream or batches(job, replica=self._replica, context_rank=index.get(CONTEXT, 0))
        self._ahead = CopiedAhead(self._stream, device, self.phases) if job.training_options.pinned else None
        self._scale = loss_scale(job.recipe)
        self.averages_as_asked = job.averaging is not Averaging.ONE_BIT
        self._updates_before_reading = updates_before_reading(job, device, scaled=self._scale is not None)

    def forward_and_backward(self) -> Tensor:
        """Accumulate the gradient of this rank's micro-batches; return the mean of their losses, detached.

        Of several pipeline stages only the last one has the loss; the others return 0. The last micro-batch's backward
        pass reduces the gradient over the data-parallel axis; with ZeRO-2 and 3 each one's does.
        """
        first, factor = self._begin()
        samples = self.job.layout.micro_batch
        if self.training.pipeline is not None:
            whole = self._micro_batch(first, self.micro_batches * samples)
            with self.phases.phase(Part.PIPELINE):
                return self.training.pipeline.step(
                    *whole, micro_batches=self.micro_batches, factor=factor, phases=self.phases
                )
        if (sums := self.sums) is not None:
            sums.begin()
        losses = []
        for number in range(self.micro_batches):
            with self._synchronised(last=number == self.micro_batches - 1):
                losses.append(self.passes(self._micro_batch(first + number * samples, samples), factor))
            if self._ahead is not None and number < self.micro_batches - 1:
                self._ahead.begin(first + (number + 1) * samples, samples)
            elif self._ahead is not None and self.step < self.job.steps - 1:
                self._ahead.begin(self._next_samples()[0], samples)
            if self.job.training_options.synchronises:
                losses[-1].item()
        if sums is not None:
            sums.hand_over()
        return torch.stack(losses).sum()

    @property
    def sums(self) -> StepSums | None:
        """Gradients that the micro-batches of this step are added to; None: autograd adds to the leaves'."""
        return None if runs_eagerly() else self.training.gradient_sums

    def passes(self, batch: TokenBatch, factor: float) -> Tensor:
        """Both passes of a micro-batch, the second of `factor` times its loss; its loss over their number."""
        (module,) = self.training.modules
        with self.phases.phase(Part.FORWARD), self._offloaded():
            loss: Tensor = module(batch.tokens_BT, **batch.arguments) / self.micro_batches
        with self.phases.phase(Part.BACKWARD):
            (loss * factor).backward()
        return loss.detach()

    def before_timed(self) -> None:
        """Before the first timed step."""

    def _begin(self) -> tuple[int, float]:
        """Begin a step: the number of this rank's first sample, and the loss scale (1 where there is none)."""
        self.phases.clear()
        self._global_batch = global_batch_at(self.job.recipe, self._samples_seen)
        first, self.micro_batches = self._next_samples()
        self._samples_seen += self._global_batch
        factor = self._scale.scale if self._scale else 1.0
        for chunk in self.training.chunks:
            chunk.upstream = factor / self.micro_batches
        for router in self.training.routers:
            router.statistics.clear()
        return first, factor

    def progress(self, corpus: str) -> Progress:
        """How far training is, for a checkpoint; `corpus`: sha256 of its text."""
        scale = self._scale
        return Progress(
            step=self.step,
            samples_seen=self._samples_seen,
            samples_trained=self._samples_trained,
            loss_scale=None if scale is None else scale.scale,
            good_steps=0 if scale is None else scale.good_steps,
            corpus=corpus,
            **{name: getattr(self.job, name) for name in OF_JOB},
        )

    def continue_from(self, progress: Progress) -> None:
        """Make the next step the one of `progress`."""
        self.step = progress.step
        self._samples_seen, self._samples_trained = progress.samples_seen, progress.samples_trained
        if self._scale is not None and progress.loss_scale is not None:
            self._scale.scale, self._scale.good_steps = progress.loss_scale, progress.good_steps

    def random_state(self) -> dict[str, Tensor]:
        """State of the generators, from which the passes after this step go on."""
        return random_state(self.device)

    def settled(self) -> list[StepOutcome]:
        """Before a checkpoint: the outcomes so far that `update` has not returned."""
        return []

    @property
    def staleness(self) -> int | None:
        """Updates by which gradients of the last step were late at most; None where all passes end before an update."""
        return None

    def axis_of_group(self) -> dict[str, str]:
        """Process group name -> axis."""
        return self.training.axis_of_group(self._mesh)

    def part_seconds(self) -> dict[SlicePart, float]:
        """Seconds of the parts of a slice in the last step; empty for a whole run."""
        return {}

    def finish(self, report: Callable[[Event], None]) -> None:
        """After the last step: until other ranks no longer need this one's training."""

    def with_store(self, collectives: list[CountedCollective]) -> list[CountedCollective]:
        """Counted collectives of this rank's thread, with those of its shard of a parameter store."""
        return collectives

    def store_work(self) -> StoreWork | None:
        """Work of this rank at a parameter store; None without one."""
        return None

    def _next_samples(self) -> tuple[int, int]:
        """This rank's first sample, and number of micro-batches, in the step after all samples seen so far."""
        samples = self.job.layout.micro_batch
        micro_batches = global_batch_at(self.job.recipe, self._samples_seen) // (self.job.layout.replicas * samples)
        return self._samples_seen + self._replica * micro_batches * samples, micro_batches

    def _micro_batch(self, first: int, samples: int) -> TokenBatch:
        if self._ahead is not None:
            return self._ahead.micro_batch(first, samples)
        with self.phases.phase(Part.DATA_LOADING):
            batch = self._stream.micro_batch(first, samples)
        with self.phases.phase(Part.HOST_DEVICE_COPY):
            return batch.to(self.device)

    def packed_documents(self) -> PackedDocuments | None:
        """Documents of this rank's samples of the first whole step; None where samples do not say which they have."""
        samples = self.micro_batches * self.job.layout.micro_batch
        batch = self._stream.micro_batch(self._replica * samples, samples)
        return packed_documents(batch)

    def chunk_outputs(self, *, samples: int, through_modules: bool = False) -> Iterator[Tensor]:
        """The output of each of this rank's chunks for `samples` samples. No chunk gets another one's output.

        Args:
            through_modules: by what is called in their place, so that gradients are reduced.
        """
        batch = self._stream.micro_batch(0, samples).to(self.device)
        modules = self.training.modules if through_modules else self.training.chunks
        for chunk, module in zip(self.training.chunks, modules, strict=True):
            x = batch.tokens_BT
            if chunk.embedding is None:
                dtype = DTYPES[self.job.recipe.precision]
                x = torch.ones(self.hidden_shape(samples), dtype=dtype, device=self.device, requires_grad=True)
            yield module(x, **batch.arguments)

    def hidden_shape(self, samples: int) -> tuple[int, int, int]:
        """Shape of the hidden states between chunks, [B, T, D] of the positions that are here."""
        layout, architecture = self.job.layout, self.job.architecture
        length = architecture.sequence // layout.context_parallel
        length //= layout.tensor_parallel if layout.sequence_parallel else 1
        return samples, length, architecture.hidden

    def update(self, loss: Tensor) -> list[StepOutcome]:
        """Reduce loss and gradient norm over ranks; then clip, update, and clear the gradients.

        A skipped step leaves the learning rate's schedule where it is.

        Returns the outcomes that are known now and were not before, in the order of their steps: here this step's.

        Raises:
            NotFiniteError: the loss, or without loss scaling the gradient, is NaN or infinite.
        """
        with self.phases.phase(Part.UPDATE):
            try:
                return [self._update(loss)]
            except (LossScaleError, FloatingPointError) as error:
                raise NotFiniteError(f"{error} at step {self.step}", at_fault=False) from error

    def remaining(self) -> list[StepOutcome]:
        """After the last step: the outcomes that `update` has not returned."""
        return []

    def _update(self, loss: Tensor) -> StepOutcome:
        local_loss = loss.clone()
        leaves = self.training.leaves
        self._complete_gradients(leaves)
        optimizer = self.training.optimizer
        widened = optimizer.widened() if isinstance(optimizer, TensorAdamW) else {}
        naive = self.job.training_options.synchronises
        of = squared_norm_by_parameter if naive else update_norm(self.job.training_options, self.device)
        squared = of(self._counted_gradients(widened), device=self.device)
        if naive:
            logged_weight_norm(leaf.parameter for leaf in leaves)
        both = self._reduced(loss, squared)
        if self._updates_before_reading:
            self._optimizer_step(gradient_factor_on_device(self.job.recipe, both[1]), widened)
        mean, total = both.tolist()
        if not math.isfinite(mean):
            text = f"loss is {local_loss.item()} at step {self.step} (mean over ranks: {mean})"
            raise NotFiniteError(text, at_fault=not math.isfinite(local_loss.item()))
        scale = self._scale.scale if self._scale else None
        finite = math.isfinite(total)
        if self._scale is not None:
            self._scale.adapt(finite=finite)
        elif not finite:
            raise NotFiniteError(f"the squared gradient norm is {total} at step {self.step}", at_fault=False)
        self.averages_as_asked = self.job.averaging is not Averaging.ONE_BIT or self._own_gradients()
        if finite and not self._updates_before_reading:
            factor = gradient_factor(self.job.recipe, math.sqrt(total), loss_scale=scale or 1.0)
            self._optimizer_step(factor, widened)
        if finite:
            self._balance()
        if (scattered := self.training.scattered) is not None:
            scattered.clear()
        for leaf in leaves if scattered is None else ():
            if self.job.training_options.keeps_gradients:
                leaf.gradient.zero_()
            else:
                leaf.parameter.grad = None
        self.step += 1
        return StepOutcome(mean, math.sqrt(total) / (scale or 1.0), scale, not finite)

    def _counted_gradients(self, widened: dict[nn.Parameter, Tensor]) -> Iterator[Tensor]:
        """Gradients that this rank counts: its shard's where scattered, else `widened` ones, or the leaves' own."""
        scattered = None if self.training.scattered is None else self.training.scattered.own()
        for leaf in self.training.leaves:
            if not leaf.counts_gradient:
                continue
            if scattered is None:
                yield leaf.counted_of(widened[leaf.parameter] if widened else leaf.gradient)
            elif leaf.parameter in scattered:
                yield leaf.counted_of_part(*scattered[leaf.parameter])

    def _balance(self) -> None:
        """Move the biases that balance experts, by the rows of this step on all ranks with the same ones."""
        routers = [router for router in self.training.routers if router.bias is not None]
        if not routers:
            return
        rows = torch.stack([router.statistics.rows for router in routers])
        if self.job.layout.state_ranks > 1:
            dist.all_reduce(rows, group=self._mesh.get_group(DATA))
        for router, rows_E in zip(routers, rows, strict=True):
            router.balance(rows_E)

    def _optimizer_step(self, factor: float | Tensor, widened: dict[nn.Parameter, Tensor]) -> None:
        self._samples_trained += self._global_batch
        rate = learning_rate(self.job.recipe, self._samples_trained)
        optimizer = self.training.optimizer
        if isinstance(optimizer, TensorAdamW):
            optimizer.step(rate, factor, widened)
        elif not isinstance(optimizer, ParameterStore):  # which steps by itself
            optimizer.step(rate, factor)

    def _complete_gradients(self, leaves: list[LocalParameter]) -> None:
        """Sum what the data-parallel reduction does not: parts on tensor-parallel ranks, experts, and tied tables.

        Each rank with a copy of a key-value head has its gradient of its own queries. And scatter the gradients, where
        they are reduced so. A rank's experts have the gradients of all expert-parallel ranks' samples; other ranks with
        the same experts have those of their own.
        """
        layout = self.job.layout
        self._sum([leaf.gradient for leaf in leaves if leaf.partial], self._mesh.get_group(TENSOR))
        if self.training.key_value_group is not None:
            copies = [leaf.gradient[leaf.own_rows :] for leaf in leaves if leaf.own_rows is not None]
            self._sum(copies, self.training.key_value_group)
        for leaf in leaves:
            if leaf.expert and layout.fully_sharded:  # a mean over those with the same experts
                leaf.gradient.div_(layout.expert_parallel)
            elif leaf.expert and self.training.scattered is None:
                leaf.gradient.div_(layout.state_ranks)
                if layout.data_parallel * layout.context_parallel > 1:
                    dist.all_reduce(leaf.gradient, group=self._mesh.get_group(EXPERT_DATA))
        if self.training.embedding_group is not None:
            for leaf in leaves:
                if leaf.tied:
                    dist.all_reduce(leaf.gradient, group=self.training.embedding_group)
        if self.training.scattered is not None:
            self.training.scattered.reduce()

    def _sum(self, parts: list[Tensor], group: dist.ProcessGroup) -> None:
        """Sum each of `parts` over the ranks of `group`, in place, in one message."""
        if not parts:
            return
        flat = torch.cat([part.reshape(-1) for part in parts]).to(self.device)
        dist.all_reduce(flat, group=group)
        for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(summed.view_as(part))

    def _reduced(self, loss: Tensor, squared: Tensor) -> Tensor:
        """Mean loss and squared gradient norm over all ranks, by a message for each axis whose ranks differ in them."""
        layout = self.job.layout
        if layout.tensor_parallel > 1:
            dist.all_reduce(squared, group=self._mesh.get_group(TENSOR))
        if layout.expert_parallel > 1 and not (layout.scatters_gradients or layout.fully_sharded):
            dist.all_reduce(squared, group=self._mesh.get_group(EXPERT))
        both = torch.stack([loss, squared])
        if layout.pipeline_stages > 1:
            dist.all_reduce(both, group=self._mesh.get_group(PIPELINE))
        if layout.state_ranks > 1:
            # where gradients are all-reduced, all data-parallel ranks hold the same; with 1-bit Adam each holds its own
            differ, sharded = self._own_gradients(), layout.fully_sharded or layout.scatters_gradients
            differing = both if sharded or differ else both[:1]
            dist.all_reduce(differing, group=self._mesh.get_group(DATA))
            both[0] /= layout.state_ranks
            both[1] /= layout.state_ranks if differ else layout.shard_copies
        return both

    def _own_gradients(self) -> bool:
        """Whether each data-parallel rank keeps its own gradient: the norm is then the root mean square of theirs."""
        optimizer = self.training.optimizer
        return isinstance(optimizer, OneBitMasters) and optimizer.gradients_differ

    def _offloaded(self) -> AbstractContextManager[object]:
        offloads = self.job.training_options.offloads_activations
        return torch.autograd.graph.save_on_cpu(pin_memory=True) if offloads else nullcontext()

    def _synchronised(self, *, last: bool) -> AbstractContextManager[object]:
        (module,) = self.training.modules
        if self.job.layout.fully_sharded:
            assert isinstance(module, FSDPModule)
            if self.job.layout.zero_stage == 2:
                module.set_reshard_after_backward(last)  # ZeRO-2 gathers once a step
            module.set_requires_all_reduce(last)  # hybrid sharding sums over groups once a step
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return nullcontext()
