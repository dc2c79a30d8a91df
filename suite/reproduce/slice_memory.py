"""Whether a slice fits, before anything is allocated."""

from __future__ import annotations

from reference_runs.errors import InputError
from suite.job.slice import SliceStage
from suite.machine.devices import cuda_device_list
from suite.machine.free_memory import free_bytes
from suite.predict.analytic.cuda_temporaries import bytes_outside_allocator
from suite.predict.executed_run.figures import memory_options
from suite.predict.simulation.state import rank_position
from suite.predict.simulation.step_memory import executed_peak_bytes
from suite.reproduce.plan import Plan

GIB = 2**30
PROCESS_BYTES = GIB  # of a rank on a CPU besides its tensors: PyTorch's libraries
# of its tensors' peak, gaps in the heap, which ranks keep (suite.machine.malloc): 2 layers of BLOOM held 13.9 GB where
# tensors hold 9.9, and 10.9 with blocks mapped one by one, whose steps took twice as long (2026-11-27)
HEAP_GAPS = 0.3


def needed_bytes(plan: Plan) -> int:
    """The most that the tensors of one of the slice's processes hold at a time, and what it needs besides."""
    assert plan.slice is not None
    options = memory_options(plan.step_options, plan.kernels)
    positions = {rank_position(plan.layout, rank) for rank in plan.slice.places}
    peak = max(
        executed_peak_bytes(plan.workload, options, stage=at.stage, replica=at.replica, sliced=True) for at in positions
    )
    if plan.device == "cuda":
        return peak + bytes_outside_allocator(0)
    return round((1 + HEAP_GAPS) * peak) + PROCESS_BYTES


def needs(plan: Plan) -> str:
    """Memory that a slice needs, in words."""
    each = f" for each of {plan.ranks} processes" if plan.ranks > 1 else ""
    return f"needs {needed_bytes(plan) / GIB:.1f} GiB{each}"


def check_memory(plan: Plan) -> None:
    """Refuse a slice that does not fit, with what would make it smaller.

    Raises:
        InputError: a process needs more than the smallest GPU has, or all more than is free on this host.
    """
    assert plan.slice is not None
    needed = needed_bytes(plan) * (1 if plan.device == "cuda" else plan.ranks)
    has = min(each.memory_bytes for each in cuda_device_list()) if plan.device == "cuda" else free_bytes()
    if needed <= has:
        return
    layers, whole, layout = plan.slice.layers, plan.architecture, plan.slice.layout
    smaller = {
        f"--layers below {layers}": layers > 1,
        f"--sequence below {whole.sequence}": True,
        f"--micro-batch below {plan.layout.micro_batch}": plan.layout.micro_batch > 1,
        "--stage middle": plan.slice.stage is not SliceStage.MIDDLE and layout.pipeline_stages > 2,
    }
    allowed = f"{', '.join(name for name, helps in smaller.items() if helps)}, or a device with more memory"
    what = f"does not fit: the slice needs {needed / GIB:.1f} GiB"
    raise InputError(what, got=f"{has / GIB:.1f} GiB", allowed=allowed, where=plan.name)
