"""Run a miniature, count what happened, compare it with the prediction, store the record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.progress import TaskID

from reference_runs.errors import InputError
from reference_runs.miniature import DEFAULT_STEPS
from suite.commands import exit_codes
from suite.commands.machine_profile import profile_for
from suite.commands.runs import runs
from suite.job.batch_rampup import global_batch_at
from suite.job.events import Event, Phase, Status, Step
from suite.job.options import Averaging
from suite.launch.interruption import end_as_interrupted
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.metrics.launch_statistics import summaries
from suite.paths import ROOT
from suite.records.store import records_directory
from suite.report.terminal.launch_statistics import print_launches
from suite.report.terminal.progress import progress_line
from suite.report.terminal.tables import console, print_comparison
from suite.reproduce.plan import Plan, Request, corpus_for, plan
from suite.reproduce.reproduce import Result, last_loss, reproduce
from suite.reproduce.residuals import Residuals


def reproduce_command(  # noqa: PLR0913  # the command's options
    name: Annotated[
        str | None, typer.Argument(help="A miniature such as bloom-mini, on GPUs a recorded run, or a run file.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Processes; default 2 on the CPU, otherwise the most GPUs that divide the batch.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="For instance dp2,zero1,recompute-full,bucket4.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile; default on CUDA only.")
    ] = None,
    kernels: Annotated[
        str,
        typer.Option(help="torch or triton: of norms, activations, rotation, softmax and loss; see docs/kernels.md."),
    ] = "torch",
    optimizer: Annotated[
        str,
        typer.Option(help="adam (Adam or AdamW, as recorded) or one-bit-adam; see docs/one_bit_adam.md."),
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
    steps: Annotated[
        int, typer.Option(help="Training steps; the first 5, and of 8 or more the last 2, are not timed.")
    ] = DEFAULT_STEPS,
    launches: Annotated[
        int, typer.Option(help="Run that often; each launch has its own record. From 2 on with a summary of times.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of weights, sample order and dropout.")] = 1,
    corpus: Annotated[
        Path | None, typer.Option(readable=False, help="Text file or directory; default: Python's standard library.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.json for the profiled steps of rank 0, FILE.rankN.json for others'."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where records and profiles are stored.")] = ROOT / "results",
    may_calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--no-calibrate",
            envvar="SUITE_CALIBRATE",
            help="Measure the machine first where no valid profile of it is stored.",
        ),
    ] = True,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a launch, then one of several launches; progress goes to stderr."),
    ] = False,
) -> None:
    """Train a scaled-down run under torchrun, count what happens, and compare it with the prediction.

    Without NAME: list the runs. A rank that is silent for 10 times its longest step (at least 20 s; 120 s before the
    first step; with compilation 600 s more during warm-up) ends the command as a hang.

    Where no machine profile is valid here (node, device, hardware, software, as many ranks), the machine is calibrated
    first, once, which takes about 90 s. A calibration that fails is one line, and the run goes on: step time is not
    predicted then, and the exit code is that of the run. Ctrl-C ends both.

    Several launches end with a summary of every time: median, spread, a 95 % interval of the median from 6 launches
    on, and the least change that as many launches again would show. 5 launches to compare, 7 to be strict.

    Examples: python -m suite reproduce bloom-mini; python -m suite reproduce bloom-mini --ranks 4 --json

    Exit codes: 0 all figures agree, 1 one does not, 2 bad input, 4 the execution failed, 130 interrupted.
    """
    if name is None:
        runs(json=False)
        return
    if launches < 1:
        raise InputError("launches", got=launches, allowed="1 or more", where="--launches")
    if trace is not None and launches > 1:
        raise InputError("a trace is of one launch", got=f"--launches {launches}", allowed="1", where="--trace")
    end_as_interrupted()
    messages = console(stderr=True)
    request = Request(
        name=name,
        ranks=ranks,
        layout=layout,
        device=device,
        compiled=compiled,
        kernels=kernels,
        optimizer=optimizer,
        gradient_compression=gradient_compression,
        exact_steps=exact_steps,
        renewal=renewal,
        steps=steps,
        seed=seed,
        corpus=corpus,
        trace=trace,
        results=results,
    )
    planned = plan(request)
    with messages.status("reading the corpus"):  # leaves no line behind, so that a refusal stands alone
        tokens = corpus_for(planned, corpus)
    code = exit_codes.PASS
    done: list[Result] = []
    try:
        records_directory(results, planned.name)
        messages.print(f"[dim]{escape(planned.name)}: {planned.layout.ranks} ranks on {planned.device}[/]")
        if planned.averaging is not Averaging.EXACT:
            first = f" after {planned.exact_steps} exact steps" if planned.averaging.exact_at_first else ""
            first += ", second moment renewed" if planned.renewal else ""
            messages.print(f"[dim]averaging: {planned.averaging}{first}; state whole on each rank (ZeRO-0)[/]")
        profile, source = profile_for(planned, results, may_calibrate=may_calibrate, messages=messages)
        for _ in range(launches):
            with Live(planned, quiet=not messages.is_terminal) as live:
                result = reproduce(planned, tokens, results, live, profile=profile, profile_source=source)
            done.append(result)
            if json:
                sys.stdout.write(_json(result) + "\n")
            else:
                _print(result, has_profile=profile is not None)
                if planned.trace is not None and planned.trace.exists():
                    console().print(f"trace {escape(str(planned.trace))}", soft_wrap=True)
            code = max(code, _exit_code(result))
            if result.status is Status.INTERRUPTED:
                break
    except OSError as error:  # no room or no access for records or scratch files
        messages.print(f"[bold red]{escape(f'{error.strerror}: {error.filename}')}[/]", soft_wrap=True)
        code = exit_codes.EXECUTION_FAILED
    if launches > 1 and done:
        _summarise(planned.name, done, json=json)
    raise typer.Exit(code)


def _exit_code(result: Result) -> int:
    if result.status is Status.INTERRUPTED:
        return exit_codes.INTERRUPTED
    if result.status is not Status.OK:
        return exit_codes.EXECUTION_FAILED
    return exit_codes.PASS if result.verdict is Verdict.PASS else exit_codes.FAIL


def _json(result: Result) -> str:
    entry = {
        "run": result.run,
        "status": result.status,
        "verdict": result.verdict,
        "record": result.record,
        "figures": result.rows,
        "message": result.message,
        "losses": result.losses,
        "loss_scales": result.loss_scales,
        "skipped": result.skipped,
        "profile": result.profile,
        "time": result.time,
        "others_share": result.others_share,
        "steal_share": result.steal_share,
    }
    return msgspec.json.encode(entry).decode()


def _print(result: Result, *, has_profile: bool) -> None:
    out = console()
    if result.status is not Status.OK:
        out.print(f"[bold red]{escape(result.run)}: {result.status.value}[/]: {escape(result.message)}")
        out.print(f"record {escape(result.record)}", soft_wrap=True)
        return
    print_comparison(out, result.rows, left="predicted", right="measured")
    out.print(
        f"loss {result.losses[0]:.3f} -> {last_loss(result.losses):.3f} "
        f"(mean of the last 3 of {len(result.losses)} steps)"
    )
    if result.loss_scales:
        skipped = ", ".join(map(str, result.skipped)) or "none"
        out.print(
            f"loss scale {result.loss_scales[0]:,.0f} -> {result.loss_scales[-1]:,.0f}, "
            f"steps skipped by an overflow: {skipped}"
        )
    if result.time is not None:
        out.print(_time_line(result.time), soft_wrap=True)
    if pace := _pace_line(result.rows):
        out.print(pace, soft_wrap=True)
    if result.others_share is not None and result.steal_share is not None:
        out.print(
            f"while steps were timed, other processes took {result.others_share:.0%} of the processors, "
            f"other guests of the host {result.steal_share:.0%}"
        )
    out.print(f"arithmetic: {result.arithmetic}")
    profile = "machine profile" if has_profile else "step time is not predicted:"
    out.print(f"[dim]{profile} {escape(result.profile)}[/]", soft_wrap=True)
    out.print(f"record {escape(result.record)}", soft_wrap=True)
    colour = "green" if result.verdict is Verdict.PASS else "bold red"
    message = f": {result.message}" if result.message else ""
    out.print(f"[{colour}]{escape(result.run)}: {result.verdict.value}[/]{escape(message)}")


def _time_line(time: Residuals) -> str:
    """How far the predicted step time is off, where most of it comes from, and what is in no term."""
    return (
        f"step time: predicted {time.error:+.1%} of the measured one; largest residual: {time.term} "
        f"{time.residual * 1e3:+,.1f} ms, {time.residual / time.measured_seconds:+.1%} of the step; "
        f"unexplained {time.unexplained_share:.1%}"
    )


def _pace_line(rows: list[Row]) -> str:
    """How much longer the processors took than in the calibration, and the error at that pace; "" where not known."""
    slower = {row.term: row.right for row in rows if row.quantity == Quantity.PACE and row.right is not None}
    step = next((row for row in rows if row.quantity == Quantity.STEP_SECONDS_AT_PACE), None)
    if not slower or step is None or step.left is None or not step.right:
        return ""
    times = ", ".join(f"{term} {value:.2f}" for term, value in slower.items())
    return (
        f"pace: what fixed work took, over what it took in the calibration: {times}; "
        f"predicted at that pace {step.left / step.right - 1:+.1%} of the measured step"
    )


def _summarise(run: str, results: list[Result], *, json: bool) -> None:
    """What the launches together say of time; those that did not end well are named and left out."""
    summary = summaries([result.rows for result in results if result.status is Status.OK])
    if json:
        entry = {"run": run, "launches": len(results), "summary": summary}
        sys.stdout.write(msgspec.json.encode(entry).decode() + "\n")
        return
    left_out = [
        f"launch {number}, {result.status.value}: {result.message}; record {result.record}"
        for number, result in enumerate(results, start=1)
        if result.status is not Status.OK
    ]
    print_launches(console(), run, len(results), left_out, summary)


class Live:
    """The progress line: step, loss, tokens/s; a plain line every few seconds where stderr is no terminal."""

    def __init__(self, planned: Plan, *, quiet: bool) -> None:
        self._recipe = planned.recipe
        self._sequence = planned.architecture.sequence
        self._seen = 0
        self._steps = planned.steps
        self._quiet = quiet
        self._last_line = 0.0
        self._progress = progress_line(quiet=quiet)
        self._task: TaskID | None = None

    def __enter__(self) -> Live:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=self._steps)
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, rank: int, event: Event) -> None:
        if rank != 0 or self._task is None:
            return
        if isinstance(event, Phase):
            self._progress.update(self._task, description=event.name)
        if isinstance(event, Step):
            batch = global_batch_at(self._recipe, self._seen)
            self._seen += batch
            text = f"step {event.step} loss {event.loss:.3f} {batch * self._sequence / event.seconds:,.0f} tokens/s"
            if event.skipped:
                text += f", skipped: overflow at loss scale {event.loss_scale:,.0f}"
            self._progress.update(self._task, description=text, completed=event.step + 1)
            due = event.skipped or event.time - self._last_line >= 5 or event.step + 1 == self._steps
            if self._quiet and due:
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
                self._last_line = event.time
