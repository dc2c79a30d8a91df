"""The records' directory: append, read; never overwrite, never lose."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path
from typing import BinaryIO

from reference_runs.errors import InputError
from suite.job import Status
from suite.record import Begin, End, Record, decode, encode, node_identity

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_RESERVED_BYTES = 256 * 1024
_RESERVED_BYTES_PER_STEP = 256  # one step of one rank as JSON takes about 200


class StoreFullError(OSError):
    """The records' directory cannot take a record: no space, or an input/output error."""


def new_identity() -> str:
    """TIME__NODE__ID of a launch that starts now: sorts by time, distinct among writers."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{stamp}__{node_identity()}__{secrets.token_hex(4)}"


def records_directory(results: Path, run: str) -> Path:
    """Where records of `run` lie below the results directory; created here.

    Raises:
        InputError: it cannot be created or written.
        StoreFullError: there is no room for it.
    """
    return writable(results / "records" / run, results)


def writable(directory: Path, results: Path) -> Path:
    """`directory`, which is below the results directory, created where it is missing, once a file could be made in it.

    Raises:
        InputError: it cannot be created or written.
        StoreFullError: there is no room for it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".{secrets.token_hex(8)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StoreFullError(error.errno, f"cannot write a record: {error.strerror}", str(directory)) from error
        raise InputError(
            f"cannot write to the results directory: {error.strerror}",
            got=str(results),
            allowed="a writable directory",
            where="--results",
        ) from error
    return directory


def _free_room_of_the_dead(directory: Path) -> None:
    """Remove what launches kept room with whose launcher was killed on this machine."""
    for reserve in directory.glob(".*.reserve"):
        begin = directory / f"{reserve.name.removeprefix('.').removesuffix('.reserve')}.begin.json"
        with contextlib.suppress(OSError, InputError):
            if read(begin).status == Status.CRASHED:
                reserve.unlink()


class Opened:
    """A launch whose first half is on disk; room for the second half is kept free until it is written."""

    def __init__(self, directory: Path, begin: Begin) -> None:
        _free_room_of_the_dead(directory)
        self.path = directory / f"{begin.id}.begin.json"
        self._end_path = directory / f"{begin.id}.end.json"
        self._reserve = directory / f".{begin.id}.reserve"
        job = begin.job
        try:
            size = _RESERVED_BYTES + _RESERVED_BYTES_PER_STEP * job.steps * job.layout.ranks
            with open(self._reserve, "xb") as file:
                _fill(file, os.urandom(size))  # written, not only allocated: no file system can give it away
            write_new(self.path, encode(begin))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            raise StoreFullError(error.errno, f"cannot write a record: {error.strerror}", str(directory)) from error

    def close(self, end: End) -> Path:
        """Write the second half over the bytes that kept its room, so that no other writer can take it; its path.

        Raises:
            StoreFullError: even that failed.
        """
        try:
            with open(os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:  # not truncated yet
                _fill(file, encode(end))
            _name(self._reserve, self._end_path)
        except OSError as error:
            raise StoreFullError(
                error.errno, f"cannot write the end of a record: {error.strerror}", str(self._end_path)
            ) from error
        finally:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
        return self._end_path


def write_new(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all; an existing file is an error, not replaced."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            _fill(file, data)
        _name(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _name(written: Path, path: Path) -> None:
    """Give a written file its name too, durably; an existing file of that name is an error."""
    os.link(written, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(begin_path: Path) -> Record:
    """The record whose first half is at `begin_path`.

    Raises:
        InputError: a half is damaged or of an unknown schema.
    """
    begin = decode(begin_path.read_bytes(), Begin, str(begin_path))
    end_path = begin_path.with_name(begin_path.name.replace(".begin.json", ".end.json"))
    end = decode(end_path.read_bytes(), End, str(end_path)) if end_path.exists() else None
    return Record(path=str(begin_path), begin=begin, end=end)


def recorded_runs(results: Path) -> list[str]:
    """Names of the runs that have records below the results directory."""
    return sorted(path.name for path in (results / "records").glob("*") if path.is_dir())


def records(results: Path, run: str) -> tuple[list[Record], list[InputError]]:
    """All readable records of `run`, oldest first, and why the others are left out."""
    good: list[Record] = []
    bad: list[InputError] = []
    for path in sorted((results / "records" / run).glob("*.begin.json")):
        try:
            good.append(read(path))
        except InputError as error:
            bad.append(error)
    return good, bad
