"""A prediction for people: figures beside published ones, conventions, traffic, and bars of time and memory."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.compare import Row
from suite.figures import UNIT, Quantity
from suite.predict.choices import Choice
from suite.predict.memory import StageMemory
from suite.predict.step import StepTime

BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
GIB = 2**30
STAGE_ROWS = 16  # of a pipeline; of a longer one the first 12 and the last 3 stages are printed
_MEMORY_PARTS = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("gradient copy", "gradient_copy"),
    ("master weights", "master_weights"),
    ("moments", "moments"),
    ("activations", "activations"),
    ("logits", "logits"),
    ("recomputed layers", "recomputed"),
    ("communication buffers", "buffers"),
    ("temporary", "temporary"),
)


_WITH_TERMS = (Quantity.PEAK_BYTES, Quantity.COST)

# Units that people read instead of a base unit, the largest first.
_FLOP = tuple((10.0**power, f"{prefix}flop") for power, prefix in zip(range(24, 0, -3), "YZEPTGMk", strict=True))
_READ_IN: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")),
    "accelerator s": ((3600, "accelerator h"),),
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


def print_published(out: Console, rows: list[Row]) -> None:
    """Print the figures that have both a prediction and a publication, then what is predicted of the whole job."""
    table = _table(("quantity", False), ("predicted", True), ("published", True), ("difference", True), ("", False))
    for row in rows:
        if row.right is None or row.stage is not None or row.rank is not None:
            continue
        if row.difference is None:
            difference = "not predicted"
        else:
            difference = f"{row.difference / row.left:+.2%}" if row.left and row.difference else "0"
        basis = "; ".join(part for part in (row.term, row.convention, row.why) if part)
        values = (read(row.left, row.quantity), read(row.right, row.quantity))
        table.add_row(row.quantity, *values, difference, f"[dim]{escape(basis)}[/]")
    if table.row_count:
        out.print(table)


def print_predicted(out: Console, rows: list[Row]) -> None:
    """Print what nobody published: flop of a step by convention, bytes, traffic and rates, the largest over stages."""
    whole = [row for row in rows if row.left is not None and row.stage is None and row.rank is None]
    flop = [row for row in whole if row.quantity in (Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP)]
    table = _table(("flop of a step", False), ("", True), ("of model_flop", True), ("convention", False))
    for row in flop:
        share = f"{(row.left or 0) / (flop[0].left or 1):.4f}"
        table.add_row(row.quantity, read(row.left, row.quantity), share, row.term or row.convention or "")
    out.print()
    out.print(table)
    shown = (
        Quantity.WEIGHT_BYTES,
        Quantity.GRADIENT_BYTES,
        Quantity.OPTIMIZER_BYTES,
        Quantity.ACTIVATION_BYTES,
        Quantity.PEAK_BYTES,
        Quantity.BUBBLE_FRACTION,
        Quantity.STEP_SECONDS,
        Quantity.MFU,
        Quantity.FIRST_LOSS,
        Quantity.TRAINING_FLOP,
        Quantity.TRAINING_SECONDS,
        Quantity.ACCELERATOR_SECONDS,
        Quantity.ENERGY_JOULES,
        Quantity.COST,
    )
    table = _table(("predicted, not published", False), ("", True), ("", False))
    for row in whole:
        if row.quantity in shown and row.right is None and (row.term is None or row.quantity in _WITH_TERMS):
            reason = "; ".join(part for part in (row.term, row.convention, _own(row)) if part)
            table.add_row(row.quantity, read(row.left, row.quantity), f"[dim]{escape(reason)}[/]")
    out.print()
    out.print(table)
    _print_traffic(out, whole)


def _own(row: Row) -> str:
    why = row.why or ""
    return "" if why.startswith(("not published", "published")) else why


def _print_traffic(out: Console, rows: list[Row]) -> None:
    kinds: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row.axis and row.operation and row.left is not None:
            kinds.setdefault((row.axis, row.operation), {})[row.quantity] = row.left
    if not kinds:
        return
    titles = ("traffic of a rank and step", "collective"), ("payload", "sent", "messages")
    table = _table(*((title, False) for title in titles[0]), *((title, True) for title in titles[1]))
    for (axis, operation), values in kinds.items():
        cells = [
            read(values.get(quantity), quantity)
            for quantity in (Quantity.PAYLOAD_BYTES, Quantity.SENT_BYTES, Quantity.MESSAGES)
        ]
        table.add_row(axis, operation, *cells)
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


def bar(share: float, *, cells: int = BAR_CELLS) -> str:
    """A bar over `share` (0 to 1, longer ones are cut) of `cells` character cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _table(*titles: tuple[str, bool]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, (title, numeric) in enumerate(titles):
        last = place == len(titles) - 1
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
    out.print(_bars("term", "s", parts, step.total_seconds))


def print_memory(out: Console, stages: tuple[StageMemory, ...], *, memory_bytes: float | None) -> None:
    """Print the parts of the fullest stage as bars over its peak, and every stage's peak beside the memory.

    Parts that do not live at the same instant add up to more than the peak.
    """
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].peak)
    full = stages[fullest]
    of = f" of {memory_bytes / GIB:,.4g}" if memory_bytes else ""
    out.print(f"\n[bold]where the memory goes[/]: {full.peak / GIB:,.4g}{of} GiB on a rank of stage {fullest}")
    parts = [(title, getattr(full, name)) for title, name in _MEMORY_PARTS]
    out.print(_bars("part", "GiB", parts, full.peak, GIB))
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
    for place, (first, last, memory) in enumerate(rows):
        if len(rows) > STAGE_ROWS and STAGE_ROWS - 4 <= place < len(rows) - 3:
            if place == STAGE_ROWS - 4:
                table.add_row("…")
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
