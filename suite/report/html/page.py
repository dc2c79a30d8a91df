"""The page's file: sections gathered from the records, put into the template with everything that it needs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reference_runs.accelerator import accelerator_names
from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.metrics.difference_words import Direction, difference_in_words
from suite.metrics.figures import Quantity
from suite.records.summary import LaunchSummary
from suite.regression.segments import Segment, by_setup, searched_times, segments_of
from suite.report.compared_launches import SetupKey, setup_key, step_words
from suite.report.html.acceptance import batteries
from suite.report.html.change_point_worker import Search
from suite.report.html.fleet import fleet_section
from suite.report.html.loss_curves import losses
from suite.report.html.machine_names import MachineName, machine_names
from suite.report.html.plot import utc
from suite.report.html.rendering import rendered
from suite.report.html.roofline import benchmarks, profiles, rooflines
from suite.report.html.setup_details import Detail, detail
from suite.report.html.setups import JudgedSetup, Setup, judged_setup, newest, remembered, setups
from suite.report.html.sources import Facts, recorded_facts
from suite.report.html.stored_results import dry_runs, ladders
from suite.report.html.validation import validation

TITLE = "Reference runs"
MOST_DETAILS = 150  # setups that are judged and shown in full: those that were launched last
MOST_ROWS = 2000  # setups that have a row
MOST_CHANGES = 200  # change points in the table of all setups
NOT_JUDGED = "not judged"
SECTIONS = (
    *(("overview", "Overview"), ("setups", "Setups"), ("runs", "Run by run"), ("history", "History"), ("loss", "Loss")),
    *(
        ("acceptance", "Acceptance"),
        ("fleet", "Fleet"),
        ("ladder", "Ladder"),
        ("dry-runs", "Dry runs"),
        ("roofline", "Roofline"),
        ("validation", "Validation"),
        ("facts", "Facts"),
    ),
)
OF_RECORDS = frozenset({"overview", "setups", "runs", "history", "loss"})
SETUP_COLUMNS = (
    *(("run", ""), ("verdict", ""), ("ranks", "n"), ("layout", ""), ("execution", ""), ("machine", "")),
    *(("launches", "n"), ("predicted", "n"), ("measured", "n"), ("measured is", "n"), ("last launch", "")),
)


class SetupRow(NamedTuple):
    """A setup's row, and what the filters know of it."""

    id: str
    run: str
    machine: str
    short_machine: str
    machine_id: str
    ranks: int
    layout: str
    execution: str
    verdict: str
    why: str
    launches: int
    launches_text: str
    predicted: float | None
    predicted_text: str
    measured: float | None
    measured_text: str
    difference: float | None
    difference_text: str
    day: str
    text: str
    detail: Detail | None


def page(
    results: Path, launches: Sequence[LaunchSummary], damaged: Iterable[InputError] = (), search: Search | None = None
) -> str:
    """The whole page; the same bytes for the same records, whether a `search` has been started for it or not."""
    if search is None:
        with Search() as started:
            return page(results, launches, damaged, started)
    histories = by_setup(launches)
    search.ask(searched_times(histories))
    names = machine_names(launches)
    all_setups = setups(launches)
    machine_profiles, bad_profiles = profiles(results)
    timings, bad_timings = benchmarks(results)
    roofs = rooflines(machine_profiles, timings)
    of_predictor = validation()
    climbs, bad_climbs = ladders(results)
    without_memory, bad_dry_runs = dry_runs(results)
    accepted, of_fleet = batteries(results), fleet_section(results)
    runs = sorted({setup.key.run for setup in all_setups})
    curves = [
        (run, plot) for run in runs for plot in losses(run, [setup for setup in all_setups if setup.key.run == run])
    ]
    newest_setups, others = newest(all_setups, MOST_DETAILS)
    expected = remembered()
    judged = [judged_setup(setup, expected) for setup in newest_setups]
    history = segments_of(histories, search.answer())
    details = _details(newest_setups, judged, history, names)
    summaries = _summaries(details, others, names)
    changes = _changes(history, names)
    bad = (*damaged, *bad_profiles, *bad_timings, *bad_climbs, *bad_dry_runs, *accepted.damaged)
    machines = sorted(((_machine_id(words), name.full) for words, name in names.items()), key=lambda one: one[1])
    empty = {"acceptance": not accepted.shown, "ladder": not climbs, "dry-runs": not without_memory}
    empty |= {"fleet": of_fleet.nodes is None, **dict.fromkeys(OF_RECORDS, not all_setups)}
    shown = [*(plot for row in details if row.detail for plot in row.detail.plots), *of_fleet.plots]
    return rendered(
        [*shown, *(plot for _, plot in (*curves, *roofs)), *of_predictor, *climbs, *without_memory],
        title=TITLE,
        heading="What the runs did, and what arithmetic says",
        summary=_headline(launches, all_setups, machines),
        notices=_notices(sorted(map(str, bad)), len(all_setups) - len(summaries)),
        sections=[section for section in SECTIONS if not empty.get(section[0])],
        setups=summaries,
        setup_columns=SETUP_COLUMNS,
        details=details,
        left_out_details=_without_details(len(others)),
        runs=runs,
        machines=machines,
        verdicts=sorted({row.verdict for row in summaries}),
        matrix=_verdict_matrix(summaries, runs, [machine for machine, _ in machines]),
        changes=changes[:MOST_CHANGES],
        history_note=_history_note(history, len(changes)),
        losses=curves,
        batteries=accepted.shown,
        batteries_left_out=accepted.left_out,
        fleet=of_fleet,
        rooflines=roofs,
        validation=of_predictor,
        ladders=climbs,
        dry_runs=without_memory,
        facts=_facts(),
    )


def _details(
    newest_setups: Sequence[Setup],
    judged: Sequence[JudgedSetup],
    history: Sequence[Segment],
    names: dict[str, MachineName],
) -> list[SetupRow]:
    segments: dict[SetupKey, list[Segment]] = {}
    for segment in history:
        segments.setdefault(setup_key(segment.example), []).append(segment)
    return [
        _summary(setup, verdict, detail(verdict, segments.get(setup.key, [])), names)
        for setup, verdict in zip(newest_setups, judged, strict=True)
    ]


def _summaries(details: Sequence[SetupRow], others: list[Setup], names: dict[str, MachineName]) -> list[SetupRow]:
    """Rows of the table of setups: those with details, and the newest of the others."""
    older = newest(others, MOST_ROWS - len(details))[0]
    rows = [*details, *(_summary(setup, None, None, names) for setup in older)]
    return sorted(rows, key=lambda row: (row.run, row.machine, row.ranks, row.layout, row.execution))


def _verdict_matrix(
    summaries: Sequence[SetupRow], runs: Sequence[str], machines: Sequence[str]
) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """Number of setups with each verdict, by run and machine."""
    matrix: dict[tuple[str, str], list[tuple[str, int]]] = {(run, machine): [] for run in runs for machine in machines}
    counted = Counter((row.run, row.machine_id, row.verdict) for row in summaries)
    for (run, machine, verdict), count in sorted(counted.items()):
        matrix[run, machine].append((verdict, count))
    return matrix


def _machine_id(words: str) -> str:
    """The identifier of a machine in the address of the page."""
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _summary(setup: Setup, judged: JudgedSetup | None, full: Detail | None, names: dict[str, MachineName]) -> SetupRow:
    key, shown = setup.key, setup.median
    predicted = shown.predicted.of(Quantity.STEP_SECONDS) if shown else None
    measured = shown.measured.of(Quantity.STEP_SECONDS) if shown else None
    failed = sum(launch.status != "ok" for launch in setup.launches)
    count, compared = len(setup.launches), len(setup.comparable)
    launches_text = f"{compared:,}" + (f" of {count:,}" if compared < count else "")
    why = judged.why if judged else ""
    return SetupRow(
        id=key.id,
        run=key.run,
        machine=names[key.machine].full,
        short_machine=names[key.machine].short,
        machine_id=_machine_id(key.machine),
        ranks=key.ranks,
        layout=key.layout,
        execution=key.execution,
        verdict=judged.verdict if judged else NOT_JUDGED,
        why=why,
        launches=count,
        launches_text=launches_text + (f", {failed:,} failed" if failed else ""),
        predicted=predicted,
        predicted_text=step_words(predicted),
        measured=measured,
        measured_text=step_words(measured),
        difference=measured / predicted - 1 if predicted and measured else None,
        difference_text=difference_in_words(measured, predicted, Direction.TIME) if predicted and measured else "-",
        day=utc(setup.latest.started, "%Y-%m-%d"),
        text=" ".join([*map(str, key), setup.latest.status, setup.latest.message, why]),
        detail=full,
    )


def _changes(history: Sequence[Segment], names: dict[str, MachineName]) -> list[dict[str, Any]]:
    """A row for each change point of all segments, newest first."""
    rows: list[dict[str, Any]] = []
    for segment in history:
        key = setup_key(segment.example)
        for before, after in zip(segment.stretches, segment.stretches[1:], strict=False):
            started = segment.points[after.first].started
            rows.append(
                {
                    "started": started,
                    "id": key.id,
                    "run": key.run,
                    "machine_id": _machine_id(key.machine),
                    "layout": key.layout,
                    "day": f"{utc(started)} UTC",
                    "before": step_words(before.median),
                    "after": step_words(after.median),
                    "change": difference_in_words(after.median, before.median, Direction.TIME),
                    "launches": f"{before.launches:,} and {after.launches:,}",
                    "suite": segment.points[after.first].suite,
                    "text": " ".join([*map(str, key), names[key.machine].full]),
                }
            )
    return sorted(rows, key=lambda row: (-row["started"], row["id"]))


def _headline(launches: Sequence[LaunchSummary], recorded: Sequence[Setup], machines: Sequence[tuple[str, str]]) -> str:
    if not launches:
        return "Nothing is recorded in this directory yet."
    days = [utc(launches[index].started, "%Y-%m-%d") for index in (0, -1)]
    when = " to ".join(dict.fromkeys(days))
    runs = len({setup.key.run for setup in recorded})
    return (
        f"{_many(len(launches), 'launch', 'launches')} of {_many(runs, 'run')} in {_many(len(recorded), 'setup')} on "
        f"{_many(len(machines), 'machine')}, {when}."
    )


def _many(count: int, singular: str, more: str = "") -> str:
    return f"{count:,} {singular if count == 1 else more or singular + 's'}"


def _notices(left_out: Sequence[str], unlisted: int) -> list[str]:
    lines = []
    if unlisted:
        lines.append(f"{_many(unlisted, 'setup')} that were launched longest ago are left out.")
    if left_out:
        more = len(left_out) - 5
        names = "; ".join(left_out[:5]) + (f"; and {more:,} more" if more > 0 else "")
        lines.append(f"Left out, because damaged: {names}")
    return lines


def _without_details(count: int) -> str:
    if not count:
        return ""
    return f"{_many(count, 'older setup')} have a row above, and neither a verdict nor pictures."


def _history_note(history: Sequence[Segment], changes: int) -> str:
    searched = sum(segment.searched for segment in history)
    points = sum(len(segment.points) for segment in history)
    note = f"{_many(changes, 'change point')} among {points:,} launches in {_many(len(history), 'segment')}"
    if searched < points:
        note += f"; {points - searched:,} older launches were not searched"
    if changes > MOST_CHANGES:
        note += f"; the newest {MOST_CHANGES} are listed"
    return f"{note}."


def _facts() -> list[tuple[str, list[tuple[str, Facts]]]]:
    """Facts of runs, then of accelerators, each with the run by which the filters know it: a miniature, if any."""
    names = {run: mini for mini, run in miniatures().items()}
    devices = {*accelerator_names()}
    kinds: dict[str, list[tuple[str, Facts]]] = {"Runs": [], "Accelerators": []}
    for facts in recorded_facts():
        kinds["Accelerators" if facts.name in devices else "Runs"].append((names.get(facts.name, facts.name), facts))
    return [*kinds.items()]
