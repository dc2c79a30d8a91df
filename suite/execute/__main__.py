"""One rank of a launch, started by torchrun: python -m suite.execute JOB.json.

--calibrate JOB.json measures the machine instead, --probe JOB.json looks for wrong bits.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from suite.execute import rank as life

life.die_with_parent()

gc.disable()  # the imports below leave no garbage: looking for it took 0.6 of 5.6 s

import torch  # after die_with_parent: it takes seconds, in which the parent may die
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from suite.execute.calibrate.reference_step import ReferenceTraining
from suite.execute.calibrate.run import calibrate
from suite.execute.measure.peak_memory import AllocatedPeak
from suite.execute.measure.system_load import bind_near_gpu
from suite.execute.model import fused_gemms, packed_attention, scaled_products
from suite.execute.parallel.fake_group import join_fake_group, join_fake_group_with_others
from suite.execute.parallel.mesh import device_mesh, dropout_seed
from suite.execute.parallel.parallelize import parallelize
from suite.execute.parallel.shared_device import communicate_through_host
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.execute.probe.run import probe
from suite.execute.training.loop import train
from suite.job.calibration_job import CalibrationJob
from suite.job.events import Finished, Phase, Started, events_path
from suite.job.options import KernelChoice
from suite.job.probe_job import ProbeJob
from suite.job.training_job import Job

gc.freeze()  # collections look at what comes after
gc.enable()


def main() -> None:
    """Run the job file named on the command line as the rank that torchrun's environment says."""
    kinds: dict[str, type[Job | CalibrationJob | ProbeJob]] = {"--calibrate": CalibrationJob, "--probe": ProbeJob}
    job = msgspec.json.decode(Path(sys.argv[-1]).read_bytes(), type=kinds.get(sys.argv[1], Job))
    rank = int(os.environ["RANK"])
    report = life.Reporter(events_path(job.directory, rank))
    report(Started(os.getpid(), time.time()))
    life.answer_on_request(job.directory, rank)
    try:
        if isinstance(job, Job):
            report(execute(job, report))
        elif isinstance(job, ProbeJob):
            report(probe(job, joined(job, report), report))
        else:
            device = joined(job, report)
            report(calibrate(job, device, report, ReferenceTraining(job, device, report)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:  # whatever it is, it is reported
        report(life.failure(error))
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
        life.leave(1)
    life.leave(0)


def joined(job: Job | CalibrationJob | ProbeJob, report: life.Reporter) -> torch.device:
    """This rank's device, once it has joined the process group."""
    report(Phase("join the process group", time.time()))
    torch.set_num_threads(job.threads)
    shares = isinstance(job, Job) and job.shares_devices
    device = torch.device("cpu")
    if job.device == "cuda":
        local_rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", local_rank % torch.cuda.device_count() if shares else local_rank)
        torch.cuda.set_device(device)
        bind_near_gpu(device)  # before threads start and memory is pinned
    if shares:
        communicate_through_host()
    own = not isinstance(job, Job) or job.model is None  # a model that knows nothing of this suite computes as it likes
    torch.use_deterministic_algorithms(job.device == "cpu" and own)
    # Otherwise deterministic algorithms fill every new tensor: 4,850 calls in a step of bloom-mini. Nothing here reads
    # what it has not written: losses are the same with the fills (tests/end_to_end/test_reproduce.py).
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # of the module's class
    torch.backends.cuda.enable_math_sdp(not own)  # fail rather than store the scores of fused attention
    if isinstance(job, Job) and job.slice is not None:
        if job.slice.group:
            join_fake_group_with_others(job.slice.group[int(os.environ["RANK"])], job.layout.ranks)
        else:
            join_fake_group(job.slice.rank, job.layout.ranks)
        return device
    timeout = timedelta(seconds=job.collective_timeout_seconds)
    # torchrun of PyTorch 2.13 keeps its store over restarts, and with it the addresses of ranks that are gone
    store, own, ranks = next(rendezvous("env://", timeout=timeout))
    dist.init_process_group(
        "nccl" if job.device == "cuda" and not shares else "gloo",
        store=PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store),
        rank=own,
        world_size=ranks,
        timeout=timeout,
        device_id=device if job.device == "cuda" and not shares else None,
    )
    return device


def execute(job: Job, report: life.Reporter) -> Finished:
    """Join the process group, build the model, train, and return what was counted."""
    device = joined(job, report)
    job = job.at_rank(int(os.environ["RANK"]))
    real = ("nccl" if job.device == "cuda" else "gloo") if job.slice is not None and job.slice.group else None
    mesh = device_mesh(job.layout, job.device, inside=real)
    report(Phase("build the model", time.time()))
    arithmetic = prepare_arithmetic(job.recipe.precision, device)
    peak = AllocatedPeak(device)
    if job.kernels is KernelChoice.TRITON:
        from suite.execute.model.triton_operations import how_computed  # needs Triton, which not every machine has

        arithmetic = "; ".join(words for words in (arithmetic, how_computed(device)) if words)
    if words := fused_gemms.how_computed(job.training_options.optimizations, device):
        arithmetic = f"{arithmetic}; {words}"
    if job.recipe.product_format.casts:
        arithmetic = f"{arithmetic}; {scaled_products.how_computed(device)}"
    if job.model is None:
        training = parallelize(job, mesh=mesh, device=device)
        if words := packed_attention.how_computed(
            job.training_options.optimizations, device, DTYPES[job.recipe.precision], job.architecture.fused_head_dim
        ):  # after FlashAttention 3 is chosen
            arithmetic = f"{arithmetic}; {words}"
    else:
        from suite.execute.trace.launched import model_training  # and with it the tracer

        training = model_training(job, job.model, mesh=mesh, device=device)
    torch.manual_seed(dropout_seed(job.seed, mesh, job.layout))
    return train(job, training, mesh, device, peak=peak, arithmetic=arithmetic, report=report)


if __name__ == "__main__":
    main()
