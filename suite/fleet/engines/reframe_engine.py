"""ReFrame: its own runner starts each node's battery, as a check under the configuration that the site has."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.fleet.engines.engine import EngineNode
from suite.fleet.engines.hosts_engine import HostsEngine
from suite.fleet.engines.slurm_engine import SlurmEngine
from suite.launch.multi_host import Hosts

NOT_STARTED = "ReFrame did not start it"


class ReframeEngine(msgspec.Struct, frozen=True):
    """Nodes of Slurm, or named ones; everything but batteries is started as there: a check of ReFrame has one job.

    Args:
        results: a directory that all nodes share; ReFrame's own files lie below it for as long as it runs.
    """

    results: Path
    base: SlurmEngine | HostsEngine
    name: str = "reframe"

    @property
    def drains(self) -> bool:
        """Where Slurm does."""
        return self.base.drains

    def nodes(self) -> list[EngineNode]:
        """Nodes of Slurm, or the named ones."""
        return self.base.nodes()

    def command_on(self, node: str, command: Sequence[str], label: str) -> list[str]:
        """By ReFrame."""
        return [sys.executable, "-m", "suite.fleet.reframe_command", str(self.results), node, label, *command]

    def passed_on(self) -> list[str]:
        """None that this suite chooses."""
        return []

    def hosts(self, names: Sequence[str]) -> Hosts:
        """By srun, or by ssh."""
        return self.base.hosts(names)

    def group_options(self, names: Sequence[str]) -> list[str] | None:
        """By srun, or none."""
        return self.base.group_options(names)

    def did_not_get(self, words: str) -> bool:
        """By what `reframe_command` says last."""
        return NOT_STARTED in words

    def cancel(self, label: str) -> None:
        """ReFrame cancels what it started when it ends; what is left in Slurm has the label as its name."""
        self.base.cancel(label)

    def lost(self, names: Sequence[str]) -> list[str]:
        """As Slurm sees them; of others none is known to be."""
        return self.base.lost(names)

    def drain(self, node: str, reason: str) -> None:
        """By Slurm, or refused."""
        self.base.drain(node, reason)


def reframe_program() -> str:
    """ReFrame's command: that of this python, or the one on the PATH.

    Raises:
        InputError: there is none.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which("reframe", path=places)
    if program is None:
        allowed = "pip install reframe-hpc, or your site's on the PATH"
        raise InputError("ReFrame is not installed", got="reframe", allowed=allowed, where="--engine")
    return program
