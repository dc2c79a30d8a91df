"""Why is a run slow? A log, or numbers in its place, beside what was to be expected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reference_runs.accelerator import accelerator, dense_peak_flop_per_second
from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.run import Precision
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog, stated_log, training_log
from reference_runs.training_traces.files import TraceKind, files_of_kind, traces
from suite.commands import exit_codes
from suite.commands.diagnosed_page import Diagnosed, check_page, show
from suite.commands.diagnosed_pair import OtherRun, print_pair, print_pair_of_traces
from suite.commands.diagnosed_recordings import print_recordings
from suite.commands.diagnosed_rows import show_rows
from suite.commands.new_file import forced
from suite.commands.options import print_json
from suite.commands.training_options import (
    LAYOUT_PANEL,
    MACHINE_PANEL,
    OUTPUT_PANEL,
    Asked,
    JsonOutput,
    asks_edition,
    asks_training,
)
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.diagnosis.compared import ComparedRun
from suite.predict.diagnosis.counting import Printed, dense_share
from suite.predict.diagnosis.diagnosis import diagnosis, printed_rates
from suite.predict.diagnosis.evidence import DiagnosisEvidence
from suite.predict.diagnosis.pace import pace, step_seconds
from suite.predict.diagnosis.said import Said, said
from suite.predict.diagnosis.trace_causes import late_rank, predicted_terms, traced
from suite.predict.diagnosis.trace_terms import step_terms
from suite.predict.plan.asked import check_positive
from suite.predict.plan.predicted_run import Predicted, PredictionRequest, predicted_run, undisturbed_profile
from suite.predict.recorded_run.figures import Prices
from suite.records.query import record_path
from suite.records.record import BEGIN, END
from suite.records.store import read as read_record
from suite.report.terminal.diagnosis import print_printed_mfu
from suite.report.terminal.tables import console
from suite.reproduce.diagnosed_launch import diagnosed_launch, timed_steps

_NUMBERS = "Numbers in place of a log, or beside it"


@asks_edition
@asks_training
def diagnose(  # noqa: PLR0913  # long: the command's options
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG",
            help="Log of a training as its framework prints it (gzip too, and in parts); traces, a file a rank, or a "
            "folder of them; or a table's rows (.csv).",
            show_default=False,
        ),
    ] = None,
    *,
    asked: Asked,
    run: Annotated[
        str | None,
        typer.Option(
            help="The model: a recorded run, a run file ending in .toml, or config.json (default: no prediction).",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Log, or trace, of another run to compare with: one node and two, before and after.",
            show_default=False,
        ),
    ] = None,
    against_gpus: Annotated[int | None, typer.Option(help="Accelerators of that run.", show_default=False)] = None,
    against_batch: Annotated[int | None, typer.Option(help="Samples of its step.", show_default=False)] = None,
    against_step_time: Annotated[
        float | None, typer.Option(help="Seconds of its step, in place of its log.", show_default=False)
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            help="Profile that `calibrate` stored of the machine.", show_default=False, rich_help_panel=MACHINE_PANEL
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Layout, such as dp8,tp4,pp12 (default: the log's, the run's own, or the fastest that fits).",
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = None,
    step_time: Annotated[
        float | None, typer.Option(help="Seconds of a step.", show_default=False, rich_help_panel=_NUMBERS)
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(help="MFU as it is printed, in percent.", show_default=False, rich_help_panel=_NUMBERS),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(help="Tflop/s of an accelerator as printed.", show_default=False, rich_help_panel=_NUMBERS),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(help="Line of a table's row (default: all).", show_default=False, rich_help_panel=_NUMBERS),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Tokens per second of an accelerator.", show_default=False, rich_help_panel=_NUMBERS),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with pictures into this file: terms, steps, a trace's timeline and roofline.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    force: forced(OUTPUT_PANEL) = False,  # type: ignore[valid-type]  # an annotation that a function makes
    json: JsonOutput = False,
) -> None:
    """Say whether a run is as fast as expected, whether its rates are counted rightly, and what makes it slow.

    Logs of Megatron-LM, Megatron-DeepSpeed, GPT-NeoX, NeMo, Megatron-Bridge, torchtitan, nanotron, DeepSpeed, the
    Hugging Face Trainer (console, trainer_state.json), Lightning, Composer, OLMo-core, MaxText, litgpt, nanoGPT,
    nanochat, llm.c and MLPerf are read, and traces: of PyTorch's profiler, of Nsight Systems (SQLite), dumps of flight
    recorders. What they do not say (model, accelerator, layout) options say.

    Examples: python -m suite diagnose train.log --run llama2-7b --on a100 --gpus 8;
    python -m suite diagnose --run gpt2-124m --on a100 --gpus 8 --step-time 0.562;
    python -m suite diagnose two_nodes.log --against one_node.log;
    python -m suite diagnose traces/ --run llama2-7b --on a100 --gpus 8

    Exit codes: 0 as expected; 1 slow, implausible or counted wrongly; 2 bad input; 3 nothing to compare with, even
    where causes are named.
    """
    given = {"--step-time": step_time, "--mfu": mfu, "--tflops": tflops, "--tokens-per-second": tokens_per_second}
    check_positive(given)
    check_page(html, force=force)
    other = OtherRun(against, against_step_time, against_gpus, against_batch)
    compares = other.check()
    if html is not None and (compares or (not logs and step_time is None and tokens_per_second is None)):
        raise InputError("a page is of one run with its times", got=str(html), where="--html")
    if not logs and step_time is None and tokens_per_second is None:
        if mfu is None or asked.on is None:
            raise InputError("nothing to time", allowed="a log, or --step-time, or --mfu with --on alone")
        _print_mfu(mfu / 100, asked.on, as_json=json)
        return
    if logs and logs[0].name.endswith((BEGIN, END)):
        show(_of_record(logs[0]), html=html, as_json=json)
        return
    if row is not None or (logs and logs[0].suffix == ".csv"):
        if not logs or len(logs) > 1 or run is not None:
            raise InputError("a row is of one table, which says the run", allowed="TABLE.csv alone", where="--row")
        counted = Printed(tflops * 1e12 if tflops else None, mfu / 100 if mfu else None, tokens_per_second)
        show_rows(logs[0], row, counted, html=html, as_json=json)
        return
    kind, files = files_of_kind(logs or [])
    if kind is TraceKind.RECORDING:
        if html is not None:
            raise InputError("flight recorders have no page", got=str(html), where="--html")
        print_recordings(files, as_json=json)
        return
    steps = [step_terms(trace) for trace in traces(kind, files)] if kind is not TraceKind.LOG else []
    if steps and against is not None:
        print_pair_of_traces(steps, against, as_json=json)
        return
    stated = step_time is not None or tokens_per_second is not None
    read = training_log(*files, needs_steps=not stated) if files and not steps else None
    known = said(read, sequence=asked.training.sequence) if read else Said()
    layout = layout or known.layout
    predicted = _predicted(run, _completed(asked, known), layout, read, machine)
    tokens, gpus, micro_batches = _work(predicted, _completed(asked, known))
    slow = late_rank(steps) if steps else None
    shown = steps[slow.place if slow else 0] if steps else None
    if shown and step_time is None:
        timed = [PrintedStep(seconds=seconds) for seconds in shown.steps]
        measured = pace(timed, warm_up=0)
    elif step_time is not None or read is None or not read.steps:
        timed = [PrintedStep(seconds=_stated_seconds(step_time, tokens_per_second, tokens, gpus))]
        measured = pace(timed)
    else:
        timed = step_seconds(read, tokens=tokens, gpus=gpus, micro_batches=micro_batches)
        measured = pace(timed)
    if compares:
        compared_log = read or stated_log("the numbers given")
        here = ComparedRun(
            compared_log, measured, asked.gpus or known.gpus, asked.training.batch or known.batch, known.micro_batch
        )
        print_pair(here, other, predicted, as_json=json)
        return
    logged = printed_rates(read) if read else Printed()
    printed = Printed(
        tflops * 1e12 if tflops else logged.flop_per_second,
        mfu / 100 if mfu else logged.mfu,
        tokens_per_second or logged.device_tokens_per_second,
        logged.tokens_per_second,
    )
    answer = diagnosis(read, measured, printed, predicted, states_layout=layout is not None)
    step = predicted.prediction.step if predicted and predicted.prediction else None
    if steps:
        answer = traced(answer, steps, slow, step, predicted.layout if predicted else None)
    answer.notes.extend(f"assumed: {each}" for each in known.assumed)
    evidence = DiagnosisEvidence(
        timed,
        predicted_terms(step) if step else {},
        shown.lanes if shown else (),
        shown.products if shown else (),
        predicted.machine.accelerator
        if predicted and predicted.machine
        else accelerator(asked.on)
        if asked.on
        else None,
    )
    show(Diagnosed(", ".join(map(str, logs or [])), run, answer, predicted, evidence), html=html, as_json=json)


def _of_record(path: Path) -> Diagnosed:
    record = read_record(record_path(path.parent, str(path)))
    return Diagnosed(
        str(path), record.begin.run, diagnosed_launch(record), None, DiagnosisEvidence(timed_steps(record))
    )


def _print_mfu(mfu: float, on: str, *, as_json: bool) -> None:
    """Print what a printed MFU is by the dense peak, if it divides by another."""
    device = accelerator(on)
    peak = dense_peak_flop_per_second(device, WORK_DTYPES[Precision.BF16])
    shares = dense_share(mfu, peak, Precision.BF16)
    if as_json:
        print_json({"accelerator": device.name, "mfu": mfu, "dense_mfu": shares})
    else:
        print_printed_mfu(console(), mfu, device.name, peak, shares)
    raise typer.Exit(exit_codes.FAIL if shares else exit_codes.INCONCLUSIVE)


def _completed(asked: Asked, known: Said) -> Asked:
    """The options, and in place of absent ones what the log says."""
    given = asked.training
    training = given._replace(
        batch=given.batch or known.batch,
        micro_batch=given.micro_batch or known.micro_batch,
        sequence=given.sequence or known.sequence,
    )
    return asked._replace(gpus=asked.gpus or known.gpus, training=training)


def _predicted(
    run: str | None, asked: Asked, layout: str | None, log: TrainingLog | None, machine: Path | None
) -> Predicted | None:
    if run is None:
        return None
    profile = None if machine is None else undisturbed_profile(machine)
    network = None if asked.network is None else asked.network * 1e9 / 8
    stack = asked.stack or (log.format.stack if log else None)
    request = PredictionRequest(
        asked.on, profile, layout, network, Prices(None, None, 1.0), stack, gpus=asked.gpus, training=asked.training
    )
    return predicted_run(run, request)


def _work(predicted: Predicted | None, asked: Asked) -> tuple[float | None, int | None, int | None]:
    """Tokens of a step, accelerators, and micro-batches of a step and rank, as far as they are known."""
    batch, sequence = asked.training.batch, asked.training.sequence
    if predicted is None or predicted.run is None or predicted.layout is None:
        return batch * sequence if batch and sequence else None, asked.gpus, None
    recipe, architecture = predicted.run.recipe, predicted.run.architecture
    tokens = recipe.global_batch * architecture.sequence
    return tokens, predicted.layout.ranks, accumulation(recipe, predicted.layout)


def _stated_seconds(step_time: float | None, rate: float | None, tokens: float | None, gpus: int | None) -> float:
    """Seconds of a step as they are stated, or of a rate of tokens.

    Raises:
        InputError: a rate, without the tokens of a step or the number of accelerators.
    """
    if step_time is not None:
        return step_time
    if rate is None or tokens is None or gpus is None:
        allowed = "--run, --batch and --gpus beside it, or --step-time"
        raise InputError("a rate alone makes no step time", allowed=allowed, where="--tokens-per-second")
    return tokens / gpus / rate
