"""One training step of a run on a simulated GPU: its launches, products, waits, graph breaks and moved bytes, counted.

    python -m tests.simulated_cuda --log /tmp/log -- python -m benchmarks.simulated_step gpt2-124m --layers 2

All of PyTorch's host code runs; kernels compute nothing, and nothing is timed. Prints a JSON object (`CountedStep`).
Exit code 0; 2: no device is simulated here, or bad usage.
"""

from __future__ import annotations

import argparse
import enum
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._pytree import tree_leaves

from reference_runs.catalog import accumulation
from suite.execute.measure.counters import ObservingMode
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.precision import prepare_arithmetic
from suite.execute.training.step import Steps
from suite.job.training_job import LEAST_STEPS
from suite.reproduce.plan import corpus_for, job_for, plan
from suite.reproduce.request import Request

LOG = "SIMULATED_CUDA_LOG"  # names the device's log


class LaunchKind(enum.StrEnum):
    """Purpose of a launch, as far as the kernel's name tells it."""

    PRODUCT = "matrix multiplication"
    ATTENTION = "attention"
    COMPILED = "compiled (Triton)"
    TENSOR_LISTS = "lists of tensors (norm, update)"
    CAST = "cast or copy"
    OTHER = "other kernels of PyTorch"
    FILL = "fill"
    TRANSFER = "copy between host and device"


# parts of kernels' names, the first that is found decides
_NAMES = (
    ("cudnn_graph", LaunchKind.ATTENTION),
    ("flash", LaunchKind.ATTENTION),
    ("fmha", LaunchKind.ATTENTION),
    ("triton_", LaunchKind.COMPILED),
    ("multi_tensor_apply", LaunchKind.TENSOR_LISTS),
    ("copy_kernel", LaunchKind.CAST),
    ("", LaunchKind.OTHER),
)


class LoggedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of a step.

    Args:
        launches: by kind.
        products: rows, columns and depth of a matrix multiplication, and how often it was launched.
        waits: of the host for the device: PyTorch waits for the stream after it copied to the host; and copies from
            pageable memory, for which CUDA may wait until the stream is empty.
        launches_after_wait: how many began after the first wait: of work that the device did not have in time.
        dependent: launches that begin while the kernel before them ends.
    """

    launches: dict[str, int]
    products: list[tuple[int, int, int, int]]
    waits: list[str]
    launches_after_wait: int = 0
    dependent: int = 0


class CountedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one step.

    Args:
        micro_batches: of the step.
        graphs, graph_breaks: of the compiler, since the process began.
        compiled_bytes, operator_bytes: moved by compiled kernels, and by PyTorch's other operators without matrix
            multiplications and attention.
    """

    micro_batches: int
    graphs: int
    graph_breaks: int
    compiled_bytes: int
    operator_bytes: int
    step: LoggedStep


def logged_step(lines: Iterable[str], *, process: int, start: float, end: float) -> LoggedStep:
    """The lines of `process` from `start` to `end`, in seconds of the system's monotonic clock."""
    launches: Counter[str] = Counter()
    products: Counter[tuple[int, int, int]] = Counter()
    waits: list[str] = []
    after_wait = dependent = 0
    for line in lines:
        owner, seconds, kind, *details = line.split()
        if int(owner) != process or not start <= float(seconds) <= end:
            continue
        after_wait += bool(waits) and kind in ("launch", "matmul", "fill", "copy")
        dependent += kind == "dependent"
        if kind == "launch":
            launches[next(found for part, found in _NAMES if part in details[-1])] += 1
        elif kind == "matmul":
            launches[LaunchKind.PRODUCT] += 1
            M, N, K = (int(size) for size in details[1].split("x"))
            products[M, N, K] += int(details[2].removeprefix("count="))
        elif kind == "fill":
            launches[LaunchKind.FILL] += 1
        elif kind == "copy":
            launches[LaunchKind.TRANSFER if "to_" in line else LaunchKind.CAST] += 1
        if kind == "wait" or (kind == "copy" and "to_device pageable" in line):
            waits.append(" ".join([kind, *details[1:]]))
    listed = [(*shape, count) for shape, count in sorted(products.items(), key=lambda item: (-item[1], item[0]))]
    return LoggedStep(
        launches=dict(launches), products=listed, waits=waits, launches_after_wait=after_wait, dependent=dependent
    )


# matrix multiplications are counted by their shape, the others move nothing
_LEFT_OUT = ("mm", "addmm", "bmm", "baddbmm", "empty", "empty_like", "empty_strided", "new_empty", "record_stream")
_ATTENTION = ("_scaled_dot_product", "packed_attention")


class MovedBytes(ObservingMode):
    """Sum of the bytes that operators read (arguments) and write (results, or in place), each tensor once a call.

    A kernel of its own moves that at least; those of reductions and softmax may read twice. Operators inside of
    compiled regions are counted by the compiler's own estimate (see `compiled_bytes`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._opname
        aliases = [returned.alias_info for returned in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if name not in _LEFT_OUT and not name.startswith(_ATTENTION) and not is_view:
            declared = func._schema.arguments
            writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in declared]
            written = [value for value, changed in zip(args, writes, strict=False) if changed]
            self.bytes += _bytes(args) + _bytes(kwargs) + _bytes(written) + (0 if any(writes) else _bytes(result))
        return result


def _bytes(values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.device.type == "cuda")


@contextmanager
def compiled_bytes() -> Iterator[list[float]]:
    """Within this, bytes of every launch of a compiled kernel, as Inductor estimates them, are appended.

    Kernels must have been compiled with `torch._inductor.config.benchmark_kernel`, which keeps the estimates.
    """
    launched: list[float] = []
    kernels: Any = CachingAutotuner
    run = kernels.run

    def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(1e9 * kernel.inductor_meta["kernel_num_gb"])
        return run(kernel, *args, **kwargs)

    kernels.run = noting
    try:
        yield launched
    finally:
        kernels.run = run


def counted(run: str, layers: int, optimizations: str, scratch: Path) -> CountedStep:
    """A step of the recorded run on one GPU, as its ranks execute it, with so many of its layers; 0: all.

    Two steps warm up, the launches of the third count, and the bytes of the fourth.
    """
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch._inductor.config.benchmark_kernel = True  # keeps each kernel's bytes
    request = Request(name=run, layout="dp1", device="cuda", steps=LEAST_STEPS, results=scratch)
    whole = plan(msgspec.structs.replace(request, optimizations=optimizations))
    architecture = msgspec.structs.replace(whole.architecture, layers=layers or whole.architecture.layers)
    asked = msgspec.structs.replace(whole, architecture=architecture)
    job = job_for(asked, corpus_for(asked, None), str(scratch))
    torch.backends.cuda.enable_math_sdp(False)
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not export it by name
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    prepare_arithmetic(job.recipe.precision, device)
    mesh = device_mesh(job.layout, "cuda")
    steps = Steps(job, parallelize(job, mesh=mesh, device=device), mesh, device)

    def step() -> None:
        steps.update(steps.forward_and_backward())

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    start = time.monotonic()
    step()
    end = time.monotonic()
    torch.cuda.synchronize()
    mode: Any = MovedBytes()
    with compiled_bytes() as launched, mode:
        step()
    torch.cuda.synchronize()
    with open(os.environ[LOG], encoding="utf-8") as log:
        logged = logged_step(log, process=os.getpid(), start=start, end=end)
    dist.destroy_process_group()
    return CountedStep(
        micro_batches=accumulation(asked.recipe, asked.layout),
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        compiled_bytes=round(sum(launched)),
        operator_bytes=mode.bytes,
        step=logged,
    )


def main(arguments: Sequence[str]) -> int:
    """Count a step and print it; returns the exit code."""
    parser = argparse.ArgumentParser(
        "benchmarks.simulated_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="name of a recorded run")
    parser.add_argument("--layers", type=int, default=0, help="number of layers (default: as recorded)")
    parser.add_argument("--optimizations", default="default", help="as of reproduce")
    asked = parser.parse_args(arguments)
    if LOG not in os.environ:
        command = "python -m tests.simulated_cuda --log FILE -- python -m benchmarks.simulated_step"
        print(f"error: no simulated device with a log here: {command} {asked.run}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        print(msgspec.json.encode(counted(asked.run, asked.layers, asked.optimizations, Path(scratch))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
