"""Checkpoints of a training: stored while it goes on, by torch.distributed.checkpoint, and loaded in place."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from reference_runs.regular_file import file_bytes
from suite.execute.measure.counters import eagerly
from suite.execute.parallel.sharded_adamw import TensorAdamW
from suite.execute.training.asynchronous_step import AsynchronousSteps
from suite.execute.training.checkpoint_writer import HashedWriter, not_stored, sum_over_ranks
from suite.execute.training.outcome import StepOutcome
from suite.execute.training.random_state import set_random_state
from suite.execute.training.step import Steps
from suite.job.checkpoints import (
    KEPT,
    PARTIAL,
    PROGRESS,
    Checkpoints,
    Progress,
    checkpoint_path,
    complete,
    held_by_name,
    newest_whole,
    progress_of,
    remove_partial,
    sealed,
    step_of,
)
from suite.job.events import CheckpointStored, Event, Phase, Resumed
from suite.paths import whole_file

MOST_REHEARSALS = 50  # passes until one does not overflow: a loss scale halves with each
# what the metadata of a checkpoint consists of; a file that a user can name must not run code
_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size", "float32", "float16", "bfloat16", "int64", "uint8"),
    "pathlib": ("PosixPath",),
    "pathlib._local": ("PosixPath",),
}


class CheckpointedTraining:
    """The checkpoints of one rank's training, where its job asks for any.

    One is written at a time, by a thread, over a process group of its own: training waits only while its tensors are
    copied. Rank 0 names a checkpoint as complete when all ranks have written their parts. For this the parts are
    written below a name that no complete one has; so whatever ends a rank, a complete checkpoint is whole.

    Same layout: every tensor, random state and counter is as it was, so training goes on bit for bit. Another layout
    (see `held_by_name`): weights and optimizer states are the same numbers, dropout draws anew.

    Attributes:
        rehearses: whether a step is executed before training goes on.
    """

    def __init__(self, steps: Steps, report: Callable[[Event], None]) -> None:
        self._steps = steps
        self._job = steps.job
        self.rehearses = not isinstance(steps, AsynchronousSteps)
        self._stores = steps.job.checkpoints is not None
        self._checkpoints = steps.job.checkpoints or Checkpoints(directory="")
        self._report = report
        self._group = dist.new_group(backend="gloo") if self._stores else None
        self._writing: Future[Any] | None = None
        self._begun = 0.0
        self._stall_seconds = 0.0
        self._step = self._bytes = self._needed = 0

    def resume(self) -> int:
        """Load the newest checkpoint that is whole; return the number of the next step, 0 where there is none.

        Raises:
            InputError: all are damaged.
        """
        if not self._stores:
            return 0
        begin, attempt = time.time(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        found: list[str | None] = [None]
        damaged: list[str] = []
        self._report(Phase(f"look for a checkpoint in {self._checkpoints.directory}", time.time()))
        if dist.get_rank() == 0 and (whole := newest_whole(self._checkpoints.directory)) is not None:
            found, damaged = [str(whole.path)], whole.damaged
        dist.broadcast_object_list(found, src=0, group=self._group)
        if found[0] is None:
            self._report(Resumed(0, 0.0, time.time(), attempt))
            return 0
        self._report(Phase(f"load {found[0]}", time.time()))
        progress = progress_of(Path(found[0]))
        if self.rehearses:
            self._rehearse(progress)
        elif isinstance(self._steps, AsynchronousSteps):
            self._steps.have(progress)
        same = progress.layout.at_stage(0) == self._job.layout.at_stage(0)
        state = dict(self._tensors())
        randomness = self._steps.random_state()
        if same:
            state |= {f"rank {dist.get_rank()}: {name}": tensor for name, tensor in randomness.items()}
        load(state, storage_reader=Reader(found[0]), process_group=self._group)
        self._steps.continue_from(progress)
        if same:
            set_random_state(randomness, self._steps.device)
        self._report(Resumed(progress.step, time.time() - begin, time.time(), attempt, damaged))
        return progress.step

    def _rehearse(self, progress: Progress) -> None:
        """One step whose result is overwritten.

        It makes the optimizer's states, and DistributedDataParallel's buckets as they are from the second step on: they
        decide in what order a ring sums.
        """
        self._steps.continue_from(progress)
        for _ in range(MOST_REHEARSALS):
            with eagerly():
                outcomes = self._steps.update(self._steps.forward_and_backward())
            if not any(outcome.skipped for outcome in outcomes):
                return

    def before(self, *, counted: bool) -> None:
        """Before a step: what is written must not be in its counts. A checkpoint that is written gets its name."""
        if self._writing is not None and (counted or self._writing.done()):
            self.wait()

    def after(self, step: int, report: Callable[[list[StepOutcome]], None]) -> None:
        """After a step whose number is one less than `step`: begin a checkpoint where one is due.

        Args:
            report: called with the outcomes so far that were not known.
        """
        every = self._checkpoints.every
        if every is None or step % every or step > self._job.steps:
            return
        report(self._steps.settled())
        self.wait()
        begin = time.monotonic()
        path = self._partial(step)
        if dist.get_rank() == 0:
            remove_partial(self._checkpoints.directory)
        tensors, randomness = dict(self._tensors()), self._steps.random_state()
        self._bytes = sum(map(tensor_bytes, tensors.values()))
        self._needed = sum_over_ranks(self._bytes, self._group)  # no rank writes before the remains are gone
        own = {f"rank {dist.get_rank()}: {name}": tensor for name, tensor in randomness.items()}
        self._writer = HashedWriter(path)
        saved = async_save({**tensors, **own}, storage_writer=self._writer, process_group=self._group)
        assert isinstance(saved, Future)
        self._progress = self._steps.progress(self._checkpoints.corpus)
        self._writing, self._step, self._begun = saved, step, begin
        self._stall_seconds = time.monotonic() - begin

    def wait(self) -> None:
        """Until the checkpoint that is being written is complete.

        Raises:
            NotStoredError: it could not be written; what was written of it is removed.
        """
        if self._writing is None:
            return
        try:
            self._writing.result()
            self._writing = None
            if dist.get_rank() == 0:
                self._complete()
        except (CheckpointException, OSError) as error:
            directory = Path(self._checkpoints.directory)
            if dist.get_rank() == 0:
                remove_partial(directory)
            kept = complete(directory)
            raise not_stored(error, directory=directory, step=self._step, needed=self._needed, kept=kept) from None
        seconds = time.monotonic() - self._begun
        self._report(CheckpointStored(self._step, self._bytes, self._stall_seconds, seconds, time.time()))

    def _complete(self) -> None:
        """Give the checkpoint that is written its name, and remove the others but the last ones that are whole."""
        path = self._partial(self._step)
        with whole_file(path / PROGRESS) as temporary:
            progress = msgspec.structs.replace(self._progress, files=self._writer.files)
            temporary.write_bytes(msgspec.json.encode(sealed(progress)))
        final = checkpoint_path(self._checkpoints.directory, self._step)
        if final.exists():  # of an attempt that went on from an older one
            shutil.rmtree(final)
        path.rename(final)
        stored = complete(self._checkpoints.directory)
        later = [old for old in stored if step_of(old) > self._step]  # damaged: this training began with an older one
        for old in [*stored[: -KEPT - len(later)], *later]:
            shutil.rmtree(old, ignore_errors=True)

    def _partial(self, step: int) -> Path:
        return Path(self._checkpoints.directory, f".step-{step:07}{PARTIAL}")

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's tensors by their names in the checkpoint: the tensors themselves, to load in place."""
        training = self._steps.training
        optimizer = training.optimizer
        if training.without_flush is not None:
            kept = training.without_flush.kept(self._steps.step)
            yield from ((f"rank {dist.get_rank()}: {name}", each) for name, each in kept)
        elif held_by_name(self._job.layout, self._job.averaging) and isinstance(optimizer, TensorAdamW):
            yield from by_name(optimizer, {leaf.parameter: leaf.name for leaf in training.leaves})
        else:
            of_rank = [*training.weights, *optimizer.state_tensors]
            yield from ((f"rank {dist.get_rank()}: {number}", each) for number, each in enumerate(of_rank))
        for number, router in enumerate(training.routers):
            if router.bias is not None:
                yield f"rank {dist.get_rank()}: bias {number}", router.bias


def by_name(optimizer: TensorAdamW, names: dict[Any, str]) -> Iterator[tuple[str, Tensor]]:
    """Weights, masters and states of parameters by their names; of sharded ones as DTensors of the whole."""
    masters = optimizer.masters
    for parameter, weight, master in zip(optimizer.parameters, masters.weights, masters.masters, strict=True):
        name = names[parameter]
        parts = {"weight": weight, **masters.optimizer.state.get(master, {})}
        if master.untyped_storage()._cdata != weight.untyped_storage()._cdata and not masters.in_passing:
            parts["master"] = master.detach()
        for part, tensor in parts.items():
            if isinstance(tensor, Tensor):
                yield f"{name}: {part}", _like(parameter, tensor)


def _like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` as this rank's shard of a tensor that is shaped and sharded like `parameter`."""
    if not isinstance(parameter, DTensor) or not tensor.dim():
        return tensor
    mesh, placements = parameter.device_mesh, parameter.placements
    whole, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=whole, stride=stride)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of this rank's part of a tensor."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.numel() * own.element_size()


class Reader(FileSystemReader):
    """PyTorch's reader, which unpickles nothing but the classes of a checkpoint's metadata."""

    def read_metadata(self, *_: Any, **kwargs: Any) -> Metadata:
        """As PyTorch's.

        Raises:
            pickle.UnpicklingError: the file names anything else, or is damaged.
            OSError: it cannot be read.
        """
        metadata = checkpoint_metadata(file_bytes(self._get_metadata_path(kwargs.get("rank"))))
        assert metadata.storage_meta is not None
        metadata.storage_meta.load_id = self.load_id
        return metadata


def checkpoint_metadata(data: bytes) -> Metadata:
    """The metadata of a checkpoint.

    Raises:
        pickle.UnpicklingError: it is damaged, or names anything but the classes of such metadata.
    """
    try:
        metadata = MetadataUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # pickle: "may raise other exceptions, not limited to" some
        raise pickle.UnpicklingError(f"damaged metadata of a checkpoint: {error}") from error
    if not isinstance(metadata, Metadata) or metadata.storage_meta is None:
        raise pickle.UnpicklingError("damaged metadata of a checkpoint: no metadata of a stored one")
    return metadata


class MetadataUnpickler(pickle.Unpickler):
    """Refuses every global but those of a checkpoint's metadata."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, if it is one of those.

        Raises:
            pickle.UnpicklingError: it is not.
        """
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} in the metadata of a checkpoint")
