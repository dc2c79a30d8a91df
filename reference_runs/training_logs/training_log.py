"""A run as its log says it: the steps in order, sizes, timers, warnings."""

from __future__ import annotations

import datetime
import math
import re
import zlib
from collections import Counter
from gzip import BadGzipFile
from itertools import chain, pairwise
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.mlperf_log import MARK, logged_run
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import file_bytes
from reference_runs.training_logs.facts import SIGNS, Sign, facts_of, timers_of
from reference_runs.training_logs.formats import DEEPSPEED, FORMATS, LIGHTNING, LogFormat
from reference_runs.training_logs.lines import log_lines, number
from reference_runs.training_logs.progress import ProgressBars, has_stall, mean_times, times_of_states

MOST_STEPS = 100_000  # kept of a log; of more every second, every fourth, ...
RANKS_APART = 5  # steps that one rank's lines may come after another's
EARLY_LINES = 10_000  # in which a log says the sizes of its run, and in which other frameworks' steps are noticed
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d|\d\d/\d\d/\d{4})[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?")
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4})")
_KNOWN_WORDS = re.compile(r"iter|step|loss|time|tok|sampl|flop|mfu|throughput|epoch", re.IGNORECASE)
_SHOWN_LETTERS = 100
UNKNOWN = LogFormat("", re.compile("(?!)"), {})  # of a log without steps
DEEPSPEED_TIMERS = ("fwd", "bwd", "step")  # that make a step, without what happens between them


class PrintedStep(msgspec.Struct):
    """Figures that a log has of one step, or of the mean step since its line before; None where it does not.

    Args:
        number: of the step, as the framework counts.
        last: number of the run's last step.
        seconds: of the step.
        samples: sequences of the step, over all ranks.
        device_tokens_per_second: of one accelerator.
        tokens_per_second: of all.
        flop_per_second: of one accelerator.
        mfu: as a fraction.
        stamp: time of day in seconds.
    """

    number: float | None = None
    last: float | None = None
    seconds: float | None = None
    samples: float | None = None
    sequence: float | None = None
    device_tokens_per_second: float | None = None
    tokens_per_second: float | None = None
    printed_tokens_per_second: float | None = None
    samples_per_second: float | None = None
    batches_per_second: float | None = None
    steps_per_second: float | None = None
    tokens_seen: float | None = None
    runtime: float | None = None
    flop_per_second: float | None = None
    mfu: float | None = None
    loss: float | None = None
    data_share: float | None = None
    stamp: float | None = None


class TrainingLog(msgspec.Struct):
    """A run's log.

    Args:
        steps: in their order; of several runs in a file those of the last.
        facts: sizes that it says, see `reference_runs.training_logs.facts.FACTS`.
        timers: of parts of a step, each the median over the lines that say it: seconds of the fastest rank and of the
            slowest.
        signs: how many lines have each.
        notes: what a reader should know of how the file was read.
    """

    where: str
    format: LogFormat
    steps: list[PrintedStep]
    facts: dict[str, int]
    timers: dict[str, tuple[float, float]]
    signs: Counter[Sign]
    notes: list[str]


class _LogReader:
    """Gathers a log line by line."""

    def __init__(self) -> None:
        self.format: LogFormat | None = None
        self.steps: list[PrintedStep] = []
        self.facts: dict[str, int] = {}
        self.timers: dict[str, list[tuple[float, float]]] = {}
        self.signs: Counter[Sign] = Counter()
        self.others: Counter[str] = Counter()
        self.bars = ProgressBars()
        self.runs = 1
        self.stride, self.seen, self.lines = 1, 0, 0
        self.closest, self.likeness = "", 0

    def take(self, line: str) -> None:
        """Read one line."""
        self.lines += 1
        if self._take_step(line):
            return
        for sign, pattern in SIGNS.items():
            if pattern.search(line):
                self.signs[sign] += 1
        self.bars.take(line)
        if self.lines <= EARLY_LINES:
            self._take_early(line)
        for name, seconds in timers_of(line).items():
            known = self.timers.setdefault(name, [])
            if len(known) < MOST_STEPS:
                known.append(seconds)

    def _take_early(self, line: str) -> None:
        """Sizes, and the line that is most like a step, in case that none is one."""
        self.facts |= facts_of(line)
        likeness = len(set(map(str.lower, _KNOWN_WORDS.findall(line))))
        if likeness > self.likeness:
            self.closest, self.likeness = line, likeness

    def _take_step(self, line: str) -> bool:
        """Whether the line says something of a step."""
        if self.format is not None and self.format.begins.search(line):
            found: LogFormat | None = self.format
        elif self.format is None or self.lines <= EARLY_LINES:
            found = next((each for each in FORMATS if each.begins.search(line)), None)
        else:
            found = None
        self.format = self.format or found
        if self.format is None:
            return False
        if found is not self.format:
            if self.format.goes_on and self.steps and _fill(self.steps[-1], self.format, line):
                return True
            if found is not None:
                self.others[found.name] += 1
            return False
        step = PrintedStep(stamp=_stamp(line))
        _fill(step, self.format, line)
        self._append(step)
        done = self.bars.step_is_said()
        if step.number is None and done is not None:
            step.number = float(done)
        return True

    def steps_of_timers(self) -> list[PrintedStep]:
        """Steps by DeepSpeed's timers, which it prints without a step's line where its log has warnings alone."""
        of_steps = zip(*(self.timers.get(name, ()) for name in DEEPSPEED_TIMERS), strict=False)
        return [PrintedStep(number=float(place), seconds=sum(map(max, parts))) for place, parts in enumerate(of_steps)]

    def _append(self, step: PrintedStep) -> None:
        last = self.steps[-1] if self.steps else None
        if last is not None and step.number is not None and last.number is not None:
            if step.number == last.number:  # each rank prints it
                self.others["a run beside it"] += step.last != last.last
                return
            recent = self.steps[-RANKS_APART:]
            if any(step.number == each.number and step.loss == each.loss for each in recent):
                return  # of a rank that prints later
            if step.number < last.number or (step.last is not None and step.last != last.last):
                self.runs += 1
                self.steps.clear()
        self.seen += 1
        if self.seen % self.stride == 0:
            self.steps.append(step)
        if len(self.steps) > MOST_STEPS:
            self.steps = self.steps[::2]
            self.stride *= 2


def training_log(path: Path, *more: Path, needs_steps: bool = True) -> TrainingLog:
    """The run in a log; of several one after the other the last.

    Args:
        more: files that the log goes on in.
        needs_steps: whether a log without one is refused; else it has facts alone.

    Raises:
        InputError: an unreadable file, or none whose steps are understood: the closest line is named.
    """
    where = ", ".join(map(shown_path, (path, *more)))
    reader, cut_off = _LogReader(), []
    try:
        if path.suffix == ".json":
            return _trainer_state(path, where)
        for line in chain.from_iterable(map(log_lines, (path, *more))):
            if MARK in line:
                return _mlperf(path, where)
            reader.take(line)
    except (EOFError, zlib.error, BadGzipFile):
        cut_off.append("the file is damaged or cut off: what comes before was read")
    except OSError as error:
        raise InputError(f"cannot read the log: {error.strerror}", where=where) from error
    states = reader.bars.training(reader.facts.get("steps"))
    if reader.format is None and states:
        reader.format = LIGHTNING if reader.bars.are_lightnings else FORMATS[-1]
    if reader.format is None:
        reader.steps = reader.steps_of_timers()
        reader.format = DEEPSPEED if reader.steps else None
    if not needs_steps and not (reader.steps or states):
        timers = {name: _median_pair(pairs) for name, pairs in reader.timers.items()}
        return TrainingLog(where, reader.format or UNKNOWN, [], reader.facts, timers, reader.signs, cut_off)
    if reader.format is None or not (reader.steps or states):
        known = ", ".join(each.name for each in FORMATS)
        closest = f"closest: {reader.closest.strip()[:_SHOWN_LETTERS]!r}" if reader.closest else "no line is like one"
        raise InputError("no step is understood", got=closest, allowed=f"steps as {known} print them", where=where)
    log = _gathered(reader, states, where)
    log.notes.extend(cut_off)
    return log


def stated_log(where: str) -> TrainingLog:
    """The log of a run of which numbers alone are known."""
    return TrainingLog(where, UNKNOWN, [], {}, {}, Counter(), [])


def _gathered(reader: _LogReader, states: list[tuple[int, float]], where: str) -> TrainingLog:
    assert reader.format is not None
    notes = []
    if reader.runs > 1:
        notes.append(f"{reader.runs} runs in the file: the last one is read")
    for name, count in (+reader.others).items():
        notes.append(f"{count} lines of {name} are not read")
    if reader.stride > 1:
        notes.append(f"every {reader.stride}th step is read of {reader.seen:,}")
    steps = reader.steps
    if lost := sum(step.loss is not None and math.isnan(step.loss) for step in steps):
        notes.append(f"the loss of {lost} of {len(steps)} steps is not a number")
    if lost := sum(step.seconds is not None and not math.isfinite(step.seconds) for step in steps):
        notes.append(f"the time of {lost} of {len(steps)} steps is not a number, and left out")
    if not any(step.seconds for step in steps) and states:
        steps = _steps_of_bars(states, steps)
        since = "" if len(states) > 1 else ", a mean from the start on"
        notes.append(f"step times are those of the progress bar and of the seconds since the start{since}")
    if reader.format.of_micro_batch:
        notes.append(
            f"{reader.format.name} prints the time of a micro-batch: --run, --batch and --micro-batch make steps of it"
        )
    timers = {name: _median_pair(pairs) for name, pairs in reader.timers.items()}
    return TrainingLog(where, reader.format, steps, reader.facts, timers, reader.signs, notes)


def _median_pair(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    ordered = sorted(pairs, key=lambda pair: pair[1])
    return ordered[len(ordered) // 2]


def _fill(step: PrintedStep, form: LogFormat, line: str) -> bool:
    """Whether the line says a field; each is taken once, of a block the first."""
    taken = False
    for field, pattern in form.fields.items():
        match = pattern.search(line)
        if match is None or getattr(step, field) is not None:
            continue
        value = number(match[1]) * form.factors.get(field, 1.0)
        if field in ("seconds", "loss") or (math.isfinite(value) and value > 0) or field == "number":
            setattr(step, field, value)
            taken = True
    return taken


def _stamp(line: str) -> float | None:
    match = _STAMP.search(line)
    if match is None:
        return None
    try:
        day = datetime.date.fromisoformat(_AMERICAN.sub(r"\3-\1-\2", match[1])).toordinal()
    except ValueError:
        return None
    fraction = float(f"0.{match[5]}") if match[5] else 0.0
    return ((day * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4]) + fraction


def _steps_of_bars(states: list[tuple[int, float]], said: list[PrintedStep]) -> list[PrintedStep]:
    """Steps by progress bars, and by the seconds since the start that lines say, unless a mean hides a stall."""
    known = [(int(step.number), step.runtime) for step in said if step.runtime and step.number is not None]
    times: list[tuple[int, float]] = []
    if all(last - first <= 1 for (first, _), (last, _) in pairwise(known)) or not has_stall(states):
        for (first, before), (last, runtime) in pairwise(known):
            if last > first and runtime > before:
                times += mean_times(first, last, runtime - before)
    steps = [PrintedStep(number=float(number), seconds=seconds) for number, seconds in times or times_of_states(states)]
    for field in ("tokens_seen", "runtime", "printed_tokens_per_second", "samples_per_second"):
        values = [value for step in said if (value := getattr(step, field)) is not None]
        if values and steps:
            setattr(steps[-1], field, values[-1])
    return steps


class _HistoryEntry(msgspec.Struct):
    train_steps_per_second: float | None = None
    train_samples_per_second: float | None = None
    train_tokens_per_second: float | None = None
    train_runtime: float | None = None


class _TrainerState(msgspec.Struct):
    log_history: list[_HistoryEntry]
    global_step: int = 0
    train_batch_size: int | None = None
    num_input_tokens_seen: float | None = None


def _trainer_state(path: Path, where: str) -> TrainingLog:
    """Hugging Face's trainer_state.json: its history has no time of a step, its last entry that of all.

    Raises:
        InputError: another JSON file, or one of a training that has not ended.
    """
    try:
        state = msgspec.json.decode(file_bytes(path), type=_TrainerState)
    except msgspec.DecodeError as error:
        raise InputError(f"no trainer_state.json: {error}", where=where) from error
    last = next((entry for entry in reversed(state.log_history) if (entry.train_steps_per_second or 0) > 0), None)
    if last is None or not last.train_steps_per_second:
        raise InputError("has no train_steps_per_second: the training has not ended", where=where)
    step = PrintedStep(
        number=float(state.global_step),
        seconds=1 / last.train_steps_per_second,
        samples_per_second=last.train_samples_per_second,
        printed_tokens_per_second=last.train_tokens_per_second,
        steps_per_second=last.train_steps_per_second,
        runtime=last.train_runtime,
        tokens_seen=state.num_input_tokens_seen or None,
    )
    facts = {"micro_batch": state.train_batch_size} if state.train_batch_size else {}
    notes = ["one mean over the whole training, with its evaluations and checkpoints"]
    return TrainingLog(where, FORMATS[-1], [step], facts, {}, Counter(), notes)


def _mlperf(path: Path, where: str) -> TrainingLog:
    run = logged_run(path)
    step = PrintedStep(seconds=run.step_seconds, samples=float(run.global_batch))
    sizes = {"batch": run.global_batch, "sequence": run.sequence, "gpus": run.ranks}
    facts = {name: size for name, size in sizes.items() if size}
    form = LogFormat("MLPerf", re.compile(MARK), {})
    return TrainingLog(where, form, [step], facts, {}, Counter(), [f"the median of {run.parts} parts: {run.part}"])
