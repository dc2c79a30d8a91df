"""Prints the first layout of a plan as other software takes it: `plan --export`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from reference_runs.errors import InputError
from reference_runs.incomplete import missing_keys
from reference_runs.layout import Layout, layout_text
from reference_runs.run import Workload
from suite.commands.planned_run import planned_run
from suite.predict.plan.plan import TrainingPlan
from suite.report.terminal.plan import print_plan
from suite.report.terminal.tables import console, print_folded

if TYPE_CHECKING:
    from suite.report.export.formats import ExportFormat

TRIED = 200  # layouts, the fastest, of which the first is exported that the format has a place for


def check_alone(export: str | None, others: dict[str, object]) -> None:
    """Refuse an export beside options that print or draw something else.

    Raises:
        InputError: one is given.
    """
    given = [option for option, value in others.items() if value]
    if export is not None and given:
        raise InputError("prints a script and nothing else", got=", ".join(given), allowed="neither", where="--export")


def print_export(name: str, chosen: ExportFormat, planned: TrainingPlan, *, stack: str, batch: int | None) -> None:
    """Print the script on stdout, and on stderr which layout it has; where none fits, that alone.

    Args:
        batch: samples of a step that were asked for in place of the run's own.

    Raises:
        InputError: the format has no place for something of the training.
    """
    from suite.report.export.job import ExportedJob

    out, question = console(stderr=True), planned.question
    if not planned.best:
        print_plan(out, planned)
        return
    node = question.machine.accelerators_per_node
    refused: list[InputError] = []
    for planned_layout in planned.best:
        layout = planned_layout.found.layout
        workload = Workload(question.architecture, question.recipe, layout)
        job = ExportedJob(name, workload, node, stack, planned.tokens, global_batch=batch, own_samples=_samples(name))
        try:
            text = chosen.text(job)
        except InputError as error:
            refused.append(error)
            continue
        _print_choice(planned, layout, refused, stack)
        for words in chosen.remarks(job):
            print_folded(out, words)
        sys.stdout.write(text)
        return
    raise refused[0]


def _samples(name: str) -> int | None:
    """Samples of the training that the run records; None where it does not say."""
    run = planned_run(name)
    known = "tokens" not in missing_keys(run.recipe)
    return run.recipe.tokens // run.architecture.sequence if known else None


def _print_choice(planned: TrainingPlan, layout: Layout, refused: list[InputError], stack: str) -> None:
    """Say which layout it is, and why it is not the first where others come before it."""
    out, fitting = console(stderr=True), f"of {planned.result.fitting:,} layouts that fit, as {stack} executes them"
    which = "first" if not refused else f"number {len(refused) + 1}"
    print_folded(out, f"{which} {fitting}: {layout_text(layout, complete=True)}")
    if refused:
        print_folded(out, f"not the first: {refused[0].lines[0].removeprefix('--export: ')}")
