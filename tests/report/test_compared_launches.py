"""Both pages and TABLES.md are of the same launches: every figure that two of them show is the same in both."""

from __future__ import annotations

import html
import re

import pytest

from reference_runs.catalog import reference_run, run_names
from suite.metrics.figures import Quantity
from suite.paths import RECORDED
from suite.records.index import launches
from suite.records.summary import LaunchSummary
from suite.report.compared_launches import comparable_launches, median_launch, step_words
from suite.report.explore.measured import measured
from suite.report.html import page
from suite.report.html.setups import judged_setup, remembered, setups
from suite.report.markdown.step_times import step_tables, step_times

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

SHOWN_IN_BOTH = ("run", "ranks", "layout", "execution", "launches", "predicted", "measured", "measured is")


@pytest.fixture(scope="module")
def recorded() -> list[LaunchSummary]:
    return launches(RECORDED)[0]


def rows_of_tables(recorded: list[LaunchSummary]) -> list[list[str]]:
    """Figures in TABLES.md that the page shows too, a row a setup."""
    lines = [line.strip("| ").split(" | ") for line in step_tables(step_times(recorded)).splitlines() if "|" in line]
    titles, _, *rows = lines
    return [[row[titles.index(name)] for name in SHOWN_IN_BOTH] for row in rows]


def rows_of_page(text: str) -> list[list[str]]:
    """The same of the page's table of setups."""
    body = text.partition('id="setup-table"')[2].partition("</table>")[0]
    titles = re.findall(r"<button[^>]*>([^<]*)</button>", body)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("<tr class")[1:]]
    texts = [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]
    rows = [[row[titles.index(name)] for name in SHOWN_IN_BOTH] for row in texts]
    launches_at = SHOWN_IN_BOTH.index("launches")
    return [[*row[:launches_at], row[launches_at].split(" ")[0], *row[launches_at + 1 :]] for row in rows]  # "3 of 5"


def test_every_figure_of_the_tables_stands_on_the_page(
    recorded: list[LaunchSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_DETAILS", 0)
    on_page = rows_of_page(page.page(RECORDED, recorded))
    in_tables = rows_of_tables(recorded)
    assert len(in_tables) > 20
    assert [row for row in in_tables if row not in on_page] == []


def test_every_figure_of_the_tables_stands_on_the_page_with_controls(recorded: list[LaunchSummary]) -> None:
    compared, wrong = 0, []
    for run in run_names():
        mini = reference_run(run).miniature
        tables = sorted(row for row in rows_of_tables(recorded) if row[0] == mini)
        rows = [
            [f"{row['launches']}", *(step_words(row[f"{side}_seconds"]) for side in ("predicted", "measured"))]
            for row in measured(run, RECORDED)["launches"]
        ]
        expected = [row[SHOWN_IN_BOTH.index("launches") :][:3] for row in tables]
        compared += len(expected)
        if sorted(rows) != sorted(expected):
            wrong.append((run, rows, expected))
    assert wrong == []
    assert compared > 20


def test_the_figures_of_a_setup_are_those_of_its_row(recorded: list[LaunchSummary]) -> None:
    """The launch whose terms, memory and counts the page shows is the one in the row."""
    expected, wrong = remembered(), []
    for setup in setups(recorded):
        rows = judged_setup(setup, expected).rows
        assert setup.median is not None
        steps = [row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is row.term is None]
        shown = [(step_words(row.left), step_words(row.right)) for row in steps]
        sides = setup.median.predicted, setup.median.measured
        if shown != [tuple(step_words(side.of(Quantity.STEP_SECONDS)) for side in sides)]:
            wrong.append((setup.key, shown))
    assert wrong == []


def test_the_median_is_of_launches_with_the_newest_software_and_the_faster_of_two(
    recorded: list[LaunchSummary],
) -> None:
    setup = max(setups(recorded), key=lambda setup: len(setup.comparable))
    compared = setup.comparable
    assert len(compared) > 2
    seconds = [launch.measured.of(Quantity.STEP_SECONDS) for launch in compared]
    assert seconds == sorted(seconds)
    assert median_launch(compared[:2]) is compared[0]
    assert median_launch(compared[:3]) is compared[1]
    assert median_launch([]) is None
    newest = max(compared, key=lambda launch: launch.started)
    assert {launch.hashes["software"] for launch in compared} == {newest.hashes["software"]}
    crashed = [launch for launch in setup.launches if launch.status != "ok"]
    assert comparable_launches(crashed) == []
