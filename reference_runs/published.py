"""Tables of published measurements: each row as a run whose step time or memory was measured, or why it is none."""

from __future__ import annotations

import csv
import enum
import math
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.catalog import check_layout, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, StageAssignment
from reference_runs.published_tables import Assumption, LeftOut, TableFacts, load_tables, matches, table_facts
from reference_runs.recorded_file import shown_path
from reference_runs.run import Activation, Architecture, Norm, Position, Precision, Recipe, Residual

LARGEST, SMALLEST, MOST = 1e18, 1e-9, 10**8  # what no number, no time or size, and no count of a real run exceeds
MOST_LAYERS = 10_000
STEP, MEMORY = "measured_step_time_s", "measured_mem_gib_per_gpu"
NEEDED = (
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "gpu",
    "gpus",
    "dp",
    "tp",
    "pp",
    "global_batch",
    "micro_batch",
    STEP,
)
OPTIONAL = (
    "source",
    "model",
    "kv_heads",
    "ffn_hidden",
    "gpus_per_node",
    "inter_link",
    "dtype",
    "vpp",
    "cp",
    "ep",
    "sp",
    "zero_stage",
    "recompute",
    "framework",
    MEMORY,
    "status",
    "padded_vocab",
    "position",
    "rotary_base",
    "norm",
    "activation",
    "residual",
    "biases",
    "tied_embeddings",
    "dropout",
    "precision",
    "stage_assignment",
    "fused_attention",
    "scatter_gather",
    "network_bytes_per_second",
)
Choice = typing.TypeVar("Choice", bound=enum.StrEnum)
_TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
_RATE = re.compile(r"(?:(\d+) ?x ?.*?)?([\d.]+) ?([GT])(bit/s|b/s|bps|bE\b|b\b|B/s|Bps)")


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
        assumed: what stands in for blank cells, such as "vpp = 1".
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
    assumed: tuple[str, ...]


class SkippedRow(NamedTuple):
    """A row that does not count, and why in one line; `row` where it is complete nonetheless."""

    line: int
    reason: str
    row: PublishedRow | None = None


class PublishedTable(NamedTuple):
    """A table's rows that count, the others, and what is known of the whole."""

    name: str
    facts: TableFacts
    rows: tuple[PublishedRow, ...]
    skipped: tuple[SkippedRow, ...]


def _written(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class _UnusableError(Exception):
    """Why a row cannot be used."""


class _Cells:
    """The cells of one row by column; blank ones are filled by the table's assumptions, which are noted in `assumed`.

    `known` has texts found on the way (accelerator, stack) that assumptions may ask for.
    """

    def __init__(self, stated: dict[str, str], assumptions: dict[str, list[Assumption]]) -> None:
        self.stated = stated
        self.assumptions = assumptions
        self.known: dict[str, str] = {}
        self.assumed: list[str] = []

    def text(self, column: str) -> str:
        """What the row says, or what is assumed.

        Raises:
            _UnusableError: neither.
        """
        said = self.stated.get(column) or self.known.get(column)
        if said:
            return said
        for assumption in self.assumptions.get(column, ()):
            if (value := self._value(assumption)) is not None:
                self.assumed.append(f"{column} = {value}")
                self.known[column] = value
                return value
        raise _UnusableError(f"{column} is blank")

    def _value(self, assumption: Assumption) -> str | None:
        for column, patterns in assumption.where.items():
            text = self.said(column)
            if not any(matches(pattern, text) for pattern in patterns):
                return None
        if assumption.by:
            value = assumption.values.get(self.said(assumption.by))
            return None if value is None else _written(value)
        if not assumption.same_as:
            return _written(assumption.value)
        number = assumption.times * self.count(assumption.same_as)
        if assumption.padded_to and number % (tensor_parallel := self.count("tp")):
            multiple = assumption.padded_to * tensor_parallel
            number = -(-number // multiple) * multiple
        return str(number)

    def said(self, column: str) -> str:
        """As `text`, and empty where nothing is said and nothing assumed."""
        try:
            return self.text(column)
        except _UnusableError:
            return ""

    def number(self, column: str) -> float:
        """A number from 0 to `LARGEST`."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= LARGEST:
            raise _UnusableError(f"{column}: expected a number from 0 to {LARGEST:g}; got {text!r}")
        return number

    def positive(self, column: str) -> float:
        """A number from `SMALLEST` to `LARGEST`."""
        number = self.number(column)
        if number < SMALLEST:
            raise _UnusableError(f"{column}: expected a number from {SMALLEST:g} on; got {self.text(column)!r}")
        return number

    def count(self, column: str, *, least: int = 1, most: int = MOST) -> int:
        """An integer from `least` to `most`."""
        number = self.number(column)
        if number != int(number) or not least <= number <= most:
            raise _UnusableError(f"{column}: expected an integer from {least} to {most}; got {self.text(column)!r}")
        return int(number)

    def claim(self, column: str) -> bool:
        """Whether it is so."""
        text = self.text(column)
        if text.casefold() not in _TRUTH:
            raise _UnusableError(f"{column}: got {text!r}, allowed: {', '.join(_TRUTH)}")
        return _TRUTH[text.casefold()]

    def choice(self, column: str, allowed: type[Choice]) -> Choice:
        """The member of an enum that is written so."""
        text, members = self.text(column), _members(allowed)
        if text.casefold() not in members:
            raise _UnusableError(f"{column}: got {text!r}, allowed: {', '.join(members)}")
        return typing.cast(Choice, members[text.casefold()])


@cache
def _members(kind: type[enum.StrEnum]) -> dict[str, enum.StrEnum]:
    return {member.value: member for member in kind}


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
            row = _row(facts, assumptions, line, cells)
        except (_UnusableError, InputError) as error:
            skipped.append(SkippedRow(line, str(error).removeprefix(f"line {line}: ")))
            continue
        reason = _left_out(row, cells, facts.left_out)
        if reason:
            skipped.append(SkippedRow(line, reason, row))
        else:
            rows.append(row)
    return PublishedTable(path.stem, facts, tuple(rows), tuple(skipped))


def _records(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Line and cells of each row, or what is wrong with the row."""
    where = shown_path(path)
    allowed = f"{', '.join(NEEDED)}; and {', '.join(OPTIONAL)}"
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            missing = [column for column in NEEDED if column not in header]
            if missing:
                raise InputError(f"missing column {', '.join(missing)}", allowed=allowed, where=where)
            for name in header:
                if name and header.count(name) > 1:
                    raise InputError("column given twice", got=repr(name), where=where)
            line = reader.line_num + 1
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    if len(cells) != len(header):
                        yield line, f"{len(cells)} cells under a header of {len(header)} columns"
                    else:
                        yield line, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
                line = reader.line_num + 1
    except OSError as error:
        raise InputError(f"cannot read the table: {error.strerror}", where=where) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a table of comma-separated values: {error}", where=where) from error


def _row(
    facts: TableFacts, assumptions: dict[str, list[Assumption]], line: int, stated: dict[str, str]
) -> PublishedRow:
    tables = load_tables()
    model, framework = stated.get("model", ""), stated.get("framework", "")
    run_name = facts.catalog.get(model)
    cells = _Cells(stated, assumptions)
    blank = [column for column in NEEDED if column != STEP and not cells.said(column)]
    if blank:
        raise _UnusableError(f"{', '.join(blank)} {'is' if len(blank) == 1 else 'are'} blank")
    device = _device(cells)
    cells.known["accelerator"] = device
    cells.known["stack"] = stack = stack_of(framework, facts)
    if stated.get("ep") and cells.count("ep") > 1:
        raise _UnusableError("ep: mixtures of experts are not described")
    base = _base(run_name or tables.rest_as)
    architecture, recipe, layout = base
    architecture = _architecture(cells, architecture, recorded=run_name is not None)
    recipe = _recipe(cells, recipe, recorded=run_name is not None)
    layout = _layout(cells, layout if run_name else Layout(), recorded=run_name is not None)
    accelerators, axes = cells.count("gpus"), "dp * tp * pp * cp"
    if layout.ranks != accelerators:
        raise _UnusableError(f"{axes} = {layout.ranks}, but gpus = {accelerators}")
    architecture.check(f"line {line}")
    check_layout(architecture, recipe, layout, f"line {line}")
    per_node = cells.count("gpus_per_node")
    network = _network(cells)
    if network is None and accelerators > per_node:
        raise _UnusableError(
            "inter_link and network_bytes_per_second are blank, or name no rate, for more than one node"
        )
    status = stated.get("status", "")
    ran = not status or status.casefold() in tables.ran
    return PublishedRow(
        table=Path(facts.file).stem,
        line=line,
        model=model,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        accelerator=device,
        accelerators_per_node=per_node,
        network_bytes_per_second=network,
        framework=framework,
        stack=stack,
        step_seconds=cells.positive(STEP) if stated[STEP] else None,
        peak_bytes=cells.positive(MEMORY) * 2**30 if stated.get(MEMORY) else None,
        status=status,
        ran=ran,
        assumed=tuple(dict.fromkeys(cells.assumed)),
    )


def stack_of(framework: str, facts: TableFacts) -> str:
    """The stack that the text of a table's column `framework` stands for; "generic" where it is not known."""
    for pattern, stack in (*facts.stacks.items(), *load_tables().frameworks.items()):
        if matches(pattern, framework):
            return stack
    return "generic"


def _device(cells: _Cells) -> str:
    text, tables = cells.text("gpu"), load_tables()
    for entry in tables.open_accelerators:
        if entry.text.casefold() == text.casefold():
            cells.assumed.append(f"gpu {text} = {entry.accelerator}")
            return entry.accelerator
    names = {name.casefold(): device for name, device in tables.accelerators.items()}
    device = names.get(text.casefold()) or _accelerator_name(text)
    if device is None:
        raise _UnusableError(f"gpu: no accelerator of the catalog; got {text!r}")
    return device


@cache
def _accelerator_name(text: str) -> str | None:
    if text.endswith(".toml"):
        return None
    try:
        return accelerator(text).name
    except InputError:
        return None


@cache
def _base(run: str) -> tuple[Architecture, Recipe, Layout]:
    recorded = reference_run(run)
    return recorded.architecture, recorded.recipe, recorded.layout


def _architecture(cells: _Cells, base: Architecture, *, recorded: bool) -> Architecture:
    """The row's shape; what it leaves open is the recorded run's, or assumed."""
    hidden, heads, vocabulary = cells.count("hidden"), cells.count("heads"), cells.count("vocab")
    if hidden % heads:
        raise _UnusableError(f"heads = {heads} does not divide hidden = {hidden}")
    shape: dict[str, object] = {
        "layers": cells.count("layers", most=MOST_LAYERS),
        "hidden": hidden,
        "heads": heads,
        "head_dim": hidden // heads,
        "sequence": cells.count("seq_len"),
    }
    if recorded:
        for name, column in (("kv_heads", "kv_heads"), ("ffn_hidden", "ffn_hidden"), ("padded_vocabulary", "vocab")):
            if cells.stated.get(column):
                shape[name] = cells.count(column)
        return msgspec.structs.replace(base, **shape)
    position = cells.choice("position", Position)
    rotary = position is Position.ROTARY
    return msgspec.structs.replace(
        base,
        **shape,
        kv_heads=cells.count("kv_heads"),
        ffn_hidden=cells.count("ffn_hidden"),
        vocabulary=vocabulary,
        padded_vocabulary=cells.count("padded_vocab"),
        position=position,
        rotary_dim=hidden // heads if rotary else None,
        rotary_base=cells.positive("rotary_base") if rotary else None,
        norm=cells.choice("norm", Norm),
        activation=cells.choice("activation", Activation),
        residual=cells.choice("residual", Residual),
        biases=cells.claim("biases"),
        tied_embeddings=cells.claim("tied_embeddings"),
    )


def _recipe(cells: _Cells, base: Recipe, *, recorded: bool) -> Recipe:
    batch = cells.count("global_batch")
    if recorded:
        return msgspec.structs.replace(base, global_batch=batch)
    dropout = cells.number("dropout")
    if dropout >= 1:
        raise _UnusableError(f"dropout: expected a number below 1; got {dropout:g}")
    cells.said("dtype")
    return msgspec.structs.replace(
        base,
        global_batch=batch,
        precision=cells.choice("precision", Precision),
        embedding_dropout=dropout,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def _layout(cells: _Cells, base: Layout, *, recorded: bool) -> Layout:
    layout: dict[str, object] = {
        "micro_batch": cells.count("micro_batch"),
        "data_parallel": cells.count("dp"),
        "tensor_parallel": cells.count("tp"),
        "pipeline_stages": cells.count("pp"),
        "accumulation": None,
    }
    if not recorded or cells.stated.get("recompute"):
        layout["recomputation"] = cells.choice("recompute", Recomputation)
    if not recorded or cells.stated.get("vpp"):
        layout["virtual_stages"] = cells.count("vpp")
    if not recorded or cells.stated.get("cp"):
        layout["context_parallel"] = cells.count("cp")
    if not recorded or cells.stated.get("sp"):
        layout["sequence_parallel"] = cells.claim("sp")
    if not recorded or cells.stated.get("zero_stage"):
        layout["zero_stage"] = cells.count("zero_stage", least=0, most=3)
    if recorded:
        return msgspec.structs.replace(base, **layout)
    return msgspec.structs.replace(
        base,
        **layout,
        stage_assignment=cells.choice("stage_assignment", StageAssignment),
        fused_attention=cells.claim("fused_attention"),
        scatter_gather=cells.claim("scatter_gather"),
    )


def _network(cells: _Cells) -> float | None:
    """Bytes per second out of one node: as a number, else as the words of `inter_link`, else as assumed."""
    if not cells.stated.get("network_bytes_per_second"):
        rate = worded_bytes_per_second(cells.stated.get("inter_link", ""))
        if rate is not None:
            return rate
        if cells.count("gpus") <= cells.count("gpus_per_node"):
            return None
    return cells.positive("network_bytes_per_second") if cells.said("network_bytes_per_second") else None


@cache
def worded_bytes_per_second(text: str) -> float | None:
    """Bytes per second out of a node in words such as "8x HDR InfiniBand 200Gb/s per node"; None: no rate in them.

    A count in front multiplies; b is a bit and B a byte.
    """
    found = _RATE.search(text)
    if found is None:
        return None
    count, rate, prefix, unit = found.groups()
    try:
        number = float(rate)
    except ValueError:
        return None
    return int(count or 1) * number * (1e12 if prefix == "T" else 1e9) / (1 if unit.startswith("B") else 8) or None


def _left_out(row: PublishedRow, stated: dict[str, str], rules: tuple[LeftOut, ...]) -> str:
    """Why a complete row does not count; empty where it does."""
    if not row.ran:
        return f"status is {row.status}"
    for rule in rules:
        text = stated.get(rule.column, "")
        if rule.not_blank and text:
            return f"{rule.column} is {text}: {rule.why}"
        try:
            number = float(text)
        except ValueError:
            continue
        if rule.above is not None and number > rule.above:
            return f"{rule.column} is above {rule.above:g}: {rule.why}"
        if rule.below is not None and number < rule.below:
            return f"{rule.column} is below {rule.below:g}: {rule.why}"
    if row.step_seconds is None and row.peak_bytes is None:
        return f"{STEP} and {MEMORY} are blank"
    return ""
