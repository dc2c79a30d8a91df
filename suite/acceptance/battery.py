"""The battery: measures phase by phase, judges, runs again what failed, and keeps the record of it all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.acceptance import battery_record
from suite.acceptance.battery_record import OpenedBattery, unfinished
from suite.acceptance.check_table import ENVIRONMENT, HANG_GUARD, HOST_DEVICE, STEP_TIME
from suite.acceptance.context import Battery, Phase, Settings
from suite.acceptance.evidence import Evidence, Health, Launched, Micro, Probing, Timed
from suite.acceptance.findings import Decision, Finding, Verdict, confirmed, decision, is_noise
from suite.acceptance.judge.judge import judged
from suite.acceptance.judge.noninferiority import FEWEST
from suite.acceptance.judge.step_time import step_launches_missing, step_ratios, step_references
from suite.acceptance.nvml import HealthWatch
from suite.acceptance.past_batteries import history
from suite.acceptance.phases import (
    FROM_MICRO,
    FROM_PROBE,
    FROM_TIMES,
    OF_MICRO,
    environment_phase,
    launch_phases,
    launches_phase,
    micro_phase,
    probe_phase,
)
from suite.acceptance.presets import JITTER_STEPS, MINIATURES, TIMED_STEPS
from suite.acceptance.reruns import ATTEMPT, Due, affordable, disturbed, ended_well, in_words, joined, launches_that_fit
from suite.job.events import Status
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import check_holds, read


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the battery found."""

    id: str
    profile: str
    decision: Decision
    findings: list[Finding]
    notes: list[str]
    seconds: float
    record: str


def run_battery(settings: Settings, tell: Callable[[str], None]) -> Report:
    """Run what is asked for, write the record, and return the verdict.

    Args:
        tell: sees one line for each phase as it begins.

    Raises:
        InputError: an unwritable results directory, or a fleet that is none.
        StoreFullError: no room for the record.
        KeyboardInterrupt: by the user; what has ended can be resumed.
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
    if settings.resume:
        node = battery_record.opening("", settings.profile, options, 0.0).node
        earlier, refused = unfinished(settings.results, profile=settings.profile, options=options, node=node)
        notes += refused
        notes.append("nothing to resume: a new battery" if earlier is None else f"resumed {earlier}")
    opened = OpenedBattery(settings.results, profile=settings.profile, options=options, identity=earlier)
    try:
        known = history(
            settings.results,
            settings.fleet,
            node=opened.opening.node,
            hardware=opened.opening.hashes["hardware"],
            software=opened.opening.hashes["software"],
            device=settings.device,
            ranks=settings.ranks,
        )
        if known.fleet_words:
            tell(known.fleet_words)
            notes.append(known.fleet_words)
        battery = Battery(settings, opened, known, tell)
        watch = battery.watch = HealthWatch()
        again: dict[str, list[Evidence]] = {}
        stopped: OSError | None = None
        try:
            _measure(battery)
            again = _run_again(battery, _judged(battery, battery.health(watch.so_far())))
        except OSError as error:
            stopped = error
        finally:
            health = battery.health(watch.finished())
        try:
            if opened.kept("health") is None:  # of a battery whose verdict found no room
                opened.keep("health", [health])
        except OSError as error:
            stopped = stopped or error
        findings = [known.dated(finding) for finding in _confirmed(battery, health, again)]
        if stopped is not None:
            findings.insert(0, _no_room(stopped))
        verdict = decision(findings)
        losses = {
            one.stack: one.losses
            for one in battery.evidence()
            if isinstance(one, Launched) and one.stack and one.losses
        }
        path = opened.close(verdict, findings, losses)
    except BaseException:
        opened.abandon()
        raise
    return Report(
        id=opened.id,
        profile=settings.profile,
        decision=verdict,
        findings=findings,
        notes=[*notes, *battery.notes],
        seconds=time.monotonic() - battery.start,
        record=str(path),
    )


def _no_room(error: OSError) -> Finding:
    """That the battery could not go on: most often a full disk. What it had measured is judged all the same."""
    return Finding(
        check=ENVIRONMENT,
        subject="records",
        verdict=Verdict.INVALID,
        status=Status.CRASHED,
        part="results or scratch files",
        evidence=str(error),
    )


def _judged(
    battery: Battery,
    health: Health,
    evidence: list[Evidence] | None = None,
    *,
    looks_of: Mapping[str, Sequence[int]] | None = None,
) -> list[Finding]:
    settings = battery.settings
    return judged(
        [*(battery.evidence() if evidence is None else evidence), health],
        battery.known,
        others=settings.others,
        looks=settings.effort.looks,
        looks_of=looks_of or {},
        selected=settings.selected,
    )


def _measure(battery: Battery) -> None:
    settings = battery.settings
    battery.kept["environment"] = battery.run(environment_phase(battery))
    if settings.selected & (OF_MICRO if settings.device == "cuda" else OF_MICRO - {HOST_DEVICE}):
        _micro(battery)
    planned = launch_phases(battery)
    for place, phase in enumerate(planned):
        _launches(battery, phase, planned[place + 1 :])
    _further_looks(battery)
    probe = probe_phase(battery)
    if probe is not None:
        battery.kept[probe.name] = battery.run(probe)


def _probe_seconds(battery: Battery) -> float:
    probe = probe_phase(battery)
    return 0.0 if probe is None else probe.predicted_seconds


def _launches(battery: Battery, phase: Phase, later: Sequence[Phase]) -> None:
    """Make the launches of a phase; those that others disturbed once more where time is left for that."""
    found = battery.kept[phase.name] = battery.run(phase)
    due = disturbed(battery, phase, found, later=later, probe_seconds=_probe_seconds(battery))
    if not due:
        return
    battery.note(f"{phase.name}: {in_words(due)}")
    name, _, purpose = phase.name.partition(" ")
    steps = JITTER_STEPS if purpose == "jitter" else TIMED_STEPS
    repeat = battery.run(launches_phase(battery, name, purpose, steps, len(due)), ATTEMPT)
    battery.kept[phase.name] = joined(found, due, repeat)


def _micro(battery: Battery) -> None:
    """Measure the machine, and once more where others disturbed that and time is left."""
    phase = micro_phase(battery)
    found = battery.kept[phase.name] = _profiled(battery, phase, ("", "anew"))
    due = disturbed(battery, phase, found, later=launch_phases(battery), probe_seconds=_probe_seconds(battery))
    if not due:
        return
    battery.note(f"{phase.name}: {in_words(due)}")
    profile, battery.profile = battery.profile, None
    repeat = _profiled(battery, phase, (ATTEMPT, f"{ATTEMPT} anew"))
    battery.kept[phase.name] = joined(found, due, repeat)
    if not ended_well(repeat):
        battery.profile = profile


def _profiled(battery: Battery, phase: Phase, attempts: Sequence[str]) -> list[Evidence]:
    """Run micro-measurements; of an interrupted battery their profile is taken.

    Where that is gone, or of another machine, the next attempt is made.
    """
    found: list[Evidence] = []
    for attempt in attempts:
        found = battery.run(phase, attempt)
        path = next((one.profile for one in found if isinstance(one, Micro)), "")
        if battery.profile is not None or not path:
            break
        try:
            profile = read(Path(path))
            check_holds(profile, fingerprint(battery.settings.device), path)
        except InputError as error:
            battery.tell(f"not used: {error}")
            continue
        battery.profile = profile
        break
    return found


def _further_looks(battery: Battery) -> None:
    """Launch again what the last look left open, as long as looks and time are left.

    The time of the probe is no longer free, nor that of the shortest re-runs: of what failed so far, and of the
    miniature itself, should the look reject it.
    """
    settings, effort = battery.settings, battery.settings.effort
    if STEP_TIME not in settings.selected:
        return
    for name in settings.timed:
        while True:
            own = [
                one
                for one in battery.evidence()
                if isinstance(one, Launched) and (one.run, one.purpose) == (name, "times") and not one.set_aside
            ]
            ratios = step_ratios(own)
            if len(ratios) < len(own) or len(ratios) < effort.looks[0]:
                break
            missing = step_launches_missing(ratios, step_references(own, battery.known), effort.looks)
            phase = launches_phase(battery, name, "times", TIMED_STEPS, missing)
            as_before = missing * math.fsum(one.seconds for one in own) / len(own)
            seconds = max(phase.predicted_seconds, as_before) + _reserved_seconds(battery, own)
            if not missing or seconds > battery.seconds_left:
                break
            attempt = f"from launch {len(ratios) + 1}"
            found = battery.kept[f"{phase.name} {attempt}"] = battery.run(phase, attempt)
            if any(isinstance(one, Timed) and one.outcome != "ok" for one in found):
                break


def _reserved_seconds(battery: Battery, launches: Sequence[Launched]) -> float:
    """What must be left behind a further look at these launches: for the probe, and for re-runs at their shortest."""
    probe = probe_phase(battery)
    so_far = _judged(battery, Health(gpus=[], why_none="still being read"))
    due = [one for _, one in _due(battery, so_far) if one.needed]
    name = f"{launches[0].run} times"
    if all(one.name != name for one in due):
        seconds = math.fsum(one.seconds for one in launches)
        due.append(Due(name=name, seconds=seconds, launches=len(launches), needed=True))
    return (0.0 if probe is None else probe.predicted_seconds) + math.fsum(one.shortest_seconds for one in due)


def _run_again(battery: Battery, first: list[Finding]) -> dict[str, list[Evidence]]:
    """What was measured once more because of failures, by phase, as far as the limit leaves time for it.

    Where that is too short for as many launches as before, fewer are made, three at least. Failures of what did not end
    well are not repeated: a hang would hang again for as long.
    """
    phases_of = {phase.name: (phase, due) for phase, due in _due(battery, first)}
    chosen = affordable([due for _, due in phases_of.values()], battery.seconds_left)
    again: dict[str, list[Evidence]] = {}
    for place, due in enumerate(chosen):
        phase = phases_of[due.name][0]
        count = launches_that_fit(due, chosen[place + 1 :], battery.seconds_left)
        if count is None:  # those before took longer than at first
            continue
        if count:
            phase = launches_phase(battery, due.name.partition(" ")[0], "times", TIMED_STEPS, count)
        again[due.name] = battery.run(phase, "again")
    return again


def _due(battery: Battery, findings: Sequence[Finding]) -> list[tuple[Phase, Due]]:
    """The phases whose re-run would confirm or take back a failure, and what each takes: as long as at first."""
    failed = [f for f in findings if f.verdict is Verdict.FAIL and f.status is Status.OK]
    numbers = frozenset(f.check for f in failed)
    due = []
    slow = {one.phase: one for one in battery.evidence() if isinstance(one, Timed) and one.outcome == "slow"}
    parts = FROM_PROBE if "probe" in slow else numbers & FROM_PROBE
    probe = probe_phase(battery, parts) if parts else None
    for phase in (micro_phase(battery), *launch_phases(battery), *(() if probe is None else (probe,))):
        own = [f for f in failed if f.check in phase.serves and _is_about(f, phase)]
        own += [f for f in failed if _is_slow(f, phase)]
        if not own or phase.name not in battery.kept:
            continue
        before = [
            one
            for one in battery.kept[phase.name]
            if isinstance(one, Probing) or (isinstance(one, Micro | Launched) and not one.set_aside)
        ]
        seconds = math.fsum(one.seconds for one in before)
        launches = len(before) if phase.serves >= FROM_TIMES else 0
        if phase.name == "probe":  # its failed parts alone
            seconds = min(seconds, phase.predicted_seconds)
        if phase.name in slow:  # all of it, until it ends or is too slow again
            seconds, launches = max(seconds, slow[phase.name].seconds), 0
        needed = any(_judges_anew(phase, f) and is_noise(f) for f in own)
        due.append((phase, Due(name=phase.name, seconds=seconds, launches=launches, needed=needed)))
    return due


def _is_slow(finding: Finding, phase: Phase) -> bool:
    """Whether the finding is that the phase took too long."""
    return finding.check == HANG_GUARD and finding.subject == phase.name


def _judges_anew(phase: Phase, finding: Finding) -> bool:
    """Whether a re-run of the phase says anew what the finding says."""
    return _is_slow(finding, phase) or (finding.check in _confirms(phase) and _is_about(finding, phase))


def _confirms(phase: Phase) -> frozenset[int]:
    """Checks that a re-run of the phase judges anew: micro-measurements predict step times, but measure none."""
    return FROM_MICRO if phase.serves == OF_MICRO else phase.serves


def _is_about(finding: Finding, phase: Phase) -> bool:
    """Whether the phase measures what the finding is about: a launch its miniature alone."""
    run = phase.name.partition(" ")[0]
    return run not in MINIATURES or finding.subject.partition(",")[0] == run


def _confirmed(battery: Battery, health: Health, again: dict[str, list[Evidence]]) -> list[Finding]:
    """The findings: of failed clocks only what fails twice is a failure of the node.

    Each miniature's re-run is one look at as many launches as it has.
    """
    first = _judged(battery, health)
    if not again:
        return confirmed(first, [])
    # a re-run is looked at by itself: what further looks had added to the first one is left out
    added = tuple(f"{name} from launch" for name in again)
    kept = {name: own for name, own in battery.kept.items() if not name.startswith(added)}
    replaced = [one for own in (kept | again).values() for one in own]
    looks: dict[str, Sequence[int]] = {}
    for own in again.values():
        launches = [one for one in own if isinstance(one, Launched) and one.purpose == "times"]
        if FEWEST <= len(launches) < battery.settings.effort.looks[0]:
            looks[launches[0].run] = (len(launches),)
    repeated = _judged(battery, health, replaced, looks_of=looks)
    phases_again = [phase for phase, due in _due(battery, first) if due.name in again]
    second = [finding for finding in repeated if any(_judges_anew(phase, finding) for phase in phases_again)]
    second += [
        Finding(check=HANG_GUARD, subject=one.phase, verdict=Verdict.PASS)
        for own in again.values()
        for one in own
        if isinstance(one, Timed) and one.outcome == "ok"
    ]
    return confirmed(first, second)
