"""Results as frames of pandas: launches, figures, kernel runs, batteries, fleet, and answers of `predict` and others.

    >>> from suite.records import frame
    >>> launches = frame.launches("results")
    >>> launches.groupby(["run", "layout"]).step_seconds.median()

Columns end in their unit: `_seconds`, `_bytes`, `_share` (of 1), `_utc` (a moment), `_per_second`. Rows come oldest
first. What is damaged is left out; `frame.attrs["left_out"]` says why, a line each. docs/records.md lists all columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.metrics.figures import Quantity
from suite.paths import stores
from suite.records.answer_frame import answers as answers
from suite.records.battery import BatteryBegin, BatteryEnd, BatteryHalves, CheckFinding, stored_batteries
from suite.records.index import launches as indexed_launches
from suite.records.kernel_runs import kernel_runs as stored_kernel_runs
from suite.records.record import partial
from suite.records.store import read
from suite.records.summary import FigureKey, LaunchSummary, Values

if TYPE_CHECKING:
    import pandas

_FACTS = (
    *("id", "run", "status", "message", "node", "machine", "device", "ranks", "layout", "compiled", "precision"),
    *("global_batch", "steps", "seed", "rung", "suite"),
)
_AFTER_FIGURES = ("first_loss", "last_loss", "others_share", "steal_share", "profile", "path")
_MEASURED = (
    *(Quantity.PEAK_BYTES, Quantity.ACTIVATION_BYTES, Quantity.TOKENS_PER_SECOND, Quantity.MODEL_FLOP_PER_SECOND),
    Quantity.BUBBLE_FRACTION,
)
Source = str | Path | Sequence[LaunchSummary]


def launches(source: Source) -> pandas.DataFrame:
    """A row a launch: facts, times, the job's main figures, losses. `source` is a results directory, or summaries."""
    import pandas

    summaries, left_out = _summaries(source)
    columns: dict[str, Any] = {name: [getattr(launch, name) for launch in summaries] for name in _FACTS}
    columns["started_utc"] = _moments([launch.started for launch in summaries])
    columns["finished_utc"] = _moments([launch.finished for launch in summaries])
    measured = [launch.measured for launch in summaries]
    columns["step_seconds"] = _values(measured, Quantity.STEP_SECONDS)
    columns["predicted_step_seconds"] = _values([launch.predicted for launch in summaries], Quantity.STEP_SECONDS)
    columns |= {quantity.value: _values(measured, quantity) for quantity in _MEASURED}
    columns |= {name: [getattr(launch, name) for launch in summaries] for name in _AFTER_FIGURES}
    return _with_reasons(pandas.DataFrame(columns), left_out)


def figures(source: Source, *, quantities: Collection[str] | None = None, ranks: bool = False) -> pandas.DataFrame:
    """Long form, a row a launch and figure: `predicted` and `measured` in `unit`, NaN where it is not known.

    Of the whole job, where `rank` is missing; with `ranks` of every rank too, for which each record is read whole.
    Numbers are 64-bit floats: counts above 2**53 are rounded.

    Args:
        quantities: those alone, which takes less memory than choosing later; None: all.
    """
    import pandas

    summaries, left_out = _summaries(source)
    if ranks:
        keys, numbers, codes, predicted, measured = _whole_figures(summaries, quantities)
    else:
        keys, numbers, codes, predicted, measured = _job_figures(summaries, quantities)
    columns: dict[str, Any] = {"launch": _categories([launch.id for launch in summaries], numbers)}
    for index, title in enumerate(("quantity", "axis", "operation", "term")):
        columns[title] = _categories([key[index] for key in keys], codes)
    columns["rank"] = pandas.array([key[4] for key in keys], dtype="Int64")[codes]
    units = [Quantity(key[0]).unit if key[0] in tuple(Quantity) else "" for key in keys]
    columns["unit"] = _categories(units, codes)
    return _with_reasons(pandas.DataFrame(columns | {"predicted": predicted, "measured": measured}), left_out)


RankKey = tuple[str, str | None, str | None, str | None, int | None]  # a summary's key, and the rank
_Long = tuple[list[RankKey], Any, Any, Any, Any]  # keys; by row: number of the launch, of its key, predicted, measured


def _job_figures(summaries: Sequence[LaunchSummary], quantities: Collection[str] | None) -> _Long:
    """By groups of launches that share their figures' keys: one matrix each, not a row at a time."""
    import numpy

    groups: dict[tuple[int, int], list[int]] = {}
    for number, launch in enumerate(summaries):
        groups.setdefault((id(launch.predicted.indices), id(launch.measured.indices)), []).append(number)
    keys: list[RankKey] = []
    parts: list[tuple[Any, Any, Any, Any]] = [
        (numpy.empty(0, int), numpy.empty(0, int), numpy.empty(0), numpy.empty(0))
    ]
    for numbers in groups.values():
        first = summaries[numbers[0]]
        shared = list(dict.fromkeys([*first.measured.indices, *first.predicted.indices]))
        shared = [key for key in shared if quantities is None or key[0] in quantities]
        codes = numpy.tile(numpy.arange(len(keys), len(keys) + len(shared)), len(numbers))
        keys += [(*key, None) for key in shared]
        sides = (_matrix([getattr(summaries[n], side) for n in numbers], shared) for side in ("predicted", "measured"))
        parts.append((numpy.repeat(numpy.asarray(numbers), len(shared)), codes, *(side.ravel() for side in sides)))
    columns = [numpy.concatenate(part) for part in zip(*parts, strict=True)]
    order = numpy.argsort(columns[0], kind="stable")
    launch_numbers, codes, predicted, measured = (column[order] for column in columns)
    return keys, launch_numbers, codes, predicted, measured


def _whole_figures(summaries: Sequence[LaunchSummary], quantities: Collection[str] | None) -> _Long:
    import numpy

    codes: dict[RankKey, int] = {}
    rows: list[tuple[int, int, float, float]] = []
    for number, launch in enumerate(summaries):
        end = read(Path(launch.path)).end
        sides = [
            {(f.quantity.value, f.axis, f.operation, f.term, f.rank): f.value for f in figures}
            for figures in ((end.predicted, end.figures) if end else ())
        ]
        for key in dict.fromkeys(key for side in reversed(sides) for key in side):
            if quantities is not None and key[0] not in quantities:
                continue
            values = (side.get(key, numpy.nan) for side in sides)
            rows.append((number, codes.setdefault(key, len(codes)), *values))  # type: ignore[arg-type]  # two sides
    columns = numpy.array(rows, dtype=float).reshape(-1, 4).T
    return [*codes], columns[0].astype(int), columns[1].astype(int), columns[2], columns[3]


def kernel_runs(source: str | Path) -> pandas.DataFrame:
    """A row a stored run and case of the kernel benchmarks; `seconds` is the median of a case's rounds."""
    import pandas

    stored = [stored_kernel_runs(store / "kernels") for store in stores(Path(source))]
    runs, left_out = [run for good, _ in stored for run in good], [error for _, bad in stored for error in bad]
    pairs = [(run, benchmark) for run in runs for benchmark in run.benchmarks]
    columns: dict[str, Any] = {"number": [run.number for run, _ in pairs]}
    columns["time_utc"] = pandas.to_datetime([run.time for run, _ in pairs], utc=True, format="ISO8601")
    for name in ("commit", "modified"):
        columns[name] = [getattr(run, name) for run, _ in pairs]
    for name in ("device", "cpu", "gpu"):
        columns[name] = [run.hardware.get(name) for run, _ in pairs]
    columns["torch"] = [run.software.get("torch") for run, _ in pairs]
    for name in ("kernel", "variant", "direction", "dtype", "form"):
        columns[name] = [getattr(benchmark.extra_info, name) for _, benchmark in pairs]
    columns["case"] = [benchmark.case for _, benchmark in pairs]
    columns["least_bytes"] = [benchmark.extra_info.least_bytes for _, benchmark in pairs]
    columns["seconds"] = [benchmark.stats.median for _, benchmark in pairs]
    return _with_reasons(pandas.DataFrame(columns), left_out)


def batteries(source: str | Path) -> pandas.DataFrame:
    """A row an acceptance battery; `decision` is empty where it did not end."""
    import pandas

    stored, left_out = _batteries(Path(source))
    begins, ends = [battery.begin for battery in stored], [battery.end for battery in stored]
    columns: dict[str, Any] = {name: [getattr(begin, name) for begin in begins] for name in _OF_BEGIN}
    columns["started_utc"] = _moments([begin.started for begin in begins])
    for name in ("seconds", "decision"):
        columns[name] = [getattr(end, name, None) for end in ends]
    for name in ("device", "ranks"):
        columns[name] = [begin.options.get(name) for begin in begins]
    for name in ("cpu", "cores", "gpus"):
        columns[name] = [begin.hardware.get(name) for begin in begins]
    columns["suite"] = [begin.software.get("suite") for begin in begins]
    verdicts = [None if end is None else [finding.verdict for finding in end.findings] for end in ends]
    columns["findings"] = [None if each is None else len(each) for each in verdicts]
    for verdict in ("FAIL", "WARN"):
        columns[verdict.lower()] = [None if each is None else each.count(verdict) for each in verdicts]
    return _with_reasons(pandas.DataFrame(columns), left_out)


def battery_findings(source: str | Path) -> pandas.DataFrame:
    """A row a finding of every battery that ended: `measured` and `expected` in `unit`, and `ratio`, of the two."""
    import pandas

    stored, left_out = _batteries(Path(source))
    pairs = [(battery.begin, finding) for battery in stored if battery.end for finding in battery.end.findings]
    columns: dict[str, Any] = {"battery": [begin.id for begin, _ in pairs], "node": [begin.node for begin, _ in pairs]}
    for name in _OF_FINDING:
        columns[name] = [getattr(finding, name) for _, finding in pairs]
    return _with_reasons(pandas.DataFrame(columns), left_out)


# These fields mean the same in every version of a battery's record, and words of later versions are words too
_OF_BEGIN = ("id", "node", "profile", "schema")
_OF_FINDING = ("check", "subject", "verdict", "measured", "expected", "unit", "ratio", "part")
_BEGIN = partial(BatteryBegin, *_OF_BEGIN, "started", "options", "hardware", "software")
_END = partial(BatteryEnd, "seconds", decision=str, findings=[partial(CheckFinding, *_OF_FINDING, verdict=str)])


def _batteries(results: Path) -> tuple[list[BatteryHalves], list[InputError]]:
    """All batteries below the results directory, oldest first, and why others are left out."""
    stored = stored_batteries(results, _BEGIN, _END, any_version=True)
    good = [battery for battery in stored if battery.problem is None]
    return good, [battery.problem for battery in stored if battery.problem is not None]


def fleet(source: str | Path) -> pandas.DataFrame:
    """A row a node: its hardware, how many launches and batteries it has, and what its newest battery decided."""
    import pandas

    summaries, bad_launches = indexed_launches(Path(source))
    battery_table = batteries(source)
    machines = pandas.DataFrame(
        {
            "node": [launch.node for launch in summaries],
            **{name: [launch.hardware.get(name) for launch in summaries] for name in ("cpu", "cores", "gpus")},
            "ok": [launch.status == Status.OK.value for launch in summaries],
            "started_utc": _moments([launch.started for launch in summaries]),
        }
    )
    by_launches = machines.groupby("node").agg(
        launches=("ok", "size"), ok_launches=("ok", "sum"), last_launch_utc=("started_utc", "max")
    )
    newest = battery_table.drop_duplicates("node", keep="last").set_index("node")
    by_batteries = newest[["decision", "profile", "started_utc"]].rename(columns={"started_utc": "last_battery_utc"})
    by_batteries.insert(0, "batteries", battery_table.groupby("node").size())
    hardware = pandas.concat([machines[[*_HARDWARE]], battery_table[[*_HARDWARE]]]).drop_duplicates("node", keep="last")
    whole = hardware.set_index("node").join(by_launches).join(by_batteries)
    counts = ["launches", "ok_launches", "batteries"]
    whole[counts] = whole[counts].fillna(0).astype(int)
    return _with_reasons(whole.sort_index().reset_index(), [*bad_launches, *battery_table.attrs["left_out"]])


_HARDWARE = ("node", "cpu", "cores", "gpus")


def _summaries(source: Source) -> tuple[Sequence[LaunchSummary], Sequence[object]]:
    return indexed_launches(Path(source)) if isinstance(source, str | Path) else (source, [])


def _with_reasons(frame: pandas.DataFrame, left_out: Iterable[object]) -> pandas.DataFrame:
    frame.attrs["left_out"] = [str(error) for error in left_out]
    return frame


def _moments(seconds: Sequence[float | None]) -> Any:
    """Seconds since 1970 as moments in UTC, to the millisecond; NaT for None."""
    import numpy
    import pandas

    values = numpy.array(seconds, dtype=float)
    with numpy.errstate(invalid="ignore"):
        moments = numpy.where(numpy.isnan(values), numpy.datetime64("NaT"), (values * 1000).astype("datetime64[ms]"))
    return pandas.DatetimeIndex(moments).tz_localize("UTC")


def _values(sides: Sequence[Values], quantity: Quantity) -> Any:
    """One figure of the whole job of each launch, NaN where it has none; looked up once for all that share keys."""
    import numpy

    key = (quantity.value, None, None, None)
    indices: dict[int, int | None] = {}
    for values in sides:
        if id(values.indices) not in indices:
            indices[id(values.indices)] = values.indices.get(key)
    numbers = (None if (p := indices[id(values.indices)]) is None else values.numbers[p] for values in sides)
    return numpy.array([*numbers], dtype=float)


def _matrix(sides: Sequence[Values], keys: Sequence[FigureKey]) -> Any:
    """A row a launch and a column a key; all `sides` share their keys."""
    import numpy

    matrix = numpy.full((len(sides), len(keys)), numpy.nan)
    indices = [(column, sides[0].indices[key]) for column, key in enumerate(keys) if key in sides[0].indices]
    if indices:
        numbers = numpy.array([values.numbers for values in sides], dtype=float)
        columns, sources = zip(*indices, strict=True)
        matrix[:, list(columns)] = numbers[:, list(sources)]
    return matrix


def _categories(values: Sequence[Any], codes: Any) -> Any:
    """`values[code]` for each code, as categories; missing for None."""
    import numpy
    import pandas

    names = list(dict.fromkeys(value for value in values if value))
    number = {name: index for index, name in enumerate(names)}
    numbers = numpy.array([number.get(value or "", -1) for value in values], int)
    return pandas.Categorical.from_codes(numbers[codes], names)  # type: ignore[call-overload]  # of no names as well
