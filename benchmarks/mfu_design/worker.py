"""One script in one process on a simulated device: python -m benchmarks.mfu_design.worker RUN SCRIPT LAYERS SCRATCH

Prints a JSON object (`CountedStep`). SIMULATED_CUDA_LOG names the device's log; LAYERS 0: all that the run records.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from benchmarks.mfu_design.launch_log import CountedStep, logged_step
from benchmarks.mfu_design.moved_bytes import step_bytes
from benchmarks.mfu_design.plain_gpt import PlainScript
from reference_runs.catalog import accumulation
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.precision import prepare_arithmetic
from suite.execute.training.step import Steps
from suite.job.training_job import LEAST_STEPS, Job
from suite.reproduce.plan import Plan, corpus_for, job_for, plan
from suite.reproduce.request import Request

TIMED_STEPS = 3  # the least processor time counts: whatever else runs here only adds to it


def planned(run: str, layers: int, scratch: Path) -> Plan:
    """The recorded run on one GPU, as `reproduce RUN --layout dp1` plans it; with `layers`, unless that is 0."""
    whole = plan(Request(name=run, layout="dp1", device="cuda", steps=LEAST_STEPS, results=scratch))
    architecture = whole.architecture
    return msgspec.structs.replace(
        whole, architecture=msgspec.structs.replace(architecture, layers=layers or architecture.layers)
    )


def suite_step(job: Job, device: torch.device) -> Callable[[], object]:
    """The suite's step, as its ranks execute it after the warm-up."""
    torch.backends.cuda.enable_math_sdp(False)
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not export it by name
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    prepare_arithmetic(job.recipe.precision, device)
    mesh = device_mesh(job.layout, "cuda")
    steps = Steps(job, parallelize(job, mesh=mesh, device=device), mesh, device)
    return lambda: steps.update(steps.forward_and_backward())


def counted(run: str, script: str, layers: int, scratch: Path) -> CountedStep:
    """Two steps to warm up, three for the host's time, whose last one's launches count, and one for the bytes."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.set_num_threads(1)  # so that processor time is not that of threads that wait for each other
    torch._inductor.config.benchmark_kernel = True  # keeps each kernel's bytes
    asked = planned(run, layers, scratch)
    micro_batches = accumulation(asked.recipe, asked.layout)
    if script == "suite":
        step = suite_step(job_for(asked, corpus_for(asked, None), str(scratch)), device)
    else:
        step = PlainScript(
            asked.architecture,
            asked.recipe,
            micro_batch=asked.layout.micro_batch,
            micro_batches=micro_batches,
            compiled=script == "plain-compiled",
        ).step
    for _ in range(2):
        step()
    host_seconds = []
    for _ in range(TIMED_STEPS):
        torch.cuda.synchronize()
        start, processor = time.monotonic(), time.process_time()
        step()
        host_seconds.append(time.process_time() - processor)
        end = time.monotonic()
    torch.cuda.synchronize()
    of_compiled, of_operators = step_bytes(step)
    with open(os.environ["SIMULATED_CUDA_LOG"], encoding="utf-8") as log:
        logged = logged_step(log, process=os.getpid(), start=start, end=end)
    return CountedStep(
        micro_batches=micro_batches,
        layers=asked.architecture.layers,
        host_seconds=min(host_seconds),
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        compiled_bytes=of_compiled,
        operator_bytes=of_operators,
        step=logged,
    )


def main() -> None:
    """Count what the command line names, and print it; null where the step runs out of the device's memory."""
    run, script, layers, directory = sys.argv[1:]
    try:
        found = counted(run, script, int(layers), Path(directory))
    except torch.OutOfMemoryError:
        found = None
    print(msgspec.json.encode(found).decode())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
