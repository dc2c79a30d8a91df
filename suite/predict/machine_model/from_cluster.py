"""The machine that a run's prediction stands on: accelerator, cluster, software stack and the fitted model, joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator, accelerator, dense_peak_flop_per_second
from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.run import Cluster, Precision, Software
from reference_runs.stack import Generation, RecordedStack, stack, stack_of
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.machine import Machine
from suite.predict.machine_model.model import family_of, modelled_machine


class RunMachine(NamedTuple):
    """A machine, the accelerator that it is made of, the software on it, and in words what of it was not recorded.

    Args:
        machine: None where the network between nodes is needed and not recorded; `missing` names the fact.
        uncertainty: relative error of a step time that is to be expected; None: unknown.
    """

    accelerator: Accelerator
    dtype: str
    stack: RecordedStack
    machine: Machine | None
    uncertainty: float | None
    missing: str
    notes: tuple[str, ...]


def run_machine(
    cluster: Cluster | None,
    precision: Precision,
    *,
    ranks: int,
    accelerator_name: str | None,
    network_bytes_per_second: float | None = None,
    software: Software | None = None,
    stack_name: str | None = None,
) -> RunMachine | None:
    """The machine of `cluster`, or the same cluster built of `accelerator_name`; None where neither is given.

    Nodes have the cluster's size, or the accelerator's usual one where another accelerator is asked for. The network
    is the cluster's, or gives each node `network_bytes_per_second`. The stack is the one of this name, or the one that
    `software` names; on another accelerator than the cluster's, with current libraries.

    Raises:
        InputError: unknown accelerator or stack, or an accelerator without a peak for the recipe's dtype.
    """
    name = accelerator_name if accelerator_name is not None or cluster is None else cluster.accelerator
    if name is None:
        return None
    device = accelerator(name)
    dtype = WORK_DTYPES[precision]
    dense_peak_flop_per_second(device, dtype)  # refused before anything else is said of it
    found = stack(stack_name) if stack_name else stack_of(software.stack if software else None)
    notes: list[str] = []
    elsewhere = cluster is None or accelerator(cluster.accelerator).name != device.name
    libraries = ""
    if elsewhere and found.switches.generation is not Generation.CURRENT and stack_name is None:
        current = msgspec.structs.replace(found.switches, generation=Generation.CURRENT)
        found = msgspec.structs.replace(found, switches=current)
        libraries = ", with current libraries"
    per_node = cluster.accelerators_per_node if cluster and accelerator_name is None else None
    if per_node is None:
        per_node = device.board.accelerators_per_node
        notes.append(f"{per_node} accelerators a node, as is usual for {device.name}")
    network = network_bytes_per_second
    if network is None:
        network = recorded_network_bytes_per_second(cluster)
    model = machine_model()
    family_name, measured = family_of(model, device.name)
    assumed = [0.0 if measured else model.families[family_name].uncertainty]
    assumed.append(0.0 if found.measured else model.unmeasured_stack)
    uncertainty = expected_error(assumed)
    if network is None and ranks > per_node:
        missing = "cluster.network_interfaces_per_node and cluster.network_interface_bandwidth"
        words = f"{missing} are needed for the step time, but not recorded"
        return RunMachine(device, dtype, found, None, uncertainty, words, ())
    if accelerator_name is not None and network is not None and ranks > per_node:
        origin = "as recorded for the run" if network_bytes_per_second is None else "as asked for"
        notes.append(f"{8 * network / 1e9:,.0f} Gbit/s out of each node, {origin}")
    machine = modelled_machine(
        model,
        model.values(),
        device=device,
        software=found.switches,
        precision=precision,
        network_bytes_per_second=network,
        accelerators_per_node=per_node,
    )
    notes.append(f"software: {found.title}{libraries} (`--stack`; {found.name})")
    like = device.name if measured else f"{family_name} accelerators, as none of {device.name} is published"
    notes.append(f"efficiencies fitted to published step times of {like}: expect errors of {uncertainty:.0%}")
    if not found.measured:
        notes.append(f"no published step times tell of {found.name}: that adds {model.unmeasured_stack:.0%}")
    return RunMachine(device, dtype, found, machine, uncertainty, "", tuple(notes))


def expected_error(assumed: Sequence[float]) -> float:
    """Relative error to expect of a step time: that of a published table which the fit has not seen.

    The mean over the tables, each left out in turn, with the `assumed` errors of what no table measured (accelerator,
    stack) added as independent ones.
    """
    tables = fit_scores().tables.values()
    unseen = sum(score.table_left_out for score in tables) / len(tables) / 100
    return math.hypot(unseen, *assumed)


def recorded_network_bytes_per_second(cluster: Cluster | None) -> float | None:
    """Bytes per second out of a node over all its interfaces; None where a run does not record them."""
    if cluster is None or cluster.network_interface_bandwidth is None or cluster.network_interfaces_per_node is None:
        return None
    return cluster.network_interfaces_per_node * cluster.network_interface_bandwidth
