"""A machine of the fitted model: peaks, efficiencies of its family, software; and step times of published rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from reference_runs.accelerator import Accelerator, accelerator, dense_peak_flop_per_second
from reference_runs.catalog import accumulation
from reference_runs.machine_model import MachineModel
from reference_runs.published import PublishedRow
from reference_runs.run import Precision
from reference_runs.stack import AttentionKernel, Generation, Stack, stack
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.gemm import EfficiencyTable
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.step_time import RankTraffic, step_time, timed_stages
from suite.predict.analytic.traffic import step_traffic

GENERATION = {Generation.EARLY_2021: "libraries_early_2021", Generation.LATE_2021: "libraries_2021"}


def family_of(model: MachineModel, accelerator_name: str) -> tuple[str, bool]:
    """The family of an accelerator, by its catalog name, and whether published rows of it determined the family.

    The last family stands in for accelerators that none names.
    """
    for name, family in model.families.items():
        if accelerator_name in family.accelerators:
            return name, accelerator_name in family.measured
    return list(model.families)[-1], False


def modelled_machine(
    model: MachineModel,
    values: Mapping[str, float],
    *,
    device: Accelerator,
    software: Stack,
    precision: Precision,
    network_bytes_per_second: float | None,
    accelerators_per_node: int,
) -> Machine:
    """The machine with the parameters' `values`, each a number or an array with an entry a set of parameters.

    Raises:
        InputError: the accelerator has no peak in the dtype of `precision`.
    """
    family_name, _ = family_of(model, device.name)

    def value(name: str) -> float:
        of_family = f"{name}.{family_name}"
        return values[of_family if of_family in values else name]

    matrix = value("matrix_efficiency")
    if software.generation in GENERATION:
        matrix = matrix * value(GENERATION[software.generation])
    board = device.board
    fused = (
        software.attention if software.attention is not AttentionKernel.UNFUSED else AttentionKernel.FLASH_ATTENTION_2
    )
    return Machine(
        peak_flop_per_second=dense_peak_flop_per_second(device, WORK_DTYPES[precision]),
        memory_bytes=board.memory_bytes,
        memory_bytes_per_second=board.memory_bytes_per_second,
        memory_efficiency=value("memory_efficiency"),
        matrix_efficiency=EfficiencyTable((1.0,), (1.0,), (1.0,), (((matrix,),),)),
        fused_attention_efficiency=model.families[family_name].attention[fused] * value("attention"),
        link_bytes_per_second=board.link_bytes_per_second,
        link_efficiency=value("link_efficiency"),
        link_latency_seconds=value("link_latency_seconds"),
        network_bytes_per_second=network_bytes_per_second or board.link_bytes_per_second,
        network_efficiency=value("network_efficiency"),
        network_latency_seconds=value("network_latency_seconds"),
        accelerators_per_node=accelerators_per_node,
        watts=board.watts,
        power_share=value("power_share"),
        overlap_share=value("overlap_share"),
        matrix_saturation=value("matrix_saturation"),
        misalignment=value("misalignment"),
        kernel_seconds=value("kernel_seconds"),
        launch_seconds=value("launch_seconds") if software.python_launches else 0.0,
        residual_passes=value("residual_passes"),
        inner_passes=value("inner_passes"),
        score_product_overlap=0.0,
        score_passes=value("score_passes"),
        loss_passes=value("loss_passes"),
        update_passes=value("update_passes"),
        network_contention=value("network_contention"),
        step_overhead_seconds=value("step_overhead_seconds") if software.python_launches else 0.0,
        stack=software,
    )


@cache
def catalogued(name: str) -> Accelerator:
    """The accelerator of that name in the catalog, read once: published rows name few, and each many times."""
    return accelerator(name)


class PreparedRow(NamedTuple):
    """A published row with what of its prediction no parameter changes."""

    row: PublishedRow
    device: Accelerator
    micro_batches: int
    traffic: tuple[RankTraffic, ...]


def prepared_row(row: PublishedRow) -> PreparedRow:
    """The row with the traffic of the stages that may be the slowest."""
    micro_batches = accumulation(row.recipe, row.layout)
    traffic = tuple(
        step_traffic(row.workload, stage=stage, micro_batches=micro_batches) for stage in timed_stages(row.layout)
    )
    return PreparedRow(row, catalogued(row.accelerator), micro_batches, traffic)


def row_step_seconds(model: MachineModel, values: Mapping[str, Any], prepared: PreparedRow) -> Any:
    """Seconds of the row's step; where the values are arrays, an array with an entry a set of parameters.

    Raises:
        InputError: the accelerator has no peak in the row's dtype.
    """
    row = prepared.row
    machine = modelled_machine(
        model,
        values,
        device=prepared.device,
        software=stack(row.stack).switches,
        precision=row.recipe.precision,
        network_bytes_per_second=row.network_bytes_per_second,
        accelerators_per_node=row.accelerators_per_node,
    )
    time = step_time(row.workload, machine, micro_batches=prepared.micro_batches, traffic=prepared.traffic)
    return time.total_seconds - (time.overhead_seconds if row.composed else 0.0)
