"""Repetition of what other processes disturbed, whatever its clocks say, while time is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from suite.acceptance.context import BatteryPhase, RunningBattery
from suite.acceptance.evidence import Evidence, MicroMeasurements, MiniatureLaunch, PhaseTiming, Surroundings
from suite.acceptance.findings import CheckVerdict
from suite.acceptance.judge.gpu_health import environment_findings, share_of_others
from suite.job.events import Status

REPEATED = "repeated"  # the attempt
Timed = MicroMeasurements | MiniatureLaunch


def disturbed(
    battery: RunningBattery,
    phase: BatteryPhase,
    evidence: Sequence[Evidence],
    *,
    later: Sequence[BatteryPhase],
    probe_seconds: float,
) -> list[Timed]:
    """The measurements of a phase to repeat: those during which other processes used more than their share.

    Nothing where devices or earlier processes make the battery invalid anyway, where the phase did not end well, or
    where the time is too short. A resumed battery repeats what the interrupted one repeated, and nothing else of which
    a later phase was already run, because later phases rest on it.

    Args:
        later: phases still to run before the probe, which takes `probe_seconds`.
    """
    limit = battery.settings.others
    around = next((item for item in battery.evidence() if isinstance(item, Surroundings)), None)
    environment = environment_findings(around, None, [], others=limit, loaded=())
    if any(finding.verdict is CheckVerdict.INVALID for finding in environment) or not ended_well(evidence):
        return []
    timed = [item for item in evidence if isinstance(item, Timed) and getattr(item, "purpose", "") != "exact"]
    repeat = [item for item in timed if share_of_others(item) > limit]
    if battery.record.kept(f"{phase.name} {REPEATED}") is not None:
        return repeat
    if any(battery.record.kept(other.name) is not None for other in later):
        return []
    undisturbed_seconds = phase.predicted_seconds * len(repeat) / max(1, len(timed))
    seconds = min(math.fsum(item.seconds for item in repeat), undisturbed_seconds)
    seconds += math.fsum(other.predicted_seconds for other in later) + probe_seconds
    return repeat if seconds <= battery.seconds_left else []


def ended_well(evidence: Sequence[Evidence]) -> bool:
    """Whether a phase and everything that it measured ended well and in time."""
    if any(isinstance(item, PhaseTiming) and item.outcome != "ok" for item in evidence):
        return False
    return all(item.status is Status.OK for item in evidence if isinstance(item, Timed))


def repeat_note(repeat: Sequence[Timed]) -> str:
    """Who disturbed the measurements most, how much, and how many are repeated."""
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
