"""Two profiles of one machine as one: what was measured before, and what was measured in addition."""

from __future__ import annotations

import msgspec

from suite.machine.profile import Profile


def combined(before: Profile, added: Profile) -> Profile:
    """Everything that both have; of lines and reference steps of the same subject the added ones.

    Conditions are those of the addition, which was measured last: how busy the machine was with others.
    """
    subjects = {line.subject for line in added.lines}
    reference_steps = [timed.trial for timed in added.trials]
    old, new = before.conditions, added.conditions
    conditions = msgspec.structs.replace(
        new, ranks=max(old.ranks, new.ranks), threads=old.threads | new.threads, pace=old.pace | new.pace
    )
    return msgspec.structs.replace(
        before,
        measured=added.measured,
        conditions=conditions,
        tables=[*before.tables, *added.tables],
        lines=[*(line for line in before.lines if line.subject not in subjects), *added.lines],
        checks=[*before.checks, *added.checks],
        partial=before.partial or added.partial,
        trials=[*(timed for timed in before.trials if timed.trial not in reference_steps), *added.trials],
    )
