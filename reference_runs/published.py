"""Tables of published measurements: each row as a run whose step time or memory was measured, or why it is none."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.catalog import check_layout, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.named_runs import any_of
from reference_runs.published_as_written import canonical_table
from reference_runs.published_cells import (
    HYBRID,
    MEMORY,
    NEEDED,
    SHAPE,
    STEP,
    Cells,
    UnusableError,
    complete_accumulation,
    complete_batch,
    complete_ranks,
    complete_sharding,
    peak_bytes_of,
    step_seconds_of,
)
from reference_runs.published_run import (
    base_of,
    device_of,
    executed_layout,
    layout_of,
    network_of,
    recipe_of,
    stack_reading,
)
from reference_runs.published_shape import (
    architecture_of,
    is_like_models_of,
    is_plain,
    named_run,
    refuse_other_model,
    refuse_other_training,
    runs_called,
    stated_shape,
    tabled_shape,
    training_columns,
)
from reference_runs.published_tables import (
    Assumption,
    LeftOut,
    SameOrigin,
    TableFacts,
    load_tables,
    same_origin,
    table_facts,
)
from reference_runs.run import Architecture, Recipe, Workload
from reference_runs.stack import matches


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run.

    Args:
        line: in the table's file, from 1.
        network_bytes_per_second: out of one node; None: not known, and not needed where one node holds the run.
        framework: as the table words it.
        stack: a name of the software that it stands for.
        stack_read_as: in words, how the text was read as that.
        origin: the shipped table that its `source` says it is like, and the text that matched.
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
    stack_read_as: str
    origin: str
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
    """A table's rows that count, the others, and what is known of the whole.

    Args:
        unread: columns that nothing is read from, as the header words them.
    """

    name: str
    facts: TableFacts
    rows: tuple[PublishedRow, ...]
    skipped: tuple[SkippedRow, ...]
    unread: tuple[str, ...] = ()


def load_table(path: Path) -> PublishedTable:
    """The table at `path`: a CSV file with the columns `NEEDED`, any of `OPTIONAL`, and others that are ignored.

    A row that lacks something, or holds a number that is none, is skipped with its reason.

    Raises:
        InputError: unreadable file, no header, a column twice, or a needed column missing.
    """
    own = table_facts(path)
    rows: list[PublishedRow] = []
    skipped: list[SkippedRow] = []
    table = canonical_table(path)
    decided = {column for _, _, cells, _, _ in table.rows for column in training_columns(cells)}
    for line, _, cells, notes, unread in table.rows:
        # a shipped table's rows are its own, whatever they name as source
        origin = None if own.source or unread else same_origin(cells.get("source", ""))
        if origin and not is_like_models_of(cells.get("model", ""), origin.name):
            origin = None  # of one publisher, but of models that the shipped table says nothing of
        facts = origin.facts if origin else own
        try:
            if unread:
                raise UnusableError(unread)
            row = _row_of_all(_KnownOfRows(path.stem, facts, origin), line, cells)
        except (UnusableError, InputError) as error:
            skipped.append(SkippedRow(line, str(error).removeprefix(f"line {line}: ")))
            continue
        row = msgspec.structs.replace(row, assumed=(*notes, *row.assumed))
        reason, time_only = _left_out(row, cells, facts.left_out)
        if reason:
            skipped.append(SkippedRow(line, reason, row, time_only))
        else:
            rows.append(row)
    complete = [*rows, *(each.row for each in skipped if each.row)]
    if origins := Counter(row.origin for row in complete if row.origin):
        own = msgspec.structs.replace(own, conventions=tuple(_origin_words(*each) for each in origins.most_common()))
    return PublishedTable(
        path.stem, own, tuple(rows), tuple(skipped), tuple(name for name in table.unread if name not in decided)
    )


def _origin_words(origin: str, rows: int) -> str:
    return f"read as the rows of {origin} ({rows:,} row{'s' if rows > 1 else ''})"


class _KnownOfRows(NamedTuple):
    """Facts that hold for rows of one table: its name, what is known of it, and of which shipped one that is."""

    name: str
    facts: TableFacts
    origin: SameOrigin | None

    @property
    def shipped(self) -> bool:
        """Whether it is a shipped table itself."""
        return bool(self.facts.source) and self.origin is None


@cache
def _assumptions(file: str) -> dict[str, list[Assumption]]:
    """By column, what is assumed in the table of that file: its own first, then what is in any."""
    by_column: dict[str, list[Assumption]] = {}
    facts = table_facts(Path(file))
    for assumption in (*facts.assumed, *load_tables().assumed):
        if not (assumption.of_users and facts.source):
            by_column.setdefault(assumption.column, []).append(assumption)
    return by_column


def _row_of_all(table: _KnownOfRows, line: int, stated: dict[str, str]) -> PublishedRow:
    """The row, with all that it may have been where the table leaves columns open; what no layout can be counts not."""
    choices = [
        [(each.column, text, share) for text, share in each.values.items()]
        for each in table.facts.open
        if not stated.get(each.column)
        and all(any(matches(p, stated.get(name, "")) for p in patterns) for name, patterns in each.where.items())
    ]
    possible: list[tuple[float, PublishedRow]] = []
    for chosen in product(*choices):
        said = {column: text for column, text, _ in chosen}
        try:
            row = _row(table, line, stated | said)
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
    runs = runs_called(model)
    if len(runs) > 1:
        return f", and several recorded runs are called {model!r}; did you mean {any_of(runs)}?"
    return f", and no recorded run is called {model!r}"


def _named(table: _KnownOfRows, stated: dict[str, str]) -> str | None:
    """The recorded run whose shape the row has by its model's name.

    Of a shipped table all is known that it leaves open. Of one of the same origin a name says what none of its columns
    does, or can.
    """
    if table.shipped or table.facts.catalog.get(stated.get("model", "")):
        return None
    named = named_run(stated.get("model", ""), stated)
    whole = table.origin is not None and all(stated.get(column) for column in SHAPE)
    return None if named and whole and is_plain(reference_run(named)) else named


def _cells(table: _KnownOfRows, stated: dict[str, str], named: str | None) -> Cells:
    shape = stated_shape(reference_run(named)) if named else None
    cells = Cells(dict(stated), _assumptions(table.facts.file), shape, named or "")
    cells.known["shipped"] = "yes" if table.shipped else "no"
    if not table.shipped and not named and (tabled := tabled_shape(stated.get("model", ""))):
        where, cells_of_model = tabled
        if all(not stated.get(column) or stated[column] == value for column, value in cells_of_model.items()):
            blank = {column: value for column, value in cells_of_model.items() if not stated.get(column)}
            cells.stated |= blank
            cells.assumed += [f"{column} = {value} as {where}" for column, value in blank.items()]
    if table.origin:
        cells.assumed.append(f"source {stated['source']} = {table.origin.name}")
    return cells


def _row(table: _KnownOfRows, line: int, stated: dict[str, str]) -> PublishedRow:
    tables, facts = load_tables(), table.facts
    model, framework = stated.get("model", ""), stated.get("framework", "")
    if not table.shipped:
        refuse_other_training(stated)
    run_name, named = facts.catalog.get(model), _named(table, stated)
    described = reference_run(named) if named else None
    if described and not is_plain(described):
        run_name = named
    cells = _cells(table, stated, named)
    architecture, recipe, recorded_layout = base_of(run_name, tables.rest_as)
    if recorded_layout and not facts.source:
        _check_split(cells, recorded_layout, run_name or "")
    complete_ranks(cells, recorded_layout.context_parallel if recorded_layout else 1)
    complete_batch(cells)
    complete_accumulation(cells)
    complete_sharding(cells)
    blank = [column for column in NEEDED if column != STEP and not cells.said(column)]
    if blank:
        unnamed = model and not named and not table.shipped
        hint = _hint(model) if unnamed and set(blank) & set(SHAPE) else ""
        raise UnusableError(f"{', '.join(blank)} {'is' if len(blank) == 1 else 'are'} blank{hint}")
    device = device_of(cells)
    cells.known["accelerator"] = device
    split = {"stages": cells.count("pp") > 1, "split": cells.count("tp") > 1}
    read = stack_reading(framework, facts, device, model=model, **split)
    cells.known["stack"] = stack = read.stack.name
    shape = described.architecture if described else architecture
    architecture = architecture_of(cells, shape, recorded=run_name is not None)
    if not table.shipped:
        refuse_other_model(architecture, stated)
    recipe = recipe_of(cells, recipe, recorded=run_name is not None)
    _check_computable(cells, architecture, recipe)
    layout = _layout(cells, recorded_layout, mixture=architecture.experts is not None)
    architecture.check(f"line {line}")
    check_layout(Workload(architecture, recipe, layout), f"line {line}")
    layout = executed_layout(architecture, layout, stack, run_name if recorded_layout else None)
    network = network_of(cells, device)
    status = stated.get("status", "")
    return PublishedRow(
        table=table.name,
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
        stack_read_as=read.how,
        origin=f"{table.origin.name}: source matches {table.origin.pattern!r}" if table.origin else "",
        step_seconds=step_seconds_of(cells),
        peak_bytes=peak_bytes_of(cells),
        status=status,
        ran=not status or status.casefold() in tables.ran,
        composed=facts.composed,
        assumed=tuple(dict.fromkeys(cells.assumed)),
    )


def _layout(cells: Cells, recorded: Layout | None, *, mixture: bool) -> Layout:
    layout = layout_of(cells, recorded or Layout(), recorded=recorded is not None, mixture=mixture)
    layout = msgspec.structs.replace(layout, shard_ranks=_shard_ranks(cells, layout))
    if layout.ranks != (accelerators := cells.count("gpus")):
        raise UnusableError(f"dp * tp * pp * cp = {layout.ranks}, but gpus = {accelerators}")
    return layout


def _shard_ranks(cells: Cells, layout: Layout) -> int | None:
    """Ranks of a group that shards: as stated, those of a node where sharding is hybrid; None: all."""
    if cells.stated.get("shard_ranks"):
        return cells.count("shard_ranks")
    if not cells.known.get(HYBRID):
        return layout.shard_ranks
    board = accelerator(cells.known["accelerator"]).board
    of_node = cells.count("gpus_per_node") if cells.stated.get("gpus_per_node") else board.accelerators_per_node
    shards = min(of_node // layout.tensor_parallel, layout.state_ranks)
    cells.assumed.append(f"shard_ranks = {shards}")
    return shards if shards > 1 else None


def _check_computable(cells: Cells, architecture: Architecture, recipe: Recipe) -> None:
    """Refuse expert parallelism without experts, and a format of products that the accelerator does not compute in."""
    if architecture.experts is None and cells.stated.get("ep") and cells.count("ep") > 1:
        raise UnusableError("ep: expert parallelism needs experts: as a column, or of a recorded mixture's name")
    device, product_format = cells.known["accelerator"], recipe.product_format
    if product_format.casts and product_format.peak_dtype not in accelerator(device).peak_flop_per_second:
        raise UnusableError(f"{device} computes no products in {product_format.value}")


def _check_split(cells: Cells, recorded: Layout, run: str) -> None:
    """Refuse a blank `tp` or `pp` where the recorded run is split: 1 would be another layout than its own."""
    for column, size in (("tp", recorded.tensor_parallel), ("pp", recorded.pipeline_stages)):
        if size > 1 and not cells.stated.get(column):
            raise UnusableError(f"{column} is blank, and {run} has {size}")


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
        if rule.not_blank and text.casefold() not in ("", "0", "no", "false", "none"):
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
