"""A prediction in short: whether it fits, figures next to the published ones, where time and memory go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity
from suite.predict.analytic.stage_memory import StageMemory, fullest_instant
from suite.predict.analytic.step_time import StepTime
from suite.report.terminal.bars import bar
from suite.report.terminal.prediction import GIB, print_beside, read

LARGEST_TERMS = 3
_BAR_CELLS = 20
_FIGURES = (
    Quantity.PARAMETERS,
    Quantity.PEAK_BYTES,
    Quantity.STEP_SECONDS,
    Quantity.TOKENS_PER_SECOND,
    Quantity.MODEL_FLOP_PER_SECOND,
    Quantity.HARDWARE_FLOP_PER_SECOND,
    Quantity.MFU,
    Quantity.HFU,
    Quantity.TRAINING_SECONDS,
    Quantity.ACCELERATOR_SECONDS,
    Quantity.ENERGY_JOULES,
    Quantity.COST,
)
_IF_PUBLISHED = (Quantity.MODEL_FLOP_PER_SECOND, Quantity.HARDWARE_FLOP_PER_SECOND, Quantity.HFU)
SIGNS = "differences: predicted over published, less 1"


def exceeds(stages: Sequence[StageMemory], memory_bytes: float | None) -> bool:
    """Whether the fullest stage needs more memory than an accelerator has."""
    return memory_bytes is not None and any(stage.peak > memory_bytes for stage in stages)


def print_fit(out: Console, stages: Sequence[StageMemory], memory_bytes: float | None) -> None:
    """Print whether the fullest stage fits into an accelerator's memory."""
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    peak = stages[fullest].peak
    instant, _ = fullest_instant(stages[fullest])
    where = f"on a rank of stage {fullest}, {instant}"
    if memory_bytes is None:
        out.print(f"memory: {peak / GIB:,.4g} GiB {where}")
    elif exceeds(stages, memory_bytes):
        missing = f"{(peak - memory_bytes) / GIB:,.4g} GiB more than an accelerator has"
        out.print(f"[bold red]does not fit[/]: {missing}; {peak / GIB:,.4g} of {memory_bytes / GIB:,.4g} GiB {where}")
    else:
        out.print(f"[green]fits[/]: {peak / GIB:,.4g} of {memory_bytes / GIB:,.4g} GiB {where}")


def print_figures(out: Console, rows: Sequence[Row]) -> int:
    """Print one row for each of the main quantities; return how many published figures are left out."""
    whole = [row for row in rows if row.rank is None and row.stage is None and row.axis is None]
    main = [row for quantity in _FIGURES if (row := _main_row(whole, quantity)) is not None]
    print_beside(out, [(row, "") for row in main])
    return sum(row.right is not None for row in whole) - sum(row.right is not None for row in main)


def _main_row(rows: Sequence[Row], quantity: Quantity) -> Row | None:
    """The first that was published and predicted, else a predicted one of the whole, else what was published."""
    of_quantity = [row for row in rows if row.quantity == quantity]
    published = [row for row in of_quantity if row.right is not None]
    both = [row for row in published if row.left is not None]
    alone = [row for row in of_quantity if row.left is not None and (row.term is None or quantity is Quantity.COST)]
    ordered = [*both, *([] if quantity in _IF_PUBLISHED else alone), *published]
    return ordered[0] if ordered else None


def print_largest_times(out: Console, step: StepTime, uncertainty: float | None) -> None:
    """Print the largest terms of the step as bars."""
    expected = "" if uncertainty is None else f", expect errors of {uncertainty:.0%}"
    out.print(f"[bold]where the time goes[/]: {read(step.total_seconds, 'step_seconds')} a step{expected}")
    terms = {name.removesuffix("_seconds").replace("_", " "): seconds for name, seconds in step._asdict().items()}
    _print_largest(out, terms.items(), step.total_seconds, 1e-3 if step.total_seconds < 1 else 1.0)


def print_largest_memory(out: Console, stages: Sequence[StageMemory]) -> None:
    """Print the largest parts of the fullest stage's memory as bars."""
    full = max(stages, key=lambda stage: stage.peak)
    out.print("[bold]where the memory goes[/], in GiB")
    _print_largest(out, fullest_instant(full)[1].items(), full.peak, GIB)


def _print_largest(out: Console, parts: Iterable[tuple[str, float]], total: float, factor: float) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    for numeric in (True, True, False):
        table.add_column(justify="right" if numeric else "left", no_wrap=True)
    ordered = sorted((part for part in parts if part[1]), key=lambda part: -part[1])
    rest = ordered[LARGEST_TERMS:]
    if rest:
        ordered = [*ordered[:LARGEST_TERMS], (f"{len(rest)} more", sum(value for _, value in rest))]
    for name, value in ordered:
        share = value / total
        table.add_row(f"  {name}", f"{value / factor:,.4g}", f"{share:.1%}", bar(share, cells=_BAR_CELLS))
    out.print(table)
