"""Execute every rank of a layout without its memory: does it fit, and does it do what arithmetic says?"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.printable import printable
from suite.commands import exit_codes
from suite.commands.audited import audit_directory, check_place, refuse_of_one
from suite.commands.new_file import Force, check_new
from suite.commands.options import Results, print_json
from suite.commands.pictures import SCHEDULE, check_picture, check_pipelined
from suite.commands.traced_model import check_absent
from suite.job.dry_run_job import CountedRank
from suite.launch.interruption import end_as_interrupted
from suite.machine.packages import require
from suite.metrics.comparison import Verdict
from suite.paths import RESULTS
from suite.predict.analytic.memory_uncertainty import MemoryVerdict
from suite.predict.plan.asked import check_positive
from suite.report.schedule import predicted_panel
from suite.report.terminal.dry_run import fitting_of, print_dry_run, print_side_by_side
from suite.report.terminal.tables import console
from suite.reproduce.dry_run.comparison import DryRun, dry_run, peak_parts
from suite.reproduce.dry_run.plan import DryPlan, dry_plan
from suite.reproduce.dry_run.result import result_of, store

ALL = "all"


def dry_run_command(  # noqa: PLR0913  # long: the command's options
    name: Annotated[
        str, typer.Argument(help="A recorded run such as bloom-176b, a miniature, a run file, or a directory.")
    ],
    mini: Annotated[bool, typer.Option("--mini", help="The miniature of the run or run file.")] = False,
    layout: Annotated[str | None, typer.Option(help="Layout: dp8,tp4,pp12,zero1 (default: as recorded).")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another layout to print beside the first; may be given several times.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="Accelerator whose memory counts (default: the recorded one).")] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Number of accelerators that a directory's files leave open.", min=1)
    ] = None,
    network: Annotated[float | None, typer.Option(help="Gbit/s out of a node, for a directory's files.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of files in a directory that name none: a name, config.json, or run file.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(readable=False, help="FILE.csv: a directory's rows too.")] = None,
    ranks: Annotated[
        str | None,
        typer.Option(help="Ranks to execute: all, or 0,32 and the like (default: one of each class of equals)."),
    ] = None,
    whole_step: Annotated[
        bool, typer.Option("--whole-step", help="Execute all micro-batches, rather than few from which they follow.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(readable=False, help="FILE.png: the fullest rank's memory over a step.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(readable=False, help="FILE.png: the passes of every pipeline stage over a step.")
    ] = None,
    force: Force = False,
    record: Annotated[bool, typer.Option("--record", help="Store the fullest rank's memory, for the page.")] = False,
    results: Results = RESULTS,
    every_figure: Annotated[bool, typer.Option("--all", help="Print every figure with its reason.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a layout; progress goes to stderr.")] = False,
) -> None:
    """Build every rank of a layout as a launch would, and execute a step of it on tensors without memory.

    No GPU, no network and no memory of that size is needed: PyTorch computes shapes alone, and a process group of the
    real size answers at once. Parameters, flop, state, payload and messages of every rank are compared with `predict`,
    and so is the most memory that its tensors hold at a time.

    Examples: python -m suite dry-run bloom-176b; python -m suite dry-run gpt-neox-20b --compare dp24,tp4,pp1;
    python -m suite dry-run my_run.toml --layout dp8,tp8,pp2,zero1 --on h100-sxm --plot memory.png

    Whether it fits is said and does not change the exit code. Of a directory nothing is executed: `fit DIRECTORY` says
    which of its configurations can run, and so does this command.

    Exit codes: 0 all figures agree, 1 one does not, 2 bad input, 4 a rank could not be executed, 128 + n ended by
    signal n.
    """
    check_place(name)
    if Path(name).is_dir():
        of_one = {"--mini": mini, "--layout": layout, "--compare": compare, "--ranks": ranks, "--plot": plot}
        refuse_of_one(of_one | {"--schedule": schedule, "--record": record})
        _audit(Path(name), on, gpus, network, model, csv, force=force, as_json=json)
        return
    check_absent({"--gpus": gpus, "--network": network, "--model": model, "--csv": csv}, what="is of a directory")
    require("torch")
    end_as_interrupted()
    for option, picture in (("--plot", plot), (SCHEDULE, schedule)):
        check_picture(picture, option, force=force)
    plans = [dry_plan(name, layout, mini=mini, results=results)]
    plans += [dry_plan(name, text, mini=mini, results=results, option="--compare") for text in compare or []]
    chosen = [_ranks(ranks, each) for each in plans]
    for each in plans:
        check_pipelined(schedule, each.workload.layout)
    board = _board(on, plans[0].accelerator)
    done: list[DryRun] = []
    for each, numbers in zip(plans, chosen, strict=True):
        done.append(_executed(each, numbers, whole_step=whole_step, every_rank=ranks == ALL))
        _print(done[-1], board, json=json, complete=every_figure)
        if done[-1].failure:
            raise typer.Exit(exit_codes.EXECUTION_FAILED)
        if record:
            stored = store(result_of(done[-1], board), results)
            console(stderr=True).print(f"stored {stored}", markup=False, soft_wrap=True)
    if len(done) > 1 and not json:
        print_side_by_side(console(), done)
    if plot is not None:
        from suite.report.plots.memory import draw_memory

        draw_memory(plot, done)
    if schedule is not None:
        from suite.report.plots.schedule import draw_schedule

        names = [f"{each.name}, {layout_text(each.workload.layout)}" for each in plans]
        panels = [predicted_panel(each.workload, name) for each, name in zip(plans, names, strict=True)]
        draw_schedule(schedule, panels)
    passed = all(run.verdict is Verdict.PASS for run in done)
    raise typer.Exit(exit_codes.PASS if passed else exit_codes.FAIL)


def _audit(
    directory: Path,
    on: str | None,
    gpus: int | None,
    network: float | None,
    model: str | None,
    table: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    from suite.predict.plan.audit import Filling

    check_positive({"--gpus": gpus, "--network": network})
    check_new(table, "--csv", force=force)
    audit_directory(directory, Filling(on, gpus, network, model=model), table=table, as_json=as_json)


def _board(asked: str | None, recorded: str | None) -> Accelerator | None:
    if asked is not None:
        return accelerator(asked)
    with contextlib.suppress(InputError):  # a run file may name one of its own
        return None if recorded is None else accelerator(recorded)
    return None


def _ranks(text: str | None, plan: DryPlan) -> list[int]:
    """The numbers that are asked for; none for all, or for one of each class.

    Raises:
        InputError: no numbers, or of ranks that the layout has not.
    """
    if text is None or text == ALL:
        return []
    most = plan.workload.layout.ranks - 1
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if not all(0 <= number <= most for number in numbers):
        raise InputError("ranks", got=repr(text), allowed=f"all, or numbers from 0 to {most}", where="--ranks")
    return numbers


def _executed(plan: DryPlan, ranks: list[int], *, whole_step: bool, every_rank: bool) -> DryRun:
    messages = console(stderr=True)
    start, done = time.monotonic(), 0

    def counted(answer: CountedRank) -> None:
        nonlocal done
        done += 1
        if not messages.is_terminal:
            of_layers = "" if answer.layers is None else f" in {answer.layers} layers"
            messages.print(f"[dim]rank {answer.rank} counted{of_layers}, {time.monotonic() - start:.0f} s[/]")
        status.update(f"{layout_text(plan.workload.layout)}: {done} ranks counted, {time.monotonic() - start:.0f} s")

    with messages.status(f"{printable(plan.name)}: {plan.workload.layout.ranks} ranks") as status:
        return dry_run(plan, counted, every_rank=every_rank, ranks=ranks, every_micro_batch=whole_step)


def _print(run: DryRun, board: Accelerator | None, *, json: bool, complete: bool) -> None:
    if run.failure:
        messages = console(stderr=True)
        messages.print(run.failure, style="bold red", markup=False, soft_wrap=True)
        messages.print(run.traceback, markup=False, soft_wrap=True)
    elif json:
        print_json(_entry(run, board))
    else:
        print_dry_run(console(), run, board, complete=complete)


def _entry(run: DryRun, board: Accelerator | None) -> dict[str, object]:
    fitting = None if board is None else fitting_of(run, board)
    return {
        "run": run.name,
        "layout": layout_text(run.workload.layout),
        "verdict": run.verdict,
        "changes": run.changes,
        "micro_batches": run.micro_batches,
        "executed_micro_batches": run.executed,
        "classes": [
            {
                "rank": each.of.rank,
                "stage": each.of.stage,
                "ranks": each.of.ranks,
                "seconds": each.seconds,
                "peak": peak_parts(each.step),
            }
            for each in run.counted
        ],
        "figures": run.rows,
        "accelerator": None if board is None else board.name,
        "fits": None if fitting is None else fitting.verdict is MemoryVerdict.FITS,
        "probability_fits": None if fitting is None else fitting.probability,
    }
