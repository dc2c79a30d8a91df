"""Other layouts of a run: many at once, with arrays in place of counts, and those that fit and take less time."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation, check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.analytic.flop import hardware_flop, model_flop
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.stage_memory import peak_bytes
from suite.predict.analytic.step_time import step_time, timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.analytic.training_cost import tokens_per_second, utilization

MICRO_BATCHES = (1, 2, 4, 8, 16)


class LayoutFigures(NamedTuple):
    """What decides between layouts: one number each, or one array each with an entry a layout."""

    peak_bytes: float
    hardware_flop: float
    bubble_fraction: float
    step_seconds: float
    tokens_per_second: float
    mfu: float


def layout_figures(workload: Workload, machine: Machine) -> LayoutFigures:
    """Peak memory, flop, traffic and time under `layout`, whose counts are numbers or NumPy arrays of float64.

    The axes, virtual stages, micro-batch and accumulation may be arrays of one length, without hybrid sharding;
    schedule, recomputation, ZeRO stage and other choices hold for all of them. Layouts that `check_layout` refuses give
    numbers without a meaning.
    """
    architecture, recipe, layout = workload
    micro_batches = accumulation(recipe, layout)
    traffic = [step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in timed_stages(layout)]
    step = step_time(workload, machine, micro_batches=micro_batches, traffic=traffic)
    samples = recipe.global_batch
    seconds = step.total_seconds
    return LayoutFigures(
        peak_bytes(workload, micro_batches=micro_batches),
        hardware_flop(architecture, layout, samples=samples),
        bubble_fraction(layout, micro_batches=micro_batches),
        seconds,
        tokens_per_second(samples=samples, sequence=architecture.sequence, step_seconds=seconds),
        utilization(
            flop=model_flop(architecture, samples=samples),
            step_seconds=seconds,
            accelerators=layout.ranks,
            peak_flop_per_second=machine.peak_flop_per_second,
        ),
    )


def alternatives(workload: Workload, machine: Machine) -> list[tuple[Layout, LayoutFigures]]:
    """Layouts of the same ranks that fit into memory, the fastest first: other tp, pp, dp and micro-batch.

    Expert parallelism stays.
    """
    architecture, recipe, layout = workload
    found: list[tuple[Layout, LayoutFigures]] = []
    node, ranks = machine.accelerators_per_node, layout.ranks // layout.expert_parallel
    for tensor_parallel in [size for size in range(1, node + 1) if node % size == 0]:
        for stages in [p for p in range(1, architecture.layers + 1) if ranks % (tensor_parallel * p) == 0]:
            for micro_batch in MICRO_BATCHES:
                other = msgspec.structs.replace(
                    layout,
                    tensor_parallel=tensor_parallel,
                    pipeline_stages=stages,
                    context_parallel=1,
                    data_parallel=ranks // (tensor_parallel * stages),
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
