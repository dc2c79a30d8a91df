"""Removing records on request: which ones may go, and how one goes whole."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from reference_runs.errors import InputError
from suite.records.query import Selection
from suite.records.record import BEGIN, END, PRUNED
from suite.records.store import end_of
from suite.records.summary import LaunchSummary

BASELINES = "baselines"  # below the results directory: a record that any file in it names stays
_ID = re.compile(rb"\d{8}T\d{6}Z__[0-9a-z]+__[0-9a-f]{8}")


def baseline_ids(results: Path) -> set[str]:
    """Ids of the records that some file below baselines/ names.

    Raises:
        InputError: one of them cannot be read.
    """
    identities: set[str] = set()
    for path in sorted((results / BASELINES).rglob("*")):
        try:
            if path.is_file():
                identities |= {identity.decode() for identity in _ID.findall(path.read_bytes())}
        except OSError as error:
            raise InputError(f"cannot read the baseline: {error.strerror}", where=str(path)) from error
    return identities


def removable(launches: Sequence[LaunchSummary], wanted: Selection, baselines: set[str]) -> list[LaunchSummary]:
    """Wanted launches that may go: no baselines, none that runs, or may run on another machine unless asked for."""
    return [
        launch
        for launch in launches
        if wanted.takes(launch)
        and launch.id not in baselines
        and launch.status != "running"
        and (launch.status != "unknown" or "unknown" in wanted.statuses)
    ]


def removable_damaged(errors: Sequence[InputError], baselines: set[str]) -> list[Path]:
    """The first halves, whether or not there, of the records that errors name; no baselines."""
    halves = [Path(error.where) for error in errors if error.where and error.where.endswith((BEGIN, END))]
    begins = dict.fromkeys(path.with_name(_identity(path) + BEGIN) for path in halves)
    return [path for path in begins if _identity(path) not in baselines]


def remove(begin: Path) -> None:
    """Remove a record: by renaming its first half, which removes it at once, then both files.

    Whoever is killed in between leaves a hidden name, which `remove_leftovers` knows.

    Raises:
        InputError: permission is missing, or the file system fails.
    """
    hidden = begin.with_name(f".{_identity(begin)}{PRUNED}")
    try:
        with contextlib.suppress(FileNotFoundError):  # an end alone, or another process was faster
            begin.rename(hidden)
        _finish(hidden)
    except OSError as error:
        raise InputError(f"cannot remove the record: {error.strerror}", where=str(begin)) from error


def remove_leftovers(results: Path) -> None:
    """Finish what a killed `remove` left."""
    for hidden in (results / "records").glob(f"*/.*{PRUNED}"):
        with contextlib.suppress(OSError):
            _finish(hidden)


def _identity(path: Path) -> str:
    return path.name.removeprefix(".").removesuffix(BEGIN).removesuffix(END).removesuffix(PRUNED)


def _finish(hidden: Path) -> None:
    end_of(hidden.with_name(_identity(hidden) + BEGIN)).unlink(missing_ok=True)
    hidden.unlink(missing_ok=True)
