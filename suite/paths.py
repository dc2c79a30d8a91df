"""Where files lie: the checkout, its results, and the user's cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reference_runs.errors import InputError

ROOT = Path(__file__).resolve().parent.parent  # of the checkout
CACHE = "llm-reference-runs"
RESULTS = ROOT / "results"  # what a user's commands write: git ignores it
RECORDED = RESULTS / "recorded"  # the project's own results, committed: commands read them, none writes there unasked
RECORDED_H100 = RESULTS / "recorded_h100"  # the same, of an H100


def stores(results: Path) -> list[Path]:
    """Where results are read from: the directory itself, and with the default one the project's own results."""
    return [results, RECORDED, RECORDED_H100] if Path(os.path.realpath(results)) == RESULTS else [results]


def cache_directory() -> Path:
    """Where tokenised corpora are kept: llm-reference-runs in XDG_CACHE_HOME, or the system's place for caches.

    Raises:
        InputError: it cannot be created.
    """
    asked = os.environ.get("XDG_CACHE_HOME")
    if asked or sys.platform == "linux":  # without a package that images for GPUs lack
        root = Path(asked or Path.home() / ".cache") / CACHE
    else:
        from platformdirs import user_cache_path

        root = user_cache_path(CACHE, appauthor=False)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create the cache directory: {error.strerror}",
            got=str(root),
            allowed="a writable directory in XDG_CACHE_HOME",
            where="corpus",
        ) from error
    return root


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path in the same directory to write to; it becomes `path` at the end of the block, and replaces that file.

    Where the block fails (full disk, Ctrl-C), `path` stays as it was and what was written is removed.
    """
    temporary = path.with_name(f".{os.urandom(4).hex()}.{path.name}")  # what writes may decide by the suffix
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
