"""The run and the accelerators that `plan` and `fit` are asked about, and the commands that they point to."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from reference_runs.catalog import miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text
from reference_runs.run import ReferenceRun
from suite.paths import program


def check_positive(given: dict[str, float | None]) -> None:
    """Refuse options whose numbers are not finite and above 0.

    Raises:
        InputError: one is.
    """
    for option, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError("not a usable number", got=value, allowed="a finite one above 0", where=option)


def planned_run(name: str) -> ReferenceRun:
    """The recorded run or the run file of that name.

    Raises:
        InputError: there is none, or it is a miniature.
    """
    minis = miniatures()
    if name in minis:
        raise InputError("is for recorded runs and run files", got=f"the miniature {name}", meant=minis[name])
    return reference_run(name, also=minis)


def print_next(out: Console, run: str, layout: Layout, options: dict[str, str | None]) -> None:
    """Print the command that says more of the first layout.

    Args:
        options: of the command, with their values; those without one are left out.
    """
    words: dict[str, str | None] = {"--layout": layout_text(layout, complete=True)}
    print_command(out, "more of the first", f"predict {run}", words | options)


def print_command(out: Console, words: str, command: str, options: dict[str, str | None]) -> None:
    """Print a command of the suite, in one line to be pasted; options without a value are left out."""
    given = "".join(f" {option} {value}" for option, value in options.items() if value)
    out.print(Text(f"{words}: {program()} {command}{given}", "dim"), soft_wrap=True)


def own_ranks(run: ReferenceRun) -> int:
    """Accelerators that the run had.

    Raises:
        InputError: it does not say.
    """
    if run.cluster is not None and run.cluster.accelerators is not None:
        return run.cluster.accelerators
    if run.recorded_layout is not None:
        return run.recorded_layout.ranks
    raise InputError("the run does not say on how many accelerators", allowed="--gpus N", where=run.where)
