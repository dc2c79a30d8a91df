"""All launches below a results directory, in brief: damaged files are named and left out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.brief import Key, Launch, Values, brief
from suite.record import status_without_end
from suite.store import recorded_runs

__all__ = ["Key", "Launch", "Values", "launches"]


def launches(results: Path, *, run: str | None = None) -> tuple[list[Launch], list[InputError]]:
    """Launches of one run, or of all, oldest first; and why the others are left out."""
    good: list[Launch] = []
    bad: list[InputError] = []
    for name in recorded_runs(results) if run is None else [run]:
        for path in sorted((results / "records" / name).glob("*.begin.json")):
            end = path.with_name(path.name.replace(".begin.json", ".end.json"))
            try:
                one = brief(path.read_bytes(), end.read_bytes() if end.exists() else None, str(path))
            except (msgspec.MsgspecError, OSError) as error:
                bad.append(InputError(f"damaged record: {error}", where=str(path)))
                continue
            if one.launcher is not None:
                one = msgspec.structs.replace(one, status=status_without_end(one.node, one.launcher))
            good.append(one)
    return sorted(good, key=lambda launch: (launch.started, launch.id)), bad
