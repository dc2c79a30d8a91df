"""A row of a published table as a run, of which nothing but machine, model, recipe and layout is known."""

from __future__ import annotations

from reference_runs.published import PublishedRow
from reference_runs.run import Cluster, ReferenceRun, Reported


def run_of_row(row: PublishedRow) -> ReferenceRun:
    """The row under its model's name; a network is all of a node's interfaces in one."""
    network = row.network_bytes_per_second
    return ReferenceRun(
        name=row.model,
        title=row.model,
        where=row.table,
        miniature=None,
        architecture=row.architecture,
        recipe=row.recipe,
        recorded_layout=row.layout,
        unpublished=(),
        cluster=Cluster(
            accelerator=row.accelerator,
            accelerators=row.layout.ranks,
            accelerators_per_node=row.accelerators_per_node,
            network_interfaces_per_node=None if network is None else 1,
            network_interface_bandwidth=network,
        ),
        software=None,
        reported=Reported(),
        measured=(),
        facts={},
        sources={},
    )
