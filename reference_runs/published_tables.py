"""What published tables leave unsaid, as data: sources, rows that do not count, and assumptions with their reasons."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import record_of, shown_path
from reference_runs.stack import stacks

PUBLISHED = Path(__file__).parent / "published"
TABLES = PUBLISHED / "tables.toml"

Cell = str | int | float


class Assumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in for a blank cell of `column`; exactly one of `value`, `values` and `same_as`.

    Args:
        values: by what the row says in the column `by`.
        same_as: the column whose number it is, times `times`; with `padded_to`, where the tensor-parallel size does
            not divide that number, the next multiple of `padded_to` times that size.
        where: by column, the texts that the row must match, with * for any letters.
        effect: what it changes in a prediction.
    """

    column: str
    why: str
    effect: str
    value: Cell | None = None
    by: str = ""
    values: dict[str, Cell] = {}
    same_as: str = ""
    times: int = 1
    padded_to: int = 0
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
    """What is known of one table as a whole.

    Args:
        conventions: how its numbers came about, and what they mean.
        stacks: text of `framework` -> stack, before the general ones.
        composed: its times are sums of measured parts, so that what a step costs besides them is not in it.
        catalog: model -> recorded run, which says what the row leaves open.
    """

    file: str
    title: str = ""
    source: str = ""
    measured: str = ""
    conventions: tuple[str, ...] = ()
    stacks: dict[str, str] = {}
    catalog: dict[str, str] = {}
    composed: bool = False
    assumed: tuple[Assumption, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class PublishedTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables, and what holds for any table, the user's own included.

    Args:
        proxies: tables of models with few layers next to whole ones.
        rest_as: recorded run that says what no column says.
        ran: texts of `status` of a row that ran.
    """

    rest_as: str
    ran: tuple[str, ...]
    accelerators: dict[str, str]
    open_accelerators: tuple[OpenAccelerator, ...] = msgspec.field(name="open_accelerator")
    assumed: tuple[Assumption, ...]
    tables: tuple[TableFacts, ...] = msgspec.field(name="table")
    proxies: tuple[TableFacts, ...] = ()
    collectives: tuple[TableFacts, ...] = ()

    @property
    def of_steps(self) -> tuple[TableFacts, ...]:
        """Those whose rows are steps: `tables`, and those of `proxies` alone."""
        return (*self.tables, *self.proxies)


@cache
def load_tables(path: Path = TABLES) -> PublishedTables:
    """The file that describes the tables.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, an assumption that says nothing
            or two things, one without reason or effect, or a stack that is not described.
    """
    where = shown_path(path)
    tables = record_of(path, PublishedTables, what="tables")
    for assumption in (*tables.assumed, *(each for table in tables.of_steps for each in table.assumed)):
        said = [assumption.value is not None, bool(assumption.by and assumption.values), bool(assumption.same_as)]
        if sum(said) != 1:
            allowed = "one of value, by with values, and same_as"
            raise InputError(f"assumed {assumption.column}", allowed=allowed, where=where)
        if not (assumption.why and assumption.effect):
            raise InputError(f"assumed {assumption.column}: an assumption needs `why` and `effect`", where=where)
    for table in tables.of_steps:
        for text, stack in table.stacks.items():
            if stack not in stacks():
                raise InputError(f"{text!r}: stack", got=repr(stack), allowed=", ".join(stacks()), where=where)
    return tables


def shipped_tables() -> list[Path]:
    """The tables of step times next to `TABLES`, in its order."""
    return [PUBLISHED / table.file for table in load_tables().tables]


def proxy_tables() -> list[Path]:
    """The tables next to `TABLES` that have proxies alone, in its order."""
    return [PUBLISHED / table.file for table in load_tables().proxies]


def table_facts(path: Path) -> TableFacts:
    """What is known of the table at `path`: of a shipped one by its file's name, otherwise nothing but that name."""
    for table in load_tables().of_steps:
        if table.file == path.name:
            return table
    return TableFacts(file=path.name)
