"""The run and the accelerators that `plan` and `fit` are asked about, and the commands that they point to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from reference_runs.catalog import miniatures
from reference_runs.configurations.configuration import Framework
from reference_runs.configurations.document import read_document
from reference_runs.configurations.kinds import software_of
from reference_runs.configurations.models import run_called
from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text, named_fields
from reference_runs.run import ReferenceRun
from suite.commands.training_options import Asked
from suite.paths import program
from suite.predict.machine_model.model import RunMachine
from suite.predict.plan.asked import Assumed, asked_run, check_micro_batch, machine_assumptions, with_products
from suite.predict.plan.plan import machine_of, question_of
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found


class AskedQuestion(NamedTuple):
    """A search's question about a run, and what it rests on.

    Args:
        assumed: what neither run nor options say.
        notes: what a reader may not expect of the answers.
    """

    run: ReferenceRun
    machine: RunMachine
    question: Question
    assumed: tuple[Assumed, ...]
    notes: tuple[str, ...]


def asked_question(name: str, asked: Asked, *, usual_stack: str | None = None) -> AskedQuestion:
    """The question about the run or run file of that name.

    Args:
        usual_stack: software where no --stack is given, in place of the run's own.

    Raises:
        InputError: no such run, accelerator or stack; an option that does not go with the run.
    """
    run = with_products(planned_run(name, sequence=asked.training.sequence), asked.products)
    found = asked_run(run, asked.training, on=asked.on, ranks=asked.gpus)
    machine = machine_of(found.run, found.on, found.ranks, asked.network, asked.stack or usual_stack)
    fixed = named_fields(asked.fix, where="--fix") if asked.fix else {}
    if (micro_batch := asked.training.micro_batch) is not None:
        check_micro_batch(found.run.recipe.global_batch, micro_batch)
        if fixed.setdefault("micro_batch", micro_batch) != micro_batch:
            raise InputError("another size than --micro-batch", got=asked.fix, where="--fix")
    question = question_of(found.run, machine, ranks=found.ranks, fixed=fixed, global_batch=None)
    assumed = (*found.assumed, *machine_assumptions(machine, ranks=found.ranks))
    return AskedQuestion(found.run, machine, question, assumed, found.notes)


def planned_run(name: str, *, sequence: int | None = None) -> ReferenceRun:
    """The recorded run or the run file of that name, or the run that a config.json or models.toml describes.

    Args:
        sequence: tokens of a sample, which a configuration does not say.

    Raises:
        InputError: there is none, no formula describes it, or it is a miniature.
    """
    minis = miniatures()
    if name in minis:
        raise InputError("is for recorded runs and run files", got=f"the miniature {name}", meant=minis[name])
    try:
        return run_called(name, sequence=sequence, also=minis, takes="of `fit` a directory, ")
    except InputError:
        refuse_configuration(name)
        raise


def refuse_configuration(name: str) -> None:
    """Refuse a configuration of other software, with what reads it; all else passes.

    Raises:
        InputError: it is one.
    """
    if not name.endswith((".toml", ".json")):
        return
    try:
        document = read_document(Path(name))
    except InputError:
        return
    software = software_of(document)
    if isinstance(software, Framework) and "model_type" not in document.values:
        what, allowed = f"a configuration of {software}, not a run file", "`fit` with its directory"
        raise InputError(what, allowed=allowed, where=name)


def found_entry(found: Found, question: Question) -> dict[str, Any]:
    """A layout of a search for `--json`: its words, its figures, and whether it fits."""
    fitting = question.fitting(found.figures.peak_bytes)
    return {
        "layout": layout_text(found.layout, complete=True),
        **found.figures._asdict(),
        "memory_verdict": fitting.verdict,
        "probability_fits": fitting.probability,
    }


def print_next(out: Console, run: str, layout: Layout, asked: Asked, *, batch: int | None) -> None:
    """Print the command that says more of the first layout.

    Args:
        asked: of the command that found the layout.
        batch: samples of a step, if they were assumed: by `predict` they might be so otherwise.
    """
    typed = asked.options | {"--gpus": None, "--micro-batch": None, "--fix": None}
    if batch is not None:
        typed["--batch"] = str(batch)
    print_command(out, "more of the first", ["predict", run], {"--layout": layout_text(layout, complete=True)} | typed)


def print_command(
    out: Console, words: str, command: Iterable[str], options: Mapping[str, str | None], *, flags: Iterable[str] = ()
) -> None:
    """Print a command of the suite, in one line to be pasted; options without a value are left out."""
    given = "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
    given += "".join(f" {flag}" for flag in flags)
    out.print(Text(f"{words}: {program()} {shlex.join(command)}{given}", "dim"), soft_wrap=True)
