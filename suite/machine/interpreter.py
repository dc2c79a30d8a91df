"""Python in which ranks are started: this process's own, or that of another environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """An executable, and how its ranks differ from those of this process.

    Args:
        executable: its path. The environment needs the packages of ranks; the suite itself comes from this checkout.
        variables: environment variables that its ranks have besides, or with another value.
        withheld: names of variables of this process that its ranks do not have.
        software: facts of its software; in records they replace those of this process.
    """

    executable: str = sys.executable
    variables: dict[str, str] = {}
    withheld: tuple[str, ...] = ()
    software: dict[str, str] = {}

    def environment(self, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables of a process that it runs, made from those of this process."""
        return {name: value for name, value in own.items() if name not in self.withheld} | self.variables


OWN = Interpreter()
