"""Step times beside their prediction, the past and siblings; the part that a late one names; the pace."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.findings import Verdict
from suite.acceptance.judge.attribution import slow_part
from suite.acceptance.judge.judge import judged
from suite.acceptance.judge.launches import time_findings
from suite.acceptance.judge.step_time import step_launches_missing
from suite.acceptance.judge.step_time_margin import Reference
from suite.acceptance.past_batteries import History
from suite.metrics.figures import StepTerm
from tests.support.batteries import NOTHING, by_check, launched, micro, surroundings, times

EVEN = {"host": 1.0, "product": 1.0, "elementwise": 1.0, "memory": 1.0}


def test_step_time_without_history_has_room_for_the_predictions_own_error():
    found = {f: by_check(time_findings(times(f), NOTHING, looks=(5,)))[8] for f in (1.0, 1.2, 1.6)}
    assert [f.verdict for f in found.values()] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]
    assert "17% of its error" in found[1.0].source
    assert found[1.6].part == "matrix rate or memory bandwidth (backward)"


def test_step_time_with_history_is_held_to_the_bias_of_the_past():
    known = History(past={"8:bloom-mini": [1.2, 1.21, 1.19]})
    same, slower = (by_check(time_findings(times(f), known, looks=(5,)))[8] for f in (1.2, 1.34))
    assert same.verdict in (Verdict.PASS, Verdict.WARN)
    assert same.ratio == pytest.approx(1.0, abs=0.01)
    assert slower.verdict is Verdict.FAIL
    assert slower.least_detectable is not None
    assert slower.least_detectable > 0.05


def test_a_prediction_from_more_points_has_another_bias():
    def found(points, known=NOTHING):
        return by_check(time_findings(times(1.2, points=points), known, looks=(5,)))[8]

    past = History(past={f"8:{found(27).siblings}": [1.0, 1.01, 0.99]})
    assert [found(points, past).verdict for points in (27, 64)] == [Verdict.FAIL, Verdict.PASS]


def test_a_nodes_own_past_does_not_hide_that_its_siblings_are_faster():
    slow, steady = [1.2, 1.21, 1.19], [1.0, 1.01, 0.99]
    known = History(past={"8:bloom-mini": slow}, fleet={"8:bloom-mini": steady})
    found = by_check(time_findings(times(1.2), known, looks=(5,)))[8]
    assert (found.verdict, found.ratio) == (Verdict.FAIL, pytest.approx(1.2, abs=0.01))
    assert "siblings in the fleet" in found.source
    assert "of prediction x 1.200 of 3 accepted batteries of this node" in found.evidence
    swapped = History(past={"8:bloom-mini": steady}, fleet={"8:bloom-mini": slow})
    worse = by_check(time_findings(times(1.2), swapped, looks=(5,)))[8]
    assert (worse.verdict, worse.ratio) == (found.verdict, found.ratio)
    assert "accepted batteries of this node" in worse.source
    alike = History(past={"8:bloom-mini": slow}, fleet={"8:bloom-mini": slow})
    assert by_check(time_findings(times(1.2), alike, looks=(5,)))[8].verdict is Verdict.PASS


def test_a_step_that_is_an_outlier_among_ten_siblings_warns():
    fleet = [1.0 + step / 2000 for step in range(-5, 6)]  # MAD 0.0015
    found = {
        count: by_check(time_findings(times(1.01), History(fleet={"8:bloom-mini": fleet[:count]}), looks=(5,)))[8]
        for count in (9, 11)
    }
    assert [one.verdict for one in found.values()] == [Verdict.PASS, Verdict.WARN]
    assert "modified z" not in found[9].evidence
    assert "modified z +3.6 among 11 nodes" in found[11].evidence
    assert found[11].part


def test_launches_go_on_until_every_reference_has_decided_or_one_rejects():
    past, fleet = (Reference(bias=bias, margin=0.05, source="") for bias in (1.0, 0.9))
    good = [0.999, 1.0, 1.001, 1.0, 0.999]
    unsteady = [0.97, 1.0, 1.03, 0.99, 1.01]
    assert step_launches_missing(good, [past], (5, 10)) == 0
    assert step_launches_missing(good, [past, fleet], (5, 10)) == 0  # rejected beside its siblings
    near = msgspec.structs.replace(past, bias=0.96)
    assert step_launches_missing(unsteady, [msgspec.structs.replace(past, margin=0.2)], (5, 10)) == 0
    assert step_launches_missing(unsteady, [msgspec.structs.replace(past, margin=0.2), near], (5, 10)) == 5


def paces(launches, history=NOTHING):
    """The findings of check 8: of the step, and of the processors' pace."""
    step, pace = (f for f in time_findings(launches, history, looks=(5,)) if f.check == 8)
    return step, pace


def test_the_pace_is_judged_beside_the_step_and_excuses_nothing():
    step, pace = paces(times(1.6, pace=1.6))
    assert (step.verdict, step.ratio) == (Verdict.FAIL, pytest.approx(1.6, abs=0.01))
    assert (pace.verdict, pace.subject, pace.measured) == (Verdict.FAIL, "bloom-mini, pace", pytest.approx(1 / 1.6))
    assert pace.part == "host: processors slower than in the micro-measurements"
    verdicts = {slower: paces(times(1.0, pace=slower))[1].verdict for slower in (0.8, 1.0, 1.2)}
    assert list(verdicts.values()) == [Verdict.PASS, Verdict.PASS, Verdict.WARN]


def test_a_node_that_was_steady_before_may_not_slow_down_by_a_tenth():
    known = History(past={"8:bloom-mini, pace": [1.0, 0.99, 1.01]})
    assert [paces(times(1.0, pace=slower), known)[1].verdict for slower in (1.0, 1.1)] == [Verdict.PASS, Verdict.FAIL]


@pytest.mark.parametrize(
    ("term", "part"), [("exposed communication", "links"), ("launch and host overhead", "host (dispatch)")]
)
def test_the_verdict_names_the_part_of_the_term_that_grew(term, part):
    slow = [
        msgspec.structs.replace(
            one,
            step_seconds=2.0,
            measured_terms={"forward": 0.5, "backward": 0.5, term: 1.0},
            predicted_terms={"forward": 0.5, "backward": 0.5, term: 0.0},
        )
        for one in times(1.0)
    ]
    spread = [msgspec.structs.replace(one, step_seconds=2.0 + number / 100) for number, one in enumerate(slow)]
    assert by_check(time_findings(spread, NOTHING, looks=(5,)))[8].part == part


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
    key = f"8:{usual.siblings}"
    known = History(
        **{whose: {key: [usual.measured]}, f"{whose}_spreads": {key: [0.01]}, f"{whose}_terms": {key: [usual.terms]}}
    )
    found = by_check(time_findings(late(0.06), known, looks=(5,)))[8]
    assert (found.verdict, found.part) == (Verdict.FAIL, "links")
    assert "most in exposed communication +60.0 ms beyond the usual" in found.evidence
    unknown = History(past={key: [usual.measured]}, past_spreads={key: [0.01]})
    before = by_check(time_findings(late(0.06), unknown, looks=(5,)))[8]
    assert "(backward)" in before.part
    assert "most in backward +100.0 ms" in before.evidence


def test_what_a_pass_is_usually_late_by_needs_no_slower_pace_to_explain_it():
    found = [
        slow_part(StepTerm.BACKWARD, [one], [], usual)[0]
        for one in [
            launched(
                measured_terms={"backward": 0.7}, predicted_terms={"backward": 0.4}, paces=EVEN | {"product": 1.15}
            )
        ]
        for usual in ({}, {"backward": 0.2})
    ]
    # 1.75 times the predicted seconds, and 1.17 times the usual ones, of which 1.15 is half at least
    assert found == ["matrix rate or memory bandwidth (backward)", "matrix rate (backward)"]


@pytest.mark.parametrize(
    ("paces", "rates", "part", "words"),
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
def test_products_or_memory_is_decided_by_pace_or_else_by_checks_1_and_3(paces, rates, part, words):
    known = History(past={"3:copy": [1e10] * 3, "3:triad": [1e10] * 3})
    evidence = [surroundings(), micro(**rates), *times(1.6, paces=EVEN | paces if paces else {})]
    (found,) = (
        f for f in judged(evidence, known, others=0.05, looks=(5,)) if (f.check, f.subject) == (8, "bloom-mini")
    )
    assert (found.verdict, found.part) == (Verdict.FAIL, part)
    assert words in found.evidence


def test_what_is_in_another_term_is_not_decided_by_the_pace():
    slow = times(1.6, term="optimizer", paces=EVEN | {"product": 1.6})
    slow = [msgspec.structs.replace(one, predicted_terms=one.predicted_terms | {"optimizer": 0.1}) for one in slow]
    assert by_check(time_findings(slow, NOTHING, looks=(5,)))[8].part == "memory bandwidth (optimizer)"


def test_two_launches_judge_no_time():
    assert by_check(time_findings(times(1.0, count=2), NOTHING))[8].verdict is Verdict.NOT_RUN
