"""One training step of a run on a simulated GPU: its launches, products, waits, graph breaks and moved bytes, counted.

    python -m tests.simulated_cuda --log /tmp/log -- python -m benchmarks.simulated_step gpt2-124m --layers 2
    python -m tests.simulated_cuda --log /tmp/log -- python -m benchmarks.simulated_step gpt2-124m --optimizations none

All of PyTorch's host code runs; kernels compute nothing, and take no time. Prints a JSON object (`CountedStep`).
With several numbers of layers a line for each. With --host-seconds STEPS the host's time is measured too, of a device
that never makes it wait; without --log, whose lines cost time, that alone is printed (`HostSeconds`).
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

from reference_runs.accelerator import SIMULATED
from reference_runs.catalog import accumulation
from suite.execute.measure.counters import ObservingMode
from suite.execute.parallel.fake_group import join_fake_group
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.precision import prepare_arithmetic
from suite.execute.training.captured_step import CapturedSteps
from suite.execute.training.slice_step import SliceSteps
from suite.execute.training.step import Steps
from suite.job.options import KernelChoice, Optimization
from suite.reproduce.plan import Plan, corpus_for, job_for, plan
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import slice_plan, slice_tokens

LOG = "SIMULATED_CUDA_LOG"  # names the device's log
STEPS = 64  # for which batches are made ahead; fewer are taken


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
        graphs: launched; their kernels are launched by the device.
    """

    launches: dict[str, int]
    products: list[tuple[int, int, int, int]]
    waits: list[str]
    launches_after_wait: int = 0
    dependent: int = 0
    graphs: int = 0


class CountedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one step.

    Args:
        micro_batches: of the step.
        graphs, graph_breaks: of the compiler, since the process began.
        compiled_bytes, operator_bytes: moved by compiled kernels, and by PyTorch's other operators without matrix
            multiplications and attention.
        update_bytes: those of both that the update moves.
        step, update: the step's launches, and those of its update among them.
    """

    micro_batches: int
    graphs: int
    graph_breaks: int
    compiled_bytes: int
    operator_bytes: int
    update_bytes: int
    step: LoggedStep
    update: LoggedStep


class HostSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """The host's processor time of several steps, whose kernels take no time.

    Seconds of all threads, so that other work of the machine is not in them; that of the libraries that stand in for
    the device is.

    Args:
        micro_batches: of a step.
        passes, update: seconds of all micro-batches of each step, and of its update.
    """

    micro_batches: int
    passes: list[float]
    update: list[float]


def logged_step(lines: Iterable[str], *, process: int, start: float, end: float) -> LoggedStep:
    """The lines of `process` from `start` to `end`, in seconds of the system's monotonic clock."""
    launches: Counter[str] = Counter()
    products: Counter[tuple[int, int, int]] = Counter()
    waits: list[str] = []
    after_wait = dependent = graphs = 0
    for line in lines:
        owner, seconds, kind, *details = line.split()
        if int(owner) != process or not start <= float(seconds) <= end:
            continue
        after_wait += bool(waits) and kind in ("launch", "matmul", "fill", "copy")
        dependent += kind == "dependent"
        graphs += kind == "graph"
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
        launches=dict(launches),
        products=listed,
        waits=waits,
        launches_after_wait=after_wait,
        dependent=dependent,
        graphs=graphs,
    )


# matrix multiplications are counted by their shape, the others move nothing
_PRODUCTS = (
    *("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"),
    *("linear_gelu", "linear_gelu_backward", "linear_gradients"),
)
_LEFT_OUT = (*_PRODUCTS, "empty", "empty_like", "empty_strided", "new_empty", "record_stream")
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

    Of Triton kernels that the compiler did not write: each tensor that is passed to them once. Kernels must have been
    compiled with `torch._inductor.config.benchmark_kernel`, which keeps the estimates.
    """
    launched: list[float] = []
    kernels: Any = CachingAutotuner
    run = kernels.run

    def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        own = kernel.inductor_meta.get("kernel_num_gb")
        tensors = {leaf.data_ptr(): leaf.nbytes for leaf in args if isinstance(leaf, Tensor)}
        launched.append(1e9 * own if own is not None else float(sum(tensors.values())))
        return run(kernel, *args, **kwargs)

    kernels.run = noting
    try:
        yield launched
    finally:
        kernels.run = run


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The step that is executed.

    Args:
        layers, micro_batches: of the step; 0: as recorded.
        optimizations, kernels, gemm_dtype, slice: as of `reproduce`.
    """

    run: str
    layers: int = 0
    micro_batches: int = 0
    optimizations: str | None = None
    kernels: str = KernelChoice.TORCH.value
    gemm_dtype: str | None = None
    slice: bool = False


def _planned(asked: StepRequest, scratch: Path) -> Plan:
    request = Request(
        name=asked.run,
        device="cuda",
        steps=STEPS,
        optimizations=asked.optimizations,
        kernels=asked.kernels,
        products=asked.gemm_dtype,
        results=scratch,
    )
    if asked.slice:
        return slice_plan(msgspec.structs.replace(request, slice=True, layers=asked.layers or None))
    request = msgspec.structs.replace(request, layout="dp1")
    whole = plan(request)
    if asked.micro_batches:
        batch = asked.micro_batches * whole.layout.micro_batch
        whole = plan(msgspec.structs.replace(request, global_batch=batch))
    architecture = msgspec.structs.replace(whole.architecture, layers=asked.layers or whole.architecture.layers)
    return msgspec.structs.replace(whole, architecture=architecture)


@contextmanager
def prepared(asked: StepRequest, scratch: Path) -> Iterator[Steps]:
    """The steps of the recorded run on one GPU, or of a slice of it, as its ranks execute them."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch._inductor.config.benchmark_kernel = LOG in os.environ  # keeps each kernel's bytes, and takes time
    planned = _planned(asked, scratch)
    corpus = slice_tokens(planned) if planned.slice else corpus_for(planned, None)
    job = job_for(planned, corpus, str(scratch))
    torch.backends.cuda.enable_math_sdp(False)
    if job.slice:
        join_fake_group(job.slice.rank, job.layout.ranks)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not export it by name
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    prepare_arithmetic(job.recipe.precision, device)
    mesh = device_mesh(job.layout, "cuda")
    try:
        captured = Optimization.MICRO_BATCH_GRAPH in job.training_options.optimizations
        kind = SliceSteps if job.slice else CapturedSteps if captured else Steps
        yield kind(job, parallelize(job, mesh=mesh, device=device), mesh, device)
    finally:
        dist.destroy_process_group()


def counted(steps: Steps) -> CountedStep:
    """Counts: two steps warm up, the launches of the third count, and the bytes of the fourth."""
    for _ in range(2):
        steps.update(steps.forward_and_backward())
    steps.before_timed()
    torch.cuda.synchronize()
    start = time.monotonic()
    loss = steps.forward_and_backward()
    passed = time.monotonic()
    steps.update(loss)
    end = time.monotonic()
    torch.cuda.synchronize()
    mode: Any = MovedBytes()
    with compiled_bytes() as launched, mode:
        loss = steps.forward_and_backward()
        in_passes = sum(launched) + mode.bytes
        steps.update(loss)
    torch.cuda.synchronize()
    with open(os.environ[LOG], encoding="utf-8") as log:
        lines = [line for line in log if line.startswith(f"{os.getpid()} ")]
    return CountedStep(
        micro_batches=accumulation(steps.job.recipe, steps.job.layout),
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        compiled_bytes=round(sum(launched)),
        operator_bytes=mode.bytes,
        update_bytes=round(sum(launched) + mode.bytes - in_passes),
        step=logged_step(lines, process=os.getpid(), start=start, end=end),
        update=logged_step(lines, process=os.getpid(), start=passed, end=end),
    )


def host_seconds(steps: Steps, number: int, *, warm: bool) -> HostSeconds:
    """The host's time of so many steps, with one thread of PyTorch's: others spin; if not `warm`, after two more."""
    torch.set_num_threads(1)
    passes, updates = [], []
    if not warm:
        for _ in range(2):
            steps.update(steps.forward_and_backward())
        steps.before_timed()
    for _ in range(number):
        torch.cuda.synchronize()
        start = time.process_time()
        loss = steps.forward_and_backward()
        passed = time.process_time()
        steps.update(loss)
        passes.append(passed - start)
        updates.append(time.process_time() - passed)
    micro_batches = accumulation(steps.job.recipe, steps.job.layout)
    return HostSeconds(micro_batches=micro_batches, passes=passes, update=updates)


def _is_simulated() -> bool:
    return torch.cuda.is_available() and SIMULATED in torch.cuda.get_device_name(0)


def main(arguments: Sequence[str]) -> int:
    """Count a step, or time its host, and print that; returns the exit code."""
    parser = argparse.ArgumentParser(
        "benchmarks.simulated_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="name of a recorded run")
    parser.add_argument("--layers", type=int, nargs="+", default=[0], help="number of layers (default: as recorded)")
    parser.add_argument("--micro-batches", type=int, default=0, help="of a step (default: as recorded)")
    parser.add_argument("--optimizations", help="none, default, or names with commas between them (default: default)")
    parser.add_argument("--kernels", default=KernelChoice.TORCH.value, help="torch or triton (default: torch)")
    parser.add_argument("--gemm-dtype", help="GEMM format of linear layers: none or fp8-current (default: the run's)")
    parser.add_argument("--slice", action="store_true", help="count a slice of the run: one micro-batch and an update")
    parser.add_argument("--host-seconds", type=int, default=0, metavar="STEPS", help="steps whose host is timed")
    given = vars(parser.parse_args(arguments))
    timed = given.pop("host_seconds")
    if LOG not in os.environ and not (timed and _is_simulated()):
        command = "python -m tests.simulated_cuda --log FILE -- python -m benchmarks.simulated_step"
        print(f"error: no simulated device with a log here: {command} {given['run']}", file=sys.stderr)
        return 2
    for layers in given.pop("layers"):
        asked = StepRequest(**given, layers=layers)
        with tempfile.TemporaryDirectory() as scratch, prepared(asked, Path(scratch)) as steps:
            found: list[CountedStep | HostSeconds] = [counted(steps)] if LOG in os.environ else []
            found += [host_seconds(steps, timed, warm=bool(found))] if timed else []
            for each in found:
                print(msgspec.json.encode(each).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
