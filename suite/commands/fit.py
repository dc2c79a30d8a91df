"""Does a model fit on so many accelerators, in which layout, and how long does a step take?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.configurations.models import answered_by_formula, name_with_source
from reference_runs.errors import InputError
from reference_runs.machine_model import machine_model
from suite.commands import exit_codes
from suite.commands.audited import audit_directory, check_place, refuse_of_one
from suite.commands.model_tiers import print_model_tiers
from suite.commands.new_file import check_new, forced
from suite.commands.options import print_json
from suite.commands.planned_run import (
    AskedQuestion,
    asked_question,
    found_entry,
    print_command,
    print_next,
    refuse_configuration,
)
from suite.commands.served_model import AskedServing, asks_serving, check_serving, serve_model
from suite.commands.traced_fit import fit_model
from suite.commands.traced_model import check_absent, no_formula
from suite.commands.traced_options import OF_TRACED, TracedOptions, asks_trace
from suite.commands.training_options import (
    LAYOUT_PANEL,
    MACHINE_PANEL,
    OUTPUT_PANEL,
    Asked,
    JsonOutput,
    Products,
    asks_edition,
    asks_training,
)
from suite.predict.plan.fit import Fit, every_switch, fit, fits_otherwise
from suite.report.terminal.plan import print_assumptions, print_fit_answer
from suite.report.terminal.progress import seconds_reported
from suite.report.terminal.tables import console


@asks_edition
@asks_training
@asks_serving
@asks_trace
def fit_command(  # noqa: PLR0913  # long: the command's options
    asked: Asked,
    serving: AskedServing,
    tracing: TracedOptions,
    run: Annotated[
        str | None,
        typer.Argument(
            help="A recorded run, a model such as Qwen3-32B, a run file ending in .toml, config.json, "
            "FILE.py:FUNCTION, or a directory.",
            show_default=False,
        ),
    ] = None,
    products: Products = None,
    fix: Annotated[
        str,
        typer.Option(
            help="Words of a layout that stay, such as zero3,recompute-none; all else is searched.",
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = "",
    any_software: Annotated[
        bool,
        typer.Option(
            "--any-software",
            help="Search every switch, whatever software has it (default: those of --stack).",
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of files in a directory that name none: a name, config.json, or run file.",
            rich_help_panel=MACHINE_PANEL,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.csv: a directory's rows too.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    force: forced(OUTPUT_PANEL) = False,  # type: ignore[valid-type]  # an annotation that a function makes
    json: JsonOutput = False,
) -> None:
    """Say whether a model fits, in which layout, how long its step takes, and what the largest is that would fit.

    Layouts are searched as the run's software or --stack executes them, as `plan` does. A model that no formula
    describes is traced: under DistributedDataParallel and FSDP2, with and without recomputation. With --serve: whether
    it can be served, with weights in 16, 8 and 4 bits, and for how many sequences at a time. With --tiers: which size
    of model fits which card, to be served, or to be trained whole or with adapters.

    Of a directory: which of its configurations can run, a row a file, and why others cannot: those of torchtitan,
    Megatron-LM and Megatron-Bridge, DeepSpeed, Hugging Face's Trainer, accelerate, axolotl, LLaMA-Factory, torchtune
    and nanotron. Options fill in what a file does not say.

    Examples: python -m suite fit llama2-70b --on h100-sxm --gpus 32 --stack megatron-core;
    python -m suite fit gpt2-1558m --on rtx-4090 --gpus 1 --sequence 2048 --batch 8;
    python -m suite fit llama2-70b --on h100-sxm --gpus 8 --any-software;
    python -m suite fit llama3.1-70b --serve --on h100-sxm --gpus 2 --context 8192 --sequences 16;
    python -m suite fit --tiers; python -m suite fit configurations/ --on h100-sxm --gpus 64

    Exit codes: 0 fits, or all of a directory run; 1 does not, or one cannot; 2 bad input; 3 not all are judged.
    """
    check_place(run)
    if run is not None and Path(run).is_dir():
        of_one = {"--gemm-dtype": products, "--fix": fix, "--any-software": any_software}
        of_one |= {"--serve": serving.serve, "--tiers": serving.tiers}
        _audit(Path(run), asked, _Given(model, csv, force, json), of_one | serving.options | tracing.given)
        return
    check_absent({"--model": model, "--csv": csv}, what="is of a directory")
    asked = asked._replace(fix=fix, products=products)
    check_serving(serving, asked, any_software=any_software)
    if serving.tiers:
        print_model_tiers(run, serving, as_json=json)
        return
    if run is None:
        raise InputError("missing argument 'run'", allowed="a run, or --tiers")
    if serving.serve:
        serve_model(run, asked, serving, as_json=json)
        return
    if (reason := no_formula(run, tracing)) is not None:
        refuse_configuration(run)
        of_runs = {"--stack": asked.stack, "--tokens": asked.training.tokens, "--gemm-dtype": products}
        check_absent(of_runs | {"--any-software": any_software or None}, what="is of runs")
        fit_model(run, asked, tracing, reason=reason, as_json=json)
        return
    check_absent(tracing.given, what=OF_TRACED)
    found = asked_question(run, asked)
    with seconds_reported("searching layouts", console(stderr=True)):
        answer = fit(every_switch(found.question) if any_software else found.question)
    named = f"{name_with_source(run)}, by formula" if answered_by_formula(run) else found.run.name
    if json:
        print_json(_entry(run, found, answer))
    else:
        print_fit_answer(console(), named, found.machine, answer, fix, any_software=any_software)
        print_assumptions(console(), found.assumed, found.notes)
        _print_commands(run, asked, found, answer, any_software=any_software)
    if not answer.result.best:
        raise typer.Exit(exit_codes.FAIL)


class _Given(NamedTuple):
    """Options of a directory alone, and --json."""

    model: str | None
    table: Path | None
    force: bool
    as_json: bool


def _audit(directory: Path, asked: Asked, given: _Given, of_one: dict[str, object]) -> None:
    from suite.predict.plan.audit import Filling

    training = asked.training
    refuse_of_one(of_one | {"--tokens": training.tokens, "--micro-batch": training.micro_batch})
    filling = Filling(asked.on, asked.gpus, asked.network, asked.stack, given.model, training)
    check_new(given.table, "--csv", force=given.force)
    audit_directory(directory, filling, table=given.table, as_json=given.as_json)


def _print_commands(run: str, asked: Asked, found: AskedQuestion, answer: Fit, *, any_software: bool) -> None:
    """Print what to ask next: more of the fastest layout, or what other software would do."""
    out, best = console(), answer.result.best
    if best and any_software:
        print_command(out, f"what {found.machine.stack.name} alone executes", ["fit", run], asked.options)
    elif best:
        print_command(out, "other layouts, days and cost", ["plan", run], asked.options)
    elif not any_software and fits_otherwise(answer.question):
        fits = "fits with switches of other software"
        print_command(out, fits, ["fit", run], asked.options, flags=("--any-software",))
    if best:
        print_next(out, run, best[0].layout, asked, batch=answer.question.recipe.global_batch)


def _entry(run: str, found: AskedQuestion, answer: Fit) -> dict[str, Any]:
    result = answer.result
    shown = {"fastest": result.best[0] if result.best else None, "smallest": result.smallest}
    return {
        "run": run,
        **({"answered_by": "formula"} if answered_by_formula(run) else {}),
        "accelerator": found.machine.accelerator.name,
        "accelerators": answer.question.ranks,
        "stack": found.machine.stack.name,
        "edition": machine_model().edition,
        "assumed": found.assumed,
        "fits": bool(result.best),
        "memory_bytes": answer.question.memory_bytes,
        "layouts": {"considered": result.considered, "fitting": result.fitting},
        **{name: found and found_entry(found, answer.question) for name, found in shown.items()},
        "largest_micro_batch": answer.micro_batch,
        "largest_model": answer.largest and answer.largest._asdict(),
        "accelerators_that_would_do": answer.ranks,
    }
