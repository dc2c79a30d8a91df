"""Step times against prediction, past and other nodes; the part that a late step names; CPU speed."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.launches import time_findings
from suite.acceptance.judge.step_time import PART_OF_TERM, excess, slow_part, step_launches_missing
from suite.acceptance.judge.step_time_margin import Reference
from suite.metrics.figures import StepTerm
from tests.support.batteries import NOTHING, by_check, history_of, launched, micro, surroundings, times

EVEN = {"host": 1.0, "product": 1.0, "elementwise": 1.0, "memory": 1.0}


def test_step_time_without_history_has_room_for_the_predictions_own_error():
    found = {f: by_check(time_findings(times(f), NOTHING, looks=(5,)))[8] for f in (1.0, 1.2, 1.6)}
    assert [f.verdict for f in found.values()] == ["PASS", "PASS", "FAIL"]
    assert "17% of its error" in found[1.0].source
    assert found[1.6].part == "matrix rate or memory bandwidth (backward)"
    assert [one.least_detectable > one.spread > 0 for one in found.values()] == [True] * 3
    assert by_check(time_findings(times(1.0, count=2), NOTHING))[8].verdict == "NOT RUN"


def test_a_prediction_from_more_points_has_another_bias():
    def found(points, known=NOTHING):
        return by_check(time_findings(times(1.2, points=points), known, looks=(5,)))[8]

    past = history_of(past={f"8:{found(27).compared_as}": [1.0, 1.01, 0.99]})
    assert [found(points, past).verdict for points in (27, 64)] == ["FAIL", "PASS"]


def test_a_nodes_own_past_does_not_hide_that_other_nodes_are_faster():
    slow, steady = [1.2, 1.21, 1.19], [1.0, 1.01, 0.99]
    known = history_of(past={"8:bloom-mini": slow}, fleet={"8:bloom-mini": steady})
    found = by_check(time_findings(times(1.2), known, looks=(5,)))[8]
    assert (found.verdict, found.ratio) == ("FAIL", pytest.approx(1.2, abs=0.01))
    assert "other nodes of the fleet" in found.source
    assert "of prediction x 1.200 of 3 accepted batteries of this node" in found.evidence
    swapped = history_of(past={"8:bloom-mini": steady}, fleet={"8:bloom-mini": slow})
    worse = by_check(time_findings(times(1.2), swapped, looks=(5,)))[8]
    assert (worse.verdict, worse.ratio) == (found.verdict, found.ratio)
    assert "accepted batteries of this node" in worse.source
    alike = history_of(past={"8:bloom-mini": slow}, fleet={"8:bloom-mini": slow})
    assert by_check(time_findings(times(1.2), alike, looks=(5,)))[8].verdict == "PASS"


def test_a_step_that_is_an_outlier_among_ten_nodes_warns():
    fleet = [1.0 + step / 2000 for step in range(-5, 6)]  # MAD 0.0015
    found = {
        count: by_check(time_findings(times(1.01), history_of(fleet={"8:bloom-mini": fleet[:count]}), looks=(5,)))[8]
        for count in (9, 11)
    }
    assert [one.verdict for one in found.values()] == ["PASS", "WARN"]
    assert "modified z" not in found[9].evidence
    assert "modified z +3.6 among 11 nodes" in found[11].evidence
    assert found[11].part


def test_launches_go_on_until_every_reference_has_decided_or_one_rejects():
    past, fleet = (Reference(bias=bias, margin=0.05, source="") for bias in (1.0, 0.9))
    good = [0.999, 1.0, 1.001, 1.0, 0.999]
    unsteady = [0.97, 1.0, 1.03, 0.99, 1.01]
    assert step_launches_missing(good, [past], (5, 10)) == 0
    assert step_launches_missing(good, [past, fleet], (5, 10)) == 0  # rejected against other nodes
    near = msgspec.structs.replace(past, bias=0.96)
    assert step_launches_missing(unsteady, [msgspec.structs.replace(past, margin=0.2)], (5, 10)) == 0
    assert step_launches_missing(unsteady, [msgspec.structs.replace(past, margin=0.2), near], (5, 10)) == 5


def step_and_speed(launches, history=NOTHING):
    """The findings of check 8: of the step, and of the CPU speed."""
    step, speed = (f for f in time_findings(launches, history, looks=(5,)) if f.check == 8)
    return step, speed


def test_cpu_speed_is_judged_apart_from_the_step_and_excuses_nothing():
    step, speed = step_and_speed(times(1.6, cpu_slowdown=1.6))
    assert (step.verdict, step.ratio) == ("FAIL", pytest.approx(1.6, abs=0.01))
    assert (speed.verdict, speed.subject, speed.measured) == ("FAIL", "bloom-mini, CPU speed", pytest.approx(1 / 1.6))
    assert speed.part == "host: processors slower than in the micro-measurements"
    verdicts = {slower: step_and_speed(times(1.0, cpu_slowdown=slower))[1].verdict for slower in (0.8, 1.0, 1.2)}
    assert list(verdicts.values()) == ["PASS", "PASS", "WARN"]


def late(links, *, backward=0.1):
    """Five launches whose backward pass takes 100 ms more than predicted, and links so many seconds more."""
    terms = {"forward": 0.4, "backward": 0.4 + backward, "exposed communication": 0.2 + links}
    return [
        launched(
            step_seconds=1.0 + backward + links + number / 1000,
            measured_terms=terms,
            predicted_terms={"forward": 0.4, "backward": 0.4, "exposed communication": 0.2},
        )
        for number in range(5)
    ]


@pytest.mark.parametrize("whose", ["past", "fleet"])
def test_the_part_is_late_beyond_what_its_term_usually_is(whose):
    usual = by_check(time_findings(late(0.0), NOTHING, looks=(5,)))[8]
    assert usual.terms == pytest.approx({"forward": 0.0, "backward": 0.1, "exposed communication": 0.0})
    key = f"8:{usual.compared_as}"
    known = history_of(**{whose: {key: [usual.measured]}}, spread=0.01, terms=usual.terms)
    found = by_check(time_findings(late(0.06), known, looks=(5,)))[8]
    assert (found.verdict, found.part) == ("FAIL", "links")
    assert "most in exposed communication, 60.0 ms longer than usual" in found.evidence
    unknown = history_of(past={key: [usual.measured]}, spread=0.01)
    before = by_check(time_findings(late(0.06), unknown, looks=(5,)))[8]
    assert "(backward)" in before.part
    assert "most in backward, 100.0 ms longer than predicted" in before.evidence


@pytest.mark.parametrize(
    ("cpu_slowdowns", "rates", "part", "words"),
    [
        ({"product": 1.6, "elementwise": 1.0}, {}, "matrix rate (backward)", "products took 1.60 times"),
        ({"product": 1.0, "elementwise": 1.6}, {}, "caches (backward)", "element-wise work 1.60"),
        ({"product": 1.61, "elementwise": 1.6}, {}, "processors' speed (backward)", "products took 1.61 times"),
        ({"memory": 1.6}, {}, "memory bandwidth (backward)", "in memory 1.60"),
        ({"elementwise": 1.6, "memory": 1.61}, {}, "caches and memory (backward)", "in memory 1.61"),
        ({"product": 1.6, "elementwise": 1.6, "memory": 1.6}, {}, "processors' speed (backward)", "in memory 1.60"),
        ({"product": 1.6, "elementwise": 1.3}, {}, "matrix rate (backward)", "element-wise work 1.30"),
        ({"product": 1.6, "memory": 1.6}, {}, "matrix rate or memory bandwidth (backward)", "in memory 1.60"),
        ({"product": 1.2, "elementwise": 1.0}, {}, "matrix rate or memory bandwidth (backward)", "took 1.20 times"),
        ({}, {"matrix": [9e10, 6e10]}, "matrix rate (backward)", "check 1, slowest rank: 0.600 of expected"),
        ({}, {"copy": [6e9, 6e9]}, "memory bandwidth (backward)", "check 3, copy: 0.600 of expected"),
        ({}, {"matrix": [6e10] * 2, "triad": [6e9] * 2}, "matrix rate or memory bandwidth (backward)", "backward"),
        ({"product": 1.0, "elementwise": 1.0}, {"matrix": [6e10] * 2}, "matrix rate (backward)", "took 1.00 times"),
        ({}, {}, "matrix rate or memory bandwidth (backward)", "most in backward"),
    ],
)
def test_products_or_memory_is_decided_by_cpu_speed_or_else_by_checks_1_and_3(cpu_slowdowns, rates, part, words):
    known = history_of(past={"3:copy": [1e10] * 3, "3:triad": [1e10] * 3})
    evidence = [
        surroundings(),
        micro(**rates),
        *times(1.6, cpu_slowdowns=EVEN | cpu_slowdowns if cpu_slowdowns else {}),
    ]
    (found,) = (
        f
        for f in battery_findings(evidence, known, others=0.05, looks=(5,))
        if (f.check, f.subject) == (8, "bloom-mini")
    )
    assert (found.verdict, found.part) == ("FAIL", part)
    assert words in found.evidence


def test_of_references_that_pass_the_one_nearest_to_its_margin_is_told_of():
    cases = (([1.0] * 5, [0.99] * 5, "other node"), ([0.99] * 5, [1.0] * 5, "this node"))
    wide = ([1.0] * 5, [0.8], "other node")  # one battery without a spread: 1.25 of it are near its margin of 27 %
    for past, fleet, words in (*cases, wide):
        known = history_of(past={"8:bloom-mini": past}, fleet={"8:bloom-mini": fleet})
        launches = [launched(step_seconds=ratio) for ratio in STEADY]
        found = by_check(time_findings(launches, known, looks=(5,)))[8]
        assert words in found.source


def judged_steps(ratios, past):
    launches = [launched(step_seconds=ratio) for ratio in ratios]
    known = history_of(past={"8:bloom-mini": past}, spread=1e-4)
    return by_check(time_findings(launches, known, looks=(5,)))[8]


STEADY = [0.9999, 1.0, 1.0001, 1.0, 1.0]


def test_a_step_that_passes_warns_beyond_half_of_the_margin_or_where_the_past_itself_has_drifted():
    for bias, slower, verdict in ((1.0, 1.02, "PASS"), (1.0, 1.03, "WARN"), (1.25, 1.0, "PASS"), (1.28, 1.0, "WARN")):
        found = judged_steps([bias * slower * ratio for ratio in STEADY], [bias] * 5)
        assert found.verdict.value == verdict, (bias, slower)
        assert (found.expected, found.fail) == (pytest.approx(bias), pytest.approx(1.05))
        assert found.warn == pytest.approx(1.025)
        assert found.ratio == pytest.approx(slower, rel=1e-4)
        assert bool(found.part) == (verdict == "WARN")


def test_the_term_that_deviates_most_is_told_in_either_direction():
    for changed, words in ((0.03, "30.0 ms longer than predicted"), (-0.02, "20.0 ms shorter than predicted")):
        launches = [
            launched(
                step_seconds=1.0 + changed + place / 1e4,
                measured_terms={"forward": 0.5 + changed, "backward": 0.5 + min(changed, 0.0) - 0.01},
                predicted_terms={"forward": 0.5, "backward": 0.5},
            )
            for place in range(5)
        ]
        found = by_check(time_findings(launches, NOTHING, looks=(5,)))[8]
        assert f"most in forward, {words}" in found.evidence


def test_a_kernel_is_the_part_if_it_stands_out_and_explains_half_of_what_is_late():
    """From 5 % on, and half of the logarithm: a pass of 1.44 times its time, whose root is 1.2, or 1.75 times."""
    unknown = "matrix rate or memory bandwidth"
    cases = [
        (1.05, 0.5, {}, "matrix rate"),
        (1.0499, 0.5, {}, unknown),
        (1.201, 0.72, {}, "matrix rate"),
        (1.199, 0.72, {}, unknown),
        (1.15, 0.875, {}, unknown),
        (1.15, 0.875, {"backward": 0.25}, "matrix rate"),  # 1.17 times what is usual
        (1.06, 0.875, {"backward": -0.6}, "matrix rate"),  # usually shorter than all of its prediction: not late
    ]
    for slowdown, seconds, usual, part in cases:
        terms = {"measured_terms": {"backward": seconds}, "predicted_terms": {"backward": 0.5}}
        one = launched(**terms, cpu_slowdowns=EVEN | {"product": slowdown})
        assert slow_part(StepTerm.BACKWARD, [one], [], usual)[0] == f"{part} (backward)", (slowdown, seconds)
    optimizer = launched(measured_terms={"optimizer": 0.2}, predicted_terms={"optimizer": 0.1}, cpu_slowdowns=EVEN)
    slower = msgspec.structs.replace(optimizer, cpu_slowdowns=EVEN | {"product": 2.0})
    assert slow_part(StepTerm.OPTIMIZER, [slower], [], {})[0] == "memory bandwidth (optimizer)"  # no pass


def test_a_term_of_one_part_names_it_without_more_evidence():
    named = {term: slow_part(term, times(1.2), [], {}) for term in PART_OF_TERM}
    assert named == {
        StepTerm.DATA_LOADING: ("host (data loading)", ""),
        StepTerm.HOST_DEVICE_COPY: ("host-device link", ""),
        StepTerm.EXPOSED_COMMUNICATION: ("links", ""),
        StepTerm.BUBBLE: ("pipeline: a stage waits", ""),
        StepTerm.OPTIMIZER: ("memory bandwidth (optimizer)", ""),
        StepTerm.OVERHEAD: ("host (dispatch)", ""),
        StepTerm.UNEXPLAINED: ("in no term", ""),
    }


def test_excess_is_the_median_of_seconds_or_of_shares_of_the_predicted_step():
    launches = [
        launched(predicted_seconds=step, measured_terms={"forward": 0.5 + more}, predicted_terms={"forward": 0.5})
        for step, more in ((2.0, 0.2), (4.0, 0.1), (1.0, 0.3))
    ]
    launches.append(launched(predicted_seconds=None, measured_terms={"forward": 0.4}, predicted_terms={"forward": 0.5}))
    assert excess(launches, as_shares=True) == {StepTerm.FORWARD: pytest.approx(0.1)}  # of 0.1, 0.025 and 0.3
    assert excess(launches, as_shares=False) == {StepTerm.FORWARD: pytest.approx(0.15)}


def test_cpu_speed_is_the_median_of_the_launches_and_tells_their_range():
    launches = [launched(cpu_slowdown=slower) for slower in (1.0, 1.25, 2.0, None)]
    speed = next(one for one in time_findings(launches, NOTHING, looks=(5,)) if one.subject.endswith("CPU speed"))
    assert (speed.measured, speed.warn, speed.fail) == (0.8, pytest.approx(1 / 1.05), 0.7)
    assert speed.evidence.startswith("3 launches, 0.500 to 1.000")
    assert [one for one in time_findings([launched()], NOTHING) if one.subject.endswith("CPU speed")] == []
    steady = history_of(past={"8:bloom-mini, cpu_slowdown": [1.0, 0.99, 1.01]})
    assert [step_and_speed(times(1.0, cpu_slowdown=slower), steady)[1].verdict for slower in (1.0, 1.1)] == [
        "PASS",
        "FAIL",
    ]
