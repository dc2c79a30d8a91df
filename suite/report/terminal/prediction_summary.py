"""A prediction in short: whether it fits, figures next to the published ones, where time and memory go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity
from suite.predict.analytic.stage_memory import StageMemory, fullest_instant
from suite.predict.analytic.step_time import StepTime
from suite.report.terminal.prediction import GIB, print_bars, print_beside
from suite.report.terminal.tables import print_folded

LARGEST_TERMS = 3
_FIGURES = (
    Quantity.PARAMETERS,
    Quantity.PEAK_BYTES,
    Quantity.STEP_SECONDS,
    Quantity.TOKENS_PER_SECOND,
    Quantity.MODEL_FLOP_PER_SECOND,
    Quantity.HARDWARE_FLOP_PER_SECOND,
    Quantity.MFU,
    Quantity.TRAINING_SECONDS,
    Quantity.ACCELERATOR_SECONDS,
    Quantity.ENERGY_JOULES,
    Quantity.COST,
)
_IF_PUBLISHED = (Quantity.MODEL_FLOP_PER_SECOND, Quantity.HARDWARE_FLOP_PER_SECOND)
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
        print_folded(out, f"memory: {peak / GIB:,.4g} GiB {where}", "")
    elif exceeds(stages, memory_bytes):
        missing = f"{(peak - memory_bytes) / GIB:,.4g} GiB more than an accelerator has"
        of = f"{peak / GIB:,.4g} of {memory_bytes / GIB:,.4g} GiB {where}"
        print_folded(out, f"does not fit: {missing}; {of}", "bold red")
    else:
        print_folded(out, f"fits: {peak / GIB:,.4g} of {memory_bytes / GIB:,.4g} GiB {where}", "green")


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
    title = "where the time goes" if uncertainty is None else f"where the time goes, within ± {uncertainty:.0%}"
    terms = {name.removesuffix("_seconds").replace("_", " "): seconds for name, seconds in step._asdict().items()}
    unit, factor = ("ms", 1e-3) if step.total_seconds < 1 else ("s", 1.0)
    print_bars(out, (title, unit), _largest(terms), step.total_seconds, factor)


def print_largest_memory(out: Console, stages: Sequence[StageMemory]) -> None:
    """Print the largest parts of the fullest stage's memory as bars."""
    full = max(stages, key=lambda stage: stage.peak)
    print_bars(out, ("where the memory goes", "GiB"), _largest(fullest_instant(full)[1]), full.peak, GIB)


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """The largest parts, and the sum of the others."""
    ordered = sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])
    rest = ordered[LARGEST_TERMS:]
    more = [(f"{len(rest)} more", sum(value for _, value in rest))] if rest else []
    return [*ordered[:LARGEST_TERMS], *more]
