"""One setup in full: its pictures, its figures, and the words of a launch that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suite.job.events import Status
from suite.job.slice import slowest
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.paths import program
from suite.records.record import Record
from suite.regression.segments import Segment
from suite.report.html.history import history
from suite.report.html.memory import memory
from suite.report.html.plot import Plot, utc
from suite.report.html.schedule import schedule
from suite.report.html.setups import JudgedSetup, Setup
from suite.report.html.step_time import traffic, waterfall
from suite.report.launch_lines import packing_lines, routing_lines, staleness_lines
from suite.report.slice import part_rows, slice_words
from suite.report.terminal.quantities import read
from suite.report.terminal.tables import difference
from suite.reproduce.repeat import repeating_command

LOG_LINES = 40  # of a failed launch: the last ones


class FigureLine(NamedTuple):
    """One row of the table of figures, as texts."""

    name: str
    left: str
    right: str
    difference: str
    tolerance: str
    verdict: str
    why: str


class Detail(NamedTuple):
    """Everything that the page shows of one setup besides its row."""

    about: list[tuple[str, str]]
    plots: list[Plot]
    rows: list[FigureLine]
    logs: list[tuple[str, str]]


def detail(judged: JudgedSetup, segments: Sequence[Segment]) -> Detail:
    """Pictures and tables of a setup; of its median launch, where one ended well."""
    setup, record = judged.setup, judged.record
    key = setup.key.id
    plots: list[Plot | None] = [history(key, segments)]
    if judged.rows:
        plots = [waterfall(key, judged.rows), traffic(key, judged.rows), *plots]
    if record is not None and setup.median is not None:
        plots[1:1] = [schedule(key, record), memory(key, record)]
    return Detail(
        about=_about(setup, record),
        plots=[plot for plot in plots if plot is not None],
        rows=[_line(row) for row in judged.rows if _is_shown(row)],
        logs=_logs(record) if setup.median is None else [],
    )


def _is_shown(row: Row) -> bool:
    """Rows of the whole job; those of a rank or stage where they failed; a step's terms are in their picture."""
    if row.quantity == Quantity.STEP_SECONDS and row.term is not None:
        return False
    return (row.rank is None and row.stage is None) or row.verdict is Verdict.FAIL


def _line(row: Row) -> FigureLine:
    rank = "" if row.rank is None else f"rank {row.rank}"
    return FigureLine(
        name=" ".join(filter(None, (row.quantity, row.axis, row.operation, row.term, rank))),
        left=_number(row.left, row),
        right=_number(row.right, row),
        difference=difference(row),
        tolerance="" if row.tolerance is None else f"{row.tolerance:.0%}",
        verdict=row.verdict.value,
        why=row.why or "",
    )


def _number(value: int | float | None, row: Row) -> str:
    return f"{value:,}" if isinstance(value, int) else read(value, row.quantity)


def _shown(setup: Setup, record: Record) -> str:
    """The launch whose pictures and figures are shown, and why that one."""
    median = setup.median
    if median is None or record.begin.id != median.id:
        return f"the last launch, {record.begin.id}"
    compared = len(setup.comparable)
    return f"the median of {compared} comparable launches, {median.id}" if compared > 1 else f"{median.id}"


def _about(setup: Setup, record: Record | None) -> list[tuple[str, str]]:
    last = setup.latest
    ended = Counter(launch.status for launch in setup.launches)
    about = [
        ("machine", setup.key.machine),
        ("launches", ", ".join(f"{count:,} {status}" for status, count in sorted(ended.items()))),
        *([("shown here", _shown(setup, record))] if record is not None else []),
        ("last launch", f"{utc(last.started)} UTC, {last.id}"),
        ("nodes", _counted(launch.node for launch in setup.launches)),
        ("seeds", _counted(str(launch.seed) for launch in setup.launches)),
    ]
    if record is None:
        return about
    begin, end = record.begin, record.end
    recipe, software = begin.job.recipe, begin.software
    if begin.job.slice is not None:
        about.append(("slice", slice_words(begin.job.slice)))
    if begin.job.synchronisation is not None:
        slow = "".join(f", slow rank {each}" for each in begin.job.slow_ranks)
        about.append(("synchronisation", f"{begin.job.synchronisation}, a parameter store on all ranks{slow}"))
    if begin.job.changes:
        about.append(("changed", "; ".join(begin.job.changes)))
    products = f", products in {recipe.product_format.value}" if recipe.product_format.casts else ""
    about += [
        ("precision and batch", f"{recipe.precision.value}{products}, {recipe.global_batch} samples"),
        ("steps", str(begin.job.steps)),
        ("software", f"suite {software.get('suite', '-')}; torch {software.get('torch', '-')}"),
    ]
    if end is not None:
        shares = [
            f"{share:.0%} {who}"
            for share, who in ((end.others_share, "other processes"), (end.steal_share, "other guests"))
            if share is not None
        ]
        about += [
            ("machine profile", end.profile.rpartition("/")[2].removesuffix(".json") or "none"),
            ("others on the processors", ", ".join(shares) or "unknown"),
        ]
        arithmetic = next((rank.arithmetic for rank in end.ranks if rank.arithmetic), "")
        if arithmetic:
            about.append(("arithmetic", arithmetic))
        about += [
            (name, f"{median} ({spread}, {repetitions} repetitions)")
            for times in [slowest([rank.slice_times for rank in end.ranks if rank.slice_times])]
            if times is not None
            for name, median, spread, repetitions in part_rows(times)
        ]
        about += [("experts", line.removeprefix("experts of ")) for line in routing_lines(r.routed for r in end.ranks)]
        about += [
            ("documents", each.removeprefix("documents: ")) for each in packing_lines(r.packed for r in end.ranks)
        ]
        stale = (each.partition(": ") for each in staleness_lines(rank.store_work for rank in end.ranks))
        about += [(name, words) for name, _, words in stale]
    about.append(("see all of it", f"{program()} results show {begin.id}"))
    if command := repeating_command(begin):
        about.append(("launch it again", command))
    return about


def _counted(values: Iterable[str]) -> str:
    """The first few of distinct values, and how many more."""
    distinct = list(dict.fromkeys(values))
    more = len(distinct) - 4
    return ", ".join(distinct[:4]) + (f" and {more} more" if more > 0 else "")


def _logs(record: Record | None) -> list[tuple[str, str]]:
    if record is None or record.end is None or record.end.status is Status.OK:
        return []
    logs = [(f"Rank {rank.rank}, after {rank.last}", _tail(rank.failure)) for rank in record.end.ranks if rank.failure]
    if record.end.log_tail.strip():
        logs.append(("Log", _tail(record.end.log_tail)))
    return logs[:3]


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-LOG_LINES:])
