"""Step times of published rows on machines of the fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.catalog import accumulation
from reference_runs.machine_model import MachineModel
from reference_runs.published import PublishedRow
from reference_runs.stack import stack
from suite.predict.analytic.step_time import RankTraffic, step_time, timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.machine_model.model import modelled_machine


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
        accelerator=prepared.device,
        software=stack(row.stack).switches,
        precision=row.recipe.precision,
        network_bytes_per_second=row.network_bytes_per_second,
        accelerators_per_node=row.accelerators_per_node,
    )
    time = step_time(row.workload, machine, micro_batches=prepared.micro_batches, traffic=prepared.traffic)
    return time.total_seconds - (time.overhead_seconds if row.composed else 0.0)
