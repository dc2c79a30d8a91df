"""Directories for the files of one command: removed at its end, or by a later command where it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "suite-"
OWNED = ".owned"  # locked by the process whose directory it is in


@contextmanager
def scratch_directory(parent: Path | None = None, *, kind: str = "") -> Iterator[str]:
    """An empty directory, gone at the end of the block; what killed commands left beside it is removed first.

    Its owner holds a lock on a file in it, which the kernel releases when the owner dies. That also holds over
    containers and nodes, where process numbers and their start times say nothing. On a file system without locks (some
    NFS) nothing is removed.

    Args:
        parent: where it lies; None: where the system has temporary files.
        kind: begins its name.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_abandoned(place)
    with (
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}", dir=place, ignore_cleanup_errors=True) as directory,
        open(Path(directory, f"{OWNED}.new"), "wb") as lock,
    ):
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(lock.name).rename(Path(directory, OWNED))  # nobody sees it without its lock
        yield directory


def _remove_abandoned(place: Path) -> None:
    """Remove this user's directories whose owner has died; those of others, and without such a file, stay."""
    for path in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and _is_abandoned(path / OWNED):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(owned: Path) -> bool:
    """Whether nobody holds the lock.

    Raises:
        OSError: there is no such file, or there are no locks.
    """
    file = os.open(owned, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
