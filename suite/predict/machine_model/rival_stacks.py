"""Stacks that a run may have been executed with instead of the one that its framework's text was read as."""

from __future__ import annotations

from collections.abc import Iterator

from reference_runs.accelerator import Accelerator
from reference_runs.layout import Layout, Recomputation
from reference_runs.machine_model import machine_model
from reference_runs.stack import SIZES, Generation, RecordedStack, stacks
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_kind


def executes(software: RecordedStack, layout: Layout) -> bool:
    """Whether the stack has the axes, the sharding and the recomputation of the layout."""
    needed = [word for word, field in SIZES.items() if getattr(layout, field) > 1]
    needed += [f"zero{layout.zero_stage}"] if layout.zero_stage and layout.state_ranks > 1 else []
    needed += [f"recompute-{layout.recomputation}"] if layout.recomputation is not Recomputation.NONE else []
    needed += ["sp"] if layout.sequence_parallel and layout.tensor_parallel > 1 else []
    return all(word in software.layouts or word == "recompute-from-input" for word in needed)


def rival_stacks(chosen: str, device: Accelerator, layout: Layout) -> Iterator[str]:
    """Names of the other stacks that execute the layout; on later accelerators than the A100 none of 2021.

    Those that need CUDA are for accelerators that run it.

    This suite is no rival: nobody else's run was executed by it. Nor are steps that are walked through: not every
    layout is described. Nor is nanotron, whose name alone means it: its peaks would hide what all others change.
    """
    later, runs_cuda = machine_model().is_later(device.name), device.runs_cuda
    for name, other in stacks().items():
        current = other.switches.generation is Generation.CURRENT
        apart = peak_kind(other.switches.keeping) in (PeakKind.WALKED, PeakKind.NANOTRON)
        apart |= other.switches.needs_cuda and not runs_cuda
        if name != chosen and not apart and (current or not later) and executes(other, layout):
            yield name
