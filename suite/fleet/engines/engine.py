"""The interface of an engine, which starts everything on other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from suite.launch.multi_host import Hosts


class EngineNode(NamedTuple):
    """A node of the engine; `why_not`: why nothing can be started on it now, empty where it can."""

    name: str
    why_not: str = ""


class Engine(Protocol):
    """Starts commands on nodes; nothing else does."""

    @property
    def name(self) -> str:
        """As `--engine` names it."""

    @property
    def drains(self) -> bool:
        """Whether `drain` can be asked of it."""

    def nodes(self) -> list[EngineNode]:
        """All nodes that are asked for."""

    def command_on(self, node: str, command: Sequence[str], label: str) -> list[str]:
        """A command that runs this one on a node and ends as it does; `label` names it to the engine."""

    def passed_on(self) -> list[str]:
        """Names of this process's variables that its commands get; empty where its scheduler decides."""

    def hosts(self, names: Sequence[str]) -> Hosts:
        """Where a launch over these nodes has its ranks: one on each."""

    def group_options(self, names: Sequence[str]) -> list[str] | None:
        """Options of `reproduce` for a run over these nodes; None where it has none for this engine."""

    def did_not_get(self, words: str) -> bool:
        """Whether the words of a command that failed say that the engine gave it no node."""

    def cancel(self, label: str) -> None:
        """End what runs under that label."""

    def lost(self, names: Sequence[str]) -> list[str]:
        """Names of the nodes that the engine cannot reach."""

    def drain(self, node: str, reason: str) -> None:
        """Let nothing further start on a node."""
