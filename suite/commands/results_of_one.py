"""Commands on single records: show one, compare two."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.commands import exit_codes
from suite.commands.new_file import Force
from suite.commands.options import Json, Results, print_json
from suite.commands.pictures import SCHEDULE, check_picture, check_pipelined, draw_launch
from suite.job.slice import slowest
from suite.metrics.comparison import Row, Verdict, compare, overall
from suite.metrics.figures import Quantity
from suite.paths import RESULTS
from suite.records.diff import DifferingFact, difference
from suite.records.query import record_path
from suite.records.record import Record
from suite.records.store import read
from suite.report.slice import place_words, print_parts, slice_words, stopped_words
from suite.report.terminal.device_kernels import print_kernels
from suite.report.terminal.tables import console, print_comparison, print_folded, print_table, verdict_word
from suite.reproduce.judged_record import judged_rows
from suite.reproduce.repeat import repeating_command

NO_KERNELS = "no kernels: only GPUs have any, with 8 steps or more, and records from schema 1.10 on keep them"


def show_command(
    record: Annotated[
        str, typer.Argument(help="latest, an id, its beginning, its last 8 digits, or the path of a file.")
    ],
    schedule: Annotated[
        Path | None,
        typer.Option(readable=False, help="FILE.png: a pipeline's passes, predicted and below it measured."),
    ] = None,
    force: Force = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Print each GPU kernel of a profiled step.")] = False,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Show one record, with verdict and predictions as its launch printed them; with --json the whole of it.

    Example: python -m suite results show latest

    Exit codes: 0 shown, 2 no such record, several, or a damaged one.
    """
    check_picture(schedule, SCHEDULE, force=force)
    whole = read(record_path(results, record))
    check_pipelined(schedule, whole.begin.job.layout)
    if json:
        entry = {"path": whole.path, "status": whole.status, "begin": whole.begin, "end": whole.end}
        print_json(entry)
    else:
        _print(whole, each_kernel=kernels)
    if schedule is not None:
        ranks, figures = (whole.end.ranks, whole.end.figures) if whole.end else ([], [])
        times = [rank.pipeline_times for rank in ranks]
        draw_launch(schedule, whole.begin.run, whole.begin.job.workload, times, figures)


def _print(record: Record, *, each_kernel: bool) -> None:
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
    if end.ranks and end.ranks[0].device_kernels:
        print_kernels(out, end.ranks[0].device_kernels, each=each_kernel)
    elif each_kernel:
        print_folded(out, NO_KERNELS)
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


def diff_command(
    left: Annotated[
        str, typer.Argument(help="latest, an id, its beginning, its last 8 digits, or the path of a file.")
    ],
    right: Annotated[str, typer.Argument(help="Another one, named alike.")],
    quantity: Annotated[
        list[str] | None, typer.Option(help="Only this one, for instance --quantity step_seconds; several times.")
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Print figures of each rank too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print figures that are the same too.")] = False,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Show what differs between two records: facts, then figures; right less left.

    A time of one launch each is shown, and not judged. With --json every figure, of each rank too.

    Example: python -m suite results diff 75741f03 1a2b3c4d --quantity payload_bytes --ranks

    Exit codes: 0 all exact figures agree, 1 one differs, 2 bad input, 3 no figures to compare.
    """
    for name in quantity or ():
        if name not in tuple(Quantity):
            raise InputError("unknown quantity", got=repr(name), allowed=", ".join(Quantity), where="--quantity")
    compared = difference(read(record_path(results, left)), read(record_path(results, right)))
    rows = [row for row in compared.figures if not quantity or row.quantity in quantity]
    failed = any(row.verdict is Verdict.FAIL for row in rows)
    if json:
        entry = {
            "left": compared.left,
            "right": compared.right,
            "facts": compared.facts,
            "figures": rows,
            "agree": not failed,
        }
        print_json(entry)
    else:
        out = console()
        out.print(f"left {compared.left}, right {compared.right}")
        _print_facts(out, compared.facts)
        shown = [row for row in rows if everything or row.difference != 0]
        shown = [_of_rank(row) if ranks else row for row in shown]
        if shown:
            print_comparison(out, shown, left="left", right="right")
        else:
            out.print("no figure differs" if rows else "no figures to compare")
    raise typer.Exit(exit_codes.INCONCLUSIVE if not rows else exit_codes.FAIL if failed else exit_codes.PASS)


def _print_facts(out: Console, facts: Sequence[DifferingFact]) -> None:
    import pandas

    if not facts:
        out.print("all facts are the same")
        return
    frame = pandas.DataFrame(
        {
            "differs": [fact.name for fact in facts],
            "left": [fact.left or "-" for fact in facts],
            "right": [fact.right or "-" for fact in facts],
        }
    )
    print_table(out, frame, right=())


def _of_rank(row: Row) -> Row:
    """The row with its rank in words: tables show rows of single ranks only where they fail."""
    if row.rank is None:
        return row
    words = " ".join(part for part in (row.term, f"rank {row.rank}") if part)
    return msgspec.structs.replace(row, rank=None, stage=None, term=words)
