"""One battery: it measures phase by phase, judges, runs again what failed, and stores its record."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from suite.acceptance import battery_record
from suite.acceptance.battery_record import BatteryRecord, unfinished
from suite.acceptance.check_table import ENVIRONMENT
from suite.acceptance.context import RunningBattery, Settings
from suite.acceptance.evidence import Evidence, MiniatureLaunch
from suite.acceptance.findings import CheckFinding, CheckVerdict, Decision, decision
from suite.acceptance.first_pass import measure
from suite.acceptance.nvml import HealthWatch
from suite.acceptance.past_batteries import NodeIdentity, history
from suite.acceptance.repetition import confirmed_findings, run_again
from suite.job.events import Status


class BatteryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a battery."""

    id: str
    profile: str
    decision: Decision
    findings: list[CheckFinding]
    notes: list[str]
    seconds: float
    record: str


def run_battery(settings: Settings, progress: Callable[[str], None]) -> BatteryReport:
    """Run the battery of these settings, store its record, and return its verdict.

    Args:
        progress: gets one line for each phase as it begins.

    Raises:
        InputError: an unwritable results directory, or a fleet that is none.
        StoreFullError: no room for the record.
        KeyboardInterrupt: by the user; the phases that have ended can be resumed.
    """
    record, notes = _opened(settings)
    try:
        battery = _running(settings, record, progress)
        findings = _findings(battery)
        verdict = decision(findings)
        losses = {
            item.stack: item.losses
            for item in battery.evidence()
            if isinstance(item, MiniatureLaunch) and item.stack and item.losses
        }
        path = record.close(verdict, findings, losses)
    except BaseException:
        record.abandon()
        raise
    return BatteryReport(
        id=record.id,
        profile=settings.profile,
        decision=verdict,
        findings=findings,
        notes=[*notes, *battery.notes],
        seconds=time.monotonic() - battery.start,
        record=str(path),
    )


def _opened(settings: Settings) -> tuple[BatteryRecord, list[str]]:
    """A new record, or that of an interrupted battery with the same options; notes say which."""
    options = {
        "checks": ",".join(str(number) for number in sorted(settings.selected)),
        "device": settings.device,
        "ranks": str(settings.ranks),
        "miniatures": ",".join(settings.miniatures),
        "others": str(settings.others),
        "devices": "" if settings.devices is None else str(settings.devices),
    }
    notes: list[str] = []
    earlier = None
    if settings.resume:
        node = battery_record.opening("", settings.profile, options, 0.0).node
        earlier, refused = unfinished(settings.results, profile=settings.profile, options=options, node=node)
        notes = [*refused, "nothing to resume: a new battery" if earlier is None else f"resumed {earlier}"]
    return BatteryRecord(settings.results, profile=settings.profile, options=options, identity=earlier), notes


def _running(settings: Settings, record: BatteryRecord, progress: Callable[[str], None]) -> RunningBattery:
    """The battery before its first phase, with what other batteries measured."""
    begin = record.opening
    here = NodeIdentity(begin.node, begin.hashes["hardware"], begin.hashes["software"], settings.device, settings.ranks)
    battery = RunningBattery(settings, record, history(settings.results, settings.fleet, here), progress)
    if battery.history.fleet_summary:
        battery.note(battery.history.fleet_summary)
    return battery


def _findings(battery: RunningBattery) -> list[CheckFinding]:
    """All findings, after re-runs of what failed; where the disk fills up, those of what was measured until then."""
    watch = battery.gpu_watch = HealthWatch()
    again: dict[str, list[Evidence]] = {}
    stopped: OSError | None = None
    try:
        measure(battery)
        again = run_again(battery, battery.findings(battery.health(watch.so_far())))
    except OSError as error:
        stopped = error
    finally:
        health = battery.health(watch.finished())
    try:
        if battery.record.kept("health") is None:  # of a resumed battery that had no room for its verdict
            battery.record.keep("health", [health])
    except OSError as error:
        stopped = stopped or error
    findings = [battery.history.dated(finding) for finding in confirmed_findings(battery, health, again)]
    if stopped is None:
        return findings
    no_room = CheckFinding(
        check=ENVIRONMENT,
        subject="records",
        verdict=CheckVerdict.INVALID,
        status=Status.CRASHED,
        part="results or scratch files",
        evidence=str(stopped),
    )
    return [no_room, *findings]
