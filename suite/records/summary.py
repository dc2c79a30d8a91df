"""The summary of a launch: what tables, histories and the page need of its two files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.accelerator import SIMULATED
from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text
from reference_runs.regular_file import file_bytes
from reference_runs.run import ProductFormat, Recipe
from suite.job.events import Step
from suite.job.options import KernelChoice, TrainingOptions
from suite.job.training_job import Job
from suite.metrics.figures import Figure, last_loss
from suite.records.record import (
    SCHEMA,
    Begin,
    End,
    Launcher,
    RankOutcome,
    check_names,
    check_same_launch,
    check_schema,
    contents,
    partial,
    shared_fields,
)
from suite.stored_words import RECORD, in_todays_words

FigureKey = tuple[str, str | None, str | None, str | None]  # quantity, axis, operation, term


class Values(msgspec.Struct, frozen=True, gc=False):
    """Figures of the whole job (no single rank's or stage's): value by (quantity, axis, operation, term).

    Args:
        indices: key -> index in `numbers`; launches with the same figures share it.
    """

    indices: dict[FigureKey, int]
    numbers: tuple[int | float, ...]

    def of(
        self, quantity: str, *, axis: str | None = None, operation: str | None = None, term: str | None = None
    ) -> int | float | None:
        """The value of one figure; None where it is not there."""
        index = self.indices.get((quantity, axis, operation, term))
        return None if index is None else self.numbers[index]

    def items(self) -> Iterator[tuple[FigureKey, int | float]]:
        """Keys and values, in the record's order."""
        return zip(self.indices, self.numbers, strict=True)


class LaunchSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One launch in short. A field that a record's structs have too is that field, and is copied from there by name.

    Args:
        started, finished: seconds since 1970; finished is None without an end.
        path: of the first half; `suite.records.store.read` reads the whole record from it.
        launcher: of a launch without an end, whose status depends on when it is read.
        status: as of `suite.records.record.Record`: ok, hang, oom, nan, crashed, interrupted, running or unknown.
        machine: hardware and device in words.
        hashes: of hardware, software and policy; `hardware`, `software`, `policy` what they are of, shared by launches.
        suite: version of this suite with its commit.
        steps: of the whole launch, warm-up included.
        first_loss, last_loss: of rank 0's first step, and the mean of its last 3; None without steps.
        others_share, steal_share, profile: as of `suite.records.record.End`.
        rung: of the ladder, as of `suite.job.options.TrainingOptions`; empty of others.
        product_format: of the layers' GEMMs, as of `reference_runs.run.ProductFormat`.
    """

    id: str
    run: str
    started: float
    finished: float | None = None
    node: str
    path: str
    launcher: Launcher | None
    status: str
    message: str = ""
    machine: str
    hashes: dict[str, str]
    hardware: dict[str, str]
    software: dict[str, str]
    policy: dict[str, str]
    suite: str
    device: str
    ranks: int
    layout: str
    compiled: bool
    precision: str
    global_batch: int
    steps: int
    seed: int
    predicted: Values
    measured: Values
    first_loss: float | None
    last_loss: float | None
    profile: str = ""
    others_share: float | None = None
    steal_share: float | None = None
    rung: str = ""
    product_format: str = ProductFormat.NONE.value

    @property
    def kernels(self) -> str:
        """Kernels of everything but GEMMs."""
        return self.policy.get("kernels", KernelChoice.TORCH.value)

    @property
    def optimizations(self) -> tuple[str, ...]:
        """Faster ways in which its steps were executed, as of `suite.job.options.Optimization`."""
        return _optimizations(self.policy.get("script", "{}"))

    @property
    def simulated(self) -> bool:
        """Whether it ran on simulated GPUs, whose times are no GPU's: every figure of time is one of the host."""
        return self.device == "cuda" and SIMULATED in self.hardware.get("gpus", "")


_FACTS = ("hardware", "software", "policy", "hashes")  # the same bytes in many records: decoded once
_OF_BEGIN = shared_fields(LaunchSummary, Begin)
_OF_JOB = shared_fields(LaunchSummary, Job, "layout")
_OF_END = shared_fields(LaunchSummary, End, "id", "status", "ranks", "predicted")

_recipe = partial(Recipe, "global_batch", precision=str, product_format=str)
_job = partial(
    Job,
    *_OF_JOB,
    recipe=_recipe,
    layout=msgspec.Raw,
    training_options=partial(TrainingOptions, "rung"),
    slice=dict[str, Any] | None,
)
_raw: dict[str, Any] = dict.fromkeys(_FACTS, msgspec.Raw)
_figures = [partial(Figure, "value", "axis", "operation", "rank", "stage", "term", quantity=str)]
_ranks = [msgspec.Raw]
_BEGIN = msgspec.json.Decoder(partial(Begin, "schema", *_OF_BEGIN, job=_job, **_raw))
_END = msgspec.json.Decoder(
    partial(End, "schema", "id", "status", *_OF_END, figures=_figures, predicted=_figures, ranks=_ranks)
)
_LOSSES = msgspec.json.Decoder(partial(End, ranks=_ranks))
_RANK = msgspec.json.Decoder(partial(RankOutcome, steps=[partial(Step, "step", "loss")]))
_FACT = msgspec.json.Decoder(dict[str, str])
_NOTHING = Values({}, ())
_MAJOR = SCHEMA.split(".")[0] + "."


@cache
def _facts(data: bytes) -> dict[str, str]:
    return _FACT.decode(data)


@cache
def _optimizations(script: str) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(script, type=dict[str, Any]).get("optimizations", ()))


@cache
def _layout(data: bytes) -> tuple[str, int]:
    fields = msgspec.json.decode(data, type=dict[str, Any])
    layout = msgspec.convert({key: fields[key] for key in fields if key in Layout.__struct_fields__}, Layout)
    return layout_text(layout), layout.ranks


@cache
def _indices(keys: tuple[FigureKey, ...]) -> dict[FigureKey, int]:
    return {key: index for index, key in enumerate(keys)}


def _values(figures: list[Any]) -> Values:
    of_job = [figure for figure in figures if figure.rank is None and figure.stage is None]
    keys = tuple((figure.quantity, figure.axis, figure.operation, figure.term) for figure in of_job)
    return Values(_indices(keys), tuple(figure.value for figure in of_job))


def launch_summary(begin_path: str, end_path: str | None) -> LaunchSummary:
    """The summary of a record's two files; without an end its status is empty.

    Raises:
        InputError: a file cannot be read, is damaged, of an unknown schema, or belongs to another launch.
    """
    begin = _half(_BEGIN, begin_path)
    check_names(begin.id, begin.run, begin_path)
    end = None if end_path is None else _half(_END, end_path)
    if end is not None:
        check_same_launch(begin.id, end.id, str(end_path))
    try:
        return _summary(begin, end, begin_path)
    except (msgspec.MsgspecError, KeyError) as error:
        raise InputError(f"damaged record: {error}", where=begin_path) from error


def _half(decoder: msgspec.json.Decoder[Any], path: str) -> Any:
    data = contents(path)
    try:
        half = decoder.decode(in_todays_words(data, RECORD))
        data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        check_schema(data, path)
        raise InputError(f"damaged record: {error}", where=path) from error
    if not half.schema.startswith(_MAJOR):
        check_schema(data, path)
    return half


def _summary(begin: Any, end: Any | None, path: str) -> LaunchSummary:
    job = begin.job
    copied = {name: getattr(begin, name) for name in _OF_BEGIN} | {name: getattr(job, name) for name in _OF_JOB}
    copied |= {name: _facts(bytes(copied[name])) for name in _FACTS}
    if end:
        copied |= {name: getattr(end, name) for name in _OF_END} | {"launcher": None}
    hardware = copied["hardware"]
    layout, ranks = _layout(bytes(job.layout))
    losses = [step.loss for step in _RANK.decode(end.ranks[0]).steps] if end and end.ranks else []
    return LaunchSummary(
        path=path,
        status=end.status.value if end else "",
        machine=f"{hardware['cpu']}, {hardware['cores']} cores, GPUs: {hardware['gpus']}, {job.device}",
        suite=copied["software"].get("suite", ""),
        ranks=ranks if job.slice is None else len(job.slice.get("group", ())) or 1,
        layout=layout,
        precision=job.recipe.precision,
        product_format=job.recipe.product_format,
        global_batch=job.recipe.global_batch,
        predicted=_values(end.predicted) if end else _NOTHING,
        measured=_values(end.figures) if end else _NOTHING,
        first_loss=losses[0] if losses else None,
        last_loss=last_loss(losses) if losses else None,
        rung=job.training_options.rung,
        **copied,
    )


def loss_curve(end_path: Path) -> list[tuple[int, float]]:
    """Steps and losses of rank 0; nothing where the second half of the record does not have them."""
    try:
        ranks = _LOSSES.decode(file_bytes(end_path)).ranks
        return [(step.step, step.loss) for step in _RANK.decode(ranks[0]).steps] if ranks else []
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []
