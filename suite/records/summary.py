"""What tables, histories and the page need of one launch, read from its two files without decoding the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text
from suite.job.events import Status
from suite.records.record import SCHEMA, Launcher, contents, known_schema, own_end, own_names

Key = tuple[str, str | None, str | None, str | None]  # quantity, axis, operation, term
LAST_LOSSES = 3  # steps whose mean is the last loss


class Values(msgspec.Struct, frozen=True, gc=False):
    """Figures of the whole job (no single rank's or stage's): value by (quantity, axis, operation, term).

    Args:
        places: key -> place in `numbers`; launches with the same figures share it.
    """

    places: dict[Key, int]
    numbers: tuple[int | float, ...]

    def of(
        self, quantity: str, *, axis: str | None = None, operation: str | None = None, term: str | None = None
    ) -> int | float | None:
        """The value of one figure; None where it is not there."""
        place = self.places.get((quantity, axis, operation, term))
        return None if place is None else self.numbers[place]

    def items(self) -> Iterator[tuple[Key, int | float]]:
        """Keys and values, in the record's order."""
        return zip(self.places, self.numbers, strict=True)


class Launch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One launch in brief.

    Args:
        started, finished: seconds since 1970; finished is None without an end.
        path: of the first half; `suite.records.store.read` reads the whole record from it.
        launcher: of a launch without an end, that its status be found out whenever it is read.
        status: as of `suite.records.record.Record`: ok, hang, oom, nan, crashed, interrupted, running or unknown.
        machine: hardware and device in words.
        hashes: of hardware, software and policy; `hardware`, `software`, `policy` what they are of, shared by launches.
        suite: version of this suite with its commit.
        steps: of the whole launch, warm-up included.
        first_loss, last_loss: of rank 0's first step, and the mean of its last 3; None without steps.
        others_share, steal_share, profile: as of `suite.records.record.End`.
        rung: of the ladder, as of `suite.job.options.TrainingOptions`; empty of others.
    """

    id: str
    run: str
    started: float
    finished: float | None
    node: str
    path: str
    launcher: Launcher | None
    status: str
    message: str
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
    steps: int
    seed: int
    predicted: Values
    measured: Values
    first_loss: float | None
    last_loss: float | None
    profile: str
    others_share: float | None
    steal_share: float | None
    rung: str = ""


class _Recipe(msgspec.Struct):
    precision: str


class _Script(msgspec.Struct):
    rung: str = ""


class _Job(msgspec.Struct):
    recipe: _Recipe
    layout: msgspec.Raw
    device: str
    compiled: bool
    seed: int
    steps: int
    script: _Script = msgspec.field(default_factory=_Script)


class _Begin(msgspec.Struct):
    schema: str
    id: str
    run: str
    started: float
    node: str
    launcher: Launcher
    hardware: msgspec.Raw
    software: msgspec.Raw
    policy: msgspec.Raw
    hashes: msgspec.Raw
    job: _Job


class _Figure(msgspec.Struct, gc=False):
    quantity: str
    value: int | float
    axis: str | None = None
    operation: str | None = None
    rank: int | None = None
    stage: int | None = None
    term: str | None = None


class _End(msgspec.Struct):
    schema: str
    id: str
    status: Status
    message: str
    finished: float
    figures: list[_Figure]
    ranks: list[msgspec.Raw]
    predicted: list[_Figure] = []
    profile: str = ""
    others_share: float | None = None
    steal_share: float | None = None


class _Step(msgspec.Struct, gc=False):
    loss: float


class _Rank(msgspec.Struct):
    steps: list[_Step]


_BEGIN = msgspec.json.Decoder(_Begin)
_END = msgspec.json.Decoder(_End)
_RANK = msgspec.json.Decoder(_Rank)
_FACTS = msgspec.json.Decoder(dict[str, str])
_NOTHING = Values({}, ())
_MAJOR = SCHEMA.split(".")[0] + "."
Half = TypeVar("Half", _Begin, _End)


@cache
def _facts(data: bytes) -> dict[str, str]:
    return _FACTS.decode(data)


@cache
def _layout(data: bytes) -> tuple[str, int]:
    fields = msgspec.json.decode(data, type=dict[str, Any])
    layout = msgspec.convert({key: fields[key] for key in fields if key in Layout.__struct_fields__}, Layout)
    return layout_text(layout), layout.ranks


@cache
def _places(keys: tuple[Key, ...]) -> dict[Key, int]:
    return {key: place for place, key in enumerate(keys)}


def _values(figures: list[_Figure]) -> Values:
    own = [figure for figure in figures if figure.rank is None and figure.stage is None]
    keys = tuple((figure.quantity, figure.axis, figure.operation, figure.term) for figure in own)
    return Values(_places(keys), tuple(figure.value for figure in own))


def brief(begin_path: str, end_path: str | None) -> Launch:
    """What the two files of a record say, in brief; without an end its status is empty.

    Raises:
        InputError: a file cannot be read, is damaged, of an unknown schema, or belongs to another launch.
    """
    begin = _half(_BEGIN, begin_path)
    own_names(begin.id, begin.run, begin_path)
    end = None if end_path is None else _half(_END, end_path)
    if end is not None:
        own_end(begin.id, end.id, str(end_path))
    try:
        return _launch(begin, end, begin_path)
    except (msgspec.MsgspecError, KeyError) as error:
        raise InputError(f"damaged record: {error}", where=begin_path) from error


def _half(decoder: msgspec.json.Decoder[Half], path: str) -> Half:
    data = contents(path)
    try:
        half = decoder.decode(data)
        data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        known_schema(data, path)
        raise InputError(f"damaged record: {error}", where=path) from error
    if not half.schema.startswith(_MAJOR):
        known_schema(data, path)
    return half


def _launch(begin: _Begin, end: _End | None, path: str) -> Launch:
    job = begin.job
    hardware, software, policy, hashes = (
        _facts(bytes(facts)) for facts in (begin.hardware, begin.software, begin.policy, begin.hashes)
    )
    layout, ranks = _layout(bytes(job.layout))
    losses = [step.loss for step in _RANK.decode(end.ranks[0]).steps] if end and end.ranks else []
    last = losses[-LAST_LOSSES:]
    return Launch(
        id=begin.id,
        run=begin.run,
        started=begin.started,
        finished=end.finished if end else None,
        node=begin.node,
        path=path,
        launcher=None if end else begin.launcher,
        status=end.status.value if end else "",
        message=end.message if end else "",
        machine=f"{hardware['cpu']}, {hardware['cores']} cores, GPUs: {hardware['gpus']}, {job.device}",
        hashes=hashes,
        hardware=hardware,
        software=software,
        policy=policy,
        suite=software.get("suite", ""),
        device=job.device,
        ranks=ranks,
        layout=layout,
        compiled=job.compiled,
        precision=job.recipe.precision,
        steps=job.steps,
        seed=job.seed,
        predicted=_values(end.predicted) if end else _NOTHING,
        measured=_values(end.figures) if end else _NOTHING,
        first_loss=losses[0] if losses else None,
        last_loss=sum(last) / len(last) if last else None,
        profile=end.profile if end else "",
        others_share=end.others_share if end else None,
        steal_share=end.steal_share if end else None,
        rung=job.script.rung,
    )
