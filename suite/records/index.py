"""The record index: summaries of all launches below a results directory; damaged files are named and left out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.machine.devices import usable_cores
from suite.paths import stores
from suite.records.in_processes import in_processes
from suite.records.record import BEGIN, END, PRUNED, status_without_end
from suite.records.summary import LaunchSummary, launch_summary

_BLOCK = 1000  # launches that a process reads at a time
_LEAST_SHARED = 3000  # from which starting processes (0.3 s) pays: reading them alone takes 0.6 s
_MOST_PROCESSES = 8

Problem = tuple[str, str]  # what is wrong, and with which file
RecordFiles = tuple[str, str | None]  # paths of begin and of end


def launches(
    results: Path, *, run: str | None = None, recorded: bool = True
) -> tuple[list[LaunchSummary], list[InputError]]:
    """Launches of one run, or of all, oldest first; and why the others are left out.

    Of two records with the same id the one whose path comes first counts.

    Args:
        recorded: with the default results directory, the project's own too.
    """
    collected = gc.isenabled()
    gc.disable()  # 100,000 launches of 10 objects each, none in a cycle: collecting among them takes 40 % of the time
    try:
        good: dict[str, LaunchSummary] = {}
        bad: list[InputError] = []
        for store in stores(results) if recorded else [results]:
            of_other_stores = set(good)  # the project's own, copied into the user's
            files = [record for directory in _directories(store, run, bad) for record in _record_files(directory, bad)]
            for launch in _read(files, bad):
                first = good.setdefault(launch.id, launch)
                if first is not launch and launch.id not in of_other_stores:
                    bad.append(InputError(f"damaged record: the id of {first.path} again", where=launch.path))
        return sorted(good.values(), key=lambda launch: (launch.started, launch.id)), bad
    finally:
        if collected:
            gc.enable()


def _directories(results: Path, run: str | None, bad: list[InputError]) -> list[str]:
    """Directories of records, sorted; what cannot be looked into is named."""
    try:
        names = sorted(entry.name for entry in os.scandir(results / "records") if not entry.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        bad.append(InputError(f"cannot read the record: {error.strerror}", where=str(results / "records")))
        return []
    return [str(results / "records" / name) for name in names if run in (None, name)]


def _record_files(directory: str, bad: list[InputError]) -> list[RecordFiles]:
    """Records in a directory, sorted by id; what is no record's file is passed over, as are those in the making."""
    try:
        names = {name for name in os.listdir(directory) if not name.startswith(".")}
    except OSError as error:
        if not isinstance(error, NotADirectoryError):  # a file next to the runs' directories is no record
            bad.append(InputError(f"cannot read the records: {error.strerror}", where=directory))
        return []
    for name in sorted(names):
        identity = name.removesuffix(END)
        if identity == name or identity + BEGIN in names:
            continue
        if os.path.lexists(os.path.join(directory, identity + BEGIN)):  # made while the directory was listed
            names.add(identity + BEGIN)
        elif not os.path.exists(os.path.join(directory, f".{identity}{PRUNED}")):
            bad.append(InputError("damaged record: an end without its first half", where=os.path.join(directory, name)))
    files: list[RecordFiles] = []
    for name in sorted(name for name in names if name.endswith(BEGIN)):
        end = name.removesuffix(BEGIN) + END
        files.append((os.path.join(directory, name), os.path.join(directory, end) if end in names else None))
    return files


def _read(files: list[RecordFiles], bad: list[InputError]) -> Iterator[LaunchSummary]:
    """The launches of these files with their status as of now; several processes read where there are many."""
    for good, problems in _blocks(files):
        bad += (InputError(what, where=where) for what, where in problems)
        for launch in good:
            try:
                yield launch if launch.launcher is None else _without_end(launch)
            except InputError as error:
                bad.append(error)


def _without_end(launch: LaunchSummary) -> LaunchSummary:
    """With its status as of now; read again where it ended after its directory was listed."""
    assert launch.launcher is not None
    status = status_without_end(launch.node, launch.launcher)
    end = launch.path.removesuffix(BEGIN) + END
    if status != "running" and os.path.exists(end):
        return launch_summary(launch.path, end)
    return msgspec.structs.replace(launch, status=status)


def _blocks(files: list[RecordFiles]) -> Iterator[tuple[list[LaunchSummary], list[Problem]]]:
    blocks = [files[start : start + _BLOCK] for start in range(0, len(files), _BLOCK)]
    return in_processes(
        _read_block, blocks, processes=min(_MOST_PROCESSES, usable_cores()) if len(files) >= _LEAST_SHARED else 1
    )


def _read_block(block: list[RecordFiles]) -> tuple[list[LaunchSummary], list[Problem]]:
    """The launches of some files, and why others are left out; a record that was removed meanwhile is neither."""
    good: list[LaunchSummary] = []
    bad: list[Problem] = []
    for begin, end in block:
        try:
            good.append(launch_summary(begin, end))
        except InputError as error:
            if os.path.lexists(begin):
                bad.append((str(error).removeprefix(f"{error.where}: "), str(error.where)))
    return good, bad
