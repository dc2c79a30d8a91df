"""Task that Slurm starts once on each node of a launch: it says what the node is, and becomes torchrun.

python -m suite.launch.node_task RANKS-OF-A-NODE [--calibrate | --probe] JOB.json
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import msgspec

from suite.job.launch_nodes import INTERFACE_VARIABLE, LaunchNode, node_path
from suite.launch import slurm
from suite.launch.multi_host import OWN_INTERFACE, torchrun
from suite.paths import whole_file

PORTS = range(10_000, 32_000)  # below those that systems give to connections


def main() -> None:
    """Become torchrun with this node's ranks."""
    ranks, *kind, job = sys.argv[1:]
    number, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
    names = slurm.expanded(os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_JOB_NODELIST"])
    address = slurm.node_address(names[number])
    here = LaunchNode(
        name=names[number],
        first_rank=number * int(ranks),
        ranks=int(ranks),
        address=address,
        interface=interface_of(address),
        switch=os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0],
    )
    directory = msgspec.json.decode(Path(job).read_bytes())["directory"]
    with whole_file(node_path(directory, number)) as path:
        path.write_bytes(msgspec.json.encode(here))
    variables = dict(os.environ)
    if here.interface:
        variables |= {name: os.environ.get(name, here.interface) for name in OWN_INTERFACE}
        variables[INTERFACE_VARIABLE] = here.interface
    command = torchrun(
        ["suite.execute", *kind, job],
        number=number,
        hosts=nodes,
        master=slurm.node_address(names[0]),
        directory=directory,
        ranks=int(ranks),
        port=port(os.environ),
    )
    os.execvpe(command[0], command, variables)  # noqa: S606  # srun's task becomes the ranks; no shell is wanted


def port(variables: os._Environ[str] | dict[str, str]) -> int:
    """Where the ranks meet: jobs and steps that share a node have others."""
    number = int(variables.get("SLURM_JOB_ID", 0)) * 61 + int(variables.get("SLURM_STEP_ID", 0))
    return PORTS[number % len(PORTS)]


def interface_of(address: str) -> str:
    """The network interface that has this address, by number or by name; empty where none has."""
    import psutil

    try:
        numbers = {found[4][0] for found in socket.getaddrinfo(address, None)}
    except OSError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] in numbers for one in addresses):
            return name
    return ""


if __name__ == "__main__":
    main()
