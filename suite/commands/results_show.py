"""Show one record: what ran, where, how it ended, and its figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.commands.options import Json, Results, print_json
from suite.commands.pictures import SCHEDULE, check_picture, check_pipelined, draw_launch
from suite.job.slice import slowest
from suite.metrics.comparison import Row, compare, overall
from suite.paths import RESULTS
from suite.records.query import record_path
from suite.records.record import Record
from suite.records.store import read
from suite.report.slice import place_words, print_parts, slice_words, stopped_words
from suite.report.terminal.tables import console, print_comparison, print_folded, print_table, verdict_word
from suite.reproduce.judged_record import judged_rows
from suite.reproduce.repeat import repeating_command


def show_command(
    record: Annotated[
        str, typer.Argument(help="latest, an id, its beginning, its last 8 digits, or the path of a file.")
    ],
    schedule: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.png: a pipeline's passes, predicted and below it measured."),
    ] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Show one record, with verdict and predictions as its launch printed them; with --json the whole of it.

    Example: python -m suite results show latest

    Exit codes: 0 shown, 2 no such record, several, or a damaged one.
    """
    check_picture(schedule, SCHEDULE)
    whole = read(record_path(results, record))
    check_pipelined(schedule, whole.begin.job.layout)
    if json:
        entry = {"path": whole.path, "status": whole.status, "begin": whole.begin, "end": whole.end}
        print_json(entry)
    else:
        _print(whole)
    if schedule is not None:
        ranks, figures = (whole.end.ranks, whole.end.figures) if whole.end else ([], [])
        times = [rank.pipeline_times for rank in ranks]
        draw_launch(schedule, whole.begin.run, whole.begin.job.workload, times, figures)


def _print(record: Record) -> None:
    import pandas

    out = console()
    begin, end = record.begin, record.end
    job = begin.job
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begin.started))
    out.print(f"[bold]{escape(begin.run)}[/] {begin.id}: [bold]{record.status}[/], started {started}", soft_wrap=True)
    if end is not None and end.message:
        out.print(escape(end.message), soft_wrap=True)
    rows = [
        ["slice", "" if job.slice is None else f"{slice_words(job.slice)}, {place_words(job.slice)}"],
        ["layout", f"{layout_text(job.layout)}; {job.ranks} ranks on {job.device}"],
        ["execution", f"{'compiled' if job.compiled else 'eager'}, {job.steps} steps, seed {job.seed}"],
        ["changed", "; ".join(job.changes)],
        *([name, ", ".join(f"{k} {v}" for k, v in getattr(begin, name).items())] for name in ("hardware", "software")),
        ["node", begin.node],
        ["corpus", f"{begin.corpus.source}, sha256 {begin.corpus.sha256[:16]}"],
        ["profile", end.profile if end else ""],
        ["launch it again", repeating_command(begin) or ""],
    ]
    print_table(out, pandas.DataFrame([row for row in rows if row[1]], columns=["fact", "value"]), right=())
    out.print(f"record {escape(record.path)}", soft_wrap=True)
    if end is None:
        out.print("without a second half: nothing was measured")
        return
    if end.figures:
        compared, why_not = _rows(record)
        print_comparison(out, compared, left="predicted", right="measured")
        print_folded(out, why_not or f"verdict: {verdict_word(overall(compared))}", "bold")
    if times := slowest([rank.slice_times for rank in end.ranks if rank.slice_times]):
        print_parts(out, times)
        if words := stopped_words(job.slice, taken=len(end.ranks[0].steps), asked=job.steps):
            print_folded(out, words)
    elif end.ranks and end.ranks[0].steps:
        steps = end.ranks[0].steps
        out.print(f"loss {steps[0].loss:.3f} at step {steps[0].step}, {steps[-1].loss:.3f} at step {steps[-1].step}")
    for rank in end.ranks:
        if rank.failure:
            out.print(f"rank {rank.rank}, {rank.last}:\n{rank.failure}", markup=False)


def _rows(record: Record) -> tuple[list[Row], str]:
    """The rows as the launch printed them, by what this version of the suite predicts; or unjudged, and why."""
    assert record.end is not None
    try:
        return judged_rows(record), ""
    except (InputError, ValueError) as error:
        shown = compare(
            record.end.predicted, record.end.figures, left_name="predicted", right_name="measured", judge=False
        )
        return shown, f"not judged: {error}"
