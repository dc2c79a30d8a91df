"""Directories on file systems of several kinds, for tests of what is written there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NFS_DIRECTORY = "NFS_DIRECTORY"  # in the environment: a directory of an NFS mount, for tests
KINDS = ("ext4", "tmpfs", "overlay", "nfs")


def kind_of(path: Path) -> str:
    """The kind of the file system that a directory is on, as /proc/mounts calls it."""
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split()
        if os.path.commonpath([mount, place]) == mount and len(mount) >= len(best):
            best, kind = mount, found
    return kind


@contextmanager
def directory_on(kind: str, scratch: Path) -> Iterator[Path]:
    """An empty directory on such a file system, mounted below `scratch` where that is on another one.

    Skips the test, with the reason, where it cannot be had.
    """
    if kind == "nfs":
        yield _on_nfs()
        return
    if kind_of(scratch) == kind:
        yield scratch
        return
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip(f"NOT RUN: mounting {kind} needs root and mount")
    place = scratch / kind
    place.mkdir()
    mounted = subprocess.run(_command(kind, scratch, place), capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"NOT RUN: {kind} cannot be mounted here: {mounted.stderr.strip()}")
    try:
        assert kind_of(place) == kind
        yield place
    finally:
        _unmount(place)


def _on_nfs() -> Path:
    said = os.environ.get(NFS_DIRECTORY)
    if not said:
        known = Path("/proc/filesystems").read_text(encoding="ascii").split()
        why = "" if "nfs" in known else "; this kernel has no NFS"
        pytest.skip(f"NOT RUN: {NFS_DIRECTORY} names no directory of an NFS mount{why}")
    path = Path(said, f"writers-{os.getpid()}")
    path.mkdir()
    assert kind_of(path).startswith("nfs"), f"{said} is on {kind_of(path)}"
    return path


def _command(kind: str, scratch: Path, place: Path) -> list[str]:
    if kind == "tmpfs":
        return ["mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", str(place)]
    if kind == "overlay":
        lower, upper, work = (scratch / name for name in ("lower", "upper", "work"))
        for path in (lower, upper, work):
            path.mkdir()
        return ["mount", "-t", kind, kind, "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", str(place)]
    image = scratch / "image"
    with image.open("wb") as file:
        file.truncate(4 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return ["mount", "-o", "loop", str(image), str(place)]


def _unmount(place: Path) -> None:
    """A writer that was killed may still be ending."""
    for _ in range(50):
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.2)
    subprocess.run(["umount", "--lazy", str(place)], check=True)
