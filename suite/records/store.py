"""The records' directory: append, read; never overwrite, never lose."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from pathlib import Path
from typing import BinaryIO

from reference_runs.errors import InputError
from suite.job.pipeline_passes import most_passes
from suite.machine.fingerprint import node_identity
from suite.records.record import (
    BEGIN,
    END,
    Begin,
    End,
    Record,
    check_names,
    check_same_launch,
    contents,
    decode,
    encode,
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
_RESERVE = ".reserve"
# reserved room, half-written files, test files of `writable`, and what earlier versions kept of records
_LEFTOVER = re.compile(r"\..+\.reserve|\..+\.json\.[0-9a-f]{8}|\.([0-9a-f]{8}\.\.)?launches|\.[0-9a-f]{16}")
_OLD_SECONDS = 86400
_RESERVED_BYTES = 256 * 1024
_RESERVED_BYTES_PER_STEP = 256  # one step of one rank as JSON takes about 200
_RESERVED_BYTES_OF_KERNELS = 20 * 1024  # of a rank's profiled step on a GPU: 51 of about 330
_RESERVED_BYTES_PER_PASS = 100  # of a pipeline's rank: about 80


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
        what = f"cannot write to the results directory: {error.strerror}"
        raise InputError(what, got=str(results), allowed="a writable directory", where="--results") from error
    return directory


def _clear_leftovers(directory: Path) -> None:
    """Remove what killed launchers left: the room that they kept, and what they had begun to write.

    Room is freed once its launch has ended, or its launcher is gone from this machine. All else when it is a day old:
    no writer is that slow, and one that was only stopped loses its room, or is refused its record when it goes on.
    """
    for path in directory.iterdir():
        if not _LEFTOVER.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError, InputError):
            begin = directory / f"{path.name.removeprefix('.').removesuffix(_RESERVE)}{BEGIN}"
            if path.name.endswith(_RESERVE) and begin.exists():
                if read(begin).status not in ("running", "unknown"):
                    path.unlink()
            elif time.time() - path.stat().st_mtime > _OLD_SECONDS:
                path.unlink()


class Opened:
    """A launch whose first half is on disk; room for the second half is kept free until it is written."""

    def __init__(self, directory: Path, begin: Begin) -> None:
        _clear_leftovers(directory)
        self.path = directory / f"{begin.id}{BEGIN}"
        self._end_path = directory / f"{begin.id}{END}"
        self._reserve = directory / f".{begin.id}{_RESERVE}"
        job = begin.job
        try:
            size = _RESERVED_BYTES + _RESERVED_BYTES_PER_STEP * job.steps * job.ranks
            size += _RESERVED_BYTES_PER_PASS * most_passes(job.workload) * job.ranks
            size += _RESERVED_BYTES_OF_KERNELS * job.ranks if job.device == "cuda" else 0
            keep_room(self._reserve, size)
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
            write_over(self._reserve, self._end_path, encode(end))
        except OSError as error:
            what = f"cannot write the end of a record: {error.strerror}"
            raise StoreFullError(error.errno, what, str(self._end_path)) from error
        return self._end_path


def keep_room(reserve: Path, size: int) -> None:
    """Fill so many bytes of a new file, for what must be written even on a file system that is full by then."""
    with open(reserve, "xb") as file:
        _fill(file, os.urandom(size))  # written, not only allocated: no file system can give it away


def write_over(reserve: Path, path: Path, data: bytes) -> None:
    """Write `path` over the bytes that kept its room, whole or not at all; an existing file is an error, not replaced.

    The room is given back in any case.
    """
    try:
        with open(os.open(reserve, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:  # not truncated yet
            _fill(file, data)
        _name(reserve, path)
    finally:
        with contextlib.suppress(OSError):
            reserve.unlink(missing_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all; an existing file is an error, not replaced."""
    write_over(path.with_name(f".{path.name}.{secrets.token_hex(4)}"), path, data)


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _name(written: Path, path: Path) -> None:
    """Give a written file its name too, durably; an existing file of that name is an error.

    By a hard link, which exists whole or not at all and replaces nothing, over network file systems too: locks and
    exclusive opening do not hold on all of them. Where a server made the link, and its answer was lost, the client's
    second request finds it there: that is the same file. Where a file system has no links, a file of that name is
    looked for first, and the written one renamed: only two writers of one name at the same time could replace each
    other's, and names hold time, machine and 32 random bits.
    """
    try:
        os.link(written, path)
    except FileExistsError:
        if not path.samefile(written):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        written.rename(path)
    _flush_directory(path.parent)


def _flush_directory(path: Path) -> None:
    """Make the names in a directory last; some network file systems cannot be asked to, and do it by themselves."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(directory)


def read(begin_path: Path) -> Record:
    """The record whose first half is at `begin_path`.

    Raises:
        InputError: a half cannot be read, is damaged, of an unknown schema, or belongs to another launch.
    """
    begin = decode(contents(str(begin_path)), Begin, str(begin_path))
    check_names(begin.id, begin.run, str(begin_path))
    end_path = end_of(begin_path)
    if not os.path.lexists(end_path):
        return Record(path=str(begin_path), begin=begin, end=None)
    end = decode(contents(str(end_path)), End, str(end_path))
    check_same_launch(begin.id, end.id, str(end_path))
    return Record(path=str(begin_path), begin=begin, end=end)


def end_of(begin_path: Path) -> Path:
    """The path of a record's second half, whether or not it is there."""
    return begin_path.with_name(begin_path.name.removesuffix(BEGIN) + END)
