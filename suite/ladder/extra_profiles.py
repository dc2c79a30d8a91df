"""Profiles that only some rungs need: messages between hosts, and more ranks at once than the first has."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from suite.calibration.extend import between_hosts, with_ranks
from suite.job.events import Event, Status
from suite.ladder.request import LadderRun, wanted
from suite.ladder.rung import setting_above
from suite.ladder.rungs import seconds_unknown
from suite.machine.profile import disturbed
from suite.reproduce.reproduce import hosts_of


def with_messages(ladder_run: LadderRun, on_event: Callable[[int, Event], None]) -> LadderRun:
    """The run with a profile for rungs over hosts: this machine's, with messages as they are between those hosts.

    They are timed where such a rung is wanted and this machine's profile holds. Where that fails, the rung's time is
    not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    rungs, applicable = wanted(ladder_run)
    over = next((rung for rung in rungs if "hosts" in rung.changes and rung in applicable), None)
    if ladder_run.profile is None or over is None:
        return ladder_run
    plan = ladder_run.plan(setting_above(over, applicable, divisor=ladder_run.target.divisor))
    with hosts_of(plan) as hosts:
        found = between_hosts(ladder_run.profile, hosts, interface=plan.joined_by, on_event=on_event)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    source = f"{ladder_run.profile_source}, messages between hosts timed apart"
    if found.profile is None:
        source = f"messages between hosts could not be timed: {found.status.value}: {found.message}"
    return msgspec.structs.replace(ladder_run, between_hosts=found.profile, between_hosts_source=source)


def ranks_missing(ladder_run: LadderRun) -> int | None:
    """The most ranks of a rung that is wanted on this machine alone, where its profile has fewer; else None."""
    rungs, applicable = wanted(ladder_run)
    if ladder_run.profile is None:
        return None
    most = ladder_run.profile.conditions.ranks
    for rung in rungs:
        if rung in applicable:
            setting = setting_above(rung, applicable, divisor=ladder_run.target.divisor)
            if setting.hosts == 1 and not seconds_unknown(setting):
                most = max(most, ladder_run.plan(setting).layout.ranks)
    return most if most > ladder_run.profile.conditions.ranks else None


def with_more_ranks(ladder_run: LadderRun, ranks: int, on_event: Callable[[int, Event], None]) -> LadderRun:
    """The run with a second profile: this machine's, with what so many ranks take at once.

    Where that cannot be measured, or others kept the processors busy meanwhile, the times of rungs with more ranks than
    the first profile has are not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    assert ladder_run.profile is not None
    try:
        found = with_ranks(ladder_run.profile, ranks, on_event=on_event)
    except OSError as error:  # no room for scratch files
        source = f"{ranks} ranks at once could not be timed: {error.strerror or error}"
        return msgspec.structs.replace(ladder_run, more_ranks=None, more_ranks_source=source)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    source = f"{ladder_run.profile_source}, {ranks} ranks at once timed apart"
    if found.profile is None:
        source = f"{ranks} ranks at once could not be timed: {found.status.value}: {found.message}"
    elif why := disturbed(found.profile):
        source = f"{ranks} ranks at once were timed while others ran: {why}"
        return msgspec.structs.replace(ladder_run, more_ranks=None, more_ranks_source=source)
    return msgspec.structs.replace(ladder_run, more_ranks=found.profile, more_ranks_source=source)
