"""Ranks on the nodes of a scheduler: what is asked for, checked, and where the launch's scratch files lie."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.launch import slurm
from suite.launch.multi_host import HostAccess, Hosts
from suite.machine.scratch import scratch_directory
from suite.reproduce.request import Request

ENGINES = (HostAccess.SLURM.value,)
MOST_NODES, MOST_RANKS = 100_000, 1_000


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a scheduler gives a launch, each with as many ranks; `names` empty: it chooses them."""

    nodes: int
    ranks_of_node: int = 1
    names: tuple[str, ...] = ()
    partition: str | None = None

    @property
    def hosts(self) -> Hosts:
        """Hosts as the launcher wants them."""
        return Hosts(HostAccess.SLURM, self.names, self.nodes, self.ranks_of_node, self.partition)


def scheduled(request: Request) -> tuple[Request, Scheduled | None]:
    """The request with its number of ranks, and the nodes that it asks for; None without an engine.

    Raises:
        InputError: an unknown engine, an engine that is not here, or numbers that contradict each other.
    """
    if request.engine is None:
        for value, where in ((request.nodes, "--nodes"), (request.ranks_per_node, "--ranks-per-node")):
            if value is not None:
                raise InputError("nodes without an engine", got=value, allowed="with --engine slurm", where=where)
        return request, None
    if request.engine not in ENGINES:
        raise InputError("unknown engine", got=repr(request.engine), allowed=", ".join(ENGINES), where="--engine")
    nodes = 1 if request.nodes is None else request.nodes
    ranks = 1 if request.ranks_per_node is None else request.ranks_per_node
    if not 1 <= nodes <= MOST_NODES:
        raise InputError("nodes", got=nodes, allowed=f"1 to {MOST_NODES}", where="--nodes")
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError("ranks of a node", got=ranks, allowed=f"1 to {MOST_RANKS}", where="--ranks-per-node")
    if request.ranks not in (None, nodes * ranks):
        what = f"{nodes} nodes of {ranks} ranks are {nodes * ranks} ranks"
        raise InputError(what, got=request.ranks, allowed=f"{nodes * ranks}, or leave it out", where="--ranks")
    slurm.check_usable()
    there = [node.name for node in slurm.cluster_nodes(request.partition, request.node_list)]
    if len(there) < nodes:
        raise InputError("nodes", got=nodes, allowed=f"at most {len(there)}, those of Slurm", where="--nodes")
    names = tuple(slurm.expanded(request.node_list)) if request.node_list else ()
    if names and len(names) != nodes:
        raise InputError("nodes that are named", got=len(names), allowed=f"as many as --nodes, {nodes}", where="--on")
    asked = Scheduled(nodes=nodes, ranks_of_node=ranks, names=names, partition=request.partition)
    return msgspec.structs.replace(request, ranks=nodes * ranks), asked


def scratch(results: Path, *, shared: bool) -> AbstractContextManager[str]:
    """A directory for a launch's files; below the results directory where all nodes must see it."""
    place = None
    if shared:
        place = (results / "scratch").absolute()
        place.mkdir(parents=True, exist_ok=True)
    return scratch_directory(place)
