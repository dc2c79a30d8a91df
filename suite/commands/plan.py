"""The best layouts of a training on so many accelerators, what they cost, and what would help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from reference_runs.errors import InputError
from reference_runs.machine_model import machine_model
from reference_runs.run import ReferenceRun
from suite.commands import exit_codes
from suite.commands.new_file import forced
from suite.commands.options import print_json
from suite.commands.pictures import check_picture
from suite.commands.planned_export import TRIED, check_alone, print_export
from suite.commands.planned_run import AskedQuestion, asked_question, found_entry, print_command, print_next
from suite.commands.training_options import (
    COST_PANEL,
    LAYOUT_PANEL,
    OUTPUT_PANEL,
    Asked,
    EnergyPrice,
    JsonOutput,
    Price,
    Products,
    Pue,
    asks_edition,
    asks_training,
)
from suite.predict.machine_model.intervals import expected_error
from suite.predict.machine_model.model import RunMachine
from suite.predict.plan.asked import check_positive
from suite.predict.plan.fit import enough_ranks, fits_otherwise, fitting_batch
from suite.predict.plan.plan import OtherNumber, PlannedLayout, TrainingPlan, other_numbers, plan
from suite.predict.plan.question import Question
from suite.predict.plan.search import PROMISING
from suite.predict.plan.training import Failures, Goodput, goodput
from suite.predict.recorded_run.figures import Prices
from suite.report.terminal.plan import (
    print_assumptions,
    print_goodput,
    print_numbers,
    print_plan,
    print_question,
    print_why,
    remedies,
)
from suite.report.terminal.progress import seconds_reported
from suite.report.terminal.tables import console, print_folded

FAILURE_PANEL = "Failures"
GUIDED = (
    f"those of sizes of dp, tp, pp, cp and ep that are not among the {PROMISING} fastest with 1f1b and the first order "
    "of ranks"
)
SLOWER = "slower ones than those that are printed, and those of which a formula says that they have no room"


@asks_edition
@asks_training
def plan_command(  # noqa: PLR0913  # long: the command's options
    run: Annotated[str, typer.Argument(help="A recorded run, or a run file ending in .toml.")],
    asked: Asked,
    products: Products = None,
    fix: Annotated[
        str,
        typer.Option(
            help="Words of a layout that stay, such as tp8,1f1b,recompute-full; all else is searched.",
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = "",
    days: Annotated[
        float | None, typer.Option(help="Days in which the training has to end.", rich_help_panel=COST_PANEL)
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="What the training may cost at most; needs --price.", rich_help_panel=COST_PANEL),
    ] = None,
    price: Price = None,
    energy_price: EnergyPrice = None,
    pue: Pue = 1.0,
    failures: Annotated[
        float | None,
        typer.Option(
            help="Failures that stop the job, per accelerator-hour (default: Llama 3's).", rich_help_panel=FAILURE_PANEL
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float | None, typer.Option(help="Seconds that a checkpoint takes from training.", rich_help_panel=FAILURE_PANEL)
    ] = None,
    restart_seconds: Annotated[
        float | None, typer.Option(help="Seconds from a failure until training goes on.", rich_help_panel=FAILURE_PANEL)
    ] = None,
    with_failures: Annotated[
        bool,
        typer.Option(
            "--goodput",
            help="Print the expected days with failures, checkpoints and restarts too.",
            rich_help_panel=FAILURE_PANEL,
        ),
    ] = False,
    top: Annotated[
        int, typer.Option(help="Number of layouts to print.", min=1, max=1000, rich_help_panel=OUTPUT_PANEL)
    ] = 5,
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Print other numbers of accelerators too.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            help="Print the first layout for other software: torchrun, slurm, megatron, nemo, torchtitan or deepspeed.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Draw time against number of accelerators and cost into this file, FILE.png.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    force: forced(OUTPUT_PANEL) = False,  # type: ignore[valid-type]  # an annotation that a function makes
    json: JsonOutput = False,
) -> None:
    """Search the layouts of a training: the fastest that fit, what they cost, what binds them and what would help.

    Examples: python -m suite plan bloom-176b; python -m suite plan llama3.1-405b --gpus 16384 --stack llama-3;
    python -m suite plan gpt-neox-20b --on h100-sxm --gpus 64 --network 3200 --tokens 1e12 --price 2.5 --numbers;
    python -m suite plan llama3.1-405b --gpus 16384 --export megatron

    With --export, layouts are searched as that software executes them, unless --stack says otherwise.

    Exit codes: 0 planned; 1 no layout fits; 2 bad input, or a limit of days or budget that no layout meets.
    """
    check_positive(
        {
            "--days": days,
            "--budget": budget,
            "--price": price,
            "--energy-price": energy_price,
            "--pue": pue,
            "--failures": failures,
            "--checkpoint-seconds": checkpoint_seconds,
            "--restart-seconds": restart_seconds,
        }
    )
    if budget is not None and price is None:
        raise InputError("needs the price of an accelerator hour", allowed="--price too", where="--budget")
    check_alone(export, {"--json": json, "--numbers": numbers, "--picture": picture, "--goodput": with_failures})
    check_picture(picture, "--picture", force=force)
    chosen = None
    if export is not None:
        from suite.report.export.formats import export_format

        chosen = export_format(export)
    asked = asked._replace(fix=fix, products=products)
    found = asked_question(run, asked, usual_stack=chosen.stack if chosen else None)
    described, machine, question = found.run, found.machine, found.question
    prices = Prices(price, energy_price, pue)
    amount = described.recipe.tokens
    comparing = expected_error([machine.beyond_tables])
    shown = top if chosen is None else TRIED
    limited = days is not None or budget is not None
    with seconds_reported("searching layouts", console(stderr=True)):
        planned = plan(question, tokens=amount, prices=prices, uncertainty=comparing, top=shown)
        others = other_numbers(question, tokens=amount, prices=prices) if numbers or picture or limited else []
    if planned.best:
        _check_limits(planned.best[0], others, question.ranks, days=days, budget=budget)
    if chosen is not None:
        print_export(run, chosen, planned, stack=machine.stack.name, batch=asked.training.batch)
        raise typer.Exit(exit_codes.PASS if planned.best else exit_codes.FAIL)
    if picture is not None:
        from suite.report.plots.plan import draw_numbers

        draw_numbers(picture, f"{run} on {machine.accelerator.name}", others, asked=question.ranks)
    stated = Failures(failures, checkpoint_seconds, restart_seconds)
    fails = with_failures or any(value is not None for value in stated)
    expected = _goodput(stated, described, planned) if planned.best and fails else None
    if json:
        goodput_entry = {"goodput": None if expected is None else expected._asdict()}
        print_json(_entry(run, found, planned, others if numbers else []) | goodput_entry)
    else:
        print_question(console(), described.name, machine, question, tokens=amount)
        _print(planned, expected, others if numbers else [])
        if not planned.best:
            _print_otherwise(run, question, asked, undivided=planned.result.smallest is None)
        _print_search(machine, planned, fix)
        print_assumptions(console(), found.assumed, found.notes)
        if planned.best:
            print_next(console(), run, planned.best[0].found.layout, asked, batch=question.recipe.global_batch)
    if not planned.best:
        raise typer.Exit(exit_codes.FAIL)


def _goodput(failures: Failures, run: ReferenceRun, planned: TrainingPlan) -> Goodput:
    return goodput(
        failures,
        accelerators=planned.question.ranks,
        training_seconds=planned.best[0].training.seconds,
        recorded_checkpoint_seconds=run.reported.checkpoint_seconds,
    )


def _print(planned: TrainingPlan, expected: Goodput | None, others: list[OtherNumber]) -> None:
    out = console()
    print_plan(out, planned)
    print_why(out, planned)
    if expected is not None:
        print_goodput(out, expected)
    if others:
        print_numbers(out, planned.question, others)


def _print_otherwise(run: str, question: Question, asked: Asked, *, undivided: bool) -> None:
    """Print what would fit: more accelerators, another batch, or what other software does."""
    batch = fitting_batch(question) if undivided else None
    for words in remedies(enough_ranks(question), batch):
        print_folded(console(), words, "")
    if fits_otherwise(question):
        words = "fits with switches of other software"
        print_command(console(), words, ["fit", run], asked.options, flags=("--any-software",))
    elif not undivided:
        print_folded(console(), "does not fit with any switch of any software", "")


def _check_limits(
    first: PlannedLayout, others: list[OtherNumber], ranks: int, *, days: float | None, budget: float | None
) -> None:
    """Refuse a limit that the fastest layout misses, with the number of accelerators that would meet it."""
    if days is not None and first.training.days > days:
        enough = [each for each in others if each.planned.training.days <= days]
        needed = f"{enough[0].ranks:,} accelerators need {enough[0].planned.training.days:,.4g}" if enough else None
        fastest = min(others, key=lambda each: each.planned.training.seconds)
        least = f"{fastest.ranks:,} accelerators need {fastest.planned.training.days:,.4g}, and are the fastest here"
        got = f"{days:,.4g}, and {ranks:,} accelerators need {first.training.days:,.4g}"
        raise InputError("more days are needed", got=got, allowed=needed or least, where="--days")
    cost = first.training.cost
    if budget is not None and cost is not None and cost > budget:
        cheapest = min(others, key=lambda each: each.planned.training.cost or math.inf)
        least_cost = cheapest.planned.training.cost or math.inf
        least = f"the least is {least_cost:,.0f}, with {cheapest.ranks:,} accelerators"
        got = f"{budget:,.0f}, and {ranks:,} accelerators cost {cost:,.0f}"
        raise InputError("more money is needed", got=got, allowed=least, where="--budget")


def _print_search(machine: RunMachine, planned: TrainingPlan, fix: str) -> None:
    """Print what was searched, what was held, what was left out, and what the times rest on."""
    out, question, result = console(), planned.question, planned.result
    out.print()
    searched = ", ".join(("dp", *machine.stack.layouts, "micro-batch"))
    print_folded(out, f"searched, as {machine.stack.name} executes it (--stack): {searched}")
    held, fixed = ["the batch"], question.fixed
    if "fused_attention" not in fixed:
        held.append("fused attention" if any(question.fused) else "attention not fused")
    if (
        "rank_order" not in fixed
        and len(question.orders) == 1
        and question.ranks > question.machine.accelerators_per_node
    ):
        held.append(f"order of ranks {question.orders[0]}")
    if "stage_assignment" not in fixed and len(question.assignments) == 1 and "pp" in question.layouts:
        held.append(f"{question.assignments[0]} dealt to stages")
    print_folded(out, f"held: {', '.join([*held, *([fix] if fix else [])])}")
    if result.left_out:
        which = SLOWER if question.machine.stack.keeping.walked else GUIDED
        print_folded(out, f"not computed: {result.left_out:,} of {result.considered:,} layouts; {which}")
    for note in machine.notes:
        print_folded(out, note)


def _entry(run: str, found: AskedQuestion, planned: TrainingPlan, others: list[OtherNumber]) -> dict[str, Any]:
    question, result = planned.question, planned.result
    return {
        "run": run,
        "status": "ok" if planned.best else "does not fit",
        "accelerator": found.machine.accelerator.name,
        "accelerators": question.ranks,
        "stack": found.machine.stack.name,
        "edition": machine_model().edition,
        "assumed": found.assumed,
        "tokens": planned.tokens,
        "memory_bytes": question.memory_bytes,
        "step_seconds_uncertainty": found.machine.uncertainty,
        "layouts": {
            "considered": result.considered,
            "fitting": result.fitting,
            "equal": result.within,
            "left_out": result.left_out,
        },
        "best": [_planned(each, question) for each in planned.best],
        "smallest": None if result.smallest is None else found_entry(result.smallest, question),
        "step_terms": None if planned.step is None else planned.step._asdict(),
        "changes": [change._asdict() for change in planned.changes],
        "numbers": [{"accelerators": each.ranks, **_planned(each.planned, question)} for each in others],
    }


def _planned(planned: PlannedLayout, question: Question) -> dict[str, Any]:
    return {**found_entry(planned.found, question), **planned.training._asdict()}
