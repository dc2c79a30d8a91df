"""Whether a launch fits the memory of this machine's GPUs, before it starts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, layout_text
from reference_runs.run import Workload
from suite.job.options import KernelChoice, StepOptions
from suite.predict.analytic.cuda_temporaries import bytes_outside_allocator
from suite.predict.executed_run.figures import memory_options
from suite.predict.simulation.state import rank_position
from suite.predict.simulation.step_memory import executed_peak_bytes
from suite.predict.simulation.supported_layouts import describes_ranks

GIB = 2**30


def check_device_memory(
    workload: Workload, options: StepOptions, kernels: KernelChoice, *, memory_bytes: int, where: str
) -> None:
    """Refuse a launch one of whose ranks needs more memory than the smallest device has.

    What it needs: the predicted peak of PyTorch's allocator, which segments that are only partly used come on top of,
    and what is assumed for CUDA's context and NCCL's buffers.

    Raises:
        InputError: it does not fit.
    """
    if not describes_ranks(workload):
        return
    options = memory_options(options, kernels)
    needed = needed_bytes(workload, options)
    if needed <= memory_bytes:
        return
    fitting = (layout for layout in smaller_layouts(workload) if _fits(workload, layout, options, memory_bytes))
    layout = next(fitting, None)
    remedy = "more ranks" if layout is None else f"--layout {layout_text(layout, complete=True)}"
    raise InputError(
        f"does not fit: a rank needs {needed / GIB:.1f} GiB (predicted peak, and "
        f"{_outside(workload.layout) / GIB:.1f} GiB for CUDA and NCCL)",
        got=f"{memory_bytes / GIB:.1f} GiB",
        allowed=f"a device with more memory, {remedy}",
        where=where,
    )


def needed_bytes(workload: Workload, options: StepOptions) -> int:
    """The most bytes that a rank needs on its device."""
    positions = {rank_position(workload.layout, rank) for rank in range(workload.layout.ranks)}
    peaks = [executed_peak_bytes(workload, options, stage=at.stage, replica=at.replica) for at in positions]
    return max(peaks) + _outside(workload.layout)


def smaller_layouts(workload: Workload) -> Iterator[Layout]:
    """Layouts of as many ranks that need less memory for activations, the ones that cost no time first."""
    layout, micro_batch = workload.layout, workload.layout.micro_batch
    while micro_batch > 1 and micro_batch % 2 == 0:
        micro_batch //= 2
        yield msgspec.structs.replace(layout, micro_batch=micro_batch, accumulation=None)
    if layout.recomputation is not Recomputation.FULL:
        yield msgspec.structs.replace(
            layout, micro_batch=micro_batch, accumulation=None, recomputation=Recomputation.FULL
        )


def _fits(workload: Workload, layout: Layout, options: StepOptions, memory_bytes: int) -> bool:
    smaller = workload._replace(layout=layout)
    try:
        check_layout(smaller, "")
    except InputError:
        return False
    return needed_bytes(smaller, options) <= memory_bytes


def _outside(layout: Layout) -> int:
    replicated = (layout.state_ranks, layout.expert_parallel, layout.context_parallel)
    hybrid = (layout.sharding_ranks, layout.shard_copies) if layout.shard_copies > 1 else ()
    axes = (*replicated, *hybrid, layout.tensor_parallel, layout.pipeline_stages)
    # one communicator of all ranks, and one an axis
    return bytes_outside_allocator(0 if layout.ranks == 1 else 1 + sum(ranks > 1 for ranks in axes))
