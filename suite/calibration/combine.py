"""Combines two profiles of one machine: an earlier one, and one that was measured in addition."""

from __future__ import annotations

import msgspec

from suite.machine.profile import Profile


def combined(before: Profile, added: Profile) -> Profile:
    """Everything in both profiles. For equal lines and reference steps, the added ones replace the earlier ones.

    The conditions (how busy the machine was) are those of the added profile, which was measured last.
    """
    subjects = {line.subject for line in added.lines}
    reference_steps = [timed.step for timed in added.reference_steps]
    old, new = before.conditions, added.conditions
    conditions = msgspec.structs.replace(
        new, ranks=max(old.ranks, new.ranks), threads=old.threads | new.threads, cpu_speed=old.cpu_speed | new.cpu_speed
    )
    return msgspec.structs.replace(
        before,
        measured=added.measured,
        conditions=conditions,
        tables=[*before.tables, *added.tables],
        lines=[*(line for line in before.lines if line.subject not in subjects), *added.lines],
        checks=[*before.checks, *added.checks],
        partial=before.partial or added.partial,
        reference_steps=[
            *(timed for timed in before.reference_steps if timed.step not in reference_steps),
            *added.reference_steps,
        ],
    )
