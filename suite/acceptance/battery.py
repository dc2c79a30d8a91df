"""One battery: it measures phase by phase, judges, runs again what failed or was disturbed, and stores its record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.acceptance import battery_record, phases, repetition
from suite.acceptance.actions import with_action
from suite.acceptance.battery_record import BatteryRecord, unfinished
from suite.acceptance.check_table import ENVIRONMENT, STEP_TIME
from suite.acceptance.context import BatteryPhase, LaunchesPhase, RunningBattery, Settings
from suite.acceptance.evidence import (
    Evidence,
    LaunchPurpose,
    MicroMeasurements,
    MiniatureLaunch,
    PhaseTiming,
    Surroundings,
)
from suite.acceptance.findings import decision
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.gpu_watch import HealthWatch
from suite.acceptance.judge.environment import DEVICES
from suite.acceptance.judge.step_time import step_launches_missing, step_ratios, step_references
from suite.acceptance.past_batteries import NodeIdentity, history
from suite.acceptance.starts import starts
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import check_holds, read
from suite.records.battery import CheckFinding, CheckVerdict, Decision, battery_directory


class BatteryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a battery."""

    id: str
    profile: str
    decision: Decision
    findings: list[CheckFinding]
    notes: list[str]
    seconds: float
    record: str


def run_battery(
    settings: Settings, progress: Callable[[str], None], stops: Callable[[str], bool] = lambda _: False
) -> BatteryReport:
    """Run the battery of these settings, store its record, and return its verdict.

    Args:
        progress: gets one line for each phase as it begins.
        stops: whether to stop where the environment is invalid before anything is measured; gets the reason.

    Raises:
        InputError: an unwritable results directory, a fleet that is none, or nothing to resume.
        StoreFullError: no room for the record.
        KeyboardInterrupt: by the user; the phases that have ended can be resumed.
    """
    record, notes = _opened(settings)
    try:
        begin, device = record.opening, settings.device
        here = NodeIdentity(begin.node, begin.hashes["hardware"], begin.hashes["software"], device, settings.ranks)
        known = history(settings.results, settings.fleet, here)
        known = msgspec.structs.replace(known, virtual=begin.virtual is True and device == "cpu")
        battery = RunningBattery(settings, record, known, progress)
        if battery.history.fleet_summary:
            battery.note(battery.history.fleet_summary)
        findings = _findings(battery, stops)
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
    """A new record, or that of an interrupted battery with the same options; notes say which.

    Raises:
        InputError: it should be resumed, and there is none.
    """
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
    if settings.resume or settings.resume_if_any:
        node = battery_record.opening("", settings.profile, options, 0.0).node
        earlier, refused = unfinished(settings.results, profile=settings.profile, options=options, node=node)
        if earlier is None and settings.resume:
            kept = str(battery_directory(settings.results))
            got = f"{kept}: {'; '.join(refused)}" if refused else kept
            allowed = "a battery of this node with the same options that has no verdict; without --resume a new one"
            raise InputError("nothing to resume", got=got, allowed=allowed, where="--resume")
        notes = [*refused, "nothing to resume: a new battery" if earlier is None else f"resumed {earlier}"]
    return BatteryRecord(settings.results, profile=settings.profile, options=options, identity=earlier), notes


def _findings(battery: RunningBattery, stops: Callable[[str], bool]) -> list[CheckFinding]:
    """All findings, after re-runs of what failed; where the disk fills up, those of what was measured until then."""
    watch = battery.gpu_watch = HealthWatch()
    again: list[dict[str, list[Evidence]]] = []
    stopped: OSError | None = None
    try:
        _measure(battery, stops)
        again = repetition.run_again(battery, lambda: battery.health(watch.so_far()))
    except OSError as error:
        stopped = error
    finally:
        health = battery.health(watch.finished())
    try:
        if battery.record.kept("health") is None:  # of a resumed battery that had no room for its verdict
            battery.record.keep("health", [health])
    except OSError as error:
        stopped = stopped or error
    findings = [battery.history.dated(finding) for finding in repetition.confirmed_findings(battery, health, again)]
    if stopped is not None:
        findings.insert(0, _no_room(stopped))
    on_gpu = battery.settings.device == "cuda"
    return [with_action(finding, on_gpu=on_gpu) for finding in findings]


def _no_room(stopped: OSError) -> CheckFinding:
    """A full disk leaves the battery open: it says nothing about the hardware."""
    return CheckFinding(
        check=ENVIRONMENT,
        subject="records",
        verdict=CheckVerdict.INVALID,
        part="results or scratch files",
        evidence=str(stopped),
    )


def _measure(battery: RunningBattery, stops: Callable[[str], bool]) -> None:
    """Run all phases that the selected checks need; none where the environment is invalid and it `stops`."""
    settings = battery.settings
    if settings.ranks:
        battery.progress(f"{settings.profile}: {starts(phases.planned(battery))}")
    battery.evidence_of["environment"] = battery.run(phases.environment_phase(battery))
    seen = _seen_before(battery)
    devices = [finding for finding in seen if finding.subject == DEVICES]
    if missing := [finding.part for finding in devices if finding.verdict is CheckVerdict.FAIL]:
        battery.end(f"ended at once, nothing was measured: {missing[0]}")
        return
    if busy := [item.busy_gpus for item in battery.evidence() if isinstance(item, Surroundings) and item.busy_gpus]:
        battery.evidence_of["counters"] = battery.run(phases.counters_phase(battery))
        numbers = " ".join(map(str, busy[0]))
        battery.end(f"others use GPU {numbers}: their counters were read, nothing was executed")
        return
    invalid = [finding.part or finding.evidence for finding in seen if finding.verdict is CheckVerdict.INVALID]
    if invalid and stops("; ".join(invalid)):
        battery.note("stopped before anything was measured: the environment is invalid")
        return
    if invalid:
        _measure_bits(battery)
    if phases.measures_machine(settings):
        _measure_machine(battery)
    launches, exact = phases.launch_phases(battery), phases.exact_phases(battery)
    for phase in exact if not (launches or invalid) else ():
        battery.evidence_of[phase.name] = battery.run(phase)
    for number, phase in enumerate(launches):
        _launch(battery, phase, launches[number + 1 :])
    if invalid:
        return
    _further_looks(battery)
    probe = phases.probe_phase(battery)
    if probe is not None:
        battery.evidence_of[probe.name] = battery.run(probe)
    loopback = phases.loopback_phase(battery)
    if loopback is not None:
        battery.evidence_of[loopback.name] = battery.run_if_time(loopback, _rerun_seconds(battery))
    # a machine too slow for them decides without: figures of other miniatures were counted
    for phase in exact if launches else ():
        battery.evidence_of[phase.name] = battery.run_if_time(phase, _rerun_seconds(battery))


def _seen_before(battery: RunningBattery) -> list[CheckFinding]:
    """Findings about the environment before anything is measured."""
    health = None if battery.gpu_watch is None else battery.health(battery.gpu_watch.so_far())
    return repetition.seen_before(battery, health)


def _measure_bits(battery: RunningBattery) -> None:
    """Figures of all miniatures, and the probe: where no time will be judged, they come before all clocks."""
    for phase in phases.exact_phases(battery, timed=True):
        battery.evidence_of[phase.name] = battery.run(phase)
    probe = phases.probe_phase(battery)
    if probe is not None:
        battery.evidence_of[probe.name] = battery.run(probe)


def _launch(battery: RunningBattery, phase: LaunchesPhase, later: Sequence[BatteryPhase]) -> None:
    """Make the launches of a phase, and repeat, twice at most, those that others disturbed, if time is left."""
    evidence = battery.evidence_of[phase.name] = battery.run(phase)
    for attempt in (repetition.REPEATED, repetition.REPEATED_TWICE):
        repeat = repetition.disturbed(battery, phase, evidence, later, attempt)
        if not repeat:
            return
        fewer = phases.launches_phase(battery, phase.miniature, phase.purpose, len(repeat))
        evidence = repetition.with_repeats(evidence, repeat, battery.run(fewer, attempt))
        battery.evidence_of[phase.name] = evidence


def _measure_machine(battery: RunningBattery) -> None:
    """Run the micro-measurements, and repeat them, twice at most, where others disturbed them, if time is left."""
    phase = phases.micro_phase(battery)
    evidence = battery.evidence_of[phase.name] = _profiled(battery, phase, ("", "anew"))
    for attempt in (repetition.REPEATED, repetition.REPEATED_TWICE):
        repeat = repetition.disturbed(battery, phase, evidence, phases.launch_phases(battery), attempt)
        if not repeat:
            return
        profile, battery.profile = battery.profile, None
        repeated = _profiled(battery, phase, (attempt, f"{attempt} anew"))
        evidence = battery.evidence_of[phase.name] = repetition.with_repeats(evidence, repeat, repeated)
        if not repetition.ended_well(repeated):
            battery.profile = profile


def _profiled(battery: RunningBattery, phase: BatteryPhase, attempts: Sequence[str]) -> list[Evidence]:
    """Run micro-measurements, or take those of an interrupted battery with their machine profile.

    Where that profile is gone, or of another machine, the next attempt is made.
    """
    evidence: list[Evidence] = []
    for attempt in attempts:
        evidence = battery.run(phase, attempt)
        path = next((item.profile for item in evidence if isinstance(item, MicroMeasurements)), "")
        if battery.profile is not None or not path:
            break
        try:
            profile = read(Path(path))
            check_holds(profile, fingerprint(battery.settings.device), path)
        except InputError as error:
            battery.progress(f"not used: {error}")
            continue
        battery.profile = profile
        break
    return evidence


def _further_looks(battery: RunningBattery) -> None:
    """Launch again what the last look did not decide, as long as looks and time are left.

    Time is reserved for the probe and for the shortest re-runs of what failed so far. None is for the miniature itself:
    a look that rejects it without a re-run leaves open what is open without the look.
    """
    settings, looks = battery.settings, battery.settings.effort.looks
    if STEP_TIME not in settings.selected:
        return
    for name in settings.timed:
        while True:
            launches = [
                item
                for item in battery.evidence()
                if isinstance(item, MiniatureLaunch) and (item.run, item.purpose) == (name, LaunchPurpose.TIMES)
                if not item.set_aside
            ]
            ratios = step_ratios(launches)
            if len(ratios) < len(launches) or len(ratios) < looks[0]:
                break
            missing = step_launches_missing(ratios, step_references(launches, battery.history), looks)
            phase = phases.launches_phase(battery, name, LaunchPurpose.TIMES, missing)
            as_before = missing * math.fsum(launch.seconds for launch in launches) / len(launches)
            seconds = max(phase.predicted_seconds, as_before) + _reserved_seconds(battery)
            if not missing or seconds > battery.seconds_left:
                break
            attempt = f"from launch {len(ratios) + 1}"
            evidence = battery.evidence_of[f"{phase.name} {attempt}"] = battery.run(phase, attempt)
            if not evidence or any(isinstance(item, PhaseTiming) and item.outcome != "ok" for item in evidence):
                break


def _reserved_seconds(battery: RunningBattery) -> float:
    """Seconds that must be left after a further look: for the probe, and for the shortest re-runs of what failed."""
    return phases.probe_seconds(battery) + _rerun_seconds(battery)


def _rerun_seconds(battery: RunningBattery) -> float:
    """Seconds of the shortest re-runs of what failed so far."""
    so_far = battery.findings(Health(gpus=[], why_none="still being read"))
    reruns = [rerun for _, rerun in repetition.planned_reruns(battery, so_far) if rerun.needed]
    return math.fsum(rerun.shortest_seconds for rerun in reruns)
