"""The page's possible beginnings: recorded runs, and every row of the published tables, each as a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from reference_runs.catalog import reference_run, run_names
from reference_runs.configured_run import configured_run
from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.machine_model import chosen_edition
from reference_runs.published import PublishedRow, PublishedTable, load_table
from reference_runs.published_tables import shipped_tables
from reference_runs.run import ReferenceRun, Reported, Software
from reference_runs.run_of_row import run_of_row
from reference_runs.sourced import Kind, Sourced

FILES = (".toml", ".json")  # endings of run files and configurations
RUNS = "runs"  # the source that is no table
_SEPARATOR = ":"  # between a table and the line of a row


@cache
def tables() -> dict[str, PublishedTable]:
    """The published tables that `validate` knows, by name."""
    return {path.stem: load_table(path) for path in shipped_tables()}


def sources() -> dict[str, str]:
    """Titles of the sources of presets, by their names."""
    return {RUNS: "recorded runs"} | {name: table.facts.title for name, table in tables().items()}


def source_of(name: str) -> str:
    """The source that a preset is of."""
    return name.partition(_SEPARATOR)[0] if _is_row(name) else RUNS


def _is_row(name: str) -> bool:
    return _SEPARATOR in name and not name.endswith(FILES)


@cache
def names(source: str) -> dict[str, str]:
    """The presets of a source in words, by name.

    Raises:
        InputError: no such source.
    """
    if source == RUNS:
        return {name: name for name in run_names()}
    table = _table(source)
    return {f"{source}{_SEPARATOR}{row.line}": _words(row) for row in table.rows}


def _words(row: PublishedRow) -> str:
    return f"{row.model or 'a model'} on {row.layout.ranks:,} {row.accelerator}: {layout_text(row.layout)}"


Version = tuple[int, str | None]


def version_of(name: str) -> Version:
    """When the run file was changed, 0 of a run that is no file of the user's, and the machine model's edition.

    What was predicted with another version is predicted again.
    """
    try:
        changed = Path(name).stat().st_mtime_ns if name.endswith(FILES) else 0
    except OSError:  # reading it says what is wrong
        changed = 0
    return changed, chosen_edition()


def described_run(name: str) -> ReferenceRun:
    """The recorded run of that name, that of a run file or a configuration, or a published table's row as a run.

    Raises:
        InputError: there is none.
    """
    if name.endswith(".json"):
        return configured_run(Path(name))
    return _run_of(name) if _is_row(name) else reference_run(name)


def tokens_are_known(name: str) -> bool:
    """Whether it is known how many tokens were trained on: not of a table's row whose model is no recorded run."""
    return not _is_row(name) or _row(name).model in tables()[source_of(name)].facts.catalog


def row_of(name: str) -> PublishedRow | None:
    """The row of a published table that a preset is; None of a run."""
    return _row(name) if _is_row(name) else None


def _row(name: str) -> PublishedRow:
    table, _, line = name.partition(_SEPARATOR)
    found = [row for row in _table(table).rows if str(row.line) == line]
    if not found:
        raise InputError(f"no row of {table} that counts has this line", got=repr(line), where="run")
    return found[0]


def _table(name: str) -> PublishedTable:
    if name not in tables():
        raise InputError("unknown table", got=repr(name), allowed=", ".join(tables()), where="run")
    return tables()[name]


@cache
def _run_of(name: str) -> ReferenceRun:
    row = _row(name)
    facts = tables()[row.table].facts
    source = f"{facts.source}, line {row.line} of {facts.file}"
    measured = {"step_seconds": (row.step_seconds, "s"), "peak_bytes": (row.peak_bytes, "byte")}
    return msgspec.structs.replace(
        run_of_row(row),
        name=name,
        title=f"{facts.title}: {_words(row)}",
        where=source,
        software=Software(stack=row.stack),
        reported=Reported(step_seconds=row.step_seconds, peak_bytes=row.peak_bytes),
        facts={
            f"reported.{key}": Sourced(kind=Kind.STATED, source=source, value=value, unit=unit)
            for key, (value, unit) in measured.items()
            if value is not None
        },
    )
