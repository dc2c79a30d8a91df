"""How a launch uses its devices: whether blocks are compiled."""

from __future__ import annotations

from reference_runs.errors import InputError
from suite.machine.compilers import compilation_missing


def checked_compilation(asked: bool | None, device: str) -> tuple[bool, tuple[str, ...]]:
    """Whether blocks are compiled, by default on CUDA alone; and in words why not, where only this machine is why.

    Raises:
        InputError: it is asked for where a compiler is missing.
    """
    wanted = device == "cuda" if asked is None else asked
    if not wanted or not (missing := compilation_missing(device)):
        return wanted, ()
    if asked:
        raise InputError("cannot compile here", got=missing, allowed="--no-compile", where="--compile")
    return False, (f"eager, not compiled: {missing}",)
