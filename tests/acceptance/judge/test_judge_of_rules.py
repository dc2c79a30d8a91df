"""What the rules of a battery take from each other, and what is reported of checks that nobody selected."""

from __future__ import annotations

import math

import msgspec
import pytest

from suite.acceptance.check_table import CHECKS, STRAGGLER
from suite.acceptance.evidence import Exchange, PhaseTiming, SoakResult
from suite.acceptance.findings import decision
from suite.acceptance.judge.judge import JudgedBattery, battery_findings
from suite.job.events import Status
from suite.records.battery import CheckVerdict, Decision
from tests.support.batteries import (
    NOTHING,
    by_check,
    history_of,
    launched,
    micro,
    probing,
    replays,
    surroundings,
    times,
)

TWO_H200 = surroundings(device="cuda", gpus="NVIDIA H200, NVIDIA H200")


def test_rates_that_cannot_be_make_the_step_times_predicted_from_them_invalid_and_nothing_else() -> None:
    impossible = micro(matrix=[7.8e14] * 2, copy=[9e13] * 2, triad=[4.3e12] * 2, peak=None)
    found = battery_findings(
        [TWO_H200, impossible, *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={3, 8, 9, 11}
    )
    verdicts = {(one.check, one.subject): one.verdict for one in found}
    assert verdicts[3, "copy"] is verdicts[8, "bloom-mini"] is CheckVerdict.INVALID
    assert verdicts[9, "bloom-mini"] is verdicts[11, "bloom-mini"] is CheckVerdict.PASS
    (step,) = (one for one in found if one.check == 8)
    assert step.evidence.startswith("PASS from micro-measurements that cannot be")


def test_rates_that_are_only_bad_leave_step_times_as_they_are() -> None:
    slow = history_of(past={"3:copy": [2e10] * 3, "3:triad": [1e10] * 3})
    found = by_check(battery_findings([micro(), *times(1.0)], slow, others=1.0, looks=(5,), selected={8}))
    assert found[8].verdict is CheckVerdict.PASS
    rates = battery_findings([micro(), *times(1.0)], slow, others=1.0, looks=(5,), selected={3})
    assert {(one.subject, one.part) for one in rates if one.verdict is CheckVerdict.FAIL} == {
        ("copy", "memory bandwidth (rank 0 slowest)")
    }


@pytest.mark.parametrize(
    ("compute", "verdict"),
    [
        ([[1.0, 1.1]], CheckVerdict.FAIL),  # one launch decides by itself
        ([[1.0]] * 5, CheckVerdict.FAIL),  # of one rank: nothing contradicts
        ([[1.0, 1.1, 1.0]] * 5, CheckVerdict.FAIL),
        ([[1.0, 1.1, 1.1]] * 5, CheckVerdict.FAIL),
        ([[1.1, 1.0, 1.1]] * 5, CheckVerdict.WARN),
        ([[1.2, 1.1, 1.0]] * 5, CheckVerdict.FAIL),  # later than one of both others
        ([[1.0, 1.1, 1.2]] * 5, CheckVerdict.FAIL),
    ],
)
def test_launches_of_any_number_of_ranks_bear_a_slow_rank_out(
    compute: list[list[float]], verdict: CheckVerdict
) -> None:
    own = micro(matrix=[9e10, 7e10, 9e10], peak=None, virtual=True)
    launches = [launched(compute_seconds=seconds) for seconds in compute]
    found = battery_findings([own, *launches], NOTHING, others=1.0, selected={2})
    assert {one.verdict for one in found} == {verdict}


def test_of_fewer_ranks_in_launches_nothing_is_known_of_the_last_one() -> None:
    own = micro(matrix=[9e10, 9e10, 9e10, 7e10], copy=[1e10] * 4, triad=[1e10] * 4, peak=None, virtual=True)
    for ranks in (1, 2, 3):
        found = battery_findings([own, *[launched(compute_seconds=[1.0] * ranks)] * 5], NOTHING, others=1.0)
        assert by_check(found)[2].verdict is CheckVerdict.FAIL


def test_a_rank_at_the_threshold_itself_is_not_late() -> None:
    warn = CHECKS[STRAGGLER].warn
    assert warn is not None
    own = micro(matrix=[9e10, 7e10], peak=None, virtual=True)
    (found,) = battery_findings([own, *[launched(compute_seconds=[warn, 1.0])] * 5], NOTHING, others=1.0, selected={2})
    assert found.evidence.endswith(f"rank 1 is at {warn:.3f} of the best rank")


@pytest.mark.parametrize(("standard_errors", "verdict"), [(2.6, CheckVerdict.WARN), (3.2, CheckVerdict.FAIL)])
def test_a_bound_of_three_launches_has_two_degrees_of_freedom(standard_errors: float, verdict: CheckVerdict) -> None:
    """t(0.95, 2) = 2.92; with 3 degrees it would be 2.35."""
    spread = 0.2 * math.sqrt(3) / standard_errors
    launches = [launched(compute_seconds=[1.0, math.exp(0.2 + step * spread)]) for step in (-1, 0, 1)]
    found = battery_findings(launches, NOTHING, others=1.0, selected={11})
    assert {one.verdict for one in found} == {verdict}


def message() -> Exchange:
    return Exchange(rank=0, peer=1, bytes_per_second=1e9, wrong=0, first="", bytes=16)


def soak(wrong: int = 0) -> SoakResult:
    return SoakResult(rank=0, bytes=1, passes=1, wrong=wrong, first="x")


def test_a_probe_is_one_of_what_it_ran_and_of_everything_where_it_ran_nothing() -> None:
    probes = {
        "exchanges": probing(exchanges=[message()]),
        "replays": probing(replays=replays()),
        "soaks": probing(soaks=[soak()]),
        "": probing(status=Status.CRASHED),
    }
    battery = JudgedBattery([*probes.values()], NOTHING, 0.05, (5,), {})
    for part in ("exchanges", "replays", "soaks"):
        assert battery.probes_with(part) == [probes[part], probes[""]]


def test_of_a_soak_that_nobody_asked_for_bit_errors_reject_and_slow_products_do_not() -> None:
    slow = msgspec.structs.replace(soak(), product_flop_per_second=350e12, product_seconds=60.0)
    found = battery_findings([TWO_H200, probing(soaks=[slow] * 2)], NOTHING, others=1.0, selected={12})
    assert {one.check for one in found} == {12}
    for wrong, checks, verdict in ((0, {1}, Decision.ACCEPTED), (3, {1, 15}, Decision.REJECTED)):
        found = battery_findings([micro(), probing(soaks=[soak(wrong)])], NOTHING, others=1.0, selected={1})
        assert {one.check for one in found} == checks
        assert decision(found) is verdict


def test_a_probe_of_two_ranks_without_exchanges_says_nothing_of_links() -> None:
    (found,) = battery_findings([surroundings(ranks=2), probing(replays=replays())], NOTHING, others=1.0, selected={5})
    assert found.evidence == "nothing in this battery measures it"


@pytest.mark.parametrize(("others", "verdict"), [(0.25, CheckVerdict.FAIL), (0.24, CheckVerdict.INVALID)])
def test_as_much_as_other_processes_may_use_makes_no_rate_invalid(others: float, verdict: CheckVerdict) -> None:
    past = history_of(past={"5:link 0-1, messages of 16 byte": [9e9] * 3})
    busy = probing(exchanges=[message()], others_share=0.25)
    found = battery_findings([busy], past, others=others, selected={5})
    assert {one.verdict for one in found if one.subject == "link 0-1"} == {verdict}


def test_a_probe_that_failed_is_reported_once_as_a_soak_where_no_check_of_it_was_selected() -> None:
    crashed = probing(status=Status.CRASHED, message="gone")
    found = battery_findings([micro(), crashed], NOTHING, others=1.0, selected={1})
    assert [one.check for one in found if one.status is Status.CRASHED] == [15]
    selected = battery_findings([micro(), crashed], NOTHING, others=1.0, selected={1, 5})
    assert [one.check for one in selected if one.status is Status.CRASHED] == [5]


def test_a_hang_is_reported_by_what_was_measured_and_a_soak_s_bits_after_it() -> None:
    """Not by the guard too, which nobody selected; and it does not end the list of what is reported."""
    hung = micro(status=Status.HANG, message="silent")
    phase = PhaseTiming(phase="micro", predicted_seconds=1.0, budget_seconds=5.0, seconds=5.0, outcome="hang")
    found = battery_findings([hung, phase, probing(soaks=[soak(3)])], NOTHING, others=1.0, selected={14})
    assert {one.check for one in found if one.verdict is not CheckVerdict.NOT_RUN} == {1, 15}
    both = battery_findings([hung, phase], NOTHING, others=1.0, selected={1})
    assert {one.check for one in both} == {1}


@pytest.mark.parametrize(("status", "loaded"), [(Status.OK, [0, 1]), (Status.CRASHED, [])])
def test_gpus_were_under_load_where_a_load_ended_well(status: Status, loaded: list[int]) -> None:
    around = surroundings(device="cuda", gpus_with_ranks=[0, 1])
    assert JudgedBattery([around, micro(status=status)], NOTHING, 0.05, (5,), {}).loaded_gpus == loaded
