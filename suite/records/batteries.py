"""Acceptance batteries on disk, as far as tables of results need them: read by any version, judged by none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.paths import stores
from suite.records.record import BEGIN, END

DIRECTORY = "acceptance"  # below the results directory


class BatteryFinding(msgspec.Struct, frozen=True):
    """One check's verdict on one subject, as it is stored."""

    check: int
    subject: str
    verdict: str
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    ratio: float | None = None
    part: str = ""


class BatteryOutcome(msgspec.Struct, frozen=True):
    """How a battery ended."""

    decision: str
    finished: float
    seconds: float
    findings: list[BatteryFinding]


class BatterySummary(msgspec.Struct, frozen=True):
    """One battery; without an end it still runs, or was killed."""

    id: str
    node: str
    profile: str
    started: float
    schema: str
    options: dict[str, str]
    hardware: dict[str, str]
    software: dict[str, str]
    end: BatteryOutcome | None = None


def battery_summaries(results: Path) -> tuple[list[BatterySummary], list[InputError]]:
    """All batteries below the results directory, oldest first, and why others are left out.

    Unlike `suite.acceptance`, which compares batteries and therefore refuses other major schema versions, this reads
    whatever has these fields: they mean the same in every version.
    """
    good: list[BatterySummary] = []
    bad: list[InputError] = []
    for path in sorted(path for store in stores(results) for path in (store / DIRECTORY).glob(f"*{BEGIN}")):
        end_path = path.with_name(path.name.removesuffix(BEGIN) + END)
        current = path
        try:
            battery = msgspec.json.decode(path.read_bytes(), type=BatterySummary)
            if end_path.exists():
                current = end_path
                end = msgspec.json.decode(end_path.read_bytes(), type=BatteryOutcome)
                battery = msgspec.structs.replace(battery, end=end)
            good.append(battery)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged record of a battery: {error}", where=str(current)))
    return sorted(good, key=lambda battery: (battery.started, battery.id)), bad
