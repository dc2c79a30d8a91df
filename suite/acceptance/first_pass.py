"""The first pass of a battery: each phase once, disturbed measurements repeated, and further looks at step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from reference_runs.errors import InputError
from suite.acceptance.check_table import HOST_DEVICE, STEP_TIME
from suite.acceptance.context import BatteryPhase, RunningBattery
from suite.acceptance.evidence import Evidence, Health, MicroMeasurements, MiniatureLaunch, PhaseTiming
from suite.acceptance.judge.step_time import step_launches_missing, step_ratios, step_references
from suite.acceptance.phases import (
    OF_MICRO,
    environment_phase,
    launch_phases,
    launches_phase,
    micro_phase,
    probe_phase,
    probe_seconds,
)
from suite.acceptance.repetition import REPEATED, Rerun, disturbed, ended_well, planned_reruns, with_repeats
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import check_holds, read


def measure(battery: RunningBattery) -> None:
    """Run all phases that the selected checks need."""
    settings = battery.settings
    battery.evidence_of["environment"] = battery.run(environment_phase(battery))
    if settings.selected & (OF_MICRO if settings.device == "cuda" else OF_MICRO - {HOST_DEVICE}):
        _measure_machine(battery)
    launches = launch_phases(battery)
    for number, phase in enumerate(launches):
        _launch(battery, phase, launches[number + 1 :])
    _further_looks(battery)
    probe = probe_phase(battery)
    if probe is not None:
        battery.evidence_of[probe.name] = battery.run(probe)


def _launch(battery: RunningBattery, phase: BatteryPhase, later: Sequence[BatteryPhase]) -> None:
    """Make the launches of a phase, and repeat those that other processes disturbed, if time is left."""
    evidence = battery.evidence_of[phase.name] = battery.run(phase)
    repeat = disturbed(battery, phase, evidence, later)
    if repeat:
        name, _, purpose = phase.name.partition(" ")
        repeated = battery.run(launches_phase(battery, name, purpose, len(repeat)), REPEATED)
        battery.evidence_of[phase.name] = with_repeats(evidence, repeat, repeated)


def _measure_machine(battery: RunningBattery) -> None:
    """Run the micro-measurements, and repeat them where other processes disturbed them, if time is left."""
    phase = micro_phase(battery)
    evidence = battery.evidence_of[phase.name] = _profiled(battery, phase, ("", "anew"))
    repeat = disturbed(battery, phase, evidence, launch_phases(battery))
    if not repeat:
        return
    profile, battery.profile = battery.profile, None
    repeated = _profiled(battery, phase, (REPEATED, f"{REPEATED} anew"))
    battery.evidence_of[phase.name] = with_repeats(evidence, repeat, repeated)
    if not ended_well(repeated):
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

    Time is reserved for the probe and for the shortest re-runs: of what failed so far, and of the miniature itself,
    which the look may reject.
    """
    settings, looks = battery.settings, battery.settings.effort.looks
    if STEP_TIME not in settings.selected:
        return
    for name in settings.timed:
        while True:
            launches = [
                item
                for item in battery.evidence()
                if isinstance(item, MiniatureLaunch) and (item.run, item.purpose) == (name, "times")
                if not item.set_aside
            ]
            ratios = step_ratios(launches)
            if len(ratios) < len(launches) or len(ratios) < looks[0]:
                break
            missing = step_launches_missing(ratios, step_references(launches, battery.history), looks)
            phase = launches_phase(battery, name, "times", missing)
            as_before = missing * math.fsum(launch.seconds for launch in launches) / len(launches)
            seconds = max(phase.predicted_seconds, as_before) + _reserved_seconds(battery, launches)
            if not missing or seconds > battery.seconds_left:
                break
            attempt = f"from launch {len(ratios) + 1}"
            evidence = battery.evidence_of[f"{phase.name} {attempt}"] = battery.run(phase, attempt)
            if any(isinstance(item, PhaseTiming) and item.outcome != "ok" for item in evidence):
                break


def _reserved_seconds(battery: RunningBattery, launches: Sequence[MiniatureLaunch]) -> float:
    """Seconds that must be left after a further look at these launches: for the probe, and for the shortest re-runs."""
    so_far = battery.findings(Health(gpus=[], why_none="still being read"))
    reruns = [rerun for _, rerun in planned_reruns(battery, so_far) if rerun.needed]
    name = f"{launches[0].run} times"
    if all(rerun.name != name for rerun in reruns):
        seconds = math.fsum(launch.seconds for launch in launches)
        reruns.append(Rerun(name=name, seconds=seconds, launches=len(launches), needed=True))
    return probe_seconds(battery) + math.fsum(rerun.shortest_seconds for rerun in reruns)
