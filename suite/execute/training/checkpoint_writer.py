"""PyTorch's writer of checkpoints, with a hash of each file, and why a checkpoint could not be stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from suite.job.checkpoints import METADATA, file_hashes

_HASHES = MetadataIndex("sha256 of this rank's files")  # beside the results of tensors, on their way to rank 0


class NotStoredError(OSError):
    """A checkpoint could not be stored."""


class HashedWriter(FileSystemWriter):
    """PyTorch's writer, which reads each file once more, in the thread that wrote it.

    Attributes:
        files: on rank 0, once all is written: name of every file -> its sha256.
    """

    files: dict[str, str]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """As PyTorch's, with the hashes of the files as one more result.

        Raises:
            OSError: a file cannot be written; PyTorch's own error speaks of positions in its archive.
        """
        try:
            written = super().write_data(plan, planner).wait()
        except Exception as error:
            raise _of_system(error) from None
        own = file_hashes(Path(self.path).glob(f"{plan.storage_data.prefix}*"))
        both: Future[list[WriteResult]] = Future()
        both.set_result([*written, WriteResult(_HASHES, 0, own)])
        return both

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """As PyTorch's, on rank 0: the metadata of all ranks' tensors."""
        of_tensors = [[result for result in own if result.index != _HASHES] for own in results]
        super().finish(metadata, of_tensors)
        self.files = file_hashes([Path(self.path, METADATA)])
        for own in results:
            for result in own:
                if result.index == _HASHES:
                    self.files |= result.storage_data


def _of_system(error: BaseException) -> BaseException:
    """The error of the operating system during which others were raised; the last one where there is none."""
    earlier: BaseException | None = error
    while earlier is not None and not isinstance(earlier, OSError):
        earlier = earlier.__cause__ or earlier.__context__
    return earlier or error


def not_stored(error: BaseException, *, directory: Path, step: int, needed: int, kept: list[Path]) -> NotStoredError:
    """An error in a line: which checkpoint, where, why, the room that it needed and that there is, and what is kept.

    Args:
        needed: bytes of all ranks' tensors.
        kept: complete checkpoints.
    """
    if isinstance(error, CheckpointException):
        error = error.failures[min(error.failures)][0]
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    room = f"{needed / 1e6:,.2f} MB needed, {shutil.disk_usage(directory).free / 1e6:,.2f} MB free"
    earlier = f"{kept[-1].name} is kept" if kept else "none was stored before"
    return NotStoredError(f"no checkpoint before step {step} in {directory}: {why}; {room}; {earlier}")


def sum_over_ranks(number: int, group: torch.distributed.ProcessGroup | None) -> int:
    """The sum of a number of every rank; all ranks of the group must call it together."""
    total = torch.tensor(number)
    torch.distributed.all_reduce(total, group=group)
    return int(total)
