"""Records of another results directory joined into this one: never overwritten, and the same however often."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.records.index import launches
from suite.records.record import contents
from suite.records.store import end_of, read, records_directory, write_new


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were added, got the end that they lacked, and were here already; and which were not taken.

    Args:
        conflicts: records whose id has another content here; both are kept where they are.
        damaged: why records there were left out, and records here that could not be compared.
    """

    added: int
    ended: int
    same: int
    conflicts: list[str]
    damaged: list[str]


def merged(source: Path, results: Path) -> Merged:
    """Copy every whole record below `source` that is not below `results`, bytes as they are.

    First halves first, each file whole or not at all: a merge that is killed is finished by the next one.

    Raises:
        InputError: `source` holds no records' directory, or `results` cannot be written.
        StoreFullError: there is no room.
    """
    if not (source / "records").is_dir():
        raise InputError("no results directory", got=str(source), allowed="a directory that holds records/")
    theirs, damaged = launches(source)
    known, errors_here = launches(results, recorded=False)
    paths_here = {launch.id: launch.path for launch in known}
    damaged_here = {str(error.where) for error in errors_here}
    added = ended = same = 0
    conflicts: list[str] = []
    left_out = [str(error) for error in damaged]
    for launch in theirs:
        begin = Path(launch.path)
        target = results / "records" / launch.run / begin.name
        elsewhere = paths_here.get(launch.id, str(target))
        try:
            read(begin)  # whole: what is damaged does not spread
            halves = [(begin, target), *([(end_of(begin), end_of(target))] if end_of(begin).exists() else [])]
            known_halves = [(there, here) for there, here in halves if os.path.lexists(here)]
            differing = [str(here) for there, here in known_halves if contents(str(there)) != contents(str(here))]
            if Path(elsewhere) != target or differing:
                where = ", ".join(differing) or elsewhere
                conflicts.append(f"{launch.path}: {_why(where, damaged_here)}")
                continue
        except InputError as error:
            left_out.append(str(error))
            continue
        missing = [half for half in halves if half not in known_halves]
        if not missing:
            same += 1
            continue
        records_directory(results, launch.run)
        for there, here in missing:
            write_new(here, contents(str(there)))
        if halves[0] in missing:
            added += 1
        else:
            ended += 1
    return Merged(added=added, ended=ended, same=same, conflicts=conflicts, damaged=left_out)


def _why(files: str, damaged: set[str]) -> str:
    if damaged & {*files.split(", ")}:
        return f"its copy here is damaged, {files}: `results prune --damaged --yes` removes that copy, then merge again"
    return f"another content than {files}, of the same id; both are kept"
