"""Any model on a rank of a launch: what a trace executes without memory, executed with it, step after step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from reference_runs.layout import Recomputation
from suite.execute.data.loader import Batches, batches
from suite.execute.data.token_stream import TokenBatch
from suite.execute.measure.phases import Part
from suite.execute.model.decoder import Decoder
from suite.execute.parallel.expert_parallel import RowCounter
from suite.execute.parallel.local_parameter import LocalParameter
from suite.execute.parallel.mesh import DATA
from suite.execute.parallel.one_bit.buckets import local
from suite.execute.parallel.parallelize import Optimizer, Training
from suite.execute.rank import NotFiniteError
from suite.execute.trace.recomputation import recompute
from suite.execute.trace.sources import Built, build, loss_of
from suite.execute.trace.step import (
    autocast,
    decoder_layers,
    parallel,
    state_tensors,
    stored_tensors,
    synchronise,
    weight_dtype,
)
from suite.execute.trace.updates import optimizers
from suite.execute.training.outcome import StepOutcome
from suite.execute.training.step import Steps
from suite.job.events import PackedDocuments
from suite.job.trace_job import TraceJob
from suite.job.training_job import Job


class _Leaf(LocalParameter):
    """A parameter of a model, which may have no gradient."""

    @property
    def gradient(self) -> Tensor:
        return torch.empty(0) if self.parameter.grad is None else local(self.parameter.grad)


@dataclass(frozen=True)
class _ModelOptimizer:
    """PyTorch's optimizers, as launches know them."""

    optimizers: list[torch.optim.Optimizer]

    @property
    def state_tensors(self) -> list[Tensor]:
        """All tensors of their state on this rank."""
        return state_tensors(self.optimizers)

    def step(self) -> None:
        """Update, and forget the gradients."""
        for each in self.optimizers:
            each.step()
        for each in self.optimizers:
            each.zero_grad()


class _ModelChunk:
    """A model in the place of a chunk of the suite's decoder: all layers, without routers that report.

    Args:
        module: as it is before DistributedDataParallel.
    """

    contexts = ()
    routers: Mapping[int, Any] = {}
    upstream = 1.0

    def __init__(self, module: nn.Module, built: Built) -> None:
        self.module, self.built = module, built
        wrappers = [each for each in module.modules() if isinstance(each, CheckpointWrapper)]
        self._recomputing = [(wrapper, wrapper.checkpoint_fn) for wrapper in wrappers]

    def modules(self) -> Iterator[nn.Module]:
        """All modules of the model."""
        return self.module.modules()

    def recompute(self, kind: Recomputation, *, checkpoint_layers: int = 1) -> None:
        """Have layers compute again what their job says, or nothing."""
        del checkpoint_layers  # each layer is a group
        for wrapper, recomputing in self._recomputing:
            wrapper.checkpoint_fn = partial(_called) if kind is Recomputation.NONE else recomputing


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def model_training(job: Job, asked: TraceJob, *, mesh: DeviceMesh, device: torch.device) -> Training:
    """Build the model of this rank and share it as the trace does, with weights that the job's seed decides.

    Raises:
        SourceError: it cannot be built.
    """
    torch.manual_seed(job.seed)
    dtype = weight_dtype(asked.number_format)
    built = build(asked.source, dtype=dtype, micro_batch=asked.micro_batch, sequence=asked.sequence)
    module = built.module.to(device)
    built = built._replace(inputs=tree_map_only(Tensor, lambda tensor: tensor.to(device), dict(built.inputs)))
    units = decoder_layers(module)
    if asked.recompute:
        every, saves = asked.recompute_every, asked.saves_products
        recompute(module, units, every=every, saves_products=saves, keep=lambda _: None)
    model = parallel(module, units, asked, mesh)
    if job.compiled:
        torch._dynamo.config.optimize_ddp = False  # its splitting is for a model compiled whole; layers are, one by one
        for unit in units:
            unit.compile()
    optimizer = _ModelOptimizer(optimizers(asked.optimizer, model, units))
    leaves: list[LocalParameter] = [
        _Leaf(parameter, name, None, counted=True, counts_gradient=True, partial=False, tied=False)
        for name, parameter in model.named_parameters()
    ]
    return Training(
        chunks=[cast(Decoder, _ModelChunk(module, built))],
        modules=[model],
        leaves=leaves,
        weights=stored_tensors(model),
        optimizer=cast(Optimizer, optimizer),
        pipeline=None,
        without_flush=None,
        gradient_sums=None,
        scattered=None,
        embedding_group=None,
        context=None,
        key_value_group=None,
        sharding=None,
        computed_rows=RowCounter(),
        kind_of_steps=ModelSteps,
    )


class _NoTokens:
    """Stands for samples of a model that brings its inputs."""

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        raise AssertionError(f"no sample {first} of {samples}: the model brings its inputs")


class ModelSteps(Steps):
    """Steps of any model: micro-batches forward and backward, the update, and the mean of the ranks' losses."""

    def __init__(self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        assert job.model is not None
        self._asked = job.model
        self._whole = cast(_ModelChunk, training.chunks[0])
        stream: Batches | None = _NoTokens() if self._whole.built.own_inputs else None
        super().__init__(job, training, mesh, device, stream or batches(job, replica=mesh.get_local_rank(DATA)))

    def forward_and_backward(self) -> Tensor:
        """The gradient of this rank's micro-batches; returns the mean of their losses."""
        first, _ = self._begin()
        samples, losses = self.job.layout.micro_batch, []
        (model,) = self.training.modules
        for number in range(self.micro_batches):
            synchronise(model, not self._asked.synchronises_once or number == self.micro_batches - 1)
            inputs = self._inputs(first + number * samples, samples)
            with self.phases.phase(Part.FORWARD), autocast(self._asked, self.device.type):
                loss = loss_of(model(**inputs)) / self.micro_batches
            del inputs
            with self.phases.phase(Part.BACKWARD):
                loss.backward()
            losses.append(loss.detach().float())
        return torch.stack(losses).sum()

    def _inputs(self, first: int, samples: int) -> Mapping[str, Any]:
        built = self._whole.built
        return built.inputs if built.own_inputs else built.of_tokens(self._micro_batch(first, samples).tokens_BT)

    def chunk_outputs(self, *, samples: int, through_modules: bool = False) -> Iterator[Tensor]:
        """The loss of `samples` samples, or of the model's own inputs."""
        (model,) = self.training.modules
        bare = model.module if isinstance(model, DistributedDataParallel) and not through_modules else model
        with autocast(self._asked, self.device.type):
            yield loss_of(bare(**self._inputs(0, samples)))

    def packed_documents(self) -> PackedDocuments | None:
        return None

    def _update(self, loss: Tensor) -> StepOutcome:
        mean = loss.clone()
        if self.job.layout.ranks > 1:
            dist.all_reduce(mean, group=self._mesh.get_group(DATA))
            mean /= self.job.layout.ranks
        if not math.isfinite(mean.item()):
            text = f"loss is {loss.item()} at step {self.step} (mean over ranks: {mean.item()})"
            raise NotFiniteError(text, at_fault=not math.isfinite(loss.item()))
        cast(_ModelOptimizer, self.training.optimizer).step()
        self.step += 1
        return StepOutcome(mean.item(), math.nan, None, False)
