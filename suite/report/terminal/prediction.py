"""A prediction for people: figures next to the published ones, conventions, traffic, and bars of time and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from reference_runs.units import printed
from suite.metrics.comparison import Row
from suite.metrics.difference_words import difference_in_words, direction_of
from suite.metrics.figures import Quantity
from suite.predict.analytic.memory_uncertainty import Fitting, MemoryVerdict
from suite.predict.analytic.step_time import StepTime
from suite.predict.analytic.usable_memory import UsableMemory
from suite.predict.recorded_run.alternatives import Choice
from suite.predict.recorded_run.described_memory import RankMemory
from suite.predict.recorded_run.figures import OF_A_LAYER, PART_OF_MODEL_FLOP, PART_OF_PARAMETERS
from suite.report.terminal.columns import fixed, percent
from suite.report.terminal.quantities import name_of, read, within
from suite.report.terminal.tables import bar, print_folded, print_table, row_name

GIB = 2**30
LARGEST_TERMS = 2  # that have a line of their own
NAMED_TERMS, NAMED_CHARACTERS = 2, 26  # at most, of all others, which share a line
_MAIN = (
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
FITTING_COLOURS = {MemoryVerdict.FITS: "green", MemoryVerdict.LIKELY: "yellow", MemoryVerdict.NOT: "red"}
_STAGE_CELLS = 12  # of a stage's bar
STAGE_ROWS = 16  # of a pipeline; of a longer one the first 12 and the last 3 stages are printed


def print_counts(out: Console, rows: Iterable[Row]) -> None:
    """Print what is predicted of a miniature, of which nothing is published, and why below it."""
    notes: list[str] = []
    whole = [row for row in rows if row.rank is row.stage is None]
    cells = [[row_name(row), printed(row.left, row.unit), _noted(_why(row), notes)] for row in whole]
    print_table(out, cells, ["quantity", "predicted", ""])
    _print_notes(out, notes)


def _why(row: Row) -> str:
    """Why a figure is what it is; that a miniature's is not published goes without saying."""
    return (row.why or "").removeprefix("not published").removeprefix(": ")


def _noted(note: str, notes: list[str]) -> str:
    """The number of a note, which is added where it is new; empty without one."""
    if note and note not in notes:
        notes.append(note)
    return f"({notes.index(note) + 1})" if note else ""


def _print_notes(out: Console, notes: Iterable[str]) -> None:
    for number, note in enumerate(notes, start=1):
        print_folded(out, f"({number}) {note}")


def print_published(out: Console, rows: list[Row]) -> None:
    """Print the figures that were published next to their predictions, and below them what each rests on."""
    notes: list[str] = []
    marked: list[tuple[Row, str]] = []
    whole = [row for row in rows if row.right is not None and row.stage is None and row.rank is None]
    answered = {row.quantity for row in whole if row.left is not None}
    for row in whole:
        if row.left is None and row.quantity in answered:
            continue
        why = None if row.left is None else row.why
        note = "; ".join(part for part in (row.term, row.convention, why) if part)
        marked.append((row, _noted(note, notes)))
    if marked:
        print_rows(out, marked)
    _print_notes(out, notes)


def print_rows(out: Console, rows: Iterable[tuple[Row, str]], *, marks: str = "") -> None:
    """Print rows with a mark each, under the title `marks`: predicted, published, and how the latter differs."""
    cells = []
    for row, mark in rows:
        apart = "" if row.right is None else "not predicted"
        if row.left is not None and row.right is not None:
            apart = difference_in_words(row.right, row.left, direction_of(row.quantity))
        right = "" if row.right is None else read(row.right, row.quantity)
        cells.append([name_of(row.quantity), read(row.left, row.quantity), right, apart, mark])
    titles = ["quantity", "predicted", "published", "published is", marks]
    if not any(row[2] for row in cells):
        cells = [[*row[:2], row[4]] for row in cells]
        titles = [*titles[:2], marks]
    print_table(out, cells, titles, right=[*titles[1:-1], *filter(None, [marks])], optional=["published"])


def print_predicted(out: Console, rows: list[Row]) -> None:
    """Print what is predicted alone: parts and conventions, bytes and rates, the largest over stages."""
    whole = [row for row in rows if row.left is not None and row.stage is None and row.rank is None and not row.axis]
    for title, convention in (
        ("parameters", PART_OF_PARAMETERS),
        ("model flop of a step", PART_OF_MODEL_FLOP),
        ("activations of a layer and micro-batch", OF_A_LAYER),
    ):
        parts = [row for row in whole if row.convention == convention and row.left]
        if parts:
            _print_parts(out, title, parts)
    flop = [
        row
        for row in whole
        if row.quantity in (Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP) and row.convention != PART_OF_MODEL_FLOP
    ]
    shares = (f"{(row.left or 0) / (flop[0].left or 1):.4f}" for row in flop)
    cells = [
        [name_of(row.quantity), read(row.left, row.quantity), share, row.term or row.convention or ""]
        for row, share in zip(flop, shares, strict=True)
    ]
    out.print()
    print_table(out, cells, ["flop of a step", "predicted", "of model_flop", "convention"], right=_NUMBERS)
    cells = []
    for row in whole:
        if row.quantity in _SHOWN and row.right is None and (row.term is None or _tells(row)):
            reason = "; ".join(part for part in (row.term, row.convention, _why(row)) if part)
            cells.append([name_of(row.quantity), read(row.left, row.quantity), reason])
    out.print()
    print_table(out, cells, ["not published", "predicted", ""], right=_NUMBERS)


_NUMBERS = ("predicted", "of model_flop", "share")
_SHOWN = (
    Quantity.PARAMETERS,
    Quantity.WEIGHT_BYTES,
    Quantity.GRADIENT_BYTES,
    Quantity.OPTIMIZER_BYTES,
    Quantity.ACTIVATION_BYTES,
    Quantity.PEAK_BYTES,
    Quantity.BUBBLE_FRACTION,
    Quantity.STEP_SECONDS,
    Quantity.MFU,
    Quantity.HFU,
    Quantity.FIRST_LOSS,
    Quantity.TRAINING_FLOP,
    Quantity.TRAINING_SECONDS,
    Quantity.ACCELERATOR_SECONDS,
    Quantity.ENERGY_JOULES,
    Quantity.COST,
)


def _tells(row: Row) -> bool:
    """Whether a row with a term is a figure of its own, not a part of another."""
    return row.quantity == Quantity.COST or (row.quantity == Quantity.PARAMETERS and row.convention is None)


def _print_parts(out: Console, title: str, rows: Sequence[Row]) -> None:
    total = sum(row.left or 0 for row in rows)
    shares = [(row, (row.left or 0) / total) for row in rows]
    cells = [[row.term or "", read(row.left, row.quantity), percent(share), bar(share)] for row, share in shares]
    out.print()
    print_table(out, cells, [title, "predicted", "share", ""], right=_NUMBERS)


def print_traffic(out: Console, rows: list[Row], leaving: dict[str, float]) -> None:
    """Print payload, sent bytes and messages by axis and collective, the largest over stages.

    Args:
        leaving: by axis, the share of the links of its ring that leave a node; empty without a machine.
    """
    kinds: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row.axis and row.operation and row.left is not None and row.stage is None:
            kinds.setdefault((row.axis, row.operation), {})[row.quantity] = row.left
    if not kinds:
        return
    counted = (Quantity.PAYLOAD_BYTES, Quantity.SENT_BYTES, Quantity.MESSAGES)
    cells = []
    for (axis, operation), values in kinds.items():
        share = f"{100 * leaving[axis]:.0f} %" if axis in leaving else "-"
        cells.append([axis, operation, *(read(values.get(quantity), quantity) for quantity in counted), share])
    titles = ["traffic of a rank and step", "collective", "payload", "sent", "messages", "links between nodes"]
    out.print()
    print_table(out, cells, titles, right=titles[2:])


def print_choices(out: Console, choices: list[Choice]) -> None:
    """Print limits and alternatives, topic by topic."""
    for topic in dict.fromkeys(choice.topic for choice in choices):
        cells = []
        for choice in choices:
            if choice.topic == topic:
                words = choice.value if isinstance(choice.value, str) else ""
                note = "; ".join(part for part in (words, choice.note) if part)
                cells.append([choice.name, "" if words else _amount(choice.value, choice.unit), note])
        out.print()
        print_table(out, cells, [topic, "", " "], right=[""])


def _amount(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if unit == "byte":
        return f"{value / GIB:,.4g} GiB"
    if unit == "byte/s":
        return f"{value / 1e9:,.4g} GB/s"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text if unit == "1" else f"{text} {unit}"


def print_bars(
    out: Console, titles: tuple[str, str], parts: Iterable[tuple[str, float]], total: float, factor: float = 1
) -> None:
    """Print parts of a total as numbers, in units of `factor`, shares and bars; parts of nothing are left out."""
    shares = [(name, value, value / total) for name, value in parts if value]
    numbers = fixed([value / factor for _, value, _ in shares])
    cells = [
        [name, number, percent(share), bar(share)] for (name, _, share), number in zip(shares, numbers, strict=True)
    ]
    print_table(out, cells, [*titles, "share", ""], right=[titles[1], "share"])


def print_time(out: Console, step: StepTime, interval: tuple[float, float] | None) -> None:
    """Print the terms of a step as bars over the whole step."""
    parts = [(name.removesuffix("_seconds").replace("_", " "), seconds) for name, seconds in step._asdict().items()]
    lies = "" if interval is None else f", 80 % between {within(interval, Quantity.STEP_SECONDS)}"
    out.print(f"\n[bold]where the time goes[/]: {printed(step.total_seconds, 's')} s a step{lies}, slowest stage")
    unit, factor = ("ms", 1e-3) if step.total_seconds < 1 else ("s", 1.0)
    print_bars(out, ("term", unit), parts, step.total_seconds, factor)


def print_memory(out: Console, stages: tuple[RankMemory, ...], *, memory_bytes: float | None) -> None:
    """Print what lives on a rank of the fullest stage at its fullest instant, and every stage with the memory."""
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    full = stages[fullest]
    instant, parts = full.fullest_instant()
    of = f" of {memory_bytes / GIB:,.1f}" if memory_bytes else ""
    out.print(
        f"\n[bold]where the memory goes[/]: {full.peak / GIB:,.1f}{of} GiB on a rank of stage {fullest}, {instant}"
    )
    print_bars(out, ("part", "GiB"), parts.items(), full.peak, GIB)
    if len(stages) == 1:
        return
    limit = memory_bytes or full.peak
    rows = []
    for first, last, memory in _runs(stages):
        label = str(first) if first == last else f"{first}-{last}"
        held = (
            *(memory.state, memory.activations, memory.logits),
            *(memory.after_forward, memory.after_backward, memory.at_update),
        )
        drawn = bar(memory.peak / limit, cells=_STAGE_CELLS)
        over = " over" if memory_bytes and memory.peak > memory_bytes else ""
        rows.append([label, *(f"{held_bytes / GIB:,.2f}" for held_bytes in held), drawn + over])
    if len(rows) > STAGE_ROWS:
        rows[STAGE_ROWS - 4 : -3] = [["...", *[""] * 7]]
    titles = ["GiB of stage", "state", "activations", "logits", "forward", "backward", "update", ""]
    out.print()
    print_table(out, rows, titles, right=titles[:-1])


def _runs(stages: tuple[RankMemory, ...]) -> list[tuple[int, int, RankMemory]]:
    """First and last stage of each row of stages that hold the same."""
    runs: list[tuple[int, int, RankMemory]] = []
    for stage, memory in enumerate(stages):
        if runs and runs[-1][2] == memory:
            runs[-1] = (runs[-1][0], stage, memory)
        else:
            runs.append((stage, stage, memory))
    return runs


def print_fit(out: Console, stages: Sequence[RankMemory], memory: UsableMemory | None, fitting: Fitting | None) -> None:
    """Print whether the fullest stage fits into what of an accelerator's memory is usable, and what is not."""
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    peak = stages[fullest].peak
    instant, _ = stages[fullest].fullest_instant()
    where = f"fullest {f'on stage {fullest} ' if len(stages) > 1 else ''}{instant}"
    need = f"{peak / GIB:,.1f} GiB"
    if memory is None or fitting is None:
        print_folded(out, f"peak memory: {need}, {where}", "")
        return
    usable = memory.usable
    words = f"{fitting.words}: {need} of {usable / GIB:,.1f} usable, {where}"
    print_folded(out, words, f"bold {FITTING_COLOURS[fitting.verdict]}")


def print_figures(out: Console, rows: Sequence[Row], intervals: Mapping[str, tuple[float, float]]) -> int:
    """Print one row for each of the main quantities; return how many published figures are left out.

    Args:
        intervals: in which 80 % of such quantities lie.
    """
    whole = [row for row in rows if row.rank is None and row.stage is None and row.axis is None]
    main = [row for quantity in _MAIN if (row := _main_row(whole, quantity)) is not None]
    marked = [(row, _between(intervals, row.quantity)) for row in main]
    print_rows(out, marked, marks="80 % between" if intervals else "")
    return sum(row.right is not None for row in whole) - sum(row.right is not None for row in main)


def _between(intervals: Mapping[str, tuple[float, float]], quantity: str) -> str:
    """The interval as short as a column of 80 has room for: "141–245 GiB"; empty without one."""
    return within(intervals[quantity], quantity).replace(" to ", "\u2013") if quantity in intervals else ""


def _main_row(rows: Sequence[Row], quantity: Quantity) -> Row | None:
    """The first that was published and predicted, else a predicted one of the whole, else what was published."""
    of_quantity = [row for row in rows if row.quantity == quantity]
    published = [row for row in of_quantity if row.right is not None]
    both = [row for row in published if row.left is not None]
    alone = [row for row in of_quantity if row.left is not None and (row.term is None or quantity is Quantity.COST)]
    ordered = [*both, *([] if quantity in _IF_PUBLISHED else alone), *published]
    return ordered[0] if ordered else None


def print_largest_times(out: Console, step: StepTime) -> None:
    """Print the largest terms of the step as bars."""
    terms = {name.removesuffix("_seconds").replace("_", " "): seconds for name, seconds in step._asdict().items()}
    unit, factor = ("ms", 1e-3) if step.total_seconds < 1 else ("s", 1.0)
    print_bars(out, ("where the time goes", unit), _largest(terms), step.total_seconds, factor)


def print_largest_memory(out: Console, stages: Sequence[RankMemory]) -> None:
    """Print the largest parts of the fullest stage's memory as bars."""
    full = max(stages, key=lambda stage: stage.peak)
    print_bars(out, ("where the memory goes", "GiB"), _largest(full.fullest_instant()[1]), full.peak, GIB)


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """The largest parts, and the sum of the others, of which the larger are named."""
    ordered = sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])
    rest = ordered[LARGEST_TERMS:]
    named = [name for name, _ in rest[:NAMED_TERMS]]
    while named and len(", ".join(named)) > NAMED_CHARACTERS:
        named.pop()
    if len(rest) > len(named):
        named.append(f"{len(rest) - len(named)} more")
    more = [(", ".join(named), sum(value for _, value in rest))] if rest else []
    return [*ordered[:LARGEST_TERMS], *more]
