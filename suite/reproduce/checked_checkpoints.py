"""Checkpoints that a request asks for: where they lie, what can be stored, and what training can go on from."""

from __future__ import annotations

import fcntl
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reference_runs.errors import InputError
from suite.job.checkpoints import Checkpoints, newest, remove_partial
from suite.job.options import Averaging
from suite.records.store import writable
from suite.reproduce.request import Request

LATEST = "latest"
MOST_RESTARTS = 1000
EVERY, RESUME, RESTARTS = "--checkpoint-every", "--resume", "--max-restarts"


def checked_checkpoints(request: Request, averaging: Averaging) -> Checkpoints | None:
    """Where the launch stores checkpoints, and from where it goes on; None where the request has none of both.

    Raises:
        InputError: a number out of range, what is not stored, or a checkpoint that is not there.
    """
    every, restarts = request.checkpoint_every, request.max_restarts
    if every is None and request.resume is None:
        if restarts:
            raise InputError("nothing to go on from", allowed=f"with {EVERY}", where=RESTARTS)
        return None
    where = EVERY if every is not None else RESUME
    if every is not None and not 1 <= every <= request.steps:
        allowed = f"1 to the number of steps, {request.steps}"
        raise InputError("steps between checkpoints", got=every, allowed=allowed, where=EVERY)
    if not 0 <= restarts <= MOST_RESTARTS:
        raise InputError("restarts", got=restarts, allowed=f"0 to {MOST_RESTARTS:,}", where=RESTARTS)
    if restarts and request.engine is not None:
        raise InputError(
            "a scheduler starts ranks again, not torchrun", got=f"--engine {request.engine}", where=RESTARTS
        )
    if averaging is Averaging.ONE_BIT or averaging is Averaging.POWER_SGD:
        raise InputError("errors of a compressed average are not stored", got=averaging.value, where=where)
    if request.synchronisation is not None:
        raise InputError("a parameter store is not stored", got="--synchronisation", where=where)
    root = request.results / "checkpoints"
    directory = _named(request.resume, root) if request.resume else root / _new(request.run)
    return Checkpoints(directory=str(directory.absolute()), every=every, restarts=restarts)


def _new(name: str) -> str:
    """A directory of a new run, below that of all checkpoints."""
    return f"{Path(name).stem}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}__{secrets.token_hex(4)}"


def _named(said: str, root: Path) -> Path:
    """The directory of checkpoints that `--resume` names."""
    if said == LATEST:
        found = [path for path in root.glob("*/*") if newest(path) is not None]
        if not found:
            raise InputError("no checkpoint", allowed=f"a run with {EVERY} before", where=str(root))
        return max(found, key=lambda path: path.name)
    directory = Path(said)
    if newest(directory) is None:
        allowed = f"{LATEST}, or a directory with step-NNNNNNN in it"
        raise InputError("no checkpoint there", got=said, allowed=allowed, where=RESUME)
    return directory


@contextmanager
def sole_use(checkpoints: Checkpoints | None, results: Path) -> Iterator[None]:
    """Within this no other launch stores or loads checkpoints there; a file system without locks (NFS) refuses nobody.

    Where there are locks, what earlier launches and this one left half-written is removed.

    Raises:
        InputError: another one does, or the directory cannot be written.
    """
    if checkpoints is None:
        yield
        return
    directory = writable(Path(checkpoints.directory), results)
    with open(directory / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("another launch uses these checkpoints", where=str(directory)) from None
        except OSError:
            yield
            return
        remove_partial(directory)
        try:
            yield
        finally:
            remove_partial(directory)
