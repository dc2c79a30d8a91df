"""Slurm: a job for each node's battery, and one for each group; idle nodes alone are taken."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from suite.fleet.engines.engine import EngineNode
from suite.launch import slurm
from suite.launch.multi_host import HostAccess, Hosts

USABLE = ("idle",)
RESERVED = ("maint", "reserved", "resv")  # usable too by who has the reservation, which srun is told by its variable
NOT_GIVEN = ("Unable to allocate resources", "Requested nodes are busy", "Requested node configuration")
IMMEDIATE_SECONDS = 30


class SlurmEngine(msgspec.Struct, frozen=True):
    """Nodes of a partition, or those named as Slurm writes them."""

    partition: str | None = None
    node_list: str | None = None
    name: str = "slurm"
    drains: bool = True

    def nodes(self) -> list[EngineNode]:
        """All that Slurm knows; those that are busy, drained or down cannot be used."""
        usable = (*USABLE, *(RESERVED if os.environ.get("SLURM_RESERVATION") else ()))
        found = []
        for node in slurm.cluster_nodes(self.partition, self.node_list):
            because = f": {node.reason}" if node.reason else ""
            found.append(EngineNode(node.name, "" if node.state in usable else f"{node.state}{because}"))
        return found

    def command_on(self, node: str, command: Sequence[str], label: str) -> list[str]:
        """By srun; a node that is busy by now is not waited for."""
        start = slurm.srun(nodes=1, name=label, names=[node], partition=self.partition)
        return [*start, f"--immediate={IMMEDIATE_SECONDS}", *command]

    def passed_on(self) -> list[str]:
        """None that this suite chooses."""
        return []

    def hosts(self, names: Sequence[str]) -> Hosts:
        """These very nodes."""
        return Hosts(HostAccess.SLURM, tuple(names), len(names), 1, self.partition)

    def group_options(self, names: Sequence[str]) -> list[str] | None:
        """One rank on each node."""
        where = ["--partition", self.partition] if self.partition else []
        return ["--engine", "slurm", "--nodes", str(len(names)), "--on", ",".join(names), *where]

    def did_not_get(self, words: str) -> bool:
        """By the words of srun."""
        return any(sign in words for sign in NOT_GIVEN)

    def cancel(self, label: str) -> None:
        """By the job's name."""
        slurm.cancel(label)

    def lost(self, names: Sequence[str]) -> list[str]:
        """As the controller sees them."""
        return slurm.not_answering(names)

    def drain(self, node: str, reason: str) -> None:
        """With a reason that `sinfo -R` shows."""
        slurm.drain(node, reason)
