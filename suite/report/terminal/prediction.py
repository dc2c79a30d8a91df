"""All of a prediction for people: published figures, conventions, traffic, and bars of time and memory."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.metrics.comparison import Row
from suite.metrics.figures import UNIT, Quantity
from suite.predict.analytic.stage_memory import StageMemory, fullest_instant
from suite.predict.analytic.step_time import StepTime
from suite.predict.recorded_run.alternatives import Choice
from suite.predict.recorded_run.figures import OF_A_LAYER, PART_OF_MODEL_FLOP, PART_OF_PARAMETERS
from suite.report.terminal.bars import bar
from suite.report.terminal.tables import percent

GIB = 2**30
_WIDE = 80  # columns of a terminal that has room for what was published, which the difference tells too
STAGE_ROWS = 16  # of a pipeline; of a longer one the first 12 and the last 3 stages are printed


# Units that people read instead of a base unit, the largest first.
_FLOP = tuple((10.0**power, f"{prefix}flop") for power, prefix in zip(range(21, 0, -3), "ZEPTGMk", strict=True))
_READ_IN: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")),
    "accelerator s": ((3600, "h"),),
    "J": ((3.6e9, "MWh"), (3.6e6, "kWh"), (1, "J")),
    "byte": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "byte")),
    "flop": (*_FLOP, (1, "flop")),
    "flop/s": (*((factor, f"{unit}/s") for factor, unit in _FLOP), (1, "flop/s")),
    "token/s": ((1, "token/s"),),
}


def read(value: float | None, quantity: str) -> str:
    """`value`, in base units, as people read it: in a unit of its size, with four digits; counts in full.

    Step times stay in seconds, as they are published.
    """
    if value is None:
        return "-"
    units = _READ_IN.get(UNIT[Quantity(quantity)], ())
    if quantity == Quantity.STEP_SECONDS:
        units = ((1, "s"),)
    if not units:
        return printed(value, "1")
    factor, unit = next((each for each in units if abs(value) >= each[0]), units[-1])
    scaled = value / factor
    return f"{scaled:,.4g} {unit}" if scaled < 1e4 else f"{scaled:,.0f} {unit}"


def print_counts(out: Console, rows: Iterable[Row]) -> None:
    """Print what is predicted of a miniature, of which nothing is published."""
    table = _table(("quantity", False), ("axis", False), ("predicted", True), ("", False))
    for row in rows:
        if row.rank is row.stage is None:
            why = (row.why or "").removeprefix("not published").removeprefix(": ")
            axis = " ".join(part for part in (row.axis, row.operation, row.term) if part)
            table.add_row(row.quantity, axis, printed(row.left, row.unit), f"[dim]{escape(why)}[/]")
    out.print(table)


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
        if note and note not in notes:
            notes.append(note)
        marked.append((row, f"({notes.index(note) + 1})" if note else ""))
    if marked:
        print_beside(out, marked)
    for number, note in enumerate(notes, start=1):
        out.print(f"[dim]({number}) {escape(note)}[/]")


def print_beside(out: Console, rows: Iterable[tuple[Row, str]]) -> None:
    """Print rows with a mark each: predicted, published where the terminal is wide enough, and the difference."""
    wide = out.width >= _WIDE
    published = [("published", True)] if wide else []
    table = _table(("quantity", False), ("predicted", True), *published, ("difference", True), ("", False))
    for row, mark in rows:
        apart = "" if row.right is None else "not predicted"
        if row.difference is not None:
            apart = percent(-row.difference, row.right) if row.right and row.difference else "0"
        right = "" if row.right is None else read(row.right, row.quantity)
        table.add_row(row.quantity, read(row.left, row.quantity), *([right] if wide else []), apart, mark)
    out.print(table)


def print_predicted(out: Console, rows: list[Row]) -> None:
    """Print what is predicted alone: parts and conventions, bytes and rates, the largest over stages."""
    whole = [row for row in rows if row.left is not None and row.stage is None and row.rank is None and not row.axis]
    parts = {
        "parameters": [row for row in whole if row.convention == PART_OF_PARAMETERS],
        "model flop of a step": [row for row in whole if row.convention == PART_OF_MODEL_FLOP],
        "activations of a layer and micro-batch": [row for row in whole if row.convention == OF_A_LAYER],
    }
    flop = [
        row
        for row in whole
        if row.quantity in (Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP) and row.convention != PART_OF_MODEL_FLOP
    ]
    for title, of_title in parts.items():
        if of_title:
            out.print()
            out.print(_parts(title, of_title))
    table = _table(("flop of a step", False), ("", True), ("of model_flop", True), ("convention", False))
    for row in flop:
        share = f"{(row.left or 0) / (flop[0].left or 1):.4f}"
        table.add_row(row.quantity, read(row.left, row.quantity), share, row.term or row.convention or "")
    out.print()
    out.print(table)
    table = _table(("predicted, not published", False), ("", True), ("", False))
    for row in whole:
        if row.quantity in _SHOWN and row.right is None and (row.term is None or _tells(row)):
            why = (row.why or "").removeprefix("not published").removeprefix(": ")
            reason = "; ".join(part for part in (row.term, row.convention, why) if part)
            table.add_row(row.quantity, read(row.left, row.quantity), f"[dim]{escape(reason)}[/]")
    out.print()
    out.print(table)


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
    return (
        row.quantity == Quantity.COST
        or row.term == "reserved"
        or (row.quantity == Quantity.PARAMETERS and row.convention is None)
    )


def _parts(title: str, rows: list[Row]) -> Table:
    table = _table((title, False), ("", True), ("share", True), ("", False))
    total = sum(row.left or 0 for row in rows)
    for row in rows:
        if row.left:
            share = row.left / total
            table.add_row(row.term or "", read(row.left, row.quantity), f"{share:.1%}", bar(share, cells=20))
    return table


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
    table = _table(
        ("traffic of a rank and step", False),
        ("collective", False),
        ("payload", True),
        ("sent", True),
        ("messages", True),
        ("links between nodes", True),
    )
    for (axis, operation), values in kinds.items():
        cells = [
            read(values.get(quantity), quantity)
            for quantity in (Quantity.PAYLOAD_BYTES, Quantity.SENT_BYTES, Quantity.MESSAGES)
        ]
        table.add_row(axis, operation, *cells, f"{leaving[axis]:.0%}" if axis in leaving else "-")
    out.print()
    out.print(table)


def print_choices(out: Console, choices: list[Choice]) -> None:
    """Print limits and alternatives, topic by topic."""
    for topic in dict.fromkeys(choice.topic for choice in choices):
        table = _table((topic, False), ("", True), ("", False))
        for choice in choices:
            if choice.topic == topic:
                words = choice.value if isinstance(choice.value, str) else ""
                note = "; ".join(part for part in (words, choice.note) if part)
                cells = "" if words else _amount(choice.value, choice.unit)
                table.add_row(escape(choice.name), cells, f"[dim]{escape(note)}[/]")
        out.print()
        out.print(table)


def _amount(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if unit == "byte":
        return f"{value / 1e9:,.4g} GB"
    if unit == "byte/s":
        return f"{value / 1e9:,.4g} GB/s"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text if unit == "1" else f"{text} {unit}"


def _table(*titles: tuple[str, bool]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, (title, numeric) in enumerate(titles):
        last = index == len(titles) - 1
        table.add_column(title, justify="right" if numeric else "left", no_wrap=not last, overflow="fold")
    return table


def _bars(title: str, unit: str, parts: Iterable[tuple[str, float]], total: float, factor: float = 1) -> Table:
    table = _table((title, False), (unit, True), ("share", True), ("", False))
    for name, value in parts:
        if value:
            table.add_row(name, f"{value / factor:,.3f}", f"{value / total:.1%}", bar(value / total))
    return table


def print_time(out: Console, step: StepTime) -> None:
    """Print the terms of a step as bars over the whole step."""
    parts = [(name.removesuffix("_seconds").replace("_", " "), seconds) for name, seconds in step._asdict().items()]
    out.print(f"\n[bold]where the time goes[/]: {printed(step.total_seconds, 's')} s a step, slowest stage")
    in_milliseconds = step.total_seconds < 1
    out.print(
        _bars("term", "ms" if in_milliseconds else "s", parts, step.total_seconds, 1e-3 if in_milliseconds else 1)
    )


def print_memory(out: Console, stages: tuple[StageMemory, ...], *, memory_bytes: float | None) -> None:
    """Print what lives on a rank of the fullest stage at its fullest instant, and every stage with the memory."""
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    full = stages[fullest]
    instant, parts = fullest_instant(full)
    of = f" of {memory_bytes / GIB:,.4g}" if memory_bytes else ""
    out.print(
        f"\n[bold]where the memory goes[/]: {full.peak / GIB:,.4g}{of} GiB on a rank of stage {fullest}, {instant}"
    )
    out.print(_bars("part", "GiB", parts.items(), full.peak, GIB))
    if len(stages) == 1:
        return
    out.print()
    table = _table(
        ("stage", True),
        ("state GiB", True),
        ("activations", True),
        ("logits", True),
        ("after forward", True),
        ("after backward", True),
        ("at update", True),
        ("", False),
    )
    limit = memory_bytes or full.peak
    rows = _runs(stages)
    for index, (first, last, memory) in enumerate(rows):
        if len(rows) > STAGE_ROWS and STAGE_ROWS - 4 <= index < len(rows) - 3:
            if index == STAGE_ROWS - 4:
                table.add_row("...")
            continue
        label = str(first) if first == last else f"{first}-{last}"
        cells = (
            memory.state,
            memory.activations,
            memory.logits,
            memory.after_forward,
            memory.after_backward,
            memory.at_update,
        )
        drawn = bar(memory.peak / limit) + (" over" if memory_bytes and memory.peak > memory_bytes else "")
        table.add_row(label, *(f"{cell / GIB:,.2f}" for cell in cells), drawn)
    out.print(table)


def _runs(stages: tuple[StageMemory, ...]) -> list[tuple[int, int, StageMemory]]:
    """First and last stage of each row of stages that hold the same."""
    runs: list[tuple[int, int, StageMemory]] = []
    for stage, memory in enumerate(stages):
        if runs and runs[-1][2] == memory:
            runs[-1] = (runs[-1][0], stage, memory)
        else:
            runs.append((stage, stage, memory))
    return runs
