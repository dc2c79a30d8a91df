"""What the cells of a published row say of a run: accelerator, stack, shape, recipe, layout and network."""

from __future__ import annotations

import enum
import math
import re
import typing
from functools import cache

import msgspec

from reference_runs.accelerator import accelerator, accelerator_names, name_words
from reference_runs.catalog import reference_run
from reference_runs.dtype_words import DTYPES, dtype_named
from reference_runs.errors import InputError
from reference_runs.gpu_words import near_gpu, worded_gpu
from reference_runs.layout import Layout, Recomputation, StageAssignment
from reference_runs.machine_model import machine_model
from reference_runs.placement import balanced_stages
from reference_runs.published_columns import BATCH_TOKENS
from reference_runs.published_tables import Assumption, TableFacts, load_tables
from reference_runs.run import Architecture, Precision, ProductFormat, Recipe
from reference_runs.stack import ReadStack, matches, reading, stack
from reference_runs.unsaid_reduction import reduction_of_stack

LARGEST, SMALLEST, MOST = 1e18, 1e-9, 10**8  # what no number, no time or size, and no count of a real run exceeds
Choice = typing.TypeVar("Choice", bound=enum.StrEnum)
_TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class UnusableError(Exception):
    """Why a row cannot be used."""


class Cells:
    """The cells of one row by column; blank ones are filled by the table's assumptions, which are noted in `assumed`.

    `known` has texts found on the way (accelerator, stack) that assumptions may ask for.

    Args:
        recorded: cells of the recorded run that the row's model is called after, before all assumptions.
        of_run: its name.
    """

    def __init__(
        self,
        stated: dict[str, str],
        assumptions: dict[str, list[Assumption]],
        recorded: dict[str, str] | None = None,
        of_run: str = "",
    ) -> None:
        self.stated = stated
        self.assumptions = assumptions
        self.recorded = recorded or {}
        self.of_run = of_run
        self.known: dict[str, str] = {}
        self.assumed: list[str] = []

    def text(self, column: str) -> str:
        """What the row says, or what is assumed.

        Raises:
            UnusableError: neither.
        """
        said = self.stated.get(column) or self.known.get(column)
        if said:
            return said
        if value := self.recorded.get(column):
            self.assumed.append(f"{column} = {value} as {self.of_run}")
            self.known[column] = value
            return value
        for assumption in self.assumptions.get(column, ()):
            if (value := self._value(assumption)) is not None:
                self.assumed.append(f"{column} = {value}")
                self.known[column] = value
                return value
        raise UnusableError(f"{column} is blank")

    def _value(self, assumption: Assumption) -> str | None:
        for column, patterns in assumption.where.items():
            text = self.said(column)
            if not any(matches(pattern, text) for pattern in patterns):
                return None
        if not assumption.same_as:
            value = assumption.values.get(self.said(assumption.by)) if assumption.by else assumption.value
            return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)
        number = -(-assumption.times * self.count(assumption.same_as) // assumption.over)
        if assumption.rounded_to:
            number = -(-number // assumption.rounded_to) * assumption.rounded_to
        if assumption.padded_to and number % (tensor_parallel := self.count("tp")):
            multiple = assumption.padded_to * tensor_parallel
            number = -(-number // multiple) * multiple
        return str(number)

    def said(self, column: str) -> str:
        """As `text`, and empty where nothing is said and nothing assumed."""
        try:
            return self.text(column)
        except UnusableError:
            return ""

    def number(self, column: str) -> float:
        """A number from 0 to `LARGEST`."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= LARGEST:
            marks = ", allowed: a decimal point, or a comma between semicolons or tabs" if "," in text else ""
            raise UnusableError(f"{column}: expected a number from 0 to {LARGEST:g}; got {text!r}{marks}")
        return number

    def positive(self, column: str) -> float:
        """A number from `SMALLEST` to `LARGEST`."""
        number = self.number(column)
        if number < SMALLEST:
            raise UnusableError(f"{column}: expected a number from {SMALLEST:g} on; got {self.text(column)!r}")
        return number

    def count(self, column: str, *, least: int = 1, most: int = MOST) -> int:
        """An integer from `least` to `most`."""
        number = self.number(column)
        if number != int(number) or not least <= number <= most:
            raise UnusableError(f"{column}: expected an integer from {least} to {most}; got {self.text(column)!r}")
        return int(number)

    def claim(self, column: str) -> bool:
        """Whether it is so."""
        text = self.text(column)
        if (claim := _TRUTH.get(text.casefold())) is None:
            raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(_TRUTH)}")
        return claim

    def choice(self, column: str, allowed: type[Choice]) -> Choice:
        """The member of an enum that is written so."""
        text = self.text(column)
        try:
            return allowed(re.sub(r"[\s_]+", "-", text.casefold()))
        except ValueError as error:
            raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(allowed)}") from error


def complete_ranks(cells: Cells, context_parallel: int) -> None:
    """Fill `gpus` or `dp`, whichever is blank, from the other: gpus = dp tp pp cp; nothing where tp or pp is blank.

    Args:
        context_parallel: where the row says nothing of `cp`.

    Raises:
        UnusableError: tp pp cp does not divide gpus.
    """
    stated = cells.stated.get
    if bool(stated("gpus")) == bool(stated("dp")) or not (cells.said("tp") and cells.said("pp")):
        return
    inner = cells.count("tp") * cells.count("pp") * (cells.count("cp") if stated("cp") else context_parallel)
    if stated("dp"):
        cells.known["gpus"] = str(cells.count("dp") * inner)
        cells.assumed.append(f"gpus = dp * tp * pp * cp = {cells.known['gpus']}")
        return
    accelerators = cells.count("gpus")
    if accelerators % inner:
        raise UnusableError(f"dp is blank, and tp * pp * cp = {inner} does not divide gpus = {accelerators}")
    cells.known["dp"] = str(accelerators // inner)
    cells.assumed.append(f"dp = gpus / (tp * pp * cp) = {cells.known['dp']}")


def complete_batch(cells: Cells) -> None:
    """Fill a blank `global_batch` from `BATCH_TOKENS`, where the length of a sequence is known.

    Raises:
        UnusableError: they are no whole number of sequences.
    """
    if cells.stated.get("global_batch") or not cells.stated.get(BATCH_TOKENS) or not cells.said("seq_len"):
        return
    tokens, sequence = cells.count(BATCH_TOKENS, most=MOST**2), cells.count("seq_len")
    if tokens % sequence:
        raise UnusableError(f"{BATCH_TOKENS} = {tokens} is no multiple of seq_len = {sequence}")
    cells.known["global_batch"] = str(tokens // sequence)
    cells.assumed.append(f"global_batch = {BATCH_TOKENS} / seq_len = {tokens // sequence}")


def stack_reading(
    framework: str, facts: TableFacts, device: str = "", *, model: str = "", stages: bool = False, split: bool = False
) -> ReadStack:
    """The stack that the text of a table's column `framework` stands for; "generic" where it is not known.

    Args:
        model: what the row calls it; software is no older than what it trains.
        stages: pipeline stages split the layers.
        split: tensor parallelism does so besides.
    """
    for pattern, name in facts.stacks.items():
        if matches(pattern, framework):
            return ReadStack(
                stack(name), f"{pattern.strip('*')!r} in this table" if pattern.strip("*") else "the table's"
            )
    later = (bool(device) and machine_model().is_later(device)) or any(
        matches(pattern, model) for pattern in load_tables().later_models
    )
    return reading(framework, later=later, stages=stages, split=split and stages)


def stack_name(
    framework: str, facts: TableFacts, device: str = "", *, stages: bool = False, split: bool = False
) -> str:
    """The name of `stack_reading`'s stack."""
    return stack_reading(framework, facts, device, stages=stages, split=split).stack.name


def device_of(cells: Cells) -> str:
    """The catalog's name of the accelerator that the column `gpu` means.

    Raises:
        UnusableError: the catalog has none of that name.
    """
    text, tables = cells.text("gpu"), load_tables()
    words = name_words(text)
    assumed = {name_words(entry.text): entry.accelerator for entry in tables.open_accelerators}
    if device := assumed.get(words):
        cells.assumed.append(f"gpu {text} = {device}")
        return device
    names = {name_words(name): device for name, device in tables.accelerators.items()}
    device = names.get(words) or _accelerator_name(text)
    if device is None and (device := worded_gpu(text)):
        cells.assumed.append(f"gpu {text} = {device}")
    if device is None:
        near = near_gpu(text)
        meant = f"did you mean {near}? " if near else ""
        raise UnusableError(f"gpu: {text!r} is not known; {meant}allowed: {', '.join(accelerator_names())}")
    return device


@cache
def _accelerator_name(text: str) -> str | None:
    if text.endswith(".toml"):
        return None
    try:
        return accelerator(text).name
    except InputError:
        return None


def base_of(run: str | None, rest_as: str) -> tuple[Architecture, Recipe, Layout | None]:
    """What a recorded run says of everything that a row leaves open.

    Args:
        run: the one that the row is of; None: none is, and `rest_as` says what neither row nor assumptions do.

    Returns:
        No layout without a run, or where an axis of the run's is not published.
    """
    recorded = reference_run(run or rest_as)
    return recorded.architecture, recorded.recipe, recorded.recorded_layout if run else None


def recipe_of(cells: Cells, base: Recipe, *, recorded: bool) -> Recipe:
    """The row's batch, precision and dropout; the rest is the recorded run's.

    A dtype that the recorded run's precision is of ("fp16" of fp16-gradient-copy) leaves that precision as it is.
    """
    batch = cells.count("global_batch")
    read_dtype(cells)
    if recorded:
        said: dict[str, object] = {}
        if cells.stated.get("dtype") or cells.stated.get("precision"):
            precision = cells.choice("precision", Precision)
            said["precision"] = base.precision if base.precision.partition("-")[0] == precision else precision
        if cells.stated.get("dtype") or cells.said("product_format"):
            said["product_format"] = _products_of(cells)
        return msgspec.structs.replace(base, global_batch=batch, **said)
    dropout = cells.number("dropout")
    if dropout >= 1:
        raise UnusableError(f"dropout: expected a number below 1; got {dropout:g}")
    return msgspec.structs.replace(
        base,
        global_batch=batch,
        precision=cells.choice("precision", Precision),
        product_format=_products_of(cells),
        embedding_dropout=dropout,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def read_dtype(cells: Cells) -> None:
    """Put what `dtype` and `precision` say in place of their words: each may be words for a dtype, or a `Precision`.

    Raises:
        UnusableError: one is not known, both contradict each other, or both are blank and nothing is assumed.
    """
    if not cells.stated.get("precision"):
        cells.text("dtype")
    read = {column: _read_column(cells, column) for column in ("dtype", "precision") if cells.stated.get(column)}
    dtype, precision = read.get("dtype", ""), read.get("precision", "")
    if dtype and dtype not in DTYPES:
        dtype, precision = dtype.partition("-")[0], precision or dtype
    if precision and precision not in list(Precision):  # a format of products: weights are what is assumed of it
        if dtype not in ("", "bf16", precision) and not (precision == "fp8" and dtype.startswith("fp8-")):
            raise UnusableError(f"precision: {cells.stated['precision']!r} is not what dtype says, {dtype}")
        dtype, precision = precision if dtype in ("", "bf16") else dtype, ""
    cells.stated |= {"dtype": dtype, "precision": precision}


def _read_column(cells: Cells, column: str) -> str:
    """What the words of the column say: of `DTYPES` or of `Precision`."""
    text = cells.stated[column]
    name = re.sub(r"[\s_-]+", "-", text.casefold())
    said = name if name in list(Precision) else dtype_named(text)
    if said is None:
        allowed = DTYPES if column == "dtype" else dict.fromkeys((*Precision, *DTYPES))
        raise UnusableError(f"{column}: {text!r} is not known; allowed: {', '.join(allowed)}")
    if said != text:
        cells.assumed.append(f"{column} {text} = {said}")
    return said


def _products_of(cells: Cells) -> ProductFormat:
    """The format of the row's products: none where nothing is said of it."""
    return cells.choice("product_format", ProductFormat) if cells.said("product_format") else ProductFormat.NONE


def layout_of(cells: Cells, base: Layout, *, recorded: bool) -> Layout:
    """The row's layout; what it leaves open is the recorded run's, or assumed.

    Expert parallelism lies within the row's dp, as Megatron-Core counts: each of `ep` groups of experts has dp / ep
    replicas.
    """
    axes = {"data_parallel": "dp", "tensor_parallel": "tp", "pipeline_stages": "pp", "micro_batch": "micro_batch"}
    layout: dict[str, object] = {name: cells.count(column) for name, column in axes.items()} | {"accumulation": None}
    for key, column, read in (
        ("recomputation", "recompute", lambda column: cells.choice(column, Recomputation)),
        ("virtual_stages", "vpp", cells.count),
        ("context_parallel", "cp", cells.count),
        ("sequence_parallel", "sp", cells.claim),
        ("zero_stage", "zero_stage", lambda column: cells.count(column, least=0, most=3)),
    ):
        if not recorded or cells.stated.get(column):
            layout[key] = read(column)
    experts = _expert_groups(cells)
    layout |= {"data_parallel": cells.count("dp") // experts, "expert_parallel": experts}
    if recorded:
        if layout["pipeline_stages"] == 1:
            layout["virtual_stages"] = 1
        return msgspec.structs.replace(base, **layout)
    return msgspec.structs.replace(
        base,
        **layout,
        stage_assignment=_assignment(cells),
        fused_attention=cells.claim("fused_attention"),
        scatter_gather=cells.claim("scatter_gather"),
    )


def _expert_groups(cells: Cells) -> int:
    """Groups of experts within the row's dp.

    Where experts are not split over tp, as NVIDIA's recipes have it, ep counts ranks of tp too: the ep / tp groups of
    here, each expert over tp, give each rank as much of the experts.
    """
    experts, data = cells.count("ep") if cells.stated.get("ep") else 1, cells.count("dp")
    if data % experts == 0:
        return experts
    groups, rest = divmod(experts, cells.count("tp"))
    if rest or data % groups:
        raise UnusableError(f"ep = {experts} does not divide dp = {data}, nor tp * dp")
    cells.assumed.append(f"ep {experts} = {groups} with each expert over tp")
    return groups


def _assignment(cells: Cells) -> StageAssignment:
    """How layers are dealt: with the tables as layers where there are chunks for these alone."""
    chunks, layers = cells.count("pp") * cells.count("vpp"), cells.count("layers")
    if cells.stated.get("stage_assignment") or not layers < chunks <= layers + 2:
        return cells.choice("stage_assignment", StageAssignment)
    assignment = StageAssignment.LAYERS_AND_TABLES
    cells.assumed.append(f"stage_assignment = {assignment.value}")
    return assignment


def dealt_layout(architecture: Architecture, layout: Layout, stack_name: str) -> Layout:
    """The layout with its stages' layers as the stack deals them, where it goes by a measure of its own."""
    if not stack(stack_name).switches.balances_stages or layout.pipeline_stages == 1 or layout.virtual_stages > 1:
        return layout
    dealt = balanced_stages(architecture, stages=layout.pipeline_stages)
    return msgspec.structs.replace(layout, stage_layer_counts=tuple(blocks.layers for blocks in dealt))


def executed_layout(architecture: Architecture, layout: Layout, stack_name: str, run: str | None) -> Layout:
    """The layout with its stages' layers as the stack deals them, and gradients reduced as it does (ZeRO-1).

    Args:
        run: the recorded run that says what the row leaves open, which may say how gradients are reduced.
    """
    layout = dealt_layout(architecture, layout, stack_name)
    if run is not None and "layout.reduce_scatter" in reference_run(run).facts:
        return layout
    return reduction_of_stack(layout, stack(stack_name))
