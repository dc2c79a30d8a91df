"""Run a miniature, count what happened, compare it with the prediction, store the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.miniature import DEFAULT_STEPS
from suite.commands import exit_codes
from suite.commands.machine_profile import profile_for
from suite.commands.options import Compiled, CorpusPath, Device, MayCalibrate, print_json
from suite.commands.pictures import SCHEDULE, check_picture, check_pipelined, draw_launch
from suite.commands.runs import runs
from suite.job.events import Status
from suite.job.options import Averaging
from suite.launch.interruption import end_as_interrupted
from suite.launch.rank_starts import check_rank_starts
from suite.metrics.comparison import Verdict
from suite.metrics.launch_statistics import summaries
from suite.paths import ROOT
from suite.records.store import records_directory
from suite.report.slice import slice_words, stopped_words
from suite.report.terminal.progress import training_progress
from suite.report.terminal.reproduction import print_launch, print_launch_line, print_launches, slice_times_of
from suite.report.terminal.tables import console, print_folded, print_refusal
from suite.reproduce.plan import Plan, corpus_for, plan
from suite.reproduce.reproduce import LaunchResult, reproduce
from suite.reproduce.request import Request
from suite.reproduce.resume import goes_on_from
from suite.reproduce.slice_memory import needs
from suite.reproduce.slice_plan import asks_for_slice, slice_plan, slice_tokens
from suite.reproduce.store_times import FROM_OWN_STEPS

NOT_PREDICTED = "a slice is measured, not predicted"
NOT_HERE = "profiles are of one machine, and the ranks ran on a scheduler's nodes"


class _Printing(NamedTuple):
    """How results are printed: as JSON, or in words, with every figure or in short."""

    json: bool
    every_figure: bool
    messages: Console


def reproduce_command(  # noqa: PLR0913  # long: the command's options with their help
    name: Annotated[
        str | None, typer.Argument(help="A miniature such as bloom-mini, on GPUs a recorded run, or a run file.")
    ] = None,
    mini: Annotated[
        bool, typer.Option("--mini", help="The miniature of the run or run file, by the rules of `show --mini`.")
    ] = False,
    of_slice: Annotated[
        bool, typer.Option("--slice", help="What one accelerator of the run or run file computes; as NAME-slice.")
    ] = False,
    stage: Annotated[
        str | None,
        typer.Option(help="Of a slice: first, middle, last, or a number from 0; default: middle, or what there is."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Of a slice; default: as many as the stage has.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a slice's samples; default: as recorded.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Samples of a slice; default: as recorded.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Of a slice: no repetition is begun after so many; at least one is timed.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Processes; default: of a miniature 2 on the CPU and all GPUs, of a run its layout's, of a slice 1."
        ),
    ] = None,
    layout: Annotated[str | None, typer.Option(help="For instance dp2,zero1,recompute-full,bucket4.")] = None,
    device: Device = "auto",
    compiled: Compiled = None,
    kernels: Annotated[
        str,
        typer.Option(help="torch or triton: of norms, activations, rotation, softmax and loss; see docs/kernels.md."),
    ] = "torch",
    products: Annotated[
        str | None,
        typer.Option(help="Of linear layers: none or fp8-current, instead of the run's own; see docs/predictions.md."),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="adam (Adam or AdamW, as recorded) or one-bit-adam; see docs/one_bit_adam.md.")
    ] = "adam",
    gradient_compression: Annotated[
        str, typer.Option(help="none, fp16, bf16 (CUDA) or powersgd: PyTorch's hooks of DistributedDataParallel.")
    ] = "none",
    exact_steps: Annotated[
        int | None,
        typer.Option(help="Steps of exact averaging before one-bit-adam or powersgd; default 15 % of the steps."),
    ] = None,
    renewal: Annotated[
        bool,
        typer.Option(
            "--renew-second-moment", help="Of one-bit-adam: exact steps again at every doubling of the steps."
        ),
    ] = False,
    synchronisation: Annotated[
        str | None,
        typer.Option(help="bsp, ssp:S or asp: of dpN workers at a parameter store; see docs/synchronisation.md."),
    ] = None,
    slow_rank: Annotated[
        str | None,
        typer.Option(help="Of --synchronisation: RANK:FACTOR:EVERY, such as 1:2:10, slower in one step of 10."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps from one checkpoint to the next, below RESULTS/checkpoints.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="A directory of checkpoints, or latest: go on from the newest one there.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="After a rank that ended, start all again from the last checkpoint, at most so often.")
    ] = 0,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples a step, where the run's own are too many to try something.")
    ] = None,
    share_devices: Annotated[
        bool, typer.Option("--share-devices", help="More ranks than GPUs: for exact figures and memory, not for times.")
    ] = False,
    steps: Annotated[
        int, typer.Option(help="Training steps; the first 5, and of 8 or more the last 2, are not timed.")
    ] = DEFAULT_STEPS,
    launches: Annotated[
        int, typer.Option(help="Run that often; each launch has its own record. From 2 on with a summary of times.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of weights, sample order and dropout.")] = 1,
    corpus: CorpusPath = None,
    trace: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.json for the profiled steps of rank 0, FILE.rankN.json for others'."),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.png: a pipeline's passes, predicted and below it measured."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="slurm: ranks on the nodes of a scheduler; docs/slurm.md.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Of --engine: nodes, by default 1.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(help="Of --engine: processes on each, by default 1.")] = None,
    partition: Annotated[str | None, typer.Option(help="Of --engine: where its nodes are taken from.")] = None,
    node_list: Annotated[
        str | None, typer.Option("--on", help="Of --engine: these very nodes, as Slurm writes them: n[1-4].")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Where records and profiles are stored; with --engine all nodes must see it.")
    ] = ROOT / "results",
    may_calibrate: MayCalibrate = True,
    every_figure: Annotated[
        bool, typer.Option("--all", help="Print every figure with its reason, of each of several launches too.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a launch, then one of several launches; progress goes to stderr."),
    ] = False,
) -> None:
    """Train a scaled-down run under torchrun, count what happens, and compare it with the prediction.

    Without NAME: list the runs. A rank that is silent for 10 times its longest step (at least 20 s; 120 s before the
    first step; with compilation 600 s more during warm-up) ends the command as a hang.

    Where no machine profile is valid here (node, device, hardware, software, as many ranks), what the step's prediction
    needs is measured first, once, in about 25 s; `calibrate` measures everything. A calibration that fails is one line,
    and the run goes on: step time is not predicted then, and the exit code is that of the run. Ctrl-C ends both.

    NAME-slice executes what one accelerator of a recorded run computes, at its true shapes: a stage's layers, or
    --layers of them, and with --stage first or last embedding or head. It needs the accelerator's memory, or smaller
    --layers, --sequence and --micro-batch. Messages are left out, or with --ranks exchanged. See docs/slices.md.

    Several launches end with a summary of every time: median, spread, a 95 % interval of the median from 6 launches
    on, and the least change that as many launches again would show. 5 launches to compare, 7 to be strict.

    Examples: python -m suite reproduce bloom-mini; python -m suite reproduce bloom-mini --ranks 4 --json;
    python -m suite reproduce my_run.toml --mini; python -m suite reproduce bloom-176b-slice --layers 1 --sequence 256

    Exit codes: 0 all figures agree, 1 one does not, 2 bad input, 4 the execution failed, 128 + n ended by signal n.
    """
    if name is None:
        runs(json=False)
        return
    if launches < 1:
        raise InputError("launches", got=launches, allowed="1 or more", where="--launches")
    if trace is not None and launches > 1:
        raise InputError("a trace is of one launch", got=f"--launches {launches}", allowed="1", where="--trace")
    if schedule is not None and launches > 1:
        raise InputError("a picture is of one launch", got=f"--launches {launches}", allowed="1", where=SCHEDULE)
    if launches > 1 and (checkpoint_every is not None or resume is not None):
        raise InputError("checkpoints are of one launch", got=f"--launches {launches}", allowed="1", where="--launches")
    check_picture(schedule, SCHEDULE)
    end_as_interrupted()
    request = Request(
        name=name,
        mini=mini,
        slice=of_slice,
        stage=stage,
        layers=layers,
        sequence=sequence,
        micro_batch=micro_batch,
        minutes=minutes,
        ranks=ranks,
        layout=layout,
        device=device,
        compiled=compiled,
        kernels=kernels,
        products=products,
        optimizer=optimizer,
        gradient_compression=gradient_compression,
        exact_steps=exact_steps,
        renewal=renewal,
        share_devices=share_devices,
        synchronisation=synchronisation,
        slow_rank=slow_rank,
        checkpoint_every=checkpoint_every,
        resume=resume,
        max_restarts=max_restarts,
        global_batch=global_batch,
        steps=steps,
        seed=seed,
        corpus=corpus,
        trace=trace,
        engine=engine,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        partition=partition,
        node_list=node_list,
        results=results,
    )
    printing = _Printing(json, every_figure, console(stderr=True))
    planned = slice_plan(request) if asks_for_slice(request) else plan(request)
    check_pipelined(schedule, planned.layout)
    slow = (
        ""
        if planned.scheduled
        else check_rank_starts(planned.ranks, planned.device, "--layout" if layout else "--ranks")
    )
    if slow:
        printing.messages.print(slow, soft_wrap=True)
    done: list[LaunchResult] = []
    for result in _launched(planned, request, launches, printing, may_calibrate=may_calibrate):
        done.append(result)
        _print(result, planned, printing, number=len(done), launches=launches)
    if launches > 1 and done:
        _summarise(done, json=json)
    if schedule is not None and done and done[-1].status is Status.OK:
        times = [report.pipeline_times for report in done[-1].finished]
        draw_launch(schedule, planned.name, planned.workload, times, done[-1].figures)
    code = max(map(_exit_code, done), default=exit_codes.EXECUTION_FAILED)
    is_whole = len(done) == launches or code == exit_codes.INTERRUPTED
    raise typer.Exit(code if is_whole else exit_codes.EXECUTION_FAILED)


def _launched(
    planned: Plan, request: Request, launches: int, printing: _Printing, *, may_calibrate: bool
) -> Iterator[LaunchResult]:
    """Calibrate where that is needed, and launch as often as asked; less often after an interrupt or without room."""
    messages = printing.messages
    with messages.status("reading the corpus"):  # leaves no line, so that a refusal stands alone
        tokens = corpus_for(planned, request.corpus) if planned.slice is None else slice_tokens(planned)
    before = goes_on_from(planned, tokens)
    try:
        records_directory(request.results, planned.name)
        _print_plan(messages, planned)
        if before is not None and planned.checkpoints is not None:
            where = planned.checkpoints.directory
            messages.print(f"[dim]goes on with step {before.step} of {planned.steps}: {escape(where)}[/]")
        profile, source = None, NOT_PREDICTED
        if planned.synchronisation is not None:
            source = FROM_OWN_STEPS
        elif planned.scheduled is not None:
            source = NOT_HERE
        elif planned.slice is None:
            profile, source = profile_for(planned, request.results, may_calibrate=may_calibrate, messages=messages)
        is_missing = profile is None and planned.synchronisation is None and planned.scheduled is None
        if is_missing and may_calibrate and (launches > 1 or printing.json):  # else it is printed with the result
            print_folded(messages, source, "yellow")
        for _ in range(launches):
            with training_progress(planned, messages) as progress:
                result = reproduce(planned, tokens, request.results, progress, profile=profile, profile_source=source)
            yield result
            if result.status is Status.INTERRUPTED:
                return
    except OSError as error:  # no room or no access for records or scratch files
        print_refusal(error)


def _print_plan(messages: Console, planned: Plan) -> None:
    """Say what is launched, and what the suite chose where the request leaves it open."""
    if planned.slice is None:
        messages.print(f"[dim]{escape(planned.name)}: {planned.layout.ranks} ranks on {planned.device}[/]")
    else:
        print_folded(messages, f"{planned.name}: {slice_words(planned.slice)} on {planned.device}; {needs(planned)}")
    for change in planned.changes:
        messages.print(f"[dim]changed: {escape(change)}[/]", soft_wrap=True)
    if planned.synchronisation is not None:
        slow = f", slow ranks {', '.join(map(str, planned.slow_ranks))}" if planned.slow_ranks else ""
        messages.print(f"[dim]synchronisation: {planned.synchronisation}{slow}; a parameter store on all ranks[/]")
    if planned.averaging is not Averaging.EXACT:
        first = f" after {planned.exact_steps} exact steps" if planned.averaging.exact_at_first else ""
        first += ", second moment renewed" if planned.renewal else ""
        messages.print(f"[dim]averaging: {planned.averaging}{first}; state whole on each rank (ZeRO-0)[/]")


def _print(result: LaunchResult, planned: Plan, printing: _Printing, *, number: int, launches: int) -> None:
    if printing.json:
        print_json(_entry(result))
        return
    out = console()
    if launches == 1 or printing.every_figure:
        print_launch(out, result, complete=printing.every_figure)
    else:
        print_launch_line(out, result, number=number, launches=launches)
    if words := stopped_words(planned.slice, taken=len(result.steps), asked=planned.steps):
        print_folded(out, words)
    if planned.trace is not None and planned.trace.exists():
        out.print(f"trace {escape(str(planned.trace))}", soft_wrap=True)


def _exit_code(result: LaunchResult) -> int:
    if result.status is Status.INTERRUPTED:
        return exit_codes.INTERRUPTED
    if result.status is not Status.OK:
        return exit_codes.EXECUTION_FAILED
    return exit_codes.PASS if result.verdict is Verdict.PASS else exit_codes.FAIL


def _entry(result: LaunchResult) -> dict[str, object]:
    after = ("message", "losses", "loss_scales", "skipped", "profile", "time", "step_uncertainty")
    return {
        **{name: getattr(result, name) for name in ("run", "status", "verdict", "record")},
        "figures": result.rows,
        **{name: getattr(result, name) for name in (*after, "others_share", "steal_share")},
        **({} if result.goodput is None else {"goodput": result.goodput}),
        **({"slice_times": times} if (times := slice_times_of(result)) else {}),
    }


def _summarise(results: list[LaunchResult], *, json: bool) -> None:
    """What the launches together say of time; those that did not end well are named and left out."""
    run = results[0].run
    summary = summaries([result.rows for result in results if result.status is Status.OK])
    if json:
        entry = {"run": run, "launches": len(results), "summary": summary}
        print_json(entry)
        return
    left_out = [
        f"launch {number}, {result.status.value}: {result.message}; record {result.record}"
        for number, result in enumerate(results, start=1)
        if result.status is not Status.OK
    ]
    print_launches(console(), run, len(results), left_out, summary)
