"""Histories: launches of one setup stand together; change points are where levels change, and rarely elsewhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.metrics.change_points import LEAST_STRETCH, change_points, penalty
from suite.regression.change_points import MOST_SEARCHED, segments
from suite.regression.comparability import floor_of, identical_groups, setup_of
from tests.support.histories import HARDWARE, POLICY, launch_of, normal_launches

SLOWER = [*normal_launches(1, 20), *normal_launches(2, 12, median=1.05)]


def history(values, **changes):
    return [launch_of(number, value, **changes) for number, value in enumerate(values)]


def test_a_level_that_changes_is_found_where_it_changes():
    assert change_points(SLOWER) == [20]
    assert change_points(SLOWER + normal_launches(3, 9, median=0.9)) == [20, 32]


def test_launches_that_lie_far_out_are_no_new_level():
    values = normal_launches(1, 40)
    values[10] = values[11] = 30.0
    assert change_points(values) == []


def test_fewer_than_two_stretches_of_launches_have_no_change_point():
    assert change_points([1.0] * 4 + [9.0] * 5) == []
    assert change_points([1.0 + n / 1000 for n in range(5)] + [9.0 + n / 1000 for n in range(5)]) == [5]
    assert change_points([]) == change_points([1.0] * 50) == []


@pytest.mark.parametrize("launches", [12, 30, 100])
def test_of_histories_of_identical_launches_1_percent_shows_a_change_point(launches):
    """Log-normal ones with long tails; of 400 histories 4 are expected, and 12 or more have a chance of 0.001."""
    chance = random.Random(launches)
    found = sum(bool(change_points([chance.lognormvariate(0, 1) for _ in range(launches)])) for _ in range(400))
    assert found < 12


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 10), min_size=10, max_size=40), st.sampled_from([0.25, 8.0]))
def test_another_unit_of_time_moves_no_change_point(values, unit):
    assert change_points([unit * value for value in values]) == change_points(values)


def test_the_penalty_grows_with_the_history_and_is_of_1_percent():
    assert penalty(12) < penalty(50) < penalty(400)
    assert 10 < penalty(50) < 12


def test_a_segment_has_its_stretches_and_the_best_one():
    (segment,) = segments(history(SLOWER))
    assert [(one.first, one.last, one.launches) for one in segment.stretches] == [(0, 19, 20), (20, 31, 12)]
    assert segment.change_points == [20]
    assert (segment.best, segment.searched) == (0, 32)
    assert segment.example == launch_of(31, SLOWER[31])
    assert [point.seconds for point in segment.best_points] == SLOWER[:20]
    assert segment.stretches[1].median == pytest.approx(1.05, abs=0.01)


def test_the_best_segment_is_not_the_last_one():
    (segment,) = segments(history([*normal_launches(3, 9, median=0.9), *SLOWER]))
    assert (segment.best, len(segment.stretches)) == (0, 3)


@pytest.mark.parametrize(
    "other",
    [
        {"run": "gpt2-mini"},
        {"hardware": HARDWARE | {"cores": "4"}},
        {"policy": POLICY | {"precision": "fp32"}},
        {"steps": 31},
        {"seed": 2},
    ],
    ids=str,
)
def test_launches_of_another_setup_are_another_segment(other):
    launches = history(SLOWER) + [launch_of(100 + n, 1.0, **other) for n in range(3)]
    assert [len(segment.points) for segment in segments(launches)] == [32, 3]


@pytest.mark.parametrize(
    "other",
    [
        {"node": "00000002"},
        {"suite": "0.2.0 (bbbbbbbbbbbb)"},
        {"hardware": HARDWARE | {"memory": "8000100 kB"}},  # of the next boot
    ],
    ids=str,
)
def test_other_software_another_node_and_another_boot_are_the_same_segment(other):
    assert setup_of(launch_of(1, 1.0, **other)) == setup_of(launch_of(2, 1.0))


def test_launches_that_did_not_end_well_are_in_no_segment():
    failed = [launch_of(99, None), *(launch_of(96 + n, 5.0, status=name) for n, name in enumerate(("hang", "oom")))]
    assert len(segments([*history(SLOWER), *failed])[0].points) == 32
    assert segments(failed) == []


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


def test_the_floor_is_of_this_machines_launches_or_says_whose():
    here, there = history(normal_launches(1, 10)), history(normal_launches(2, 10), node="00000002")
    setup = setup_of(here[0])
    floor, words = floor_of(setup, "00000001", here + there)
    assert (len(floor.deviations), words) == (10, "10 identical launches on this machine")
    floor, words = floor_of(setup, "00000001", here[:9] + there)
    assert words == "10 identical launches on other machines of the same hardware"
    assert floor_of(setup, "00000001", here[:9]) == (None, "9 identical launches are recorded, 10 are needed")
    assert floor_of("another", "00000001", here)[0] is None


def test_a_clock_that_stood_still_is_no_launch():
    assert segments([launch_of(1, 0.0)]) == []
