"""What others disturbed is measured once more before anything is judged: such clocks say nothing of the node.

Whether, is decided by the share of the processors that others took, never by what the clocks said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from suite.acceptance.battery_state import Battery
from suite.acceptance.evidence import Evidence, Launched, Micro, Surroundings, Timed
from suite.acceptance.health_checks import environment_findings
from suite.acceptance.verdicts import Verdict
from suite.job import Status


def disturbed(battery: Battery, found: Sequence[Evidence], *, seconds_behind: float) -> list[Micro | Launched]:
    """What of a phase has to be measured once more: all clocks during which others had more than their share.

    Nothing where the battery is invalid anyway, where the phase did not end well, or where the time is too short.

    Args:
        seconds_behind: that must be left for what the battery has yet to run.
    """
    limit = battery.settings.others
    around = next((one for one in battery.evidence() if isinstance(one, Surroundings)), None)
    environment = environment_findings(around, None, [], others=limit, loaded=())
    if any(finding.verdict is Verdict.INVALID for finding in environment):
        return []
    clocked = [one for one in found if isinstance(one, Micro) or (isinstance(one, Launched) and one.purpose != "exact")]
    if any(one.status is not Status.OK for one in clocked):
        return []
    if any(isinstance(one, Timed) and one.outcome != "ok" for one in found):
        return []
    due = [one for one in clocked if max(one.others_share or 0.0, one.steal_share or 0.0) > limit]
    seconds = math.fsum(one.seconds for one in due)
    return due if seconds + seconds_behind <= battery.seconds_left else []


def in_words(due: Sequence[Micro | Launched]) -> str:
    """Who disturbed the most of them, and how much."""
    guests = max(one.steal_share or 0.0 for one in due)
    processes = max(one.others_share or 0.0 for one in due)
    who = "other guests of the host" if guests > processes else "other processes"
    return f"{who} took {max(guests, processes):.0%} of the processors: measured once more"


def beside(found: Sequence[Evidence], due: Sequence[Micro | Launched]) -> list[Evidence]:
    """A phase's evidence without the clocks of what was measured once more; figures, losses and faults still count."""
    return [
        msgspec.structs.replace(one, purpose="exact") if isinstance(one, Launched) and one in due else one
        for one in found
    ]
