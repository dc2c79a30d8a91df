"""Hosts without a scheduler, entered by ssh: for a few machines; nobody there keeps other jobs away."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from reference_runs.errors import InputError
from suite.fleet.engines.engine import EngineNode
from suite.launch.multi_host import HostAccess, Hosts, command_on_host, passed_on


class HostsEngine(msgspec.Struct, frozen=True):
    """The named hosts."""

    names: tuple[str, ...]
    name: str = "hosts"
    drains: bool = False

    def nodes(self) -> list[EngineNode]:
        """All that are named; whether one answers is known when it is asked."""
        return [EngineNode(name) for name in self.names]

    def command_on(self, node: str, command: Sequence[str], label: str) -> list[str]:  # noqa: ARG002  # of the engine
        """By ssh, in this directory."""
        return command_on_host(HostAccess.SSH, node, command, dict(os.environ))

    def passed_on(self) -> list[str]:
        """The variables that ssh's command line carries."""
        return sorted(passed_on(os.environ))

    def hosts(self, names: Sequence[str]) -> Hosts:
        """These hosts."""
        return Hosts(HostAccess.SSH, tuple(names))

    def group_options(self, names: Sequence[str]) -> list[str] | None:  # noqa: ARG002  # of the engine
        """None: `reproduce` runs over a scheduler's nodes alone."""
        return None

    def did_not_get(self, words: str) -> bool:  # noqa: ARG002  # of the engine
        """Never: a host is there, or does not answer."""
        return False

    def cancel(self, label: str) -> None:  # of the engine
        """Nothing: what runs there ends with its terminal."""

    def lost(self, names: Sequence[str]) -> list[str]:  # noqa: ARG002  # of the engine
        """None is known to be."""
        return []

    def drain(self, node: str, reason: str) -> None:
        """Refused.

        Raises:
            InputError: always.
        """
        raise InputError(f"nothing drains {node} ({reason})", got="hosts", allowed="--engine slurm", where="--drain")
