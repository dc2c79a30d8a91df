"""Bytes, text and JSON of a file that somebody names: of a regular file alone, and no more than fits in memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

MOST_BYTES = 1 << 30  # of a record with every sample
MOST_TYPED_BYTES = 1 << 20  # of what a person writes: the longest run file has 20 kB
_PART = 1 << 20

Kind = TypeVar("Kind")


def file_bytes(path: str | os.PathLike[str], *, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `most` bytes. A named pipe that nobody writes
            would block for ever, and a device has no end.
    """
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, allowed are {most:,}", str(path))
        parts = [file.read(size + 1)]
        while parts[-1]:
            parts.append(file.read(_PART))
        return b"".join(parts)


@contextmanager
def regular_file(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    """A regular file, open to be read, without a buffer.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    with FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def file_text(path: Path, *, most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """The text of a file, with line feeds for all ends of lines.

    Raises:
        OSError: as `file_bytes`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return file_bytes(path, most=most).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def typed_text(path: Path) -> str:
    """The text of a file that a person writes: 1 MiB at most; a byte order mark at its beginning is left out.

    Raises:
        OSError, UnicodeDecodeError: as `file_text`.
    """
    return file_text(path, most=MOST_TYPED_BYTES, encoding="utf-8-sig")


def json_of(data: bytes, kind: type[Kind]) -> Kind:
    """Value that some JSON describes.

    Raises:
        msgspec.MsgspecError: it is not JSON, not UTF-8, nested too deeply, or not of that kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error


def json_file(path: str | os.PathLike[str], kind: type[Kind]) -> Kind:
    """Value that a JSON file describes.

    Raises:
        OSError: as `file_bytes`.
        msgspec.MsgspecError: as `json_of`.
    """
    return json_of(file_bytes(path), kind)
