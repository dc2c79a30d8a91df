"""What of a failed battery is run again in the time that is left: a failure of clocks needs a second look first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from suite.acceptance.context import Battery, Phase
from suite.acceptance.evidence import Evidence, Launched, Micro, Surroundings, Timed
from suite.acceptance.findings import Verdict
from suite.acceptance.judge.gpu_health import environment_findings, share_of_others
from suite.acceptance.judge.noninferiority import FEWEST
from suite.job.events import Status

ATTEMPT = "once more"


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that would be run again.

    Args:
        seconds: that it takes in full.
        launches: that it makes in full, each as long as the others; 0: it is run in full or not at all.
        needed: whether a failure in it stands or falls with the re-run; wrong bits stand either way.
    """

    name: str
    seconds: float
    launches: int
    needed: bool

    @property
    def shortest_seconds(self) -> float:
        """Of the least that confirms a failure: 3 launches, or everything."""
        return self.seconds * min(FEWEST, self.launches) / self.launches if self.launches else self.seconds


def affordable(due: Sequence[Due], seconds_left: float) -> list[Due]:
    """Those that fit together at their shortest, in the order given; needed ones first, then short ones."""
    chosen = []
    for one in sorted(due, key=lambda one: (not one.needed, one.shortest_seconds)):
        if one.shortest_seconds <= seconds_left:
            chosen.append(one)
            seconds_left -= one.shortest_seconds
    return [one for one in due if one in chosen]


def launches_that_fit(one: Due, later: Sequence[Due], seconds_left: float) -> int | None:
    """Launches of `one` that leave the shortest re-run of all `later` ones their time, 3 at least; 0: all of a phase
    without launches; None: not even the shortest fits.
    """
    if one.shortest_seconds > seconds_left:
        return None
    if not one.launches:
        return 0
    room = seconds_left - math.fsum(other.shortest_seconds for other in later)
    fit = int(room * one.launches / one.seconds) if one.seconds else one.launches
    return min(one.launches, max(fit, FEWEST))


def disturbed(
    battery: Battery, phase: Phase, found: Sequence[Evidence], *, later: Sequence[Phase], probe_seconds: float
) -> list[Micro | Launched]:
    """What of a phase has to be measured once more: all clocks during which others had more than their share.

    Nothing where the devices or other processes of before make the battery invalid anyway, where the phase did not end
    well, or where the time is too short. An interrupted battery is followed: what it repeated is taken, and what it did
    not is not repeated either once it had run a later phase, which rests on what was measured.

    Args:
        later: phases that the battery has yet to run before the probe, which takes `probe_seconds`.
    """
    limit = battery.settings.others
    around = next((one for one in battery.evidence() if isinstance(one, Surroundings)), None)
    environment = environment_findings(around, None, [], others=limit, loaded=())
    if any(finding.verdict is Verdict.INVALID for finding in environment) or not ended_well(found):
        return []
    clocked = [one for one in found if isinstance(one, Micro) or (isinstance(one, Launched) and one.purpose != "exact")]
    due = [one for one in clocked if share_of_others(one) > limit]
    if battery.opened.kept(f"{phase.name} {ATTEMPT}") is not None:
        return due
    if any(battery.opened.kept(one.name) is not None for one in later):
        return []
    as_predicted = phase.predicted_seconds * len(due) / max(1, len(clocked))  # of a repeat that nobody disturbs
    repeat = min(math.fsum(one.seconds for one in due), as_predicted)
    seconds = repeat + math.fsum(one.predicted_seconds for one in later) + probe_seconds
    return due if seconds <= battery.seconds_left else []


def ended_well(found: Sequence[Evidence]) -> bool:
    """Whether a phase, and everything that it measured, ended well and in time."""
    if any(isinstance(one, Timed) and one.outcome != "ok" for one in found):
        return False
    return all(one.status is Status.OK for one in found if isinstance(one, Micro | Launched))


def in_words(due: Sequence[Micro | Launched]) -> str:
    """Who disturbed the most of them, how much, and how many."""
    guests = max(one.steal_share or 0.0 for one in due)
    processes = max(one.others_share or 0.0 for one in due)
    who = "other guests of the host" if guests > processes else "other processes"
    count = f"{len(due)} launches" if isinstance(due[0], Launched) else "all"
    return f"{who} took {max(guests, processes):.0%} of the processors: {count} to be made once more"


def joined(found: Sequence[Evidence], due: Sequence[Micro | Launched], repeat: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of a phase and of its repeat, which takes the place of what was due where it ended well."""
    if not ended_well(repeat):
        return [*found, *repeat]
    kept = [
        msgspec.structs.replace(one, set_aside=True) if isinstance(one, Micro | Launched) and one in due else one
        for one in found
    ]
    return [*kept, *repeat]
