"""Whether a plan can go on from the checkpoints that lie in its directory."""

from __future__ import annotations

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.job.checkpoints import OF_JOB, Whole, held_by_name, newest_whole
from suite.job.corpus import Corpus
from suite.reproduce.plan import Plan


def goes_on_from(plan: Plan, corpus: Corpus) -> Whole | None:
    """The checkpoint that the plan's training goes on from, maybe after its last step; None where it begins.

    Raises:
        InputError: what was trained differs from what is asked for, or no checkpoint is whole.
    """
    whole = None if plan.checkpoints is None else newest_whole(plan.checkpoints.directory)
    if whole is None:
        return None
    found, before, _ = whole
    for name in (*OF_JOB, "corpus"):
        stored, asked = getattr(before, name), corpus.sha256 if name == "corpus" else getattr(plan, name)
        if stored != asked and name != "layout":
            got, allowed = _difference(stored, asked)
            raise InputError(f"the checkpoint has another {name}", got=got, allowed=allowed, where=str(found))
    by_name = held_by_name(before.layout, before.averaging) and held_by_name(plan.layout, plan.averaging)
    if before.layout != plan.layout and not by_name:
        raise InputError(
            "a checkpoint of this layout can be loaded by no other one",
            got=layout_text(plan.layout),
            allowed=f"{layout_text(before.layout)}; others only where both are dpN without zero1",
            where=str(found),
        )
    return whole


def _difference(stored: object, asked: object) -> tuple[str, str]:
    """The first field in which two structs differ, or both values."""
    if isinstance(stored, msgspec.Struct):
        for name in stored.__struct_fields__:
            of_stored, of_asked = getattr(stored, name), getattr(asked, name)
            if of_stored != of_asked:
                return f"{name} {of_asked}", f"{of_stored}"
    return str(asked), str(stored)
