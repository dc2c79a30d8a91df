"""Quick, medium and slow tests, by a file of measured durations, which `nox -s durations` writes.

Quick ones run by default, medium ones in `.ci/run` besides, slow ones with `--choice slow`. Durations are seconds of a
processor, of a test and of all that it starts: they hardly depend on what else the machine does. The unit is a test
function with all its cases. A test that the file does not list is quick, so a new one runs.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

FILE = Path(__file__).resolve().parents[1] / "durations.tsv"
QUICK_SECONDS = 0.5  # of a processor, which a test function may take by default; the file lists those that take longer
MEDIUM_SECONDS = 3.0  # of a processor, which a test function may take in `.ci/run`
FIXTURE_SECONDS = 5.0  # of a processor, of a test which may have made a fixture for others of its file
ALWAYS = "always"
QUICK, MEDIUM, SLOW, ALL = "quick", "medium", "slow", "all"
CHOICES = (QUICK, MEDIUM, SLOW, ALL)
PROPERTY = "processor_seconds"


class Duration(NamedTuple):
    """Seconds of a processor that all cases of a test function took together, and how many they were."""

    seconds: float
    cases: int


def read(path: Path) -> dict[str, Duration]:
    """Durations by test function."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return {test: Duration(float(seconds), int(cases)) for test, seconds, cases in rows}


def write(path: Path, measured: Mapping[str, float], before: Mapping[str, Duration]) -> None:
    """Write the durations of test functions that took long.

    Args:
        measured: seconds by test item.
        before: durations of test functions, which stay where none of their items was measured.
    """
    seconds, cases = defaultdict[str, float](float), Counter[str]()
    for item, spent in measured.items():
        seconds[function(item)] += spent
        cases[function(item)] += 1
    durations = {**before, **{test: Duration(round(seconds[test], 1), cases[test]) for test in seconds}}
    listed = [(test, known) for test, known in sorted(durations.items()) if known.seconds > QUICK_SECONDS]
    lines = [f"{test}\t{known.seconds:.1f}\t{known.cases}" for test, known in listed]
    path.write_text("\n".join(["test\tprocessor seconds\tcases", *lines, ""]), encoding="utf-8")


def function(item: str) -> str:
    """Test function of an item's id: what stands before its parameters."""
    return item.partition("[")[0]


def chosen(items: Iterable[pytest.Item], durations: Mapping[str, Duration], wanted: str) -> set[pytest.Item]:
    """Items of one of `CHOICES`: each item is quick, medium or slow."""
    items = list(items)
    if wanted == ALL:
        return set(items)
    quick = within(items, durations, QUICK_SECONDS)
    if wanted == QUICK:
        return quick
    medium = within(items, durations, MEDIUM_SECONDS)
    return medium - quick if wanted == MEDIUM else set(items) - medium - quick


def within(items: Iterable[pytest.Item], durations: Mapping[str, Duration], seconds: float) -> set[pytest.Item]:
    """Items of functions that take at most so many seconds of a processor, and those with the marker `always`.

    Of a function whose cases take longer together: as many as fit, spread over all. A test that shares its file's
    fixture with a function that takes longer than FIXTURE_SECONDS is left out, unless one that is kept makes it anyway:
    the first that runs pays for the fixture, and the file of durations has it there.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases[function(item.nodeid)].append(item)
    fitting, long = set[pytest.Item](), set[tuple[str, str]]()
    for test, own in cases.items():
        known = durations.get(test, Duration(0.0, 1))
        fit = min(len(own), int(seconds * known.cases / known.seconds)) if known.seconds else len(own)
        fitting.update(own[number * len(own) // fit] for number in range(fit))
        if known.seconds > FIXTURE_SECONDS * known.cases:
            long.update(*(file_fixtures(item) for item in own))
    kept = {item for own in cases.values() for item in own if item.get_closest_marker(ALWAYS)}
    long.difference_update(*(file_fixtures(item) for item in kept))
    return {item for item in fitting if not file_fixtures(item) & long} | kept


def file_fixtures(item: pytest.Item) -> set[tuple[str, str]]:
    """The item's file with each fixture of that file that is made once for it."""
    file = item.nodeid.partition("::")[0]
    known: Mapping[str, Sequence[pytest.FixtureDef[object]]] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    own = {name: definitions[-1] for name, definitions in known.items() if definitions[-1].baseid == file}
    return {(file, name) for name, definition in own.items() if definition.scope != "function"}


def processor_seconds() -> float:
    """Seconds of a processor that this process, and all that it started, have taken so far."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])  # with children that have ended
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(child.cpu_times()[:4])
    return total


class Clock:
    """Tells processor time in laps."""

    def __init__(self) -> None:
        self._last = processor_seconds()

    def lap(self) -> float:
        """Processor seconds since the lap before; none where a process that ended is in nobody's account any more."""
        last, self._last = self._last, processor_seconds()
        return max(0.0, self._last - last)


def put_long_files_first(items: list[pytest.Item], durations: Mapping[str, Duration]) -> None:
    """Sort items by the duration of their files, the longest first: begun last, it would run alone at the end."""
    files = defaultdict[str, float](float)
    for test, known in durations.items():
        files[test.partition("::")[0]] += known.seconds
    items.sort(key=lambda item: -files[item.nodeid.partition("::")[0]])
