"""Run a miniature, count what happened, compare it with the prediction, store the record."""

from __future__ import annotations

from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.machine_profile import profile_for
from suite.commands.options import command_of, print_json
from suite.commands.pictures import SCHEDULE, check_picture, check_pipelined, draw_launch
from suite.commands.runs import runs
from suite.commands.traced_model import answered_or_exit
from suite.job.events import Status
from suite.job.options import Averaging
from suite.job.trace_job import StepTrace
from suite.launch.interruption import end_as_interrupted
from suite.launch.rank_starts import check_rank_starts
from suite.machine.packages import require
from suite.metrics.comparison import Verdict
from suite.metrics.launch_statistics import summaries
from suite.records.store import records_directory
from suite.report.slice import slice_words, stopped_words
from suite.report.terminal.progress import training_progress
from suite.report.terminal.reproduction import print_launch, print_launch_line, print_launches, slice_times_of
from suite.report.terminal.tables import console, print_folded, print_refusal
from suite.report.terminal.traced import print_model
from suite.reproduce.model_plan import is_model, model_plan, model_tokens
from suite.reproduce.plan import MOST_LAUNCHES, Plan, corpus_for, plan
from suite.reproduce.reproduce import LaunchResult, reproduce
from suite.reproduce.request import GROUPS, Request
from suite.reproduce.resume import goes_on_from
from suite.reproduce.slice_memory import needs
from suite.reproduce.slice_plan import asks_for_slice, slice_plan, slice_tokens
from suite.reproduce.store_times import FROM_OWN_STEPS

NOT_PREDICTED = "a slice is measured, not predicted"
NOT_OF_MODELS = "a profile of this machine times the operators of the suite's own decoder alone"
NOT_HERE = "profiles are of one machine, and the ranks ran on a scheduler's nodes"


@command_of(Request, GROUPS)
def reproduce_command(request: Request) -> None:
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
    if request.name is None:
        runs(json=False)
        return
    _check_launches(request)
    require("torch")
    end_as_interrupted()
    messages, launches = console(stderr=True), request.launches
    planned, trace = _planned(request, messages)
    check_pipelined(request.schedule, planned.layout)
    if planned.scheduled is None:
        asked = "--layout" if request.layout else "--ranks"
        if slow := check_rank_starts(planned.ranks, planned.device, asked):
            messages.print(slow, soft_wrap=True)
    done: list[LaunchResult] = []
    for result in _launched(planned, trace, request, messages):
        done.append(result)
        _print(result, planned, request, number=len(done))
    if launches > 1 and done:
        _summarise(done, json=request.json)
    if request.schedule is not None and done and done[-1].status is Status.OK:
        times = [report.pipeline_times for report in done[-1].finished]
        draw_launch(request.schedule, planned.name, planned.workload, times, done[-1].figures)
    code = max(map(_exit_code, done), default=exit_codes.EXECUTION_FAILED)
    is_whole = len(done) == launches or code == exit_codes.INTERRUPTED
    raise typer.Exit(code if is_whole else exit_codes.EXECUTION_FAILED)


def _planned(request: Request, messages: Console) -> tuple[Plan, StepTrace | None]:
    """The plan of a request, and the trace of its first rank where it is of any model."""
    if asks_for_slice(request):
        return slice_plan(request), None
    if not is_model(request):
        return plan(request), None
    require("torch", *(("transformers",) if request.run.endswith(".json") else ()))
    with messages.status("tracing the step"):
        return answered_or_exit(lambda: model_plan(request))


def _check_launches(request: Request) -> None:
    """Refuse a number of launches that is none, or several where a file or checkpoints are of one."""
    launches = request.launches
    if not 1 <= launches <= MOST_LAUNCHES:
        raise InputError("launches", got=launches, allowed=f"1 to {MOST_LAUNCHES:,}", where="--launches")
    for what, is_given, where in (
        ("a trace is", request.trace is not None, "--trace"),
        ("a picture is", request.schedule is not None, SCHEDULE),
        ("checkpoints are", request.checkpoint_every is not None or request.resume is not None, "--launches"),
    ):
        if is_given and launches > 1:
            raise InputError(f"{what} of one launch", got=f"--launches {launches}", allowed="1", where=where)
    check_picture(request.schedule, SCHEDULE, force=request.force)


def _launched(planned: Plan, trace: StepTrace | None, request: Request, messages: Console) -> Iterator[LaunchResult]:
    """Calibrate where that is needed, and launch as often as asked; less often after an interrupt or without room."""
    may_calibrate = request.may_calibrate
    with messages.status("reading the corpus"):  # leaves no line, so that a refusal stands alone
        if trace is not None:
            tokens = model_tokens(planned, trace, request.corpus)
        else:
            tokens = corpus_for(planned, request.corpus) if planned.slice is None else slice_tokens(planned)
    before = goes_on_from(planned, tokens)
    for line in () if before is None else before.damaged:
        print_folded(messages, f"passed over: {line}", "yellow")
    if before is not None and before.progress.step >= planned.steps:
        words = f"nothing is left to train: {planned.steps} of {planned.steps} steps are done"
        print_folded(messages, f"{words}: {before.path}", "")
        raise typer.Exit(exit_codes.PASS)
    try:
        records_directory(request.results, planned.name)
        _print_plan(messages, planned)
        if trace is not None:
            print_model(messages, trace)
        if before is not None:
            words = f"goes on with step {before.progress.step} of {planned.steps}: {before.path}"
            messages.print(f"[dim]{escape(words)}[/]", soft_wrap=True)
        profile, source = None, NOT_PREDICTED
        if planned.model is not None:
            source = NOT_OF_MODELS
        elif planned.synchronisation is not None:
            source = FROM_OWN_STEPS
        elif planned.scheduled is not None:
            source = NOT_HERE
        elif planned.slice is None:
            profile, source = profile_for(planned, request.results, may_calibrate=may_calibrate, messages=messages)
        is_missing = profile is None and trace is None and planned.synchronisation is None and planned.scheduled is None
        if (
            is_missing and may_calibrate and (request.launches > 1 or request.json)
        ):  # else it is printed with the result
            print_folded(messages, source, "yellow")
        for _ in range(request.launches):
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


def _print(result: LaunchResult, planned: Plan, request: Request, *, number: int) -> None:
    if request.json:
        print_json(_entry(result))
        return
    out = console()
    if request.launches == 1 or request.every_figure:
        print_launch(out, result, complete=request.every_figure)
    else:
        print_launch_line(out, result, number=number, launches=request.launches)
    if words := stopped_words(planned.slice, taken=len(result.steps), asked=planned.steps):
        print_folded(out, words)
    if planned.trace is not None and planned.trace.exists():
        out.print(f"trace {escape(str(planned.trace))}", soft_wrap=True)


def _exit_code(result: LaunchResult) -> int:
    if result.status is Status.INTERRUPTED:
        return exit_codes.INTERRUPTED
    if result.status is not Status.OK:
        return exit_codes.EXECUTION_FAILED
    return exit_codes.PASS if result.verdict is Verdict.PASS or not result.rows else exit_codes.FAIL


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
    """Print what the launches together say of time; those that did not end well are named and left out."""
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
