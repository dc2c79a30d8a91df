"""Figures of launches, computed apart: share in no term, lateness of a rank, tail of the steps, first other loss."""

from __future__ import annotations

import random
import statistics

import msgspec
import numpy
import pytest
from scipy import stats

from suite.acceptance.evidence import LaunchPurpose
from suite.acceptance.judge.launches import (
    TAIL_FAIL,
    _late_beyond_chance,
    exact_findings,
    jitter_findings,
    loss_findings,
    time_findings,
)
from suite.job.events import Status
from suite.metrics.figures import StepTerm
from tests.support.batteries import NOTHING, by_check, history_of, launched


def jittery(timed, **changes):
    (found,) = jitter_findings([launched(purpose=LaunchPurpose.JITTER, timed=timed, **changes)])
    return found


@pytest.mark.parametrize("steps", [200, 201, 250, 399])
def test_jitter_is_the_coefficient_of_variation_and_the_tail_the_smallest_value_of_99_percent(steps):
    chance = random.Random(steps)
    timed = [chance.lognormvariate(0, 0.015) for _ in range(steps)]
    found = jittery(timed)
    assert found.ratio == pytest.approx(numpy.std(timed, ddof=1) / numpy.mean(timed), rel=1e-12)
    tail = numpy.quantile(timed, 0.99, method="inverted_cdf") / numpy.median(timed)
    assert found.evidence == f"{steps} steps; 99 % quantile / median {tail:.3f} (warn 1.05, fail 1.15)"
    assert (found.subject, found.source, found.verdict) == ("bloom-mini", "a steady machine", "PASS")


def tailed(tail, spread=0.0, late=5):
    """400 steps, of which the last `late` take `tail`; 4 are beyond the 99 % quantile."""
    return jittery([1.0 - spread, 1.0 + spread] * ((400 - late) // 2) + [1.0] * ((400 - late) % 2) + [tail] * late)


def test_a_tail_warns_above_1_05_and_fails_above_1_15_and_then_names_the_part():
    verdicts = [tailed(tail).verdict for tail in (1.05, 1.0501, 1.15, 1.1501)]
    assert verdicts == ["PASS", "WARN", "WARN", "FAIL"]
    assert tailed(1.1, late=4).verdict == "PASS"  # the quantile is the last of the others
    assert [tailed(tail).part for tail in (1.04, 1.06)] == ["", "host, clocks, or other processes"]


def test_a_spread_that_fails_is_not_softened_by_a_tail_that_only_warns():
    at_the_limit = jittery([0.5] * 100 + [1.0] * 200 + [TAIL_FAIL] * 100)
    for loud in (tailed(1.08, spread=0.06), at_the_limit):
        assert (loud.verdict, loud.part) == ("FAIL", "host, clocks, or other processes")


def test_too_few_steps_are_counted_whoever_made_them():
    assert jittery([1.0] * 199).evidence == "199 timed steps, 200 needed"
    (none,) = jitter_findings([launched(timed=[1.0] * 5), launched(timed=[1.0] * 7)])
    assert none.evidence.startswith("7 timed steps in one launch, 200 needed")
    assert jitter_findings([])[0].evidence.startswith("0 timed steps")
    assert jittery([1.0] * 200, status=Status.CRASHED, message="gone").verdict != "PASS"


def test_the_share_in_no_term_is_the_median_of_its_sizes_over_the_steps():
    launches = [
        launched(step_seconds=seconds, measured_terms={"forward": 0.5, "unexplained": rest})
        for seconds, rest in ((2.0, -0.12), (1.0, 0.07), (4.0, 0.04), (None, 9.0))
    ]
    found = by_check(time_findings(launches, NOTHING))[9]
    assert found.ratio == pytest.approx(0.06)  # of 0.06, 0.07 and 0.01
    assert (found.verdict, found.part) == ("WARN", "in no term: ranks that wait for each other, or the host")
    unprofiled = by_check(time_findings([launched(measured_terms={"forward": 0.5})], NOTHING))[9]
    assert (unprofiled.verdict, unprofiled.evidence) == ("NOT RUN", "no step was profiled: a launch needs 8 steps")


def test_terms_are_listed_by_size_the_four_largest_first():
    measured = {"forward": 0.51, "backward": 0.46, "optimizer": 0.13, "bubble": 0.0, StepTerm.OVERHEAD: 0.207}
    predicted = {"forward": 0.5, "backward": 0.5, "optimizer": 0.1, "bubble": 0.005, StepTerm.OVERHEAD: 0.2}
    launches = [launched(measured_terms={**measured, "unexplained": 0.001}, predicted_terms=predicted)] * 3
    evidence = by_check(time_findings(launches, NOTHING))[9].evidence
    assert evidence == (
        "backward 40.0 ms faster, optimizer 30.0 ms slower, forward 10.0 ms slower, "
        "launch and host overhead 7.0 ms slower than predicted"
    )


@pytest.mark.parametrize("late", [0, 2, 3])
def test_a_rank_is_compared_with_the_best_other_one_of_its_own_stage(late):
    """Stages 0 and 1 have two ranks each; the other stage's ranks are faster, and do not count."""
    chance = random.Random(late)
    seconds = [[(1.0 if rank < 2 else 0.5) * chance.uniform(0.999, 1.001) for rank in range(4)] for _ in range(5)]
    for of_launch in seconds:
        of_launch[late] *= 1.1
    launches = [launched(compute_seconds=one, stages=[0, 0, 1, 1]) for one in seconds]
    found = by_check(time_findings(launches, NOTHING))[11]
    partner = late ^ 1
    assert found.ratio == pytest.approx(statistics.median(one[partner] / one[late] for one in seconds), rel=1e-12)
    assert (found.verdict, found.part) == ("FAIL", f"rank {late}: compute")
    assert found.source == "best rank of its stage, median of 5 launches"
    medians = [f"rank {rank} {statistics.median(one[rank] for one in seconds):.4g} s" for rank in range(4)]
    assert found.evidence == f"stage 0: {medians[0]}, {medians[1]}; stage 1: {medians[2]}, {medians[3]}"


def test_launches_without_the_seconds_of_all_ranks_do_not_count_and_one_stage_needs_no_name():
    unread = [launched(compute_seconds=some) for some in ([], [1.0], [0.0, 1.0])]
    assert by_check(time_findings(unread, NOTHING))[11].evidence == "one rank, or no profiled step"
    found = by_check(time_findings([*unread, launched(compute_seconds=[1.0, 0.8])], NOTHING))[11]
    assert (found.ratio, found.source) == (0.8, "best rank, median of 1 launches")
    assert found.evidence == "rank 0 1 s, rank 1 0.8 s"
    alone = by_check(time_findings([launched(compute_seconds=[1.0, 0.2], stages=[0, 1])], NOTHING))[11]
    assert (alone.verdict, alone.evidence.partition(";")[0]) == (
        "NOT RUN",
        "each pipeline stage has one rank: no other does the same work",
    )


@pytest.mark.parametrize("launches", [3, 4, 5, 8])
@pytest.mark.parametrize("middle", [0.0, 0.005, 0.01, 0.02, -0.02])
def test_a_rank_is_late_beyond_chance_where_the_t_test_of_scipy_says_so(launches, middle):
    chance = random.Random(1000 * launches)
    lateness = [middle + chance.gauss(0, 0.01) for _ in range(launches)]
    p = stats.ttest_1samp(lateness, 0.0, alternative="greater").pvalue
    assert _late_beyond_chance(lateness) == (p < 0.05)


def test_two_launches_decide_by_themselves():
    assert _late_beyond_chance([0.1, -0.2])
    assert not _late_beyond_chance([0.1, -0.2, 0.1])
    assert not _late_beyond_chance([0.0, 0.0, 0.0])


def test_the_first_step_with_another_loss_is_named_with_both_losses():
    others = [launched(losses=losses, record="second") for losses in ([8.9, 8.75, 8.6], [8.9, 8.8, 8.7])]
    (found,) = loss_findings([launched(), *others], NOTHING)
    assert (found.verdict, found.source) == ("FAIL", "the first launch")
    assert found.evidence == "step 1: 8.75, not 8.8 (second)"
    (twice,) = loss_findings([launched(), others[0], others[0]], NOTHING)
    assert twice == found
    (shorter,) = loss_findings([launched(), launched(losses=[8.9, 8.8], record="second")], NOTHING)
    assert (shorter.verdict, shorter.evidence) == ("FAIL", "2 steps, not 3 (second)")
    (equal,) = loss_findings([launched()] * 3, NOTHING)
    assert (equal.verdict, equal.evidence) == ("PASS", "3 launches, 3 steps equal to the bit")
    (once,) = loss_findings([launched()], NOTHING)
    assert once.verdict == "NOT RUN"
    accepted = msgspec.structs.replace(history_of(), losses={"s": [8.9, 8.8, 8.7]})
    (past,) = loss_findings([launched()], accepted)
    assert (past.verdict, past.source) == ("PASS", "accepted batteries with the same stack")


def test_a_loss_that_does_not_fall_by_half_a_nat_is_named_with_the_mean_of_its_last_three():
    flat = [9.05] + [9.0] * 19 + [8.6, 8.5, 8.7]
    (found,) = loss_findings([launched(losses=flat)] * 2, NOTHING)
    assert (found.verdict, found.part) == ("FAIL", "training")
    assert found.evidence == "from 9.050 to 8.600, 0.5 less expected"
    assert loss_findings([launched(losses=flat, learns=False)] * 2, NOTHING)[0].verdict == "PASS"


def test_exact_figures_count_their_launches_and_name_at_most_three():
    (found,) = exact_findings([launched(exact=39), launched(exact=40)])
    assert (found.verdict, found.evidence) == ("PASS", "40 figures equal, 2 launches")
    assert exact_findings([launched()])[0].evidence == "40 figures equal"
    assert exact_findings([launched(exact=0)])[0].verdict == "NOT RUN"
    (unequal,) = exact_findings([launched(unequal=["a", "b"]), launched(unequal=["c", "d"])])
    assert (unequal.verdict, unequal.evidence) == ("FAIL", "4 differ: a; b; c")


def test_of_launches_that_failed_the_first_is_named_and_other_miniatures_are_judged():
    failed = [
        launched(run="opt-mini", status=Status.NAN, message=message, losses=[], stack="") for message in ("one", "two")
    ]
    found = [*exact_findings(failed), *time_findings(failed, NOTHING), *loss_findings(failed, NOTHING)]
    assert [one.check for one in found] == [7, 8, 9, 11, 16]
    assert {(one.subject, one.evidence, one.verdict) for one in found} == {("opt-mini", "nan: one; record r", "FAIL")}
    others = time_findings([*failed, *[launched()] * 5], NOTHING, looks=(5,))
    assert {one.subject for one in others if one.verdict == "PASS"} == {"bloom-mini"}


def test_a_launch_that_became_nan_belongs_to_the_first_stack_of_its_miniature():
    launches = [launched(stack="s"), launched(stack="t"), launched(status=Status.NAN, stack="", losses=[])]
    verdicts = [one.verdict for one in loss_findings(launches, NOTHING)]
    assert verdicts == ["FAIL", "NOT RUN"]
    assert loss_findings([launched(status=Status.CRASHED)], NOTHING) == []


def test_what_is_in_no_term_is_told_in_seconds_whatever_the_step_takes():
    terms = {"measured_terms": {"forward": 1.9, "unexplained": 0.0}, "predicted_terms": {"forward": 2.0}}
    evidence = by_check(time_findings([launched(predicted_seconds=4.0, **terms)] * 3, NOTHING))[9].evidence
    assert evidence == "forward 100.0 ms faster than predicted"
