"""The battery: measures phase by phase, judges, runs again what failed, and keeps the record of it all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.acceptance import evidence_record, phases
from suite.acceptance.checks import (
    ALL_REDUCE,
    ATTRIBUTION,
    ENVIRONMENT,
    ERRORS,
    EXACT_FIGURES,
    HOST_DEVICE,
    JITTER,
    LOSS_CURVE,
    MATRIX,
    MEMORY,
    PEER,
    REPLAYS,
    SOAK,
    SPREAD,
    STEP_TIME,
    STRAGGLER,
    THROTTLE,
)
from suite.acceptance.evidence import Evidence, Health, Launched, Micro, Probing, Surroundings, Timed
from suite.acceptance.evidence_record import OpenedBattery, unfinished
from suite.acceptance.gpu_health import HealthWatch
from suite.acceptance.history import History, history
from suite.acceptance.judged import judged
from suite.acceptance.launch_checks import step_margin, step_ratios
from suite.acceptance.noninferiority import FEWEST, launches_missing
from suite.acceptance.profiles import EXACT_STEPS, JITTER_STEPS, MINIATURES, TIMED_STEPS, Effort
from suite.acceptance.reruns import Due, affordable, launches_that_fit
from suite.acceptance.surroundings import competitors
from suite.acceptance.verdicts import Decision, Finding, Verdict, confirmed, decision, is_noise
from suite.calibration import USUAL_SECONDS
from suite.devices import cuda_devices, usable_cores
from suite.job import Event, Status
from suite.machine_profile import Profile, check_holds, read
from suite.record import fingerprint

BUDGET_FACTOR = 5.0
LEAST_BUDGET_SECONDS = 120.0  # of a phase: what the launcher itself waits for a rank's first step
COMPILE_SECONDS = 600.0
START_SECONDS = 10.0  # from a launch's start to its first step: 6 to 10 s on 2 cores of an AMD EPYC, 2026-11-21
STEP_SECONDS = 1.5  # of a miniature that nothing predicts: the slowest takes 1.0 s there
FROM_MICRO = frozenset({MATRIX, SPREAD, MEMORY, HOST_DEVICE})
OF_MICRO = FROM_MICRO | {STEP_TIME, ATTRIBUTION}  # predictions rest on them
FROM_TIMES = frozenset({STEP_TIME, ATTRIBUTION, STRAGGLER, LOSS_CURVE})
UNDER_LOAD = frozenset({THROTTLE, ERRORS})
EXCHANGES = frozenset({PEER, ALL_REDUCE})
FROM_PROBE = EXCHANGES | {REPLAYS, SOAK}
EXCHANGE_SECONDS = 5.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request.

    Args:
        devices: that the node must have; None: not said.
        others: largest share of the processors that other processes may use.
        miniatures: that are launched; `timed` those whose step time is judged.
        resume: go on with the newest battery that did not end.
    """

    profile: str
    effort: Effort
    device: str
    ranks: int
    results: Path
    fleet: Path | None
    selected: frozenset[int]
    miniatures: tuple[str, ...]
    timed: tuple[str, ...]
    devices: int | None
    others: float
    resume: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the battery found."""

    id: str
    profile: str
    decision: Decision
    findings: list[Finding]
    notes: list[str]
    seconds: float
    record: str


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to run, what it should take, and the checks that it serves."""

    name: str
    predicted_seconds: float
    serves: frozenset[int]
    run: Callable[[Callable[[int, Event], None]], list[Evidence]]


class OverBudgetError(Exception):
    """A phase makes progress, but takes longer than five times its prediction."""


class _Battery:
    """What changes while a battery runs: its evidence, and the machine profile once there is one."""

    def __init__(self, settings: Settings, opened: OpenedBattery, known: History, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self.opened = opened
        self.known = known
        self.tell = tell
        self.start = time.monotonic()
        self.profile: Profile | None = None
        self.kept: dict[str, list[Evidence]] = {}

    @property
    def seconds_left(self) -> float:
        return self.settings.effort.limit_seconds - (time.monotonic() - self.start)

    def evidence(self) -> list[Evidence]:
        return [one for part in self.kept.values() for one in part]

    def run(self, phase: Phase, *, again: bool = False) -> list[Evidence]:
        """Run a phase within its budget and keep its evidence; what an interrupted battery kept is taken over."""
        name = f"{phase.name} again" if again else phase.name
        earlier = self.opened.kept(name)
        if earlier is not None:
            self.tell(f"{name}: from the interrupted battery")
            return earlier
        self.tell(f"{name}: about {phase.predicted_seconds:.0f} s")
        compiled = COMPILE_SECONDS if self.settings.device == "cuda" else 0.0
        budget = max(LEAST_BUDGET_SECONDS, BUDGET_FACTOR * phase.predicted_seconds) + compiled
        begun = time.monotonic()

        def within_budget(_rank: int, _event: Event) -> None:
            if time.monotonic() - begun > budget:
                raise OverBudgetError

        found: list[Evidence] = []
        outcome, message, stacks = "ok", "", ""
        try:
            found = phase.run(within_budget)
        except OverBudgetError:
            outcome, message = "slow", "over budget"
        for one in found:
            if isinstance(one, Micro | Launched | Probing) and one.status is not Status.OK:
                outcome = "hang" if one.status is Status.HANG else "failed"
                message, stacks = one.message, "" if isinstance(one, Micro) else one.stacks
                if one.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
        found.append(
            Timed(
                phase=name,
                predicted_seconds=phase.predicted_seconds,
                budget_seconds=budget,
                seconds=time.monotonic() - begun,
                outcome=outcome,
                message=message,
                stacks=stacks,
            )
        )
        self.opened.keep(name, found)
        return found


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
    }
    notes: list[str] = []
    earlier = None
    if settings.resume:
        node = evidence_record.opening("", settings.profile, options, 0.0).node
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
        )
        battery = _Battery(settings, opened, known, tell)
        watch = HealthWatch()
        try:
            _measure(battery)
            again = _run_again(battery, _judged(battery, watch.so_far()))
        finally:
            health = watch.finished()
        findings = [known.dated(finding) for finding in _confirmed(battery, health, again)]
        verdict = decision(findings)
        losses = {
            one.stack: one.losses
            for one in battery.evidence()
            if isinstance(one, Launched) and one.stack and one.losses
        }
        if opened.kept("health") is None:  # of a battery whose verdict found no room
            opened.keep("health", [health])
        path = opened.close(verdict, findings, losses)
    except BaseException:
        opened.abandon()
        raise
    return Report(
        id=opened.id,
        profile=settings.profile,
        decision=verdict,
        findings=findings,
        notes=notes,
        seconds=time.monotonic() - battery.start,
        record=str(path),
    )


def _judged(
    battery: _Battery,
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


def _measure(battery: _Battery) -> None:
    settings = battery.settings
    battery.kept["environment"] = battery.run(_environment(battery))
    if settings.selected & (OF_MICRO if settings.device == "cuda" else OF_MICRO - {HOST_DEVICE}):
        _micro(battery)
    for phase in _launch_phases(battery):
        battery.kept[phase.name] = battery.run(phase)
    _further_looks(battery)
    probe = _probe(battery)
    if probe is not None:
        battery.kept[probe.name] = battery.run(probe)


def _environment(battery: _Battery) -> Phase:
    settings, known = battery.settings, battery.known

    def run(_on_event: Callable[[int, Event], None]) -> list[Evidence]:
        busy, share = competitors()
        devices = cuda_devices() if settings.device == "cuda" else usable_cores()
        return [
            Surroundings(
                device=settings.device,
                ranks=settings.ranks,
                devices=devices,
                devices_expected=settings.devices,
                others_share=share,
                competitors=busy,
                fleet_problems=known.fleet_problems,
                past_problems=known.past_problems,
                gpus=battery.opened.opening.hardware["gpus"] if settings.device == "cuda" else "",
            )
        ]

    return Phase(name="environment", predicted_seconds=3.0, serves=frozenset({ENVIRONMENT}), run=run)


def _micro_phase(battery: _Battery) -> Phase:
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        where = evidence_record.directory(settings.results)
        found, battery.profile = phases.micro(settings.device, settings.ranks, settings.effort, where, on_event)
        return [found]

    return Phase(name="micro-measurements", predicted_seconds=USUAL_SECONDS, serves=OF_MICRO, run=run)


def _micro(battery: _Battery) -> None:
    """Measure the machine; of an interrupted battery its profile is taken, unless it is gone or of another machine."""
    phase = _micro_phase(battery)
    for name in (phase.name, f"{phase.name} anew"):
        found = battery.run(msgspec.structs.replace(phase, name=name))
        battery.kept[phase.name] = found
        path = next((one.profile for one in found if isinstance(one, Micro)), "")
        if battery.profile is not None or not path:
            return
        try:
            profile = read(Path(path))
            check_holds(profile, fingerprint(battery.settings.device), path)
        except InputError as error:
            battery.tell(f"not used: {error}")
            continue
        battery.profile = profile
        return


def _launch_phases(battery: _Battery) -> list[Phase]:
    """One for each miniature; those whose time is judged are launched as often as the first look needs."""
    settings, effort = battery.settings, battery.settings.effort
    planned = []
    times = settings.selected & FROM_TIMES
    for name in settings.miniatures:
        timed = bool(times) and name in settings.timed
        if timed:
            planned.append(_launches(battery, name, "times", TIMED_STEPS, effort.looks[0]))
        elif EXACT_FIGURES in settings.selected:
            planned.append(_launches(battery, name, "exact", EXACT_STEPS, 1))
    if effort.jitter is not None and JITTER in settings.selected:
        planned.append(_launches(battery, effort.jitter, "jitter", JITTER_STEPS, 1))
    return planned


def _launches(battery: _Battery, name: str, purpose: str, steps: int, count: int, first: int = 1) -> Phase:
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        found: list[Evidence] = []
        for _ in range(count):
            one = phases.launched(
                name,
                purpose,
                device=settings.device,
                ranks=settings.ranks,
                steps=steps,
                results=settings.results,
                profile=battery.profile,
                on_event=on_event,
            )
            found.append(one)
            if one.status is not Status.OK:
                break
        return found

    serves = {"times": FROM_TIMES | {EXACT_FIGURES}, "jitter": {JITTER, LOSS_CURVE}, "exact": {EXACT_FIGURES}}[purpose]
    title = f"{name} {purpose}" + (f" from launch {first}" if first > 1 else "")
    seconds = _launches_seconds(steps, count)
    return Phase(name=title, predicted_seconds=seconds, serves=frozenset(serves), run=run)


def _launches_seconds(steps: int, count: int) -> float:
    return count * (START_SECONDS + steps * STEP_SECONDS)


def _further_looks(battery: _Battery) -> None:
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
                if isinstance(one, Launched) and (one.run, one.purpose) == (name, "times")
            ]
            ratios = step_ratios(own)
            bias, margin, _ = step_margin(name, battery.known)
            if len(ratios) < len(own) or len(ratios) < effort.looks[0]:
                break
            missing = launches_missing([ratio / bias for ratio in ratios], margin=margin, looks=effort.looks)
            phase = _launches(battery, name, "times", TIMED_STEPS, missing, first=len(ratios) + 1)
            if not missing or phase.predicted_seconds + _reserved_seconds(battery, own) > battery.seconds_left:
                break
            battery.kept[phase.name] = battery.run(phase)


def _reserved_seconds(battery: _Battery, launches: Sequence[Launched]) -> float:
    """What must be left behind a further look at these launches: for the probe, and for re-runs at their shortest."""
    probe = _probe(battery)
    so_far = _judged(battery, Health(gpus=[], why_none="still being read"))
    due = [one for _, one in _due(battery, so_far) if one.needed]
    name = f"{launches[0].run} times"
    if all(one.name != name for one in due):
        seconds = math.fsum(one.seconds for one in launches)
        due.append(Due(name=name, seconds=seconds, launches=len(launches), needed=True))
    return (0.0 if probe is None else probe.predicted_seconds) + math.fsum(one.shortest_seconds for one in due)


def _probe(battery: _Battery, parts: frozenset[int] = FROM_PROBE) -> Phase | None:
    """All parts of the probe that are asked for, or those of them that measure these checks."""
    settings, effort = battery.settings, battery.settings.effort
    wanted = settings.selected & parts
    if not wanted and settings.selected & UNDER_LOAD and not any(_is_load(one) for one in battery.evidence()):
        wanted = frozenset({SOAK})  # counters are read under load: idle, a bad GPU shows none
    if not wanted:
        return None

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        return [
            phases.probed(
                settings.device,
                settings.ranks,
                effort,
                replays=REPLAYS in wanted,
                exchanges=bool(wanted & EXCHANGES),
                soak=SOAK in wanted,
                on_event=on_event,
            )
        ]

    # a replay's step takes about as long as one of the miniature's samples
    seconds = START_SECONDS + (effort.replays * (1 + effort.replay_steps * 0.5) if REPLAYS in wanted else 0.0)
    seconds += (EXCHANGE_SECONDS if wanted & EXCHANGES else 0.0) + (effort.soak_seconds if SOAK in wanted else 0.0)
    serves = FROM_PROBE if parts == FROM_PROBE else wanted | (EXCHANGES if wanted & EXCHANGES else frozenset())
    return Phase(name="probe", predicted_seconds=seconds, serves=serves, run=run)


def _is_load(one: Evidence) -> bool:
    return isinstance(one, Micro | Launched | Probing)


def _run_again(battery: _Battery, first: list[Finding]) -> dict[str, list[Evidence]]:
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
            phase = _launches(battery, due.name.partition(" ")[0], "times", TIMED_STEPS, count)
        again[due.name] = battery.run(phase, again=True)
    return again


def _due(battery: _Battery, findings: Sequence[Finding]) -> list[tuple[Phase, Due]]:
    """The phases whose re-run would confirm or take back a failure, and what each takes: as long as at first."""
    failed = [f for f in findings if f.verdict is Verdict.FAIL and f.status is Status.OK]
    numbers = frozenset(f.check for f in failed)
    due = []
    probe = _probe(battery, numbers & FROM_PROBE) if numbers & FROM_PROBE else None
    for phase in (_micro_phase(battery), *_launch_phases(battery), *(() if probe is None else (probe,))):
        own = [f for f in failed if f.check in phase.serves and _is_about(f, phase)]
        if not own or phase.name not in battery.kept:
            continue
        before = [one for one in battery.kept[phase.name] if isinstance(one, Micro | Launched | Probing)]
        seconds = math.fsum(one.seconds for one in before)
        if phase.name == "probe":  # its failed parts alone
            seconds = min(seconds, phase.predicted_seconds)
        needed = any(is_noise(f) and f.check in _confirms(phase) for f in own)
        launches = len(before) if phase.serves >= FROM_TIMES else 0
        due.append((phase, Due(name=phase.name, seconds=seconds, launches=launches, needed=needed)))
    return due


def _confirms(phase: Phase) -> frozenset[int]:
    """Checks that a re-run of the phase judges anew: micro-measurements predict step times, but measure none."""
    return FROM_MICRO if phase.serves == OF_MICRO else phase.serves


def _is_about(finding: Finding, phase: Phase) -> bool:
    """Whether the phase measures what the finding is about: a launch its miniature alone."""
    run = phase.name.partition(" ")[0]
    return run not in MINIATURES or finding.subject.partition(",")[0] == run


def _confirmed(battery: _Battery, health: Health, again: dict[str, list[Evidence]]) -> list[Finding]:
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
    second = [
        finding
        for finding in repeated
        if any(finding.check in _confirms(phase) and _is_about(finding, phase) for phase in phases_again)
    ]
    return confirmed(first, second)
