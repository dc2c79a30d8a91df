"""Histories: launches of one setup stand together, with a stretch for each of their levels."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.metrics.change_points import LEAST_STRETCH
from suite.regression.comparability import identical_groups, setup_of
from suite.regression.segments import MOST_SEARCHED, segments
from tests.support.histories import HARDWARE, POLICY, launch_of, normal_launches

SLOWER = [*normal_launches(1, 20), *normal_launches(2, 12, median=1.05)]


def history(values, **changes):
    return [launch_of(number, value, **changes) for number, value in enumerate(values)]


def test_a_segment_has_its_stretches_and_the_best_one():
    (segment,) = segments(history(SLOWER))
    assert [(one.first, one.last, one.launches) for one in segment.stretches] == [(0, 19, 20), (20, 31, 12)]
    assert segment.change_points == [20]
    assert (segment.best, segment.searched) == (0, 32)
    assert segment.example == launch_of(31, SLOWER[31])
    assert [point.seconds for point in segment.best_points] == SLOWER[:20]
    assert segment.stretches[1].median == pytest.approx(1.05, abs=0.01)
    (longer,) = segments(history([*SLOWER, *normal_launches(3, 9, median=0.9), *normal_launches(4, 9)]))
    assert (longer.best, len(longer.stretches)) == (2, 4)


def test_launches_of_another_setup_are_another_segment():
    """The setup is run, hardware, policy, steps and seed; software, node and memory of the next boot are not in it."""
    for other in (
        {"run": "gpt2-mini"},
        {"hardware": HARDWARE | {"cores": "4"}},
        {"policy": POLICY | {"precision": "fp32"}},
        {"steps": 31},
        {"seed": 2},
    ):
        launches = history(SLOWER) + [launch_of(100 + n, 1.0, **other) for n in range(3)]
        assert [len(segment.points) for segment in segments(launches)] == [32, 3]
    for same in (
        {"node": "00000002"},
        {"suite": "0.2.0 (bbbbbbbbbbbb)"},
        {"hardware": HARDWARE | {"memory": "8000100 kB"}},
    ):
        assert setup_of(launch_of(1, 1.0, **same)) == setup_of(launch_of(2, 1.0))


def test_launches_that_did_not_end_well_are_in_no_segment():
    failed = [launch_of(99, None), *(launch_of(96 + n, 5.0, status=name) for n, name in enumerate(("hang", "oom")))]
    assert len(segments([*history(SLOWER), *failed])[0].points) == 32
    assert segments([*failed, launch_of(1, 0.0)]) == []  # the clock of the last one stood still


def test_a_long_history_is_searched_in_its_newest_launches():
    values = [*normal_launches(1, 600, median=0.5), *normal_launches(2, 900)]
    (segment,) = segments(history(values))
    assert segment.searched == MOST_SEARCHED == 1000
    assert segment.change_points == [600]
    assert LEAST_STRETCH <= 600 - (1500 - MOST_SEARCHED)


@settings(max_examples=10)
@given(st.permutations(range(32)))
def test_the_order_of_reading_does_not_matter(order):
    launches = history(SLOWER)
    (shuffled,) = segments([launches[place] for place in order])
    assert shuffled == segments(launches)[0]


def test_identical_launches_share_setup_node_and_software_and_their_code_is_known():
    base = history(normal_launches(1, 3))
    others = [
        launch_of(10, 1.0, node="00000002"),
        launch_of(11, 1.0, suite="0.1.0 (bbbbbbbbbbbb)"),
        launch_of(12, 1.0, steps=99),
    ]
    modified = [launch_of(20 + n, 1.0, suite="0.1.0 (cccccccccccc, modified)") for n in range(12)]
    groups = identical_groups([*base, *others, *modified, launch_of(40, None)])
    assert sorted(map(len, groups)) == [1, 1, 1, 3]
