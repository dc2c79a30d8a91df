"""A quick calibration times what one step's prediction asks for, around its sizes, and none of the miniatures' own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import miniatures
from suite.calibration.assemble import combined
from suite.calibration.density import DENSITIES, Scope
from suite.calibration.grids import grids
from suite.calibration.needs import Needs, lacking, needs_of
from suite.calibration.plan import LINE, TABLE, Calibration, plan
from suite.machine.profile import Profile
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import Subject, Table, fitted
from suite.metrics.figures import Quantity, of_job
from suite.reproduce.plan import plan as planned
from suite.reproduce.request import Request
from suite.reproduce.step_time import correction_factor, time_figures_of
from tests.support.covering import cover
from tests.support.profiles import profile, timing

ALL = [(name, ranks, compiled) for name in miniatures() for ranks in (1, 2) for compiled in (False, True)]
USUAL = cover(ALL, 1)
SETUPS = [case if n in USUAL else pytest.param(*case, marks=pytest.mark.rare) for n, case in enumerate(ALL)]


def request(name: str, ranks: int, *, compiled: bool, layout: str | None = None) -> Request:
    return Request(name=name, ranks=ranks, layout=layout, device="cpu", compiled=compiled, results=Path("/none"))


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.calibration.needs.usable_cores", lambda: 2)
    monkeypatch.setattr("suite.reproduce.step_time.usable_cores", lambda: 2)


def needs(name: str, ranks: int, *, compiled: bool) -> Needs:
    asked = planned(request(name, ranks, compiled=compiled))
    return needs_of(lambda measured: time_figures_of(asked, measured), device="cpu", ranks=ranks, compiled=compiled)


def measured(calibration: Calibration) -> Profile:
    """The profile that a machine of a microsecond a call and a nanosecond a unit of size would report."""
    timings = {
        number: tuple(timing(1e-6 + 1e-9 * sum(sizes)) for sizes in entry.task.sizes)
        for number, entry in enumerate(calibration.planned)
    }
    added = msgspec.structs.replace(
        profile(partial=True),
        tables=[
            Table(subject=entry.task.subject, axes=entry.axes, timings=timings[number])
            for number, entry in enumerate(calibration.planned)
            if entry.kind == TABLE
        ],
        lines=[
            fitted(entry.task.subject, entry.unit, [float(size) for (size,) in entry.task.sizes], timings[number])
            for number, entry in enumerate(calibration.planned)
            if entry.kind == LINE
        ],
        checks=[],
        reference_steps=[TimedReferenceStep(step=step, timing=timing(0.1)) for step in calibration.reference_steps],
    )
    return added if calibration.extends is None else combined(calibration.extends, added)


def own_shapes(ranks: int) -> dict[Subject, set[tuple[int, ...]]]:
    """By operation, the shapes that the miniatures have."""
    own: dict[Subject, set[tuple[int, ...]]] = {}
    for grid in grids(Scope("cpu", ranks, 2, DENSITIES["cpu"]), ranks):
        own.setdefault(msgspec.structs.replace(grid.subject, ranks=ranks), set()).update(grid.excluded)
    return own


@pytest.mark.parametrize(("name", "ranks", "compiled"), SETUPS)
def test_a_step_is_predicted_from_what_was_asked_for_an_eighth_of_a_calibration_and_no_shape_of_a_miniature(
    name: str, ranks: int, compiled: bool
) -> None:
    asked = planned(request(name, ranks, compiled=compiled))
    needed = needs(name, ranks, compiled=compiled)
    calibration = lacking(needed, None)
    assert calibration is not None
    whole = plan(Scope("cpu", 2, 2, DENSITIES["cpu"]))
    assert sum(len(entry.task.sizes) for entry in calibration.planned) <= sum(len(one.task.sizes) for one in whole) / 7
    own = own_shapes(ranks)
    for entry in calibration.planned:
        assert entry.kind == LINE or not own[entry.task.subject].intersection(entry.task.sizes)
    found = measured(calibration)
    assert lacking(needed, found) is None
    seconds = of_job(time_figures_of(asked, found, factor=correction_factor(asked, found)), Quantity.STEP_SECONDS)
    assert seconds is not None
    assert seconds > 0


def test_every_shape_of_the_run_lies_between_points_of_one_grid() -> None:
    needed = needs("bloom-mini", 2, compiled=False)
    calibration = lacking(needed, None)
    assert calibration is not None
    shapes = own_shapes(2)
    for subject, asked in needed.sizes.items():
        tables = [
            Table(subject=subject, axes=entry.axes, timings=())
            for entry in calibration.planned
            if (entry.kind, entry.task.subject) == (TABLE, subject)
        ]
        if tables:
            own = [sizes for sizes in asked if sizes in shapes[subject]]
            assert own
            assert all(any(table.distance(sizes) == 0 for table in tables) for sizes in own)


def test_another_run_adds_what_it_lacks_and_the_first_one_still_has_everything() -> None:
    first, second = needs("bloom-mini", 2, compiled=False), needs("opt-mini", 2, compiled=False)
    alone, other = lacking(first, None), lacking(second, None)
    assert alone is not None
    assert other is not None
    one = measured(alone)
    more = lacking(second, one)
    assert more is not None
    assert more.reference_steps == []
    assert len(more.planned) < len(other.planned)
    both = measured(more)
    assert both.partial
    assert lacking(first, both) is None
    assert lacking(second, both) is None


def test_one_rank_is_not_answered_by_what_two_take_at_once() -> None:
    two = lacking(needs("bloom-mini", 2, compiled=False), None)
    assert two is not None
    assert lacking(needs("bloom-mini", 1, compiled=False), measured(two)) is not None


def test_grids_are_shared_where_that_takes_fewer_points() -> None:
    subject = Subject(operation="product", variant="NT", dtype="bf16", ranks=1)
    for outputs, inputs in ((1, 1), (1, 4), (4, 4), (1, 64), (7, 21)):
        sizes = frozenset({(256.0, 32.0 * outputs, 32.0 * inputs), (256.0, 32.0 * inputs, 32.0 * outputs)})
        calibration = lacking(Needs("cpu", 1, {subject: sizes}, frozenset(), ()), None)
        assert calibration is not None
        assert sum(len(entry.task.sizes) for entry in calibration.planned if entry.kind == TABLE) <= 16
