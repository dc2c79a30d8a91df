"""Tables of published measurements: each row as a run whose step time or memory was measured, or why it is none."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.catalog import check_layout, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.model_names import is_plain, named_run, stated_shape
from reference_runs.named_runs import any_of, named_runs
from reference_runs.published_columns import MEMORY, NEEDED, OPTIONAL, SHAPE, STEP, absent, columns_of
from reference_runs.published_network import network_of
from reference_runs.published_run import (
    Cells,
    UnusableError,
    base_of,
    complete_ranks,
    device_of,
    executed_layout,
    layout_of,
    recipe_of,
    stack_name,
    step_seconds_of,
)
from reference_runs.published_shape import architecture_of
from reference_runs.published_tables import Assumption, LeftOut, TableFacts, load_tables, table_facts
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes
from reference_runs.run import Architecture, Recipe, Workload
from reference_runs.stack import matches

MOST_ROWS, MOST_BYTES = 10_000, 1 << 27  # of a table: each row is a prediction


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run.

    Args:
        line: in the table's file, from 1.
        network_bytes_per_second: out of one node; None: not known, and not needed where one node holds the run.
        framework: as the table words it.
        stack: a name of the software that it stands for.
        step_seconds, peak_bytes: as measured; None: not measured. Memory is the fullest accelerator's.
        status: as the table words it; blank in most.
        ran: whether that means that there was a step to measure.
        composed: the time is a sum of measured parts, without what a step costs besides them.
        assumed: what stands in for blank cells, such as "vpp = 1".
        alternatives: where a table leaves a column open, each row that it may have been with its share; this is the
            first of the likeliest.
    """

    table: str
    line: int
    model: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    accelerator: str
    accelerators_per_node: int
    network_bytes_per_second: float | None
    framework: str
    stack: str
    step_seconds: float | None
    peak_bytes: float | None
    status: str
    ran: bool
    composed: bool
    assumed: tuple[str, ...]
    alternatives: tuple[tuple[float, PublishedRow], ...] = ()

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and layout."""
        return Workload(self.architecture, self.recipe, self.layout)


class SkippedRow(NamedTuple):
    """A row that does not count, and why in one line; `row` where it is complete nonetheless.

    Args:
        memory_counts: its step time alone does not count.
    """

    line: int
    reason: str
    row: PublishedRow | None = None
    memory_counts: bool = False


class PublishedTable(NamedTuple):
    """A table's rows that count, the others, and what is known of the whole."""

    name: str
    facts: TableFacts
    rows: tuple[PublishedRow, ...]
    skipped: tuple[SkippedRow, ...]


def load_table(path: Path) -> PublishedTable:
    """The table at `path`: a CSV file with the columns `NEEDED`, any of `OPTIONAL`, and others that are ignored.

    A row that lacks something, or holds a number that is none, is skipped with its reason.

    Raises:
        InputError: unreadable file, no header, a column twice, or a needed column missing.
    """
    facts = table_facts(path)
    rows: list[PublishedRow] = []
    skipped: list[SkippedRow] = []
    assumptions: dict[str, list[Assumption]] = {}
    for assumption in (*facts.assumed, *load_tables().assumed):
        assumptions.setdefault(assumption.column, []).append(assumption)
    for line, cells in _records(path):
        if isinstance(cells, str):
            skipped.append(SkippedRow(line, cells))
            continue
        try:
            row = _row_of_all(facts, assumptions, line, cells)
        except (UnusableError, InputError) as error:
            skipped.append(SkippedRow(line, str(error).removeprefix(f"line {line}: ")))
            continue
        reason, time_only = _left_out(row, cells, facts.left_out)
        if reason:
            skipped.append(SkippedRow(line, reason, row, time_only))
        else:
            rows.append(row)
    return PublishedTable(path.stem, facts, tuple(rows), tuple(skipped))


def _records(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Line and cells of each row, or what is wrong with the row."""
    where = shown_path(path)
    try:
        data = file_bytes(path, most=MOST_BYTES)
        with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_delimiter(file))
            header = columns_of(next(reader, []))
            if missing := absent(header):
                allowed = f"{', '.join(NEEDED)}; and {', '.join(OPTIONAL)}"
                raise InputError(f"missing column {', '.join(missing)}", allowed=allowed, where=where)
            for name in header:
                if name and header.count(name) > 1:
                    raise InputError("column given twice", got=repr(name), where=where)
            line = reader.line_num + 1
            for number, row in enumerate(reader):
                if number == MOST_ROWS:
                    raise InputError("too many rows", allowed=f"{MOST_ROWS:,}", where=where)
                cells = [cell.strip() for cell in row]
                if any(cells):
                    wrong = f"{len(cells)} cells under a header of {len(header)} columns"
                    yield line, wrong if len(cells) != len(header) else dict(zip(header, cells, strict=True))
                line = reader.line_num + 1
    except OSError as error:
        raise InputError(f"cannot read the table: {error.strerror}", where=where) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a table of comma-separated values: {error}", where=where) from error


def stated_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a table that `load_table` reads, and line and cells of each row that is not blank."""
    data = file_bytes(path, most=MOST_BYTES)
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=_delimiter(file))
        header = next(reader, [])
        rows: list[tuple[int, list[str]]] = []
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((line, cells))
            line = reader.line_num + 1
    return header, rows


def _delimiter(file: TextIO) -> str:
    """What separates the columns: a comma, or the semicolon or tab of a first line without one."""
    first = file.readline()
    file.seek(0)
    return next((each for each in ",;\t" if each in first), ",")


def _row_of_all(
    facts: TableFacts, assumptions: dict[str, list[Assumption]], line: int, stated: dict[str, str]
) -> PublishedRow:
    """The row, with all that it may have been where the table leaves columns open; what no layout can be counts not."""
    choices = [
        [(each.column, text, share) for text, share in each.values.items()]
        for each in facts.open
        if not stated.get(each.column)
        and all(any(matches(p, stated.get(name, "")) for p in patterns) for name, patterns in each.where.items())
    ]
    possible: list[tuple[float, PublishedRow]] = []
    for chosen in product(*choices):
        said = {column: text for column, text, _ in chosen}
        try:
            row = _row(facts, assumptions, line, stated | said)
        except (UnusableError, InputError):
            if len(choices) == 0:
                raise
            continue
        open_columns = tuple(f"{column} = {text} ({share:.0%})" for column, text, share in chosen)
        row = msgspec.structs.replace(row, assumed=row.assumed + open_columns)
        possible.append((math.prod(share for _, _, share in chosen), row))
    if not possible:
        raise UnusableError(f"no layout with any of {', '.join(each[0][0] for each in choices)}")
    total = sum(share for share, _ in possible)
    likeliest = max(possible, key=lambda each: each[0])[1]
    if len(possible) == 1:
        return likeliest
    return msgspec.structs.replace(likeliest, alternatives=tuple((share / total, row) for share, row in possible))


def _hint(model: str) -> str:
    """Why no run gives the shape of a model of that name."""
    runs = named_runs(model)
    if len(runs) > 1:
        return f", and several recorded runs are called {model!r}; did you mean {any_of(runs)}?"
    return f", and no recorded run is called {model!r}"


def _row(
    facts: TableFacts, assumptions: dict[str, list[Assumption]], line: int, stated: dict[str, str]
) -> PublishedRow:
    tables = load_tables()
    model, framework = stated.get("model", ""), stated.get("framework", "")
    run_name = facts.catalog.get(model)
    # of a shipped table all is known that it leaves open; of another one the model's name may say it
    named = None if facts.source or run_name else named_run(model, stated)
    described = reference_run(named) if named else None
    if described and not is_plain(described):
        run_name = named
    cells = Cells(dict(stated), assumptions, stated_shape(described) if described else None, named or "")
    architecture, recipe, recorded_layout = base_of(run_name, tables.rest_as)
    complete_ranks(cells, recorded_layout.context_parallel if recorded_layout else 1)
    blank = [column for column in NEEDED if column != STEP and not cells.said(column)]
    if blank:
        unnamed = model and not named and not facts.source
        hint = _hint(model) if unnamed and set(blank) & set(SHAPE) else ""
        raise UnusableError(f"{', '.join(blank)} {'is' if len(blank) == 1 else 'are'} blank{hint}")
    device = device_of(cells)
    cells.known["accelerator"] = device
    cells.known["stack"] = stack = stack_name(framework, facts, device, stages=cells.count("pp") > 1)
    shape = described.architecture if described else architecture
    architecture = architecture_of(cells, shape, recorded=run_name is not None)
    if architecture.experts is None and stated.get("ep") and cells.count("ep") > 1:
        raise UnusableError("ep: expert parallelism needs experts: as a column, or of a recorded mixture's name")
    recipe = recipe_of(cells, recipe, recorded=run_name is not None)
    if recipe.product_format.casts and recipe.product_format.peak_dtype not in accelerator(device).peak_flop_per_second:
        raise UnusableError(f"{device} computes no products in {recipe.product_format.value}")
    layout = layout_of(cells, recorded_layout or Layout(), recorded=recorded_layout is not None)
    accelerators = cells.count("gpus")
    if layout.ranks != accelerators:
        raise UnusableError(f"dp * tp * pp * cp = {layout.ranks}, but gpus = {accelerators}")
    architecture.check(f"line {line}")
    check_layout(Workload(architecture, recipe, layout), f"line {line}")
    layout = executed_layout(architecture, layout, stack, run_name if recorded_layout else None)
    network = network_of(cells, device)
    status = stated.get("status", "")
    return PublishedRow(
        table=Path(facts.file).stem,
        line=line,
        model=model,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        accelerator=device,
        accelerators_per_node=network.accelerators_per_node,
        network_bytes_per_second=network.bytes_per_second,
        framework=framework,
        stack=stack,
        step_seconds=step_seconds_of(cells),
        peak_bytes=cells.positive(MEMORY) * 2**30 if stated.get(MEMORY) else None,
        status=status,
        ran=not status or status.casefold() in tables.ran,
        composed=facts.composed,
        assumed=tuple(dict.fromkeys(cells.assumed)),
    )


def _left_out(row: PublishedRow, stated: dict[str, str], rules: tuple[LeftOut, ...]) -> tuple[str, bool]:
    """Why a complete row does not count, empty where it does; and whether that concerns its time alone."""
    if not row.ran:
        return f"status is {row.status}", False
    for rule in sorted(rules, key=lambda each: each.time_only):
        text = stated.get(rule.column, "")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if rule.not_blank and text:
            bound = text
        elif rule.above is not None and number > rule.above:
            bound = f"above {rule.above:g}"
        elif rule.below is not None and number < rule.below:
            bound = f"below {rule.below:g}"
        else:
            continue
        return f"{rule.column} is {bound}: {rule.why}", rule.time_only
    if row.step_seconds is None and row.peak_bytes is None:
        return f"{STEP} and {MEMORY} are blank", False
    return "", False
