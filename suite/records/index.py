"""The record index: summaries of all launches below a results directory; damaged files are named and left out."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.machine.devices import usable_cores
from suite.paths import stores, whole_file
from suite.records.record import BEGIN, END, PRUNED, status_without_end
from suite.records.summary import LaunchSummary, Stamp, launch_summary, packed, unpacked

CACHE = ".launches"  # next to the records: what was read of them, rebuilt where it does not fit them
_LEAST_KEPT = 256  # unread launches from which it is worth writing: they take 30 ms
_KEPT_SHARE = 50  # and no fewer than one in so many, so that writing all again costs each little
_BLOCK = 1000  # launches that a process reads at a time
_LEAST_SHARED = 3000  # from which starting processes (0.3 s) pays: they take 0.4 s
_MOST_PROCESSES = 8

Problem = tuple[str, str]  # what is wrong, and with which file
_Listed = tuple[str, tuple[int, int, int]]  # path and stamp of a half
_UNREADABLE: _Listed = ("", (0, 0, 0))

RecordFiles = tuple[str, str, str | None, Stamp]  # id, path of begin and of end, both files' stamps


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
            for directory in _directories(store, run, bad):
                for launch in _of_directory(directory, bad):
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
        bad.append(_unreadable(error, str(results / "records")))
        return []
    return [str(results / "records" / name) for name in names if run in (None, name)]


def _unreadable(error: OSError, path: str) -> InputError:
    return InputError(f"cannot read the record: {error.strerror}", where=path)


def _of_directory(directory: str, bad: list[InputError]) -> Iterator[LaunchSummary]:
    try:
        files = _record_files(directory, bad)
    except OSError as error:
        if not isinstance(error, NotADirectoryError):  # a file next to the runs' directories is no record
            bad.append(InputError(f"cannot read the records: {error.strerror}", where=directory))
        return
    kept = _kept(directory) if len(files) >= _LEAST_KEPT else {}
    was_known = [kept[identity] for identity, _, _, stamp in files if identity in kept and kept[identity][1] == stamp]
    known = list(was_known)
    if len(was_known) < len(files):
        read = {launch.id for launch, _ in was_known}
        unread = [record for record in files if record[0] not in read]
        blocks: list[bytes] = []
        for data, errors in _read(unread):
            blocks.append(data)
            known += unpacked(data, directory)
            bad += (InputError(what, where=where) for what, where in errors)
        if len(known) - len(was_known) >= max(_LEAST_KEPT, len(known) // _KEPT_SHARE):
            _keep(directory, [*([packed(was_known)] if was_known else []), *blocks])
    for launch, _ in known:
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


def _stamp(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _record_files(directory: str, bad: list[InputError]) -> list[RecordFiles]:
    """Records in a directory, sorted by id; what is no record's file is passed over, as are those in the making."""
    begins: dict[str, _Listed] = {}
    ends: dict[str, _Listed] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            half, suffix = (begins, BEGIN) if name.endswith(BEGIN) else (ends, END)
            identity = name.removesuffix(suffix)
            if identity == name:
                continue
            try:
                half[identity] = entry.path, _stamp(entry.stat())
            except OSError as error:
                if os.path.lexists(entry.path):
                    bad.append(_unreadable(error, entry.path))
                    half[identity] = _UNREADABLE
    for identity in ends.keys() - begins.keys():
        begin = os.path.join(directory, identity + BEGIN)
        with contextlib.suppress(OSError):  # made while the directory was listed
            begins[identity] = begin, _stamp(os.stat(begin))
        pruned = os.path.join(directory, f".{identity}{PRUNED}")
        if identity not in begins and ends[identity] != _UNREADABLE and not os.path.exists(pruned):
            bad.append(InputError("damaged record: an end without its first half", where=ends[identity][0]))
    files: list[RecordFiles] = []
    for identity, (path, stamp) in sorted(begins.items()):
        end_path, end_stamp = ends.pop(identity, (None, (-1, -1, -1)))
        if path and end_path != "":  # an unreadable half is named already
            files.append((identity, path, end_path, (*stamp, *end_stamp)))
    return files


def _read(unread: list[RecordFiles]) -> Iterator[tuple[bytes, list[Problem]]]:
    """The launches of files, packed, and why others are left out, by several processes where there are many."""
    blocks = [unread[start : start + _BLOCK] for start in range(0, len(unread), _BLOCK)]
    done = 0
    if len(unread) >= _LEAST_SHARED:
        processes = min(_MOST_PROCESSES, usable_cores())
        pool = ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
        try:
            for each in pool.map(_read_block, blocks):
                yield each
                done += 1
        except (BrokenProcessPool, OSError):  # no processes here: killed, forbidden, or started from no file
            pass
        finally:
            pool.shutdown(cancel_futures=True)
    yield from map(_read_block, blocks[done:])


def _read_block(block: list[RecordFiles]) -> tuple[bytes, list[Problem]]:
    good: list[tuple[LaunchSummary, Stamp]] = []
    bad: list[Problem] = []
    for _, path, end_path, stamp in block:
        try:
            good.append((launch_summary(path, end_path), stamp))
        except InputError as error:
            if os.path.lexists(path):
                bad.append((str(error).removeprefix(f"{error.where}: "), str(error.where)))
    return packed(good), bad


def _kept(directory: str) -> dict[str, tuple[LaunchSummary, Stamp]]:
    """By id, what was kept of a directory; nothing where that is damaged."""
    try:
        blocks = msgspec.msgpack.decode(Path(directory, CACHE).read_bytes(), type=list[bytes])
        return {launch.id: (launch, stamp) for data in blocks for launch, stamp in unpacked(data, directory)}
    except (OSError, msgspec.MsgspecError, LookupError):
        return {}


def _keep(directory: str, blocks: list[bytes]) -> None:
    """Put what was read next to the records, whole or not at all; a directory that cannot be written goes without."""
    with contextlib.suppress(OSError), whole_file(Path(directory, CACHE)) as temporary:
        temporary.write_bytes(msgspec.msgpack.encode(blocks))
