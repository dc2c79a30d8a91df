"""Where files lie: the checkout, its results, and the user's cache."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reference_runs.errors import InputError

ROOT = Path(__file__).resolve().parent.parent  # of the checkout, or of what the wheel brings
INSTALLED = (ROOT.parent.name, ROOT.name) == ("refruns", "_home")  # from a wheel: there is no checkout
DISTRIBUTION = "llm-reference-runs"


def _results() -> Path:
    """The directory of a user's results: results/ in a checkout, where git ignores it; else with the user's data.

    One place for all commands, wherever they are called: baselines and machine profiles are looked up in it.
    """
    if not INSTALLED:
        return ROOT / "results"
    asked = os.environ.get("XDG_DATA_HOME")
    if asked or sys.platform == "linux":
        data = Path(asked or Path.home() / ".local" / "share").absolute() / DISTRIBUTION
    else:
        from platformdirs import user_data_path

        data = user_data_path(DISTRIBUTION, appauthor=False)
    return data / "results"


RESULTS = _results()  # what a user's commands write
RECORDED = ROOT / "results" / "recorded"  # the project's own, committed: commands read them, none writes there unasked
RECORDED_H100 = ROOT / "results" / "recorded_h100"  # the same, of an H100


def program() -> str:
    """The command line's first words, as this process was started or could be: `refruns`, or `python -m suite`."""
    return "refruns" if INSTALLED or Path(sys.argv[0]).name == "refruns" else "python -m suite"


def stores(results: Path) -> list[Path]:
    """Where results are read from: the directory itself, and with a checkout's default one the project's own too."""
    own = [] if INSTALLED else [RECORDED, RECORDED_H100]
    return [results, *own] if Path(os.path.realpath(results)) == RESULTS else [results]


def cache_directory() -> Path:
    """Where tokenised corpora are kept: llm-reference-runs in XDG_CACHE_HOME, or the system's place for caches.

    Raises:
        InputError: it cannot be created.
    """
    asked = os.environ.get("XDG_CACHE_HOME")
    if asked or sys.platform == "linux":  # without a package that images for GPUs lack
        root = Path(asked or Path.home() / ".cache") / DISTRIBUTION
    else:
        from platformdirs import user_cache_path

        root = user_cache_path(DISTRIBUTION, appauthor=False)
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

    Raises:
        IsADirectoryError: the path is a directory, such as that of an empty text.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{os.urandom(4).hex()}.{path.name}")  # what writes may decide by the suffix
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
