"""The machine that a run's prediction stands on: accelerator, cluster and the plain model's assumptions, joined."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs import plain_machine as assumptions
from reference_runs.accelerator import Accelerator, accelerator, dense_peak_flop_per_second
from reference_runs.run import Cluster, Precision
from suite.predict.machine import Machine, plain_machine

DTYPE = {Precision.FP32: "fp32", Precision.BF16: "bf16"}  # of the matrix products; fp16 in every other recipe


class RunMachine(NamedTuple):
    """A machine, the accelerator that it is made of, and in words what of it was not recorded.

    Args:
        machine: None where the network between nodes is needed and not recorded; `missing` names the fact.
    """

    accelerator: Accelerator
    dtype: str
    machine: Machine | None
    missing: str
    notes: tuple[str, ...]


def run_machine(
    cluster: Cluster | None,
    precision: Precision,
    *,
    ranks: int,
    accelerator_name: str | None,
    network_bytes_per_second: float | None = None,
) -> RunMachine | None:
    """The machine of `cluster`, or the same cluster built of `accelerator_name`; None where neither is given.

    Nodes have the cluster's size, or the accelerator's usual one where another accelerator is asked for. The network
    is the cluster's, or gives each node `network_bytes_per_second`.

    Raises:
        InputError: unknown accelerator, or one without a peak for the recipe's dtype.
    """
    name = accelerator_name if accelerator_name is not None or cluster is None else cluster.accelerator
    if name is None:
        return None
    device = accelerator(name)
    dtype = DTYPE.get(precision, "fp16")
    peak = dense_peak_flop_per_second(device, dtype)
    notes: list[str] = []
    per_node = cluster.accelerators_per_node if cluster and accelerator_name is None else None
    if per_node is None:
        per_node = device.board.accelerators_per_node
        notes.append(f"{per_node} accelerators a node, as is usual for {device.name}")
    network = network_bytes_per_second
    if network is None:
        network = _network_bytes_per_second(cluster)
    if network is None and ranks > per_node:
        missing = "cluster.network_interfaces_per_node and cluster.network_interface_bandwidth"
        return RunMachine(device, dtype, None, f"{missing} are needed for the step time, but not recorded", ())
    if accelerator_name is not None and network is not None and ranks > per_node:
        origin = "as recorded for the run" if network_bytes_per_second is None else "as asked for"
        notes.append(f"{8 * network / 1e9:,.0f} Gbit/s out of each node, {origin}")
    plain = assumptions.load()
    machine = plain_machine(
        plain.assumptions,
        peak_flop_per_second=peak,
        memory_bytes=device.board.memory_bytes,
        memory_bytes_per_second=device.board.memory_bytes_per_second,
        link_bytes_per_second=device.board.link_bytes_per_second,
        network_bytes_per_second=network or device.board.link_bytes_per_second,
        accelerators_per_node=per_node,
        watts=device.board.watts,
    )
    shares = plain.assumptions
    notes.append(
        f"a plain machine, fitted to no run: {shares.matrix_efficiency:.0%} of the dense peak, "
        f"{shares.memory_efficiency:.0%} of memory and {shares.network_efficiency:.0%} of network bandwidth, "
        f"{shares.overlap_share:.0%} overlap"
    )
    return RunMachine(device, dtype, machine, "", tuple(notes))


def _network_bytes_per_second(cluster: Cluster | None) -> float | None:
    if cluster is None or cluster.network_interface_bandwidth is None or cluster.network_interfaces_per_node is None:
        return None
    return cluster.network_interfaces_per_node * cluster.network_interface_bandwidth
