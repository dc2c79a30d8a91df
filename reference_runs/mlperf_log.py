"""Results of MLPerf Training as its logger writes them (lines `:::MLLOG {...}`): step time, batch, benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.published_cells import MOST
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_text, json_of

MARK = ":::MLLOG "  # before the JSON of an event; srun puts the number of the rank before it
MOST_BYTES = 1 << 27  # of a log: the whole output of a training may stand around its events
_PASSES = (("block_start", "block_stop"), ("epoch_start", "epoch_stop"), ("run_start", "run_stop"))
_COUNTS = ("samples_count", "step", "epoch_num", "first_epoch_num")  # in the metadata of an event: work until then
_EVALUATION = ("eval_start", "eval_stop")


class Event(msgspec.Struct, frozen=True):
    """An event of a log, without what is not read."""

    time_ms: float
    key: str
    value: Any = None
    metadata: dict[str, Any] = {}


class TrainedPart(NamedTuple):
    """Milliseconds of a part of the training without its evaluations, and the work until its beginning and its end.

    Args:
        work: as the log counts it: samples or tokens; None where it does not.
    """

    milliseconds: float
    before: float
    work: float | None


class LoggedRun(NamedTuple):
    """Result of one run.

    Args:
        step_seconds: median over `parts` of seconds a step.
        parts: how many parts of the training it is the median of, and what they are called.
        counted_in: what the log counts its work in.
        sequence: tokens of a sample; None where the log has none.
        ranks: accelerators; None where the log has none.
        status: "success", or how the run ended else; empty where the log does not say.
        layout: by column of a table, what events of the layout and precision say (from version 6.1 of the rules on).
    """

    benchmark: str
    submitter: str
    platform: str
    seed: str
    global_batch: int
    accumulation: int | None
    sequence: int | None
    ranks: int | None
    step_seconds: float
    parts: int
    part: str
    counted_in: str
    status: str
    layout: dict[str, str]


def is_mlperf_log(path: Path) -> bool:
    """Whether a file has an event of MLPerf's logger; not where it cannot be read."""
    try:
        return MARK in file_text(path, most=MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return False


def logged_run(path: Path, *, sequence: int | None = None) -> LoggedRun:
    """The result in the log at `path`.

    Args:
        sequence: tokens of a sample, where the log does not say it.

    Raises:
        InputError: no event, an event that is none, no batch, or no part of the training with its work.
    """
    where, events = shown_path(path), read_events(path)
    batch = _number(events, "global_batch_size", where)
    if batch is None:
        raise InputError("no event global_batch_size", where=where)
    said = _number(events, "max_sequence_length", where)
    sequence = said if said is not None else sequence
    part, parts = _trained_parts(events, where)
    counted_in = _unit(parts, batch, sequence, where)
    of_step = batch * (sequence or 1) if counted_in == "tokens" else batch
    seconds = [each.milliseconds / 1000 / ((each.work - each.before) / of_step) for each in parts if each.work]
    status = next((str(e.metadata.get("status", "")) for e in reversed(events) if e.key == "run_stop"), "")
    ranks = _number(events, "number_of_ranks", where)
    if ranks is None:
        nodes, of_node = (_number(events, key, where) for key in ("number_of_nodes", "accelerators_per_node"))
        ranks = nodes * of_node if nodes and of_node else None
    return LoggedRun(
        **{name: _text(events, key) for name, key in _TEXTS.items()},
        global_batch=batch,
        accumulation=_number(events, "gradient_accumulation_steps", where),
        sequence=sequence,
        ranks=ranks,
        step_seconds=statistics.median(seconds),
        parts=len(seconds),
        part=part,
        counted_in=counted_in,
        status=status,
        layout=_disclosed(events, where),
    )


def _disclosed(events: Sequence[Event], where: str) -> dict[str, str]:
    sizes = {column: _number(events, key, where) for column, key in _DISCLOSED.items()}
    cells = {column: str(size) for column, size in sizes.items() if size is not None}
    dtype = _text(events, "lowest_numerical_precision_in_linear")
    return cells | ({"dtype": dtype} if dtype else {})


_DISCLOSED = {
    "tp": "tensor_parallelism",
    "pp": "pipeline_parallelism",
    "cp": "context_parallelism",
    "ep": "expert_parallelism",
    "micro_batch": "micro_batch_size",
}

_TEXTS = {
    "benchmark": "submission_benchmark",
    "submitter": "submission_org",
    "platform": "submission_platform",
    "seed": "seed",
}


def read_events(path: Path) -> list[Event]:
    """The events of a log, in their order in the file, each once though several ranks wrote it.

    Raises:
        InputError: unreadable file, no event, or one that is no JSON object with a time and a key.
    """
    where = shown_path(path)
    try:
        text = file_text(path, most=MOST_BYTES)
    except OSError as error:
        raise InputError(f"cannot read the log: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError("expected a text file", where=where) from error
    found: dict[str, Event] = {}
    for number, line in enumerate(text.split("\n"), 1):
        _, mark, written = line.partition(MARK)
        if not mark or written in found:
            continue
        try:
            found[written] = json_of(written.encode(), Event)
        except msgspec.MsgspecError as error:
            raise InputError(f"line {number}: no event of MLPerf's logger: {error}", where=where) from error
    if not found:
        raise InputError(f"no event of MLPerf's logger, {MARK.strip()}", where=where)
    return list(found.values())


def _trained_parts(events: Sequence[Event], where: str) -> tuple[str, list[TrainedPart]]:
    """The parts of the training, and what they are: blocks between evaluations, else epochs, else the whole run."""
    for start, stop in _PASSES:
        parts = [
            part for part in _parts(events, start, stop) if part.milliseconds > 0 and (part.work or 0) > part.before
        ]
        if parts:
            return start.partition("_")[0], parts
    what = "no part of the training with its time and work"
    allowed = "block_start and block_stop, epoch_start and epoch_stop, or run_start and run_stop, and samples_count"
    raise InputError(what, allowed=allowed, where=where)


def _parts(events: Sequence[Event], start: str, stop: str) -> Iterator[TrainedPart]:
    evaluations = list(_spans(events, *_EVALUATION))
    for began, ended in _spans(events, start, stop):
        inside = [
            max(0.0, min(ended.time_ms, last.time_ms) - max(began.time_ms, first.time_ms))
            for first, last in evaluations
        ]
        work = _work(ended)
        if work is None:  # of a whole run: until its last event that counts
            counts = [_work(event) for event in events if began.time_ms < event.time_ms <= ended.time_ms]
            work = max((count for count in counts if count is not None), default=None)
        yield TrainedPart(ended.time_ms - began.time_ms - sum(inside), _work(began) or 0.0, work)


def _spans(events: Sequence[Event], start: str, stop: str) -> Iterator[tuple[Event, Event]]:
    """Each event that starts something with the next one that stops it."""
    began: Event | None = None
    for event in events:
        if event.key == start:
            began = event
        elif event.key == stop and began is not None:
            yield began, event
            began = None


def _work(event: Event) -> float | None:
    for key in _COUNTS:
        count = event.metadata.get(key)
        if isinstance(count, (int, float)) and not isinstance(count, bool) and count >= 0:
            return float(count)
    return None


def _unit(parts: Sequence[TrainedPart], batch: int, sequence: int | None, where: str) -> str:
    """The unit of the work of parts: submitters' code counts samples or tokens under the same names.

    Tokens where every part is a multiple of a batch's tokens: of samples that would be parts of `sequence` steps.

    Raises:
        InputError: some part is no whole number of steps either way.
    """
    works = [part.work - part.before for part in parts if part.work is not None]
    if sequence is not None and all(work % (batch * sequence) == 0 for work in works):
        return "tokens"
    if all(work % batch == 0 for work in works):
        return "samples"
    odd = next(work for work in works if work % batch)
    what = f"a part of the training is no whole number of steps of {batch} samples"
    raise InputError(what, got=f"{odd:.15g}", allowed="samples or tokens", where=where)


def _number(events: Sequence[Event], key: str, where: str) -> int | None:
    """The whole number above 0 that the events of that key have; None without any.

    Raises:
        InputError: another value, or several.
    """
    values = sorted({str(event.value) for event in events if event.key == key})
    if not values:
        return None
    if len(values) > 1:
        raise InputError(f"several values of {key}", got=" and ".join(values), where=where)
    try:
        number = float(values[0])
    except ValueError:
        number = 0.0
    if not 1 <= number <= MOST or number % 1:
        raise InputError(key, got=repr(values[0]), allowed="a whole number of 1 or more", where=where)
    return int(number)


def _text(events: Sequence[Event], key: str) -> str:
    """The value of the last event of that key, as one line; empty without any."""
    said = next((event.value for event in reversed(events) if event.key == key), None)
    return "" if said is None else " ".join(str(said).split())
