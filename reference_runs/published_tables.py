"""Facts of published tables that their cells leave unsaid: sources, rows that do not count, and assumptions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import record_of, shown_path
from reference_runs.stack import matches, stacks

PUBLISHED = Path(__file__).parent / "published"
TABLES = PUBLISHED / "tables.toml"

Cell = str | int | float


class Assumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Value in place of a blank cell of `column`; exactly one of `value`, `values` and `same_as`.

    Args:
        values: by what the row says in the column `by`.
        same_as: the column whose number it is, times `times` over `over`, up to the next multiple of `rounded_to`;
            with `padded_to`, where the tensor-parallel size does not divide that number, the next multiple of
            `padded_to` times that size.
        where: by column, the texts that the row must match, with * for any letters.
        effect: what it changes in a prediction.
        of_users: of no table beside `TABLES`: there a blank cell is one that the source leaves open.
    """

    column: str
    why: str
    effect: str
    of_users: bool = False
    value: Cell | None = None
    by: str = ""
    values: dict[str, Cell] = {}
    same_as: str = ""
    times: int = 1
    over: Annotated[int, msgspec.Meta(ge=1)] = 1
    rounded_to: int = 0
    padded_to: int = 0
    where: dict[str, list[str]] = {}


SHARES_ROUNDING = 1e-6


class Open(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column that a table leaves blank, and what it may have been.

    Where several values are likely none is chosen: each has a share, given before any prediction, and the prediction is
    the mean of the logarithms over all values.

    Args:
        values: by what the column may have said, its share.
        where: by column, the texts that the row must match, with * for any letters.
        effect: what it changes in a prediction.
    """

    column: str
    values: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1)]]
    why: str
    effect: str
    where: dict[str, list[str]] = {}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that do not count, by one column: its number above or below a bound, or anything in it at all.

    Args:
        time_only: their memory counts nonetheless.
    """

    column: str
    why: str
    above: float | None = None
    below: float | None = None
    not_blank: bool = False
    time_only: bool = False


class OpenAccelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that leaves open which accelerator is meant, and the one that is assumed."""

    text: str
    accelerator: str
    why: str
    effect: str


class TableFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of one table as a whole.

    Args:
        conventions: how its numbers came about, and what they mean.
        sources: texts of the column `source`, with * for any letters, of rows of the same origin in a file of another
            name; of several tables' the longest text that matches.
        stacks: text of `framework` -> stack, before the general ones.
        stack_sources: texts of `source` that `stacks` is for, where the file has another name; none: all of `sources`.
        cluster: the machines that it was measured on, where other tables were too.
        fitted: its rows take part in a fit; others stay a check of it.
        determines: parameters of the machine model that are fitted to its rows alone, after that fit.
        proxies: it has models of few layers next to whole ones.
        composed: its times are sums of measured parts, so that what a step costs besides them is not in it.
        catalog: model -> recorded run, which says what the row leaves open.
    """

    file: str
    title: str = ""
    source: str = ""
    measured: str = ""
    conventions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    stacks: dict[str, str] = {}
    stack_sources: tuple[str, ...] | None = None
    catalog: dict[str, str] = {}
    cluster: str = ""
    fitted: bool = True
    determines: tuple[str, ...] = ()
    proxies: bool = False
    composed: bool = False
    assumed: tuple[Assumption, ...] = ()
    open: tuple[Open, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class PublishedTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables, and what holds for any table, the user's own included.

    Args:
        rest_as: recorded run that says what no column says.
        ran: texts of `status` of a row that ran.
        later_models: of names of models that are later than the accelerators of the family "ampere".
    """

    rest_as: str
    ran: tuple[str, ...]
    later_models: tuple[str, ...]
    open_accelerators: tuple[OpenAccelerator, ...] = msgspec.field(name="open_accelerator")
    assumed: tuple[Assumption, ...]
    tables: tuple[TableFacts, ...] = msgspec.field(name="table")
    collectives: tuple[TableFacts, ...] = ()


@cache
def load_tables(path: Path = TABLES) -> PublishedTables:
    """The file that describes the tables.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, an assumption that says nothing
            or two things, one without reason or effect, or a stack that is not described.
    """
    where = shown_path(path)
    tables = record_of(path, PublishedTables, what="tables")
    for assumption in (*tables.assumed, *(each for table in tables.tables for each in table.assumed)):
        said = [assumption.value is not None, bool(assumption.by and assumption.values), bool(assumption.same_as)]
        if sum(said) != 1:
            allowed = "one of value, by with values, and same_as"
            raise InputError(f"assumed {assumption.column}", allowed=allowed, where=where)
        if not (assumption.why and assumption.effect):
            raise InputError(f"assumed {assumption.column}: an assumption needs `why` and `effect`", where=where)
    for table in tables.tables:
        for each in table.open:
            if abs(sum(each.values.values()) - 1) > SHARES_ROUNDING:
                raise InputError(f"open {each.column}: shares must add up to 1", got=str(each.values), where=where)
        for text, stack in table.stacks.items():
            if stack not in stacks():
                raise InputError(f"{text!r}: stack", got=repr(stack), allowed=", ".join(stacks()), where=where)
    return tables


def shipped_tables() -> list[Path]:
    """The tables of step times next to `TABLES` that a fit reads, in its order."""
    return [PUBLISHED / table.file for table in load_tables().tables if table.fitted]


def held_out_tables() -> list[Path]:
    """The others: the fit of all tables does not read them, so that they check it."""
    return [PUBLISHED / table.file for table in load_tables().tables if not table.fitted]


def proxy_tables() -> list[Path]:
    """The tables next to `TABLES` that are of proxies, in its order."""
    return [PUBLISHED / table.file for table in load_tables().tables if table.proxies]


def table_facts(path: Path) -> TableFacts:
    """Facts of the table at `path`: a shipped one is known by its file's name, of another nothing but that name is."""
    for table in load_tables().tables:
        if table.file == path.name:
            return table
    return TableFacts(file=path.name)


class SameOrigin(NamedTuple):
    """The shipped table that a row's `source` says it is like: its facts, its name, and the text that matched."""

    facts: TableFacts
    name: str
    pattern: str


@cache
def same_origin(source: str) -> SameOrigin | None:
    """The shipped table of the same origin as rows of that `source`; None: none is.

    "vTrain ground_truth_single.csv (VIA-Research/vTrain)" is like vtrain_single_h1024, whatever its file is called.
    """
    found = [
        SameOrigin(table, table.file.removesuffix(".csv"), pattern)
        for table in load_tables().tables
        for pattern in table.sources
        if matches(pattern, source)
    ]
    if not found:
        return None
    origin = max(found, key=lambda each: len(each.pattern.replace("*", "")))
    only = origin.facts.stack_sources
    if only is None or any(matches(pattern, source) for pattern in only):
        return origin
    return origin._replace(facts=msgspec.structs.replace(origin.facts, stacks={}))
