"""Which recorded launches are meant: by run, machine, status and time, or one by its id or path."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from reference_runs.errors import InputError, nearest
from suite.job.events import Status
from suite.paths import stores
from suite.records.record import BEGIN, END
from suite.records.summary import LaunchSummary

STATUSES = (*Status, "running", "unknown")
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
LATEST = "latest"
_NAMED = 5  # candidates of an id that means several


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on launches; None: anything.

    Args:
        machine: the beginning of the node's hash, or a part of the machine's words in upper or lower case.
        statuses: any of them; none: any.
        since, before: seconds since 1970 of the start.
    """

    run: str | None = None
    machine: str | None = None
    statuses: tuple[str, ...] = ()
    since: float | None = None
    before: float | None = None

    def takes(self, launch: LaunchSummary) -> bool:
        """Whether it is one of them."""
        machine = self.machine
        return (
            self.run in (None, launch.run)
            and (machine is None or launch.node.startswith(machine) or machine.casefold() in launch.machine.casefold())
            and (not self.statuses or launch.status in self.statuses)
            and (self.since is None or launch.started >= self.since)
            and (self.before is None or launch.started < self.before)
        )


def statuses(given: Sequence[str]) -> tuple[str, ...]:
    """The statuses as given.

    Raises:
        InputError: there is no such status.
    """
    for status in given:
        if status not in STATUSES:
            raise InputError("unknown status", got=repr(status), allowed=", ".join(STATUSES), where="--status")
    return tuple(given)


def moment(text: str, *, where: str) -> float:
    """Seconds since 1970 of a date or time (UTC where it names no zone), or of so many hours, days or weeks ago.

    Raises:
        InputError: it is neither.
    """
    ago = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([hdw])", text, re.ASCII)
    if ago:
        return time.time() - float(ago[1]) * _SECONDS[ago[2]]
    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        allowed = "2026-11-22, 2026-11-22T06:30, 12h, 7d or 4w"
        raise InputError("not a time", got=repr(text), allowed=allowed, where=where) from error


def record_path(results: Path, text: str) -> Path:
    """The first half of the record that `text` means: `latest`, a path, the beginning of an id, or its last 8 digits.

    Raises:
        InputError: none, or several.
    """
    path = Path(text)
    if text.endswith((BEGIN, END)):
        return path.with_name(path.name.removesuffix(BEGIN).removesuffix(END) + BEGIN)
    if text == LATEST:
        text = max((identity for _, identity in _ids(results)), default="")  # ids begin with the time
    paths = sorted(
        path for path, identity in _ids(results) if identity.startswith(text) or identity.endswith(f"__{text}")
    )
    if text and len(paths) == 1:
        return Path(paths[0])
    if not text or not paths:
        allowed = "latest, a record's path, its id, the beginning of its id or its last 8 digits: see `results list`"
        meant = nearest(text, [LATEST])
        raise InputError(f"no such record in {results}", got=repr(text), meant=meant, allowed=allowed)
    names = [os.path.basename(path).removesuffix(BEGIN) for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    raise InputError("several records", got=repr(text), allowed=", ".join(names) + more)


def _ids(results: Path) -> Iterator[tuple[str, str]]:
    """Path and id of every first half, by names alone; of a record in two stores that in the user's."""
    known: set[str] = set()
    for store in stores(results):
        in_store = [(path, identity) for path, identity in _ids_in(store) if identity not in known]
        known |= {identity for _, identity in in_store}
        yield from in_store


def _ids_in(store: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), os.scandir(store / "records") as runs:
        for run in runs:
            with contextlib.suppress(OSError), os.scandir(run.path) as entries:
                for entry in entries:
                    if entry.name.endswith(BEGIN) and not entry.name.startswith("."):
                        yield entry.path, entry.name.removesuffix(BEGIN)
