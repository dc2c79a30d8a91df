"""Evidence becomes the right verdict on the right part, and all verdicts together the right decision."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from suite.acceptance import checks
from suite.acceptance.bit_checks import guard_findings, replay_finding, soak_finding
from suite.acceptance.checks import CHECKS, MATRIX
from suite.acceptance.evidence import (
    Competitor,
    Exchange,
    Launched,
    Micro,
    Probing,
    Replay,
    Soaking,
    Surroundings,
    Timed,
)
from suite.acceptance.expectations import from_peak, from_values, modified_z, rated
from suite.acceptance.history import History
from suite.acceptance.judged import judged
from suite.acceptance.launch_checks import (
    exact_findings,
    jitter_findings,
    time_findings,
)
from suite.acceptance.losses import loss_findings
from suite.acceptance.phases import stages_of
from suite.acceptance.rates import exchange_findings, micro_findings
from suite.acceptance.slow_part import slow_part
from suite.acceptance.step_margin import Reference
from suite.acceptance.step_time import step_launches_missing
from suite.acceptance.verdicts import Decision, Finding, Verdict, confirmed, decision
from suite.figures import StepTerm
from suite.job import Status
from suite.miniature import miniature

NOTHING = History()
PACES = {"host": 1.0, "product": 1.15, "elementwise": 1.0}


def finding(verdict, check=MATRIX, status=Status.OK, **rest):
    return Finding(check=check, subject="x", verdict=verdict, status=status, **rest)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], Decision.UNDECIDED),
        ([finding(Verdict.NOT_RUN)], Decision.UNDECIDED),
        ([finding(Verdict.NOT_RUN), finding(Verdict.PASS)], Decision.ACCEPTED),
        ([finding(Verdict.WARN)], Decision.ACCEPTED),
        ([finding(Verdict.PASS), finding(Verdict.INCONCLUSIVE)], Decision.UNDECIDED),
        ([finding(Verdict.PASS), finding(Verdict.INVALID)], Decision.UNDECIDED),
        ([finding(Verdict.INVALID), finding(Verdict.FAIL)], Decision.REJECTED),
        ([finding(Verdict.PASS), finding(Verdict.HANG, status=Status.HANG)], Decision.EXECUTION_FAILED),
        ([finding(Verdict.FAIL, status=Status.NAN), finding(Verdict.INVALID)], Decision.EXECUTION_FAILED),
        ([finding(Verdict.HANG, status=Status.HANG), finding(Verdict.FAIL)], Decision.REJECTED),
    ],
)
def test_the_decision_follows_the_most_certain_finding_and_nothing_is_accepted_that_did_not_run(findings, expected):
    assert decision(findings) is expected


def test_a_failed_time_that_passes_again_is_inconclusive_and_an_exact_failure_stands():
    first = [finding(Verdict.FAIL, ratio=0.9), finding(Verdict.FAIL, check=checks.REPLAYS)]
    again = [finding(Verdict.PASS, ratio=1.0), finding(Verdict.PASS, check=checks.REPLAYS)]
    taken_back, stands = confirmed(first, again)
    assert taken_back.verdict is Verdict.INCONCLUSIVE
    assert "failed once at 0.900, not in the re-run at 1.000" in taken_back.evidence
    assert stands.verdict is Verdict.FAIL
    assert "intermittent" in stands.evidence
    (open_,) = confirmed(first[:1], [])
    assert (open_.verdict, open_.part) == (Verdict.INCONCLUSIVE, first[0].part)
    assert "no time was left for a re-run" in open_.evidence
    crashed = finding(Verdict.FAIL, status=Status.CRASHED)
    assert confirmed([crashed, first[1]], []) == [crashed, first[1]]
    (both,) = confirmed(first[:1], [finding(Verdict.FAIL, ratio=0.91)])
    assert both.verdict is Verdict.FAIL
    assert "confirmed by a re-run at 0.910" in both.evidence


def test_a_re_run_that_did_not_end_well_confirms_nothing_and_is_said_itself():
    link = msgspec.structs.replace(finding(Verdict.FAIL, check=checks.PEER), subject="link 0-1")
    step = finding(Verdict.FAIL, check=checks.STEP_TIME)
    hung = msgspec.structs.replace(finding(Verdict.HANG, check=checks.PEER, status=Status.HANG), subject="")
    crashed = finding(Verdict.FAIL, check=checks.STEP_TIME, status=Status.CRASHED)
    found = confirmed([link, step], [hung, crashed])
    assert [(one.check, one.verdict) for one in found] == [
        (checks.PEER, Verdict.INCONCLUSIVE),
        (checks.PEER, Verdict.HANG),
        (checks.STEP_TIME, Verdict.INCONCLUSIVE),
        (checks.STEP_TIME, Verdict.FAIL),
    ]
    assert {one.evidence for one in found if one.status is Status.OK} == {"failed once; no re-run of it ended well"}
    assert decision(found) is Decision.EXECUTION_FAILED
    assert confirmed([crashed], [crashed]) == [crashed]


def test_wrong_bits_of_a_link_stand_without_a_re_run_and_its_rate_does_not():
    bits, rate = (
        msgspec.structs.replace(finding(Verdict.FAIL, check=checks.PEER), subject=subject)
        for subject in ("messages to the bit", "link 0-1")
    )
    assert [one.verdict for one in confirmed([bits, rate], [])] == [Verdict.FAIL, Verdict.INCONCLUSIVE]
    (intermittent,) = confirmed([bits], [msgspec.structs.replace(bits, verdict=Verdict.PASS)])
    assert intermittent.verdict is Verdict.FAIL


def test_the_looks_of_one_miniature_leave_those_of_another_alone():
    both = [*times(1.6), *(msgspec.structs.replace(one, run="opt-mini") for one in times(1.6, count=3))]
    found = judged(both, NOTHING, others=0.05, selected={8}, looks_of={"opt-mini": (3,)})
    assert {f.subject: f.verdict for f in found} == {"bloom-mini": Verdict.FAIL, "opt-mini": Verdict.FAIL}
    short = judged(both, NOTHING, others=0.05, selected={8})
    assert {f.subject: f.verdict for f in short} == {"bloom-mini": Verdict.FAIL, "opt-mini": Verdict.INCONCLUSIVE}


def test_the_checks_are_numbered_as_in_the_table_and_every_threshold_lies_on_its_side():
    assert [check.number for check in CHECKS] == list(range(18))
    for check in CHECKS:
        if check.warn is not None and check.fail is not None:
            assert check.fail < check.warn < 1 or 0 < check.warn < check.fail, check.name


def test_every_rate_is_judged_by_the_expectation_that_it_looks_worst_against():
    past = from_values(CHECKS[MATRIX], [100.0, 101.0, 99.0], "batteries")
    found = rated(CHECKS[MATRIX], "x", 90.0, [from_peak(100.0, "a data sheet"), past], part="rank 0")
    assert (found.verdict, found.ratio, found.part) == (Verdict.FAIL, 0.9, "rank 0")
    assert found.source == "median of 3 batteries, spread 1.0%"
    assert "0.900 of a data sheet" in found.evidence
    assert rated(CHECKS[MATRIX], "x", 71.0, [from_peak(100.0, "s")], part="").verdict is Verdict.PASS
    assert rated(CHECKS[MATRIX], "x", 69.0, [from_peak(100.0, "s")], part="").verdict is Verdict.FAIL


def test_a_rate_that_nobody_expects_did_not_run_but_is_kept_for_later():
    found = rated(CHECKS[MATRIX], "x", 90.0, [], part="rank 0")
    assert (found.verdict, found.measured, found.siblings) == (Verdict.NOT_RUN, 90.0, "x")


def test_the_spread_of_the_past_widens_the_thresholds_and_two_values_have_none():
    tight = from_values(CHECKS[MATRIX], [100.0, 100.5, 99.5], "b")
    loose = from_values(CHECKS[MATRIX], [100.0, 103.0, 97.0], "b")
    wild = from_values(CHECKS[MATRIX], [100.0, 110.0, 90.0], "b")
    few = from_values(CHECKS[MATRIX], [100.0, 110.0], "b")
    assert (tight.warn, tight.fail) == (0.965, 0.93)
    another = 0.03 * math.sqrt(4 / 3)
    assert (loose.warn, loose.fail) == pytest.approx((1 - 2 * another, 1 - 6.965 * another), abs=1e-4)
    # three deviations of many values are more than what few have room for
    assert (wild.warn, wild.fail) == pytest.approx((1 - 0.2 * math.sqrt(4 / 3), 1 - 0.3 * math.sqrt(4 / 3)))
    assert few.fail == 0.70


@pytest.mark.parametrize("count", [3, 4, 5, 10, 30])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_one_more_good_value_fails_in_at_most_1_of_100_batteries_however_few_there_are(count, spread):
    chance, trials, failed = random.Random(5), 4000, 0
    for _ in range(trials):
        values = [chance.gauss(100.0, 100.0 * spread) for _ in range(count + 1)]
        last = values.pop()
        failed += last < statistics.median(values) * from_values(CHECKS[MATRIX], values, "").fail
    # four standard errors of a share of 1 in 100
    assert failed / trials <= 0.01 + 4 * math.sqrt(0.01 / trials)


def test_many_values_that_spread_by_1_percent_leave_no_room_for_a_tenth():
    for count in (3, 10):
        values = [100.0 + (place % 3 - 1) for place in range(count)]
        expected = from_values(CHECKS[MATRIX], values, "")
        assert rated(CHECKS[MATRIX], "x", 90.0, [expected], part="p").verdict is Verdict.FAIL


def test_a_modified_z_needs_ten_nodes_and_flags_beyond_3_5():
    fleet = [100.0 + step for step in range(-5, 6)]  # MAD 3
    assert modified_z(80.0, fleet[:9]) is None
    assert modified_z(80.0, fleet) == pytest.approx(-20 * 0.6745 / 3)
    same = rated(CHECKS[MATRIX], "x", 97.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    flagged = rated(CHECKS[MATRIX], "x", 80.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    assert (same.verdict, flagged.verdict, flagged.part) == (Verdict.PASS, Verdict.WARN, "p")


def micro(**changes):
    """Two equal ranks at 90 % of their peak."""
    usual = {"matrix": [9e10, 9e10], "copy": [1e10, 1e10], "triad": [1e10, 1e10], "peak": 1e11, "peak_source": "clock"}
    return Micro(**({"status": Status.OK, "message": "", "seconds": 1.0} | usual | changes))


def test_a_rank_with_slow_products_is_named():
    found = {f.check: f for f in micro_findings(micro(matrix=[9e10, 6e10]), NOTHING)}
    assert (found[1].verdict, found[1].part) == (Verdict.FAIL, "matrix rate of rank 1")
    assert (found[2].verdict, found[2].part) == (Verdict.FAIL, "matrix rate of rank 1")
    assert "rank 1 60.0" in found[2].evidence
    clean = {f.check: f for f in micro_findings(micro(), NOTHING)}
    assert (clean[1].verdict, clean[2].verdict) == (Verdict.PASS, Verdict.PASS)
    assert clean[3].verdict is Verdict.NOT_RUN


def test_memory_is_judged_by_this_nodes_past():
    known = History(past={"3:copy": [1e10, 1.01e10, 0.99e10], "3:triad": [1e10, 1.01e10, 0.99e10]})
    found = [f for f in micro_findings(micro(copy=[1e10, 0.8e10]), known) if f.check == 3]
    assert [(f.subject, f.verdict) for f in found] == [("copy", Verdict.FAIL), ("triad", Verdict.PASS)]
    assert found[0].part == "memory bandwidth (rank 1 slowest)"


def probing(**parts):
    return Probing(**({"status": Status.OK, "message": "", "ranks_at_fault": [], "seconds": 1.0} | parts))


def exchanges(ranks, slow=None, wrong=None):
    """Every pair at 1 GB/s, and sums; `slow` is a pair at half of it, `wrong` a rank that received a wrong element."""
    out = []
    for rank in range(ranks):
        for peer in [*range(ranks), None]:
            if peer == rank:
                continue
            rate = 0.5e9 if slow is not None and {rank, peer} == set(slow) else 1e9
            bad = int(rank == wrong and peer is None)
            out.append(Exchange(rank=rank, peer=peer, bytes_per_second=rate, wrong=bad, first="e" if bad else ""))
    return out


def test_one_slow_link_among_six_is_named():
    found = exchange_findings(probing(exchanges=exchanges(4, slow=(1, 3))), NOTHING)
    bad = [(f.subject, f.part) for f in found if f.verdict is Verdict.FAIL]
    assert bad == [("link 1-3", "link 1-3")]


def test_a_wrong_sum_names_the_rank_that_got_it():
    found = exchange_findings(probing(exchanges=exchanges(2, wrong=1)), NOTHING)
    (bad,) = [f for f in found if f.verdict is Verdict.FAIL]
    assert (bad.check, bad.subject, bad.part) == (6, "sums to the bit", "rank 1")


def test_rates_of_messages_are_compared_with_those_of_as_many_bytes():
    def found(bytes):
        own = [msgspec.structs.replace(one, bytes=bytes) for one in exchanges(2)]
        return [f for f in exchange_findings(probing(exchanges=own), past) if not f.subject.endswith("to the bit")]

    past = History()
    before = found(16)
    past = History(past={f"{f.check}:{f.siblings}": [2 * f.measured] for f in before})
    assert {(f.check, f.verdict) for f in found(16)} == {(5, Verdict.FAIL), (6, Verdict.FAIL)}
    assert {(f.check, f.verdict) for f in found(64)} == {(5, Verdict.NOT_RUN), (6, Verdict.NOT_RUN)}


def test_products_are_compared_with_the_best_of_as_many_shapes():
    def found(points, known=NOTHING):
        return micro_findings(micro(peak=None, points=points), known)[0]

    past = History(past={f"1:{found(27).siblings}": [2e11]})
    assert [found(points, past).verdict for points in (27, 64)] == [Verdict.FAIL, Verdict.NOT_RUN]


def replays(ranks=2, times=3, steps=3, wrong=lambda _rank, _replay, _step: False):
    return [
        Replay(
            rank=rank,
            replay=replay,
            step=step,
            loss="a",
            gradients=f"{rank}{replay}" if wrong(rank, replay, step) else "b",
            parameters="c",
        )
        for rank in range(ranks)
        for replay in range(times)
        for step in range(steps)
    ]


@pytest.mark.parametrize(
    ("wrong", "verdict", "part", "words"),
    [
        (lambda _rank, _replay, _step: False, Verdict.PASS, "", "all equal"),
        (
            lambda rank, replay, step: (rank, replay, step) == (1, 1, 2),
            Verdict.FAIL,
            "rank 1",
            "step 2, in the gradients",
        ),
        (lambda rank, _replay, _step: rank == 0, Verdict.FAIL, "rank 0", "rank 0 outvoted in 9"),
        (lambda _rank, _replay, _step: True, Verdict.INVALID, "no rank repeats itself", "step 0"),
    ],
)
def test_replays_vote(wrong, verdict, part, words):
    found = replay_finding(probing(replays=replays(wrong=wrong)))
    assert found.verdict is verdict
    assert part in found.part
    assert words in found.evidence


def test_two_ranks_that_each_repeat_themselves_leave_open_which_is_wrong():
    halves = [msgspec.structs.replace(one, gradients=str(one.rank)) for one in replays()]
    found = replay_finding(probing(replays=halves))
    assert found.verdict is Verdict.FAIL
    assert found.part.startswith("rank 0 or rank 1")


def test_a_wrong_bit_of_memory_names_its_rank():
    good = Soaking(rank=0, bytes=100, passes=2, wrong=0, first="")
    bad = Soaking(rank=1, bytes=100, passes=2, wrong=1, first="memory from element 0")
    assert soak_finding(probing(soaks=[good])).verdict is Verdict.PASS
    found = soak_finding(probing(soaks=[good, bad]))
    assert (found.verdict, found.part) == (Verdict.FAIL, "rank 1: memory or arithmetic")


def launched(**changes):
    """A launch that took as long as predicted."""
    usual = {
        "run": "bloom-mini",
        "purpose": "times",
        "status": Status.OK,
        "message": "",
        "ranks_at_fault": [],
        "record": "r",
        "seconds": 20.0,
        "exact": 40,
        "step_seconds": 1.0,
        "predicted_seconds": 1.0,
        "measured_terms": {"forward": 0.5, "backward": 0.5, "unexplained": 0.01},
        "predicted_terms": {"forward": 0.5, "backward": 0.5},
        "compute_seconds": [1.0, 1.0],
        "timed": [1.0] * 5,
        "losses": [8.9, 8.8, 8.7],
        "stack": "s",
        "deterministic": True,
    }
    return Launched(**(usual | changes))


def by_check(findings):
    return {f.check: f for f in findings}


def test_one_unequal_figure_fails_and_is_quoted():
    bad = launched(unequal=["messages dp all_reduce: 6 measured, 5 predicted"])
    (found,) = exact_findings([launched(), bad])
    assert found.verdict is Verdict.FAIL
    assert "6 measured, 5 predicted" in found.evidence
    (clean,) = exact_findings([launched()])
    assert (clean.verdict, clean.evidence) == (Verdict.PASS, "40 figures equal")


def times(factor, *, count=5, term="backward", **changes):
    """Launches slowed by a factor in one term, 1 % apart."""
    out = []
    for number in range(count):
        seconds = factor * (0.99, 1.0, 1.01)[number % 3]
        terms = {"forward": 0.5, "backward": 0.5, "unexplained": 0.01}
        terms[term] = terms.get(term, 0.1) + seconds - 1.0
        out.append(launched(**({"step_seconds": seconds, "measured_terms": terms} | changes)))
    return out


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
        for one in [launched(measured_terms={"backward": 0.7}, predicted_terms={"backward": 0.4}, paces=PACES)]
        for usual in ({}, {"backward": 0.2})
    ]
    # 1.75 times the predicted seconds, and 1.17 times the usual ones, of which 1.15 is half at least
    assert found == ["matrix rate or memory bandwidth (backward)", "matrix rate (backward)"]


@pytest.mark.parametrize(
    ("paces", "rates", "part", "words"),
    [
        ({"product": 1.6, "elementwise": 1.0}, {}, "matrix rate (backward)", "products took 1.60 times"),
        ({"product": 1.0, "elementwise": 1.6}, {}, "caches and memory (backward)", "element-wise work 1.60"),
        ({"product": 1.61, "elementwise": 1.6}, {}, "processors' speed (backward)", "products took 1.61 times"),
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
    evidence = [surroundings(), micro(**rates), *times(1.6, paces={"host": 1.0, **paces} if paces else {})]
    (found,) = (
        f for f in judged(evidence, known, others=0.05, looks=(5,)) if (f.check, f.subject) == (8, "bloom-mini")
    )
    assert (found.verdict, found.part) == (Verdict.FAIL, part)
    assert words in found.evidence


def test_what_is_in_another_term_is_not_decided_by_the_pace():
    slow = times(1.6, term="optimizer", paces={"product": 1.6, "elementwise": 1.0})
    slow = [msgspec.structs.replace(one, predicted_terms=one.predicted_terms | {"optimizer": 0.1}) for one in slow]
    assert by_check(time_findings(slow, NOTHING, looks=(5,)))[8].part == "memory bandwidth (optimizer)"


def test_two_launches_judge_no_time():
    assert by_check(time_findings(times(1.0, count=2), NOTHING))[8].verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(("share", "verdict"), [(0.04, Verdict.PASS), (0.06, Verdict.WARN), (0.12, Verdict.FAIL)])
def test_the_unexplained_share_is_limited(share, verdict):
    found = by_check(time_findings(times(1.0, measured_terms={"forward": 1.0, "unexplained": share}), NOTHING))[9]
    assert found.verdict is verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(1.02, Verdict.PASS), (1.05, Verdict.WARN), (1.11, Verdict.FAIL)])
def test_a_slow_rank_is_named_by_its_compute_alone(seconds, verdict):
    found = by_check(time_findings(times(1.0, compute_seconds=[1.0, seconds]), NOTHING))[11]
    assert found.verdict is verdict
    assert ("rank 1" in found.part) == (verdict is not Verdict.PASS)


STAGES = [0, 0, 1, 1]  # of dp2, pp2: the last stage has the head too


@pytest.mark.parametrize(
    ("seconds", "verdict", "part"),
    [
        ([1.0, 1.01, 1.3, 1.31], Verdict.PASS, ""),
        ([1.0, 1.01, 1.31, 1.5], Verdict.FAIL, "rank 3: compute"),
        ([1.2, 1.0, 1.3, 1.31], Verdict.FAIL, "rank 0: compute"),
    ],
)
def test_only_ranks_of_one_pipeline_stage_are_held_to_each_other(seconds, verdict, part):
    found = by_check(time_findings(times(1.0, compute_seconds=seconds, stages=STAGES), NOTHING))[11]
    assert (found.verdict, found.part) == (verdict, part)
    assert found.evidence.startswith("stage 0: rank 0")


def test_a_rank_alone_on_its_stage_has_nothing_to_be_compared_with():
    found = by_check(time_findings(times(1.0, compute_seconds=[1.0, 1.5], stages=[0, 1]), NOTHING))[11]
    assert found.verdict is Verdict.NOT_RUN
    assert "each pipeline stage has one rank" in found.evidence
    uneven = by_check(time_findings(times(1.0, compute_seconds=[1.0, 1.0, 1.5], stages=[0, 0, 1]), NOTHING))[11]
    assert uneven.verdict is Verdict.PASS


def test_launches_tell_the_stages_of_their_ranks():
    assert stages_of(miniature(reference_run("bloom-176b"), "cpu", ranks=4).layout) == STAGES
    assert stages_of(miniature(reference_run("bloom-176b"), "cpu", ranks=2).layout) == []
    assert stages_of(
        msgspec.structs.replace(Layout(), data_parallel=2, pipeline_stages=2, rank_order="pp-dp-tp-cp")
    ) == [0, 1, 0, 1]


def test_jitter_needs_200_steps_and_sees_both_spread_and_tail():
    def jitter(timed):
        return jitter_findings([launched(purpose="jitter", timed=timed)])[0].verdict

    assert jitter([1.0] * 199) is Verdict.NOT_RUN
    assert jitter([1.0] * 200) is Verdict.PASS
    assert jitter([0.9, 1.1] * 100) is Verdict.FAIL
    assert jitter([1.0] * 196 + [1.2] * 4) is Verdict.FAIL
    assert jitter_findings([launched()])[0].verdict is Verdict.NOT_RUN


def test_another_loss_from_the_same_stack_fails_and_another_stack_is_not_compared():
    other = launched(losses=[8.9, 8.8, 8.70001])
    (found,) = loss_findings([launched(), launched(), other], NOTHING)
    assert found.verdict is Verdict.FAIL
    assert "step 2: 8.70001, not 8.7" in found.evidence
    apart = loss_findings([launched(), launched(), msgspec.structs.replace(other, stack="t")], NOTHING)
    assert [f.verdict for f in apart] == [Verdict.PASS, Verdict.NOT_RUN]
    (past,) = loss_findings([launched()], History(losses={"s": [8.9, 8.8, 8.6]}))
    assert past.verdict is Verdict.FAIL


def test_another_loss_where_training_is_not_deterministic_is_no_failure():
    free, other = (launched(losses=[8.9, 8.8, last], deterministic=False) for last in (8.7, 8.70001))
    (found,) = loss_findings([free, other], NOTHING)
    assert (found.verdict, found.part) == (Verdict.NOT_RUN, "")
    assert "not deterministic" in found.evidence
    assert "step 2: 8.70001, not 8.7" in found.evidence
    (past,) = loss_findings([free], History(losses={"s": [8.9, 8.8, 8.6]}))
    assert past.verdict is Verdict.NOT_RUN
    assert loss_findings([free, free], NOTHING)[0].verdict is Verdict.PASS


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_loss_that_does_not_fall_fails(deterministic):
    flat, falling = (
        launched(losses=[8.9 - step * n / 10 for n in range(30)], deterministic=deterministic) for step in (0, 1)
    )
    (found,) = loss_findings([flat, flat], NOTHING)
    assert (found.verdict, found.part) == (Verdict.FAIL, "training")
    (found,) = loss_findings([flat, falling], NOTHING)
    assert found.verdict is Verdict.FAIL
    assert found.part.startswith("arithmetic or links" if deterministic else "training")
    broken = launched(status=Status.NAN, deterministic=deterministic)
    assert loss_findings([falling, broken], NOTHING)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(Status.HANG, Verdict.HANG), (Status.NAN, Verdict.FAIL), (Status.OUT_OF_MEMORY, Verdict.FAIL)],
)
def test_a_launch_that_did_not_end_well_fails_its_checks_with_its_status_and_rank(status, verdict):
    bad = launched(status=status, ranks_at_fault=[1], message="m")
    (found,) = exact_findings([bad])
    assert (found.verdict, found.status, found.part) == (verdict, status, "rank 1")
    assert decision([found]) is Decision.EXECUTION_FAILED


def test_a_probe_that_did_not_end_well_names_its_ranks_in_every_check_that_it_serves():
    crashed = probing(status=Status.CRASHED, ranks_at_fault=[1], message="m")
    found = [*exchange_findings(crashed, NOTHING), replay_finding(crashed), soak_finding(crashed)]
    assert {f.check for f in found} == {5, 6, 14, 15}
    assert {(f.verdict, f.status, f.part, f.evidence) for f in found} == {
        (Verdict.FAIL, Status.CRASHED, "rank 1", "crashed: m")
    }


def phase(outcome, message="", **more):
    usual = {"phase": "p", "predicted_seconds": 10.0, "budget_seconds": 50.0, "seconds": 51.0}
    return Timed(outcome=outcome, message=message, **(usual | more))


STACKS = "rank 1: an error of the log\ncollectives:\nrank 0: in none\nrank 0:\nThread 1:\n  File train.py\nrank 1:\n"


@pytest.mark.parametrize(
    ("ranks", "message", "stacks", "part", "words"),
    [
        ([1], "rank 1 behind the others", f"{STACKS}no answer", "rank 1", "; stacks of rank 0 in the record"),
        (
            [1],
            "default_pg: rank 1 did not come to number 7; no rank made progress and none is behind the others",
            f"{STACKS}Thread 2:",
            "rank 1",
            "; stacks of rank 0, rank 1 in the record",
        ),
        (
            [],
            "no rank made progress and none is behind the others",
            "",
            "unknown rank: none is behind the others",
            "; no rank told its stacks",
        ),
    ],
)
def test_a_hang_names_the_rank_at_fault_and_the_stacks_that_there_are(ranks, message, stacks, part, words):
    hung = phase("hang", message, ranks_at_fault=ranks, stacks=stacks)
    (found, *_) = guard_findings([hung], disturbed=False)
    assert (found.part, found.evidence) == (part, message + words)


def test_slow_is_not_hung():
    message = "rank 1 stopped (process state T); rank 0: step 3 done"
    hung, slow = (
        guard_findings([phase(kind, message, ranks_at_fault=[1])], disturbed=False)[0] for kind in ("hang", "slow")
    )
    assert (hung.verdict, hung.part) == (Verdict.HANG, "rank 1")
    assert (slow.verdict, slow.part) == (Verdict.FAIL, "slow, not hung")
    assert guard_findings([phase("slow")], disturbed=True)[0].verdict is Verdict.INCONCLUSIVE


def surroundings(**changes):
    usual = {"device": "cpu", "ranks": 2, "devices": 2, "devices_expected": None, "others_share": 0.0}
    return Surroundings(**(usual | {"competitors": []} | changes))


def test_in_an_invalid_environment_times_are_invalid_and_exact_figures_keep_their_verdict():
    bad = [launched(unequal=["x"])]
    evidence = [surroundings(others_share=0.9), micro(matrix=[9e10, 6e10]), *bad]
    found = judged(evidence, NOTHING, others=0.05)
    verdicts = {(f.check, f.verdict) for f in found}
    assert (1, Verdict.INVALID) in verdicts
    assert (2, Verdict.INVALID) in verdicts
    assert (7, Verdict.FAIL) in verdicts
    calm = judged([surroundings(), *evidence[1:]], NOTHING, others=0.05)
    assert {(f.check, f.verdict) for f in calm} >= {(1, Verdict.FAIL), (2, Verdict.FAIL)}


def test_what_passes_is_invalid_too_where_the_environment_is_and_bits_are_not():
    good = [
        micro(matrix=[9e10, 9e10]),
        *times(1.0, pace=1.0),
        probing(exchanges=exchanges(2), replays=replays()),
    ]
    past = History(past={f"{name}, messages of 0 byte": [1e9] for name in ("5:link 0-1", "6:busbw of 2 ranks")})
    noisy = [1, 2, 3, 5, 6, 8, 9, 11]
    calm, disturbed = (judged([surroundings(others_share=share), *good], past, others=0.05) for share in (0.01, 0.9))
    before = {(f.check, f.subject): f.verdict for f in calm}
    assert Verdict.INVALID not in before.values()
    for finding in disturbed:
        earlier = before[finding.check, finding.subject]
        if earlier is Verdict.PASS and finding.check in noisy and not finding.subject.endswith("to the bit"):
            assert finding.verdict is Verdict.INVALID, finding
            assert finding.evidence.startswith("PASS in an invalid environment")
        elif finding.subject != "other processes":
            assert finding.verdict is earlier, finding
    changed = {f.check for f in disturbed if f.verdict is Verdict.INVALID and f.check}
    assert changed >= {2, 6, 8, 9, 11}
    assert {f.verdict for f in disturbed if f.check in (7, 14)} == {Verdict.PASS}


def test_other_processes_during_a_launch_count_as_much_as_before():
    found = judged([surroundings(), launched(others_share=0.5)], NOTHING, others=0.05)
    (others,) = [f for f in found if f.subject == "other processes"]
    assert (others.verdict, others.measured) == (Verdict.INVALID, 0.5)


def test_other_processes_beside_exact_figures_alone_invalidate_nothing():
    exact = launched(purpose="exact", others_share=0.5, steal_share=0.5)
    found = judged([surroundings(), launched(others_share=0.01), exact], NOTHING, others=0.05)
    (others,) = [f for f in found if f.subject == "other processes"]
    assert (others.verdict, others.measured) == (Verdict.PASS, 0.01)


@pytest.mark.parametrize("shares", [{"others_share": 0.5}, {"steal_share": 0.5}])
def test_beside_others_a_low_rate_of_exchanges_says_nothing_and_a_good_one_stands(shares):
    fast, slow = exchanges(2), exchanges(2, slow=(0, 1))
    rates = {(one.rank, one.peer): one.bytes_per_second for one in fast}
    (usual,) = {rate for (rank, peer), rate in rates.items() if peer is not None and rank < peer}
    size = fast[0].bytes
    past = History(past={f"5:link 0-1, messages of {size} byte": [usual] * 9})

    def verdicts(probe):
        return {f.subject: f.verdict for f in judged([surroundings(), probe, *times(1.0)], past, others=0.05)}

    calm, bad = verdicts(probing(exchanges=fast)), verdicts(probing(exchanges=slow))
    assert (calm["link 0-1"], bad["link 0-1"]) == (Verdict.PASS, Verdict.FAIL)
    busy, good = (verdicts(probing(exchanges=some, **shares)) for some in (slow, fast))
    assert busy == bad | {"link 0-1": Verdict.INVALID}
    assert good == calm


def test_what_made_times_invalid_is_said_without_check_0():
    busy = surroundings(others_share=0.9, competitors=[Competitor(pid=7, name="busyloop", cores=1.8)])
    (of_time, why) = sorted(
        judged([busy, *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8}), key=lambda f: -f.check
    )
    assert (of_time.check, of_time.verdict) == (8, Verdict.INVALID)
    assert (why.check, why.verdict) == (0, Verdict.INVALID)
    assert "busyloop (pid 7)" in why.part
    exact = judged([busy, *times(1.0)], NOTHING, others=0.05, selected={7})
    assert [(f.check, f.verdict) for f in exact] == [(7, Verdict.PASS)]
    quiet = judged([surroundings(), *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8})
    assert {f.check for f in quiet} == {8}


def test_every_selected_check_without_evidence_is_not_run():
    found = judged([], NOTHING, others=0.05)
    assert {f.check for f in found} == set(range(18))
    assert {f.verdict for f in found} == {Verdict.NOT_RUN}
    assert decision(found) is Decision.UNDECIDED
    assert {f.check for f in judged([], NOTHING, others=0.05, selected={7, 14})} == {7, 14}


def test_one_rank_has_nobody_to_exchange_with_whatever_else_the_probe_did():
    alone = [surroundings(ranks=1), probing(replays=replays(ranks=1))]
    found = [f for f in judged(alone, NOTHING, others=0.05) if f.check in (5, 6)]
    assert [(f.verdict, f.evidence) for f in found] == [
        (Verdict.NOT_RUN, "one rank has nobody to exchange with") for _ in (5, 6)
    ]


def test_a_wrong_number_of_devices_is_invalid():
    found = judged([surroundings(devices_expected=8)], NOTHING, others=0.05)
    (devices,) = [f for f in found if f.subject == "devices"]
    assert (devices.verdict, devices.part) == (Verdict.INVALID, "cores: 2 in place of 8")
