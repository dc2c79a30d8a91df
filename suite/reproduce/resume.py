"""Whether a plan can go on from the checkpoints that lie in its directory."""

from __future__ import annotations

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.job.checkpoints import OF_JOB, Progress, held_by_name, newest, progress_of
from suite.job.corpus import Corpus
from suite.reproduce.plan import Plan


def goes_on_from(plan: Plan, corpus: Corpus) -> Progress | None:
    """The progress that the plan's training goes on from; None where it begins.

    Raises:
        InputError: what was trained differs from what is asked for, or nothing is left to do.
    """
    found = None if plan.checkpoints is None else newest(plan.checkpoints.directory)
    if found is None:
        return None
    before = progress_of(found)
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
    if before.step >= plan.steps:
        raise InputError("no step is left", got=f"{before.step} of {plan.steps} done", where=str(found))
    return before


def _difference(stored: object, asked: object) -> tuple[str, str]:
    """The first field in which two structs differ, or both values."""
    if isinstance(stored, msgspec.Struct):
        for name in stored.__struct_fields__:
            of_stored, of_asked = getattr(stored, name), getattr(asked, name)
            if of_stored != of_asked:
                return f"{name} {of_asked}", f"{of_stored}"
    return str(asked), str(stored)
