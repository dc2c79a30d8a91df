"""Messages timed between the hosts of a rung, so that its step is predicted like any other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from suite.calibration import between_hosts
from suite.job import Event, Status
from suite.ladder.ascent import Errand
from suite.ladder.climb import wanted
from suite.ladder.planned import planned
from suite.ladder.rungs import setting_of, stands_on
from suite.reproduction import hosts_of


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
