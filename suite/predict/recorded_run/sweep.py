"""Many layouts of a run at once, with arrays in place of counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import FlopConvention, Workload
from reference_runs.stack import Modules
from suite.predict.analytic.collective_time import Group
from suite.predict.analytic.elementwise import by_row
from suite.predict.analytic.flop import hardware_flop
from suite.predict.analytic.flop_conventions import frozen_flop, needed_flop
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.stage_memory import peak_bytes
from suite.predict.analytic.step_time import step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.analytic.training_cost import tokens_per_second, utilization
from suite.predict.recorded_run.described_memory import described_peak
from suite.predict.simulation.walked_memory import Execution, least_peak, unwalked


class LayoutFigures(NamedTuple):
    """Numbers that decide between layouts: one each, or one array each with an entry a layout."""

    peak_bytes: float
    hardware_flop: float
    bubble_fraction: float
    step_seconds: float
    tokens_per_second: float
    mfu: float


def formula_peak(workload: Workload, machine: Machine) -> float:
    """Bytes at the fullest instant of the fullest rank by formula, with counts as `layout_seconds` takes them.

    Of a step that is walked through a first estimate, which tells what to walk through.
    """
    keeping, (architecture, recipe, layout) = machine.stack.keeping, workload
    if keeping.modules is not Modules.NANOTRON:
        return peak_bytes(workload, micro_batches=accumulation(recipe, layout), keeping=keeping)
    arrays = {field: value for field, value in msgspec.structs.asdict(layout).items() if hasattr(value, "dtype")}

    def of_row(*counts: float) -> float:
        row = msgspec.structs.replace(
            layout, **{field: int(count) for field, count in zip(arrays, counts, strict=True)}
        )
        return layout_peak(Workload(architecture, recipe, row), machine)

    return by_row(of_row, *arrays.values())


def layout_peak(workload: Workload, machine: Machine) -> float:
    """Bytes at the fullest instant of the fullest rank of one layout, as the machine's stack executes it.

    Raises:
        InputError: as `walked_memory`.
    """
    device_bytes = machine.memory_bytes
    return described_peak(workload, machine.stack.keeping, machine.kernels, device_bytes=device_bytes)


def least_layout_peak(workload: Workload, machine: Machine) -> float:
    """Bytes that `layout_peak` has at least where the step is walked through, in a tenth of the time.

    Raises:
        InputError: as `walked_memory`.
    """
    if unwalked(workload, machine.stack.keeping):
        return layout_peak(workload, machine)
    stages = timed_stages(workload.architecture, workload.layout)
    execution = Execution(machine.kernels, machine.stack.keeping)
    return max(least_peak(workload, stage=stage, execution=execution) for stage in stages)


def layout_seconds(workload: Workload, machine: Machine, *, links: Mapping[str, Group] | None = None) -> float:
    """Seconds of a step under `layout`, whose counts are numbers or NumPy arrays of float64.

    The axes, virtual stages, micro-batch and accumulation may be arrays of one length, without hybrid sharding;
    schedule, recomputation, ZeRO stage and other choices hold for all of them. Layouts that `check_layout` refuses give
    numbers without a meaning.

    Args:
        links: of each axis, in place of those of the layout's order of ranks.
    """
    architecture, recipe, layout = workload
    micro_batches = accumulation(recipe, layout)
    traffic = [
        step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in timed_stages(architecture, layout)
    ]
    return step_time(workload, machine, micro_batches=micro_batches, traffic=traffic, links=links).total_seconds


def layout_figures(workload: Workload, machine: Machine, *, convention: FlopConvention | None = None) -> LayoutFigures:
    """Peak memory, flop, traffic and time of one layout; counts may be arrays as for `layout_seconds`, unless its step
    is walked through.

    Args:
        convention: of the published rates, under which the MFU is counted as `predict` counts it; None: as model_flop.

    Raises:
        InputError: as `walked_memory`.
    """
    architecture, recipe, layout = workload
    micro_batches = accumulation(recipe, layout)
    seconds = layout_seconds(workload, machine)
    samples = recipe.global_batch
    return LayoutFigures(
        layout_peak(workload, machine),
        hardware_flop(architecture, layout, samples=samples) - frozen_flop(architecture, recipe, samples=samples),
        bubble_fraction(layout, micro_batches=micro_batches),
        seconds,
        tokens_per_second(samples=samples, sequence=architecture.sequence, step_seconds=seconds),
        utilization(
            flop=needed_flop(architecture, recipe, convention=convention),
            step_seconds=seconds,
            accelerators=layout.ranks,
            peak_flop_per_second=machine.peak_flop_per_second,
        ),
    )
