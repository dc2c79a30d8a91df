"""Messages timed between the hosts of a rung, so that its step is predicted like any other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from suite.calibration.calibrate import between_hosts, with_ranks
from suite.job.events import Event, Status
from suite.ladder.climb import wanted
from suite.ladder.plan import planned
from suite.ladder.run import Errand
from suite.ladder.rungs import seconds_unknown, setting_of, stands_on
from suite.machine.profile import disturbed
from suite.reproduce.reproduce import hosts_of


def with_messages(errand: Errand, on_event: Callable[[int, Event], None]) -> Errand:
    """The errand with a profile for rungs over hosts: this machine's, with messages as they are between those hosts.

    They are timed where such a rung is wanted and this machine's profile holds. Where that fails, the rung's time is
    not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    rungs, applicable = wanted(errand)
    over = next((rung for rung in rungs if "hosts" in rung.changes and rung in applicable), None)
    if errand.profile is None or over is None:
        return errand
    setting = setting_of(over.walk, [*stands_on(over, applicable), over], divisor=errand.climbing.divisor)
    plan = planned(errand.climbing, setting, "", errand.texts)
    with hosts_of(plan) as hosts:
        found = between_hosts(errand.profile, hosts, interface=plan.joined_by, on_event=on_event)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    source = f"{errand.profile_source}, messages between hosts timed apart"
    if found.profile is None:
        source = f"messages between hosts could not be timed: {found.status.value}: {found.message}"
    return msgspec.structs.replace(errand, between_hosts=found.profile, between_hosts_source=source)


def ranks_missing(errand: Errand) -> int | None:
    """The most ranks of a rung that is wanted on this machine alone, where its profile has fewer; else None."""
    rungs, applicable = wanted(errand)
    if errand.profile is None:
        return None
    most = errand.profile.conditions.ranks
    for rung in rungs:
        if rung in applicable:
            setting = setting_of(rung.walk, [*stands_on(rung, applicable), rung], divisor=errand.climbing.divisor)
            if setting.hosts == 1 and not seconds_unknown(setting):
                most = max(most, planned(errand.climbing, setting, "", errand.texts).layout.ranks)
    return most if most > errand.profile.conditions.ranks else None


def with_more_ranks(errand: Errand, ranks: int, on_event: Callable[[int, Event], None]) -> Errand:
    """The errand with a second profile: this machine's, with what so many ranks take at once.

    Where that cannot be measured, or others kept the processors busy meanwhile, the times of rungs with more ranks than
    the first profile has are not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    assert errand.profile is not None
    try:
        found = with_ranks(errand.profile, ranks, on_event=on_event)
    except OSError as error:  # no room for scratch files
        source = f"{ranks} ranks at once could not be timed: {error.strerror or error}"
        return msgspec.structs.replace(errand, more_ranks=None, more_ranks_source=source)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    source = f"{errand.profile_source}, {ranks} ranks at once timed apart"
    if found.profile is None:
        source = f"{ranks} ranks at once could not be timed: {found.status.value}: {found.message}"
    elif beside := disturbed(found.profile):
        source = f"{ranks} ranks at once were timed beside others: {beside}"
        return msgspec.structs.replace(errand, more_ranks=None, more_ranks_source=source)
    return msgspec.structs.replace(errand, more_ranks=found.profile, more_ranks_source=source)
