"""Does a model fit on so many accelerators, in which layout, and how long does a step take?"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from reference_runs.layout import layout_text, named_fields
from suite.commands import exit_codes
from suite.commands.options import JsonLines, print_json
from suite.commands.planned_run import check_positive, own_ranks, planned_run, print_command, print_next
from suite.predict.plan.fit import Fit, every_switch, fit
from suite.predict.plan.plan import machine_of, question_of
from suite.report.terminal.plan import print_fit_answer
from suite.report.terminal.tables import console


def fit_command(
    run: Annotated[str, typer.Argument(help="A recorded run, or a run file ending in .toml.")],
    on: Annotated[str | None, typer.Option(help="Accelerator; default: the run's own.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Accelerators; default: as many as the run had.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample; default: as the run has.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples of a step; default: as the run has.")] = None,
    fix: Annotated[
        str, typer.Option(help="Words of a layout that stay, such as zero3,recompute-none; all else is searched.")
    ] = "",
    network: Annotated[float | None, typer.Option(help="Gbit/s out of a node over all its interfaces.")] = None,
    json: JsonLines = False,
) -> None:
    """Say whether a model fits, in which layout, how long its step takes, and what the largest is that would fit.

    Every switch is searched, whatever software has it: `plan` keeps to what one stack executes.

    Examples: python -m suite fit llama2-70b --on h100-sxm --gpus 32 --network 3200;
    python -m suite fit gpt2-1558m --on rtx-4090 --gpus 1 --sequence 2048 --batch 8

    Exit codes: 0 fits; 1 does not; 2 bad input.
    """
    check_positive({"--gpus": gpus, "--sequence": sequence, "--batch": batch, "--network": network})
    described = planned_run(run)
    if sequence is not None:
        architecture = msgspec.structs.replace(described.architecture, sequence=sequence)
        described = msgspec.structs.replace(described, architecture=architecture)
    ranks = gpus if gpus is not None else own_ranks(described)
    machine = machine_of(described, on, ranks, network, None)
    fixed = named_fields(fix, where="--fix") if fix else {}
    question = question_of(described, machine, ranks=ranks, fixed=fixed, global_batch=batch)
    answer = fit(every_switch(question))
    if json:
        print_json(_entry(run, machine.accelerator.name, answer))
    else:
        print_fit_answer(console(), described.name, machine, answer, fix)
        if sequence is None:
            asked = {"--on": on, "--gpus": str(ranks), "--batch": None if batch is None else str(batch), "--fix": fix}
            asked["--network"] = f"{network:g}" if network else None
            print_command(console(), f"what {machine.stack.name} alone executes", f"plan {run}", asked)
        if answer.result.best and sequence is None and batch is None:  # `predict` has the run's own samples
            options = {"--on": on, "--network": f"{network:g}" if network else None}
            print_next(console(), run, answer.result.best[0].layout, options)
    if not answer.result.best:
        raise typer.Exit(exit_codes.FAIL)


def _entry(run: str, accelerator: str, answer: Fit) -> dict[str, Any]:
    result = answer.result
    shown = {"fastest": result.best[0] if result.best else None, "smallest": result.smallest}
    return {
        "run": run,
        "accelerator": accelerator,
        "accelerators": answer.question.ranks,
        "fits": bool(result.best),
        "memory_bytes": answer.question.memory_bytes,
        "layouts": {"considered": result.considered, "fitting": result.fitting},
        **{
            name: found and {"layout": layout_text(found.layout, complete=True), **found.figures._asdict()}
            for name, found in shown.items()
        },
        "largest_micro_batch": answer.micro_batch,
        "largest_model": answer.largest and answer.largest._asdict(),
        "accelerators_that_would_do": answer.ranks,
    }
