"""Layouts of the same accelerators that fit and are predicted to take less time."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.analytic.machine import Machine
from suite.predict.recorded_run.sweep import LayoutFigures, layout_figures

MICRO_BATCHES = (1, 2, 4, 8, 16)


def alternatives(workload: Workload, machine: Machine) -> list[tuple[Layout, LayoutFigures]]:
    """Layouts of the same ranks that fit into memory, the fastest first: other tp, pp, dp and micro-batch."""
    architecture, recipe, layout = workload
    found: list[tuple[Layout, LayoutFigures]] = []
    node = machine.accelerators_per_node
    for tensor_parallel in [size for size in range(1, node + 1) if node % size == 0]:
        for stages in [p for p in range(1, architecture.layers + 1) if layout.ranks % (tensor_parallel * p) == 0]:
            for micro_batch in MICRO_BATCHES:
                other = msgspec.structs.replace(
                    layout,
                    tensor_parallel=tensor_parallel,
                    pipeline_stages=stages,
                    context_parallel=1,
                    data_parallel=layout.ranks // (tensor_parallel * stages),
                    virtual_stages=1,
                    micro_batch=micro_batch,
                    accumulation=None,
                )
                try:
                    check_layout(Workload(architecture, recipe, other), "here")
                except InputError:
                    continue
                figures = layout_figures(Workload(architecture, recipe, other), machine)
                if figures.peak_bytes <= machine.memory_bytes:
                    found.append((other, figures))
    return sorted(found, key=lambda pair: pair[1].step_seconds)
