"""One rank of a launch that executes many jobs of one mesh.

python -m tests.end_to_end.layouts.worker DIRECTORY FIRST_JOB SECONDS

Of job number N it writes N.begun, then N.rankR.pt; or N.rankR.failed, and the launch ends. A job that takes longer than
SECONDS ends it too, with the stacks of all ranks in the log.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.execute import rank as life
from suite.execute.measure.peak_memory import AllocatedPeak
from suite.execute.parallel.local_parameter import LocalParameter
from suite.execute.parallel.mesh import CONTEXT, device_mesh, dropout_seed
from suite.execute.parallel.parallelize import parallelize
from suite.execute.parallel.scattered_gradients import ScatteredGradients
from suite.execute.parallel.shared_device import communicate_through_host
from suite.execute.precision import prepare_arithmetic
from suite.execute.training.loop import train
from suite.job.events import Event
from suite.job.training_job import Job
from tests.end_to_end.layouts.dealt_places import dealt_places


class Noted:
    """An optimizer that keeps a copy of the gradients of its first step, as they are when it is called."""

    def __init__(self, optimizer: Any, leaves: list[LocalParameter], scattered: ScatteredGradients | None) -> None:
        self._optimizer = optimizer
        self._leaves = leaves
        self._scattered = scattered
        self.gradients: dict[str, tuple[Tensor, int | None]] | None = None

    def step(self, learning_rate: float, gradient_factor: float | Tensor = 1.0) -> None:
        if self.gradients is None:
            held = {} if self._scattered is None else self._scattered.whole()
            # through NumPy: PyTorch's allocator, whose bytes are measured, has what trains alone
            self.gradients = {
                leaf.name: (
                    torch.from_numpy(held.get(leaf.parameter, leaf.gradient).cpu().numpy().copy()),
                    leaf.split_dim,
                )
                for leaf in self._leaves
            }
        self._optimizer.step(learning_rate, gradient_factor)

    @property
    def state_tensors(self) -> list[Tensor]:
        state: list[Tensor] = self._optimizer.state_tensors
        return state


def executed(job: Job, mesh: DeviceMesh, device: torch.device) -> dict[str, Any]:
    """This rank's report of the job; and its part of each gradient of the first step, with the dim of the split."""
    events: list[Event] = []
    arithmetic = prepare_arithmetic(job.recipe.precision, device)
    peak = AllocatedPeak(device)
    training = parallelize(job, mesh=mesh, device=device)
    unflushed = training.without_flush
    stepped = training.optimizer if unflushed is None else unflushed.optimizer
    noted = Noted(stepped, training.leaves if unflushed is None else unflushed.leaves, training.scattered)
    table = None if unflushed is None else unflushed.table
    noted_table = None
    if table is not None:  # its gradient is whole at a time of its own
        noted_table = Noted(table.optimizer, [table.leaf], None)
        table.optimizer = noted_table  # type: ignore[assignment]  # it has what the table uses
    torch.manual_seed(dropout_seed(job.seed, mesh, job.layout))
    noting = dataclasses.replace(training, optimizer=noted)  # type: ignore[arg-type]  # it has what train() uses
    if unflushed is not None:
        parts = dataclasses.replace(unflushed, optimizer=noted)  # type: ignore[arg-type]
        noting = dataclasses.replace(training, without_flush=parts)
    reported = train(job, noting, mesh, device, peak=peak, arithmetic=arithmetic, report=events.append)
    events.append(reported)
    hybrid = training.sharding.get_all_groups() if training.sharding else ()
    of_mesh = CONTEXT in (mesh.mesh_dim_names or ())
    contexts = None if of_mesh or training.context is None else training.context.get_group()
    for group in (training.embedding_group, contexts, training.key_value_group, *hybrid):
        if group is not None:
            dist.destroy_process_group(group)
    of_table = (noted_table and noted_table.gradients) or {}
    return {"events": msgspec.json.encode(events), "gradients": (noted.gradients or {}) | of_table}


def joined(job: Job, timeout: timedelta) -> torch.device:
    """This rank's device, once it has joined the process group, as in a launch of the suite."""
    if job.device == "cpu":
        torch.use_deterministic_algorithms(True)
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.backends.cuda.enable_math_sdp(False)
    if job.shares_devices:
        communicate_through_host()
        dist.init_process_group("gloo", timeout=timeout)
        return device
    dist.init_process_group("nccl", timeout=timeout, device_id=device)
    return device


def main(directory: Path, first: int, seconds: float) -> None:
    jobs = msgspec.json.decode((directory / "jobs.json").read_bytes(), type=list[Job])
    parts = msgspec.json.decode((directory / "parts.json").read_bytes(), type=list[int])
    torch.set_num_threads(jobs[0].threads)
    device = joined(jobs[0], timedelta(seconds=seconds))
    rank = dist.get_rank()
    jobs = [job.at_rank(rank) for job in jobs]
    mesh = device_mesh(jobs[0].layout, device.type)
    gc.freeze()  # collections after each job look at what it left alone
    for number in range(first, len(jobs)):
        faulthandler.dump_traceback_later(seconds, exit=True)
        (directory / f"{number}.begun").touch()
        try:
            with dealt_places(jobs[number].architecture, ranks=parts[number]):
                done = executed(jobs[number], mesh, device)
            torch.save(done, directory / f"{number}.rank{rank}.part")
            (directory / f"{number}.rank{rank}.part").rename(directory / f"{number}.rank{rank}.pt")
            gc.collect()
            dist.barrier()  # so that one job at most is under way when a rank fails
        except BaseException:  # the rank's last words; torchrun ends the others
            (directory / f"{number}.rank{rank}.failed").write_text(traceback.format_exc())
            life.leave(1)
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    life.leave(0)


if __name__ == "__main__":
    life.die_with_parent()
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
