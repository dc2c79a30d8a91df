"""What follows from the suite's own files alone: computed once for every state of them, and then read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from reference_runs.errors import InputError
from suite.paths import ROOT, cache_directory
from suite.records.store import write_new

PACKAGES = ("reference_runs", "suite")
KINDS = frozenset({".py", ".toml", ".csv"})

Computed = TypeVar("Computed")


def computed_once(name: str, kind: type[Computed], compute: Callable[[], Computed]) -> Computed:
    """What `compute` returns, which must rest on nothing but the files of the suite's packages.

    It is kept with the tokenised corpora, under a hash of those files' names and contents. A file that is damaged is
    computed again; where nothing can be kept, each time.
    """
    try:
        path = cache_directory() / f"{name}-{_state()}.json"
    except InputError:
        return compute()
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    found = compute()
    with suppress(OSError, InputError):
        for older in path.parent.glob(f"{name}-*.json"):
            older.unlink(missing_ok=True)
        write_new(path, msgspec.json.encode(found))
    return found


def _state() -> str:
    """16 hex digits of the names and contents of all files of the packages: code, facts and tables."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted(_files(ROOT / package)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.suffix in KINDS]
