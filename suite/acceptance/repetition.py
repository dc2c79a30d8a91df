"""Measurements that are made again while time is left: what other processes disturbed, and what failed.

A failure that rests on clocks stands only where a second measurement fails too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from suite.acceptance import phases
from suite.acceptance.check_table import ENVIRONMENT, HANG_GUARD
from suite.acceptance.context import BatteryPhase, LaunchesPhase, RunningBattery
from suite.acceptance.evidence import (
    Evidence,
    LaunchPurpose,
    MicroMeasurements,
    MiniatureLaunch,
    PhaseTiming,
    ProbeResult,
    Surroundings,
    Timed,
    made_for_times,
)
from suite.acceptance.findings import TIME_LIMIT, confirmed, rests_on_clocks
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.judge.environment import environment_findings, share_of_others
from suite.acceptance.judge.expected_rates import IMPOSSIBLE
from suite.acceptance.judge.noninferiority import FEWEST
from suite.acceptance.judge.rates import needs_launches
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict

REPEATED, REPEATED_TWICE = "repeated", "repeated twice"  # attempts at what others disturbed
AGAIN, THIRD, FOURTH = "again", "a third time", "a fourth time"  # attempts at what failed


def disturbed(
    battery: RunningBattery,
    phase: BatteryPhase,
    evidence: Sequence[Evidence],
    later: Sequence[BatteryPhase],
    attempt: str = REPEATED,
) -> list[Timed]:
    """The measurements of a phase to repeat, with a note: other processes used more than their share meanwhile.

    Nothing where devices or earlier processes make the battery invalid anyway, where the phase did not end well, or
    where the time is too short. A resumed battery repeats what the interrupted one repeated, and nothing else of which
    a later phase was already run, because later phases rest on it.

    Args:
        later: phases still to run before the probe.
        attempt: of the repetition.
    """
    limit = battery.settings.others
    invalid = any(finding.verdict is CheckVerdict.INVALID for finding in seen_before(battery))
    if invalid or not ended_well(evidence):
        return []
    timed = [item for item in evidence if isinstance(item, Timed) and made_for_times(item) and not item.set_aside]
    repeat = [item for item in timed if share_of_others(item) > limit]
    if battery.record.kept(f"{phase.name} {attempt}") is None:
        if any(battery.record.kept(other.name) is not None for other in later):
            return []
        undisturbed_seconds = phase.predicted_seconds * len(repeat) / max(1, len(timed))
        seconds = min(math.fsum(item.seconds for item in repeat), undisturbed_seconds)
        seconds += math.fsum(other.predicted_seconds for other in later) + phases.probe_seconds(battery)
        if seconds > battery.seconds_left:
            return []
    if repeat:
        battery.note(f"{phase.name}: {_repeat_note(repeat)}")
    return repeat


def seen_before(battery: RunningBattery, health: Health | None = None) -> list[CheckFinding]:
    """Findings of check 0 before anything is measured."""
    around = next((item for item in battery.evidence() if isinstance(item, Surroundings)), None)
    return environment_findings(around, health, [], others=battery.settings.others, loaded=())


def ended_well(evidence: Sequence[Evidence]) -> bool:
    """Whether a phase and everything that it measured ended well and in time."""
    if any(isinstance(item, PhaseTiming) and item.outcome != "ok" for item in evidence):
        return False
    return all(item.status is Status.OK for item in evidence if isinstance(item, Timed))


def _repeat_note(repeat: Sequence[Timed]) -> str:
    """The process that disturbed the measurements most, how much, and how many are repeated."""
    guests = max(item.steal_share or 0.0 for item in repeat)
    processes = max(item.others_share or 0.0 for item in repeat)
    who = "other guests of the host" if guests > processes else "other processes"
    count = f"{len(repeat)} launches are" if isinstance(repeat[0], MiniatureLaunch) else "all is"
    return f"{who} used {max(guests, processes):.0%} of the processors: {count} repeated"


def with_repeats(evidence: Sequence[Evidence], repeat: Sequence[Timed], repeated: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of a phase and of its repetition; disturbed clocks are set aside, if the repetition ended well."""
    if not ended_well(repeated):
        return [*evidence, *repeated]
    kept = [
        msgspec.structs.replace(item, set_aside=True) if isinstance(item, Timed) and item in repeat else item
        for item in evidence
    ]
    return [*kept, *repeated]


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that may be run again.

    Args:
        name: of the phase.
        seconds: that it takes in full.
        launches: that it makes in full, each as long as the others; 0: it is run in full or not at all.
        needed: whether the re-run decides a failure; bit errors are failures either way.
    """

    name: str
    seconds: float
    launches: int
    needed: bool

    @property
    def shortest_seconds(self) -> float:
        """Seconds of the least that confirms a failure: 3 launches, or everything."""
        return self.seconds * min(FEWEST, self.launches) / self.launches if self.launches else self.seconds


def affordable(reruns: Sequence[Rerun], seconds_left: float) -> list[Rerun]:
    """Re-runs that fit together at their shortest, in the order given; needed ones have priority, then short ones."""
    chosen = []
    for rerun in sorted(reruns, key=lambda rerun: (not rerun.needed, rerun.shortest_seconds)):
        if rerun.shortest_seconds <= seconds_left:
            chosen.append(rerun)
            seconds_left -= rerun.shortest_seconds
    return [rerun for rerun in reruns if rerun in chosen]


def launches_that_fit(rerun: Rerun, later: Sequence[Rerun], seconds_left: float) -> int | None:
    """Launches of a re-run that leave all later ones their shortest time, at least 3.

    0: all of a phase without launches; None: not even the shortest fits.
    """
    if rerun.shortest_seconds > seconds_left:
        return None
    if not rerun.launches:
        return 0
    available = seconds_left - math.fsum(other.shortest_seconds for other in later)
    fitting = int(available * rerun.launches / rerun.seconds) if rerun.seconds else rerun.launches
    return min(rerun.launches, max(fitting, FEWEST))


def run_again(battery: RunningBattery, health: Callable[[], Health]) -> list[dict[str, list[Evidence]]]:
    """Evidence of re-runs because of failures, by phase: of all that failed, then of what re-runs left open.

    A fourth measurement is made where others disturbed an earlier one, which then counts for nothing.
    """
    if battery.why_over:
        return []
    first = battery.findings(health())
    rounds: list[dict[str, list[Evidence]]] = []
    failed = first
    for attempt in (AGAIN, THIRD, FOURTH):
        if not (again := _run_again(battery, failed, attempt)):
            break
        rounds.append(again)
        left = {
            finding.key
            for finding in confirmed_findings(battery, health(), rounds)
            if finding.verdict in (CheckVerdict.INCONCLUSIVE, CheckVerdict.INVALID)
        }
        measured = _findings_again(battery, health(), first, again)
        repeated = {finding.key for finding in measured if finding.status is Status.OK}  # a hang would hang again
        failed = [finding for finding in first if finding.key in left & repeated]
    return rounds


def _run_again(battery: RunningBattery, failed: list[CheckFinding], attempt: str) -> dict[str, list[Evidence]]:
    """Evidence of one round of re-runs, by phase, as far as the limit leaves time.

    Where it is too short for as many launches as before, fewer are made, at least 3. What did not end well is not run
    again: a hang would hang again for as long.
    """
    planned = {phase.name: (phase, rerun) for phase, rerun in planned_reruns(battery, failed)}
    chosen = affordable([rerun for _, rerun in planned.values()], battery.seconds_left)
    again: dict[str, list[Evidence]] = {}
    for number, rerun in enumerate(chosen):
        phase = planned[rerun.name][0]
        launches = launches_that_fit(rerun, chosen[number + 1 :], battery.seconds_left)
        if launches is None:  # earlier re-runs took longer than at first
            continue
        if launches and isinstance(phase, LaunchesPhase):
            phase = phases.launches_phase(battery, phase.miniature, phase.purpose, launches)
        again[rerun.name] = battery.run(phase, attempt)
    return again


def planned_reruns(battery: RunningBattery, findings: Sequence[CheckFinding]) -> list[tuple[BatteryPhase, Rerun]]:
    """Phases whose re-run would confirm or take back a failure, with the time that each should take.

    The micro-measurements are run again in full where predictions failed and there is time for everything; otherwise
    their rates alone.
    """
    failed = [item for item in findings if item.verdict is CheckVerdict.FAIL and item.status is Status.OK]
    failed += _disturbed_exchanges(findings)
    slow = {item.phase: item for item in battery.evidence() if isinstance(item, PhaseTiming) and item.outcome == "slow"}
    if phases.MICRO in slow:
        return _planned_reruns(battery, failed, slow, phases.micro_phase(battery))
    if any(finding.check in phases.PREDICTED for finding in failed):
        planned = _planned_reruns(battery, failed, slow, phases.micro_phase(battery))
        if math.fsum(rerun.shortest_seconds for _, rerun in planned) <= battery.seconds_left:
            return planned
    return _planned_reruns(battery, failed, slow, phases.rates_phase(battery))


def _planned_reruns(
    battery: RunningBattery, failed: Sequence[CheckFinding], slow: Mapping[str, PhaseTiming], micro: BatteryPhase
) -> list[tuple[BatteryPhase, Rerun]]:
    probe_parts = (
        phases.MEASURED_BY_PROBE
        if "probe" in slow
        else phases.MEASURED_BY_PROBE & {finding.check for finding in failed}
    )
    probe = phases.probe_phase(battery, probe_parts) if probe_parts else None
    planned = []
    made = (*phases.launch_phases(battery), *phases.exact_phases(battery))
    for phase in (micro, *made, *(() if probe is None else (probe,))):
        causes = [
            finding
            for finding in failed
            if _is_slow(finding, phase)
            or (finding.check in phase.serves and _is_about(finding, phase))
            or _bears_out(battery, phase, finding)
        ]
        if not causes or phase.name not in battery.evidence_of:
            continue
        measured = [
            item
            for item in battery.evidence_of[phase.name]
            if isinstance(item, ProbeResult) or (isinstance(item, Timed) and not item.set_aside)
        ]
        seconds = math.fsum(item.seconds for item in measured)
        launches = len(measured) if phase.serves >= phases.MEASURED_BY_TIMES else 0
        if phase.name == "probe" or phase.serves == phases.MEASURED_BY_MICRO:  # only their failed parts
            seconds = min(seconds, phase.predicted_seconds)
        if phase.name in slow:  # all of it, until it ends or is too slow again
            seconds, launches = max(seconds, slow[phase.name].seconds), 0
        decided = [finding for finding in causes if _decides(phase, finding) or _bears_out(battery, phase, finding)]
        needed = any(rests_on_clocks(finding) for finding in decided)
        planned.append((phase, Rerun(name=phase.name, seconds=seconds, launches=launches, needed=needed)))
    return planned


def _disturbed_exchanges(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Rates of links that others made invalid meanwhile; none where the environment is invalid altogether."""
    invalid = [finding for finding in findings if finding.verdict is CheckVerdict.INVALID]
    if any(finding.check == ENVIRONMENT for finding in invalid):
        return []
    return [finding for finding in invalid if finding.check in phases.EXCHANGES and finding.part != IMPOSSIBLE]


def _is_slow(finding: CheckFinding, phase: BatteryPhase) -> bool:
    return finding.check == HANG_GUARD and finding.subject == phase.name


def _decides(phase: BatteryPhase, finding: CheckFinding) -> bool:
    """Whether a re-run of the phase decides the finding: micro-measurements predict step times, but measure none."""
    confirms = phases.MEASURED_BY_MICRO if phase.serves == phases.NEEDS_MICRO else phase.serves
    return _is_slow(finding, phase) or (finding.check in confirms and _is_about(finding, phase))


def _bears_out(battery: RunningBattery, phase: BatteryPhase, finding: CheckFinding) -> bool:
    """Whether launches of the phase say if a virtual machine's rank with slow products counts as slow.

    They are made again with its products: the same launches would bear out each of these in the same way.
    """
    virtual = any(isinstance(item, MicroMeasurements) and item.virtual for item in battery.evidence())
    return needs_launches(finding, virtual=virtual) and phase.serves >= phases.MEASURED_BY_TIMES


def _is_about(finding: CheckFinding, phase: BatteryPhase) -> bool:
    """Whether the phase measures what the finding is about: a launch measures only its miniature."""
    return not isinstance(phase, LaunchesPhase) or finding.subject.partition(",")[0] == phase.miniature


def confirmed_findings(
    battery: RunningBattery, health: Health, rounds: Sequence[dict[str, list[Evidence]]]
) -> list[CheckFinding]:
    """All findings; a failure that rests on clocks stands only where a re-run fails too."""
    first = battery.findings(health)
    return confirmed(first, *(_findings_again(battery, health, first, again) for again in rounds))


def _findings_again(
    battery: RunningBattery, health: Health, first: Sequence[CheckFinding], again: dict[str, list[Evidence]]
) -> list[CheckFinding]:
    """Findings of the re-runs of one round; each miniature's re-run is one look at as many launches as it has."""
    # further looks belong to the first measurement: a re-run is judged without them
    further_looks = tuple(f"{name} from launch" for name in again)
    before = {name: of_phase for name, of_phase in battery.evidence_of.items() if not name.startswith(further_looks)}
    evidence = [item for of_phase in (before | again).values() for item in of_phase]
    looks: dict[str, tuple[int, ...]] = {}
    for of_phase in again.values():
        launches = [
            item for item in of_phase if isinstance(item, MiniatureLaunch) and item.purpose is LaunchPurpose.TIMES
        ]
        if FEWEST <= len(launches) < battery.settings.effort.looks[0]:
            looks[launches[0].run] = (len(launches),)
    planned = [phase for phase, _ in planned_reruns(battery, first)]
    phases_again = [phase for phase in planned if phase.name in again]
    no_time_for = [phase for phase in planned if phase.name not in again]
    second = [
        finding
        for finding in battery.findings(health, evidence, looks)
        if finding.part != TIME_LIMIT
        and any(_decides(phase, finding) for phase in phases_again)
        and not any(_bears_out(battery, phase, finding) for phase in no_time_for)
    ]
    return second + [
        CheckFinding(check=HANG_GUARD, subject=item.phase, verdict=CheckVerdict.PASS)
        for of_phase in again.values()
        for item in of_phase
        if isinstance(item, PhaseTiming) and item.outcome == "ok"
    ]
