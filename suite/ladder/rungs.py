"""The rungs of both tracks, from the baseline up: those of `rungs.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from suite.ladder.rung import Need, Promise, Rung, RungSetting, Track, rounding_of, setting_above


def _rungs() -> Iterator[Rung]:
    """Those of the file; where sums come in another order, the bound follows from the setting's precision."""
    file = Path(__file__).with_suffix(".toml")
    for track, rows in tomllib.loads(file.read_text(encoding="utf-8")).items():
        rungs: list[Rung] = []
        for row in rows:
            values = msgspec.convert(row["changes"], RungSetting)
            row["changes"] = {name: getattr(values, name) for name in row["changes"]}
            row["needs"] = tuple(Need[name.upper()] for name in row.get("needs", ()))
            rung = Rung(track=Track(track), **row | {"promise": Promise(row["promise"])})
            if rung.promise is Promise.WITHIN:
                bound = rounding_of(setting_above(rung, rungs).precision)
                rung = msgspec.structs.replace(rung, bound=bound)
            rungs.append(rung)
        yield from rungs


RUNGS = tuple(_rungs())


def rungs_on(device: str) -> list[Rung]:
    """All rungs; what is a side rung elsewhere may be none on `device`."""
    return [msgspec.structs.replace(rung, side=rung.side and rung.main_on != device) for rung in RUNGS]


def seconds_unknown(setting: RungSetting) -> str:
    """Why the time of a setting is not predicted: the reason of a rung whose changes are all in it; empty where it is.

    A rung passes on what it changes to those that stand on it, and so the reason too.
    """
    values = msgspec.structs.asdict(setting)
    reasons = (rung.seconds_unknown for rung in RUNGS if rung.changes.items() <= values.items())
    return next(filter(None, reasons), "")
