"""Evidence becomes the right verdict on the right part, and what checks take from each other."""

from __future__ import annotations

import math

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from suite.acceptance import check_table
from suite.acceptance.check_table import CHECKS, STRAGGLER
from suite.acceptance.evidence import PhaseTiming
from suite.acceptance.findings import decision
from suite.acceptance.judge.bit_errors import replay_finding, soak_finding
from suite.acceptance.judge.judge import RULES, JudgedBattery, battery_findings
from suite.acceptance.judge.launches import exact_findings, loss_findings, time_findings
from suite.acceptance.judge.rates import exchange_findings
from suite.acceptance.measurements import pipeline_stages
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.machine.cpu_contention import Competitor
from suite.machine.free_memory import KILLED
from suite.machine.host_state import HostState
from suite.records.battery import Decision
from tests.support.batteries import (
    NOTHING,
    by_check,
    exchange,
    history_of,
    launched,
    micro,
    probing,
    replays,
    soaked,
    surroundings,
    times,
)


def exchanges(slow=1.0):
    """Exchanges of two ranks: messages at 1 GB/s, `slow` times that, and sums."""
    return [exchange(rank, peer, 1e9 * (1 if peer is None else slow)) for rank in (0, 1) for peer in (1 - rank, None)]


def test_the_looks_of_one_miniature_leave_those_of_another_alone():
    both = [*times(1.6), *(msgspec.structs.replace(one, run="opt-mini") for one in times(1.6, count=3))]
    found = battery_findings(both, NOTHING, others=0.05, selected={8}, looks_of={"opt-mini": (3,)})
    assert {f.subject: f.verdict for f in found} == {"bloom-mini": "FAIL", "opt-mini": "FAIL"}
    short = battery_findings(both, NOTHING, others=0.05, selected={8})
    assert {f.subject: f.verdict for f in short} == {"bloom-mini": "FAIL", "opt-mini": "INCONCLUSIVE"}


def test_the_checks_are_numbered_as_in_the_table_and_every_threshold_lies_on_its_side():
    assert [check.number for check in CHECKS] == list(range(18))
    for check in CHECKS:
        if check.warn is not None and check.fail is not None:
            assert check.fail < check.warn < 1 or 0 < check.warn < check.fail, check.name


def test_shares_in_no_term_and_late_ranks_are_limited():
    cases = [
        *((9, {"measured_terms": {"unexplained": x}}, v) for x, v in ((0.04, "PASS"), (0.06, "WARN"), (0.12, "FAIL"))),
        *((11, {"compute_seconds": [1.0, x]}, v) for x, v in ((1.02, "PASS"), (1.05, "WARN"), (1.11, "FAIL"))),
    ]
    found = [by_check(time_findings(times(1.0, **changes), NOTHING))[check] for check, changes, _ in cases]
    assert [one.verdict for one in found] == [verdict for _, _, verdict in cases]
    assert [bool(one.part) for one in found] == [verdict != "PASS" for _, _, verdict in cases]


def test_a_straggler_is_late_in_all_launches_and_ranks_that_take_turns_only_warn():
    for of_rank_1, verdict in (([1.07, 1.13, 1.1, 1.02, 1.15], "FAIL"), ([1.3, 1.2, 1.1, 0.8, 0.75], "WARN")):
        launches = [launched(compute_seconds=[1.0, seconds]) for seconds in of_rank_1]
        found = by_check(time_findings(launches, NOTHING))[check_table.STRAGGLER]
        assert (found.verdict, found.part) == (verdict, "rank 1: compute")
        assert ("take turns" in found.evidence) == (verdict == "WARN")


def test_launches_tell_the_pipeline_stages_their_ranks():
    assert pipeline_stages(miniature(reference_run("bloom-176b"), "cpu", ranks=4).layout) == [0, 0, 1, 1]
    assert pipeline_stages(miniature(reference_run("bloom-176b"), "cpu", ranks=2).layout) == []
    assert pipeline_stages(
        msgspec.structs.replace(Layout(), data_parallel=2, pipeline_stages=2, rank_order="pp-dp-tp-cp")
    ) == [0, 1, 0, 1]


def test_another_loss_where_training_is_not_deterministic_is_no_failure():
    free, other = (launched(losses=[8.9, 8.8, last], deterministic=False) for last in (8.7, 8.70001))
    (found,) = loss_findings([free, other], NOTHING)
    assert (found.verdict, found.part) == ("NOT RUN", "")
    assert "not deterministic" in found.evidence
    assert "step 2: 8.70001, not 8.7" in found.evidence
    (past,) = loss_findings([free], History(losses={"s": [8.9, 8.8, 8.6]}))
    assert past.verdict == "NOT RUN"
    assert loss_findings([free, free], NOTHING)[0].verdict == "PASS"


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_loss_that_does_not_fall_fails(deterministic):
    flat, falling = (
        launched(losses=[8.9 - step * n / 10 for n in range(30)], deterministic=deterministic) for step in (0, 1)
    )
    (found,) = loss_findings([flat, flat], NOTHING)
    assert (found.verdict, found.part) == ("FAIL", "training")
    (found,) = loss_findings([flat, falling], NOTHING)
    assert found.verdict == "FAIL"
    assert found.part.startswith("arithmetic or links" if deterministic else "training")
    failed = launched(status=Status.NAN, deterministic=deterministic)
    assert loss_findings([falling, failed], NOTHING)[0].verdict == "FAIL"


def test_a_launch_that_did_not_end_well_fails_its_checks_with_its_status_and_rank():
    for status, verdict in ((Status.HANG, "HANG"), (Status.NAN, "FAIL"), (Status.OUT_OF_MEMORY, "FAIL")):
        (found,) = exact_findings([launched(status=status, ranks_at_fault=[1], message="m")])
        assert (found.verdict, found.status, found.part) == (verdict, status, "rank 1")
        assert decision([found]) is Decision.EXECUTION_FAILED


def test_ranks_that_the_kernel_killed_for_want_of_memory_leave_the_node_open():
    killed = {"status": Status.OUT_OF_MEMORY, "ranks_at_fault": [1], "message": f"rank 1 {KILLED}"}
    found = [*exact_findings([launched(**killed)]), soak_finding(probing(**killed))]
    assert {(one.verdict, one.part) for one in found} == {("INCONCLUSIVE", "memory of the host, or of its container")}
    assert decision(found) is Decision.UNDECIDED


def test_a_probe_that_did_not_end_well_names_its_ranks_in_every_check_that_it_serves():
    crashed = probing(status=Status.CRASHED, ranks_at_fault=[1], message="m")
    found = [*exchange_findings(crashed, NOTHING), replay_finding(crashed), soak_finding(crashed)]
    assert {f.check for f in found} == {5, 6, 14, 15}
    assert {(f.verdict, f.status, f.part, f.evidence) for f in found} == {
        ("FAIL", Status.CRASHED, "rank 1", "crashed: m")
    }


def test_in_an_invalid_environment_failures_by_clocks_are_invalid_and_exact_figures_keep_their_verdict():
    evidence = [micro(matrix=[9e10, 6e10]), launched(unequal=["x"])]
    past = history_of(past={"1:slowest rank, 0 shapes timed": [9e10]})
    for share, by_clocks in ((0.9, "INVALID"), (0.0, "FAIL")):
        found = battery_findings([surroundings(others_share=share), *evidence], past, others=0.05)
        assert {(f.check, f.verdict) for f in found} >= {(1, by_clocks), (2, by_clocks), (7, "FAIL")}


def test_what_passes_is_invalid_too_where_the_environment_is_and_bits_are_not():
    good = [
        micro(matrix=[9e10, 9e10]),
        *times(1.0, cpu_slowdown=1.0),
        probing(exchanges=exchanges(), replays=replays()),
    ]
    past = history_of(past={f"{name}, messages of 16 byte": [1e9] for name in ("5:link 0-1", "6:busbw of 2 ranks")})
    noisy = [1, 2, 3, 5, 6, 8, 9, 11]
    calm, disturbed = (
        battery_findings([surroundings(others_share=share), *good], past, others=0.05) for share in (0.01, 0.9)
    )
    before = {(f.check, f.subject): f.verdict for f in calm}
    assert "INVALID" not in before.values()
    for finding in disturbed:
        earlier = before[finding.check, finding.subject]
        if earlier == "PASS" and finding.check in noisy and not finding.subject.endswith("to the bit"):
            assert finding.verdict == "INVALID", finding
            assert finding.evidence.startswith("PASS in an invalid environment")
        elif finding.subject != "other processes":
            assert finding.verdict == earlier, finding
    changed = {f.check for f in disturbed if f.verdict == "INVALID" and f.check}
    assert changed >= {2, 6, 8, 9, 11}
    assert {f.verdict for f in disturbed if f.check in (7, 14)} == {"PASS"}


@pytest.mark.parametrize("shares", [{"others_share": 0.5}, {"steal_share": 0.5}])
def test_with_other_processes_a_low_rate_of_exchanges_is_invalid_and_a_good_one_stands(shares):
    fast, slow = exchanges(), exchanges(slow=0.5)
    past = history_of(past={"5:link 0-1, messages of 16 byte": [1e9] * 9})

    def verdicts(probe):
        return {f.subject: f.verdict for f in battery_findings([surroundings(), probe, *times(1.0)], past, others=0.05)}

    calm, bad = verdicts(probing(exchanges=fast)), verdicts(probing(exchanges=slow))
    assert (calm["link 0-1"], bad["link 0-1"]) == ("PASS", "FAIL")
    busy, good = (verdicts(probing(exchanges=some, **shares)) for some in (slow, fast))
    assert busy == bad | {"link 0-1": "INVALID"}
    assert good == calm


def test_what_made_times_invalid_is_said_without_check_0():
    busy = surroundings(others_share=0.9, competitors=[Competitor(pid=7, name="busyloop", cores=1.8)])
    (of_time, why) = sorted(
        battery_findings([busy, *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8}), key=lambda f: -f.check
    )
    assert (of_time.check, of_time.verdict) == (8, "INVALID")
    assert (why.check, why.verdict) == (0, "INVALID")
    assert "busyloop (pid 7)" in why.part
    exact = battery_findings([busy, *times(1.0)], NOTHING, others=0.05, selected={7})
    assert [(f.check, f.verdict) for f in exact] == [(7, "PASS")]
    quiet = battery_findings([surroundings(), *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8})
    assert {f.check for f in quiet} == {8}


def test_each_check_has_one_rule_which_finds_nothing_of_other_checks():
    assert sorted(number for rule in RULES for number in rule.checks) == list(range(len(CHECKS)))
    evidence = [surroundings(), micro(), *times(1.0), probing(exchanges=exchanges(), replays=replays())]
    case = JudgedBattery(evidence, NOTHING, 0.05, (5,), {})
    for rule in RULES:
        assert {found.check for found in rule.findings(case, [])} <= set(rule.checks)


def test_every_selected_check_without_evidence_is_not_run():
    found = battery_findings([], NOTHING, others=0.05)
    assert {f.check for f in found} == set(range(18))
    assert {f.verdict for f in found} == {"NOT RUN"}
    assert decision(found) is Decision.UNDECIDED
    assert {f.check for f in battery_findings([], NOTHING, others=0.05, selected={7, 14})} == {7, 14}


def test_one_rank_has_nobody_to_exchange_with_whatever_else_the_probe_did():
    alone = [surroundings(ranks=1), probing(replays=replays(ranks=1))]
    found = [f for f in battery_findings(alone, NOTHING, others=0.05) if f.check in (5, 6)]
    assert [(f.verdict, f.evidence) for f in found] == [
        ("NOT RUN", "one rank has nobody to exchange with") for _ in (5, 6)
    ]


def test_a_failure_of_a_check_that_is_not_selected_is_reported_of_bits_of_a_soak_alone():
    flat = [launched(losses=[9.0] * 30, deterministic=True)] * 2
    findings = battery_findings([surroundings(), *flat], NOTHING, others=0.05, selected={0})
    assert {finding.check for finding in findings} == {0}
    every = battery_findings([surroundings(), *flat], NOTHING, others=0.05)
    assert by_check(every)[16].verdict == "FAIL"


def test_why_a_gpu_had_no_load():
    unknown, idle = "not known on which GPUs ranks ran", "no rank ran on it"
    crashed = micro(status=Status.CRASHED)
    cases = [
        ("cuda", [], [micro()], unknown),
        ("cuda", [], [], idle),
        ("cuda", [0], [micro()], idle),
        ("cpu", [], [micro()], idle),
        ("cuda", [], [crashed, launched(status=Status.HANG)], "no load ended well"),
        ("cuda", [], [crashed, launched()], unknown),
    ]
    for device, ranks_on, loads, words in cases:
        around = surroundings(device=device, gpus_with_ranks=ranks_on)
        assert JudgedBattery([around, *loads], NOTHING, 0.05, (5,), {}).why_idle.startswith(words)


def test_an_invalid_environment_is_reported_only_where_it_made_a_selected_check_invalid():
    disturbed = surroundings(others_share=0.5)
    replayed = probing(replays=replays(wrong=lambda *_: True))  # invalid by itself: no rank repeats itself
    for evidence, selected, checks in (
        (micro(), 1, {0, 1}),
        (micro(status=Status.CRASHED), 1, {1}),
        (replayed, 14, {14}),
    ):
        findings = battery_findings([disturbed, evidence], NOTHING, others=0.05, selected={selected})
        assert {finding.check for finding in findings} == checks


TWO_H200 = surroundings(device="cuda", gpus="NVIDIA H200, NVIDIA H200")


def test_rates_that_cannot_be_make_the_step_times_predicted_from_them_invalid_and_nothing_else() -> None:
    impossible = micro(matrix=[7.8e14] * 2, copy=[9e13] * 2, triad=[4.3e12] * 2, peak=None)
    found = battery_findings(
        [TWO_H200, impossible, *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={3, 8, 9, 11}
    )
    verdicts = {(one.check, one.subject): one.verdict for one in found}
    assert verdicts[3, "copy"] == verdicts[8, "bloom-mini"] == "INVALID"
    assert verdicts[9, "bloom-mini"] == verdicts[11, "bloom-mini"] == "PASS"
    (step,) = (one for one in found if one.check == 8)
    assert step.evidence.startswith("PASS from micro-measurements that cannot be")


def test_rates_that_are_only_bad_leave_step_times_as_they_are() -> None:
    slow = history_of(past={"3:copy": [2e10] * 3, "3:triad": [1e10] * 3})
    found = by_check(battery_findings([micro(), *times(1.0)], slow, others=1.0, looks=(5,), selected={8}))
    assert found[8].verdict == "PASS"
    rates = battery_findings([micro(), *times(1.0)], slow, others=1.0, looks=(5,), selected={3})
    assert {(one.subject, one.part) for one in rates if one.verdict == "FAIL"} == {
        ("copy", "memory bandwidth (rank 0 slowest)")
    }


@pytest.mark.parametrize(
    ("compute", "verdict"),
    [
        ([[1.0, 1.1]], "FAIL"),  # one launch decides by itself
        ([[1.0]] * 5, "FAIL"),  # of one rank: nothing contradicts
        ([[1.0, 1.1, 1.0]] * 5, "FAIL"),
        ([[1.0, 1.1, 1.1]] * 5, "FAIL"),
        ([[1.1, 1.0, 1.1]] * 5, "WARN"),
        ([[1.2, 1.1, 1.0]] * 5, "FAIL"),  # later than one of both others
        ([[1.0, 1.1, 1.2]] * 5, "FAIL"),
    ],
)
def test_launches_of_any_number_of_ranks_bear_a_slow_rank_out(compute: list[list[float]], verdict: str) -> None:
    own = micro(matrix=[9e10, 7e10, 9e10], peak=None, virtual=True)
    launches = [launched(compute_seconds=seconds) for seconds in compute]
    found = battery_findings([own, *launches], NOTHING, others=1.0, selected={2})
    assert {one.verdict for one in found} == {verdict}


def test_of_fewer_ranks_in_launches_nothing_is_known_of_the_last_one() -> None:
    own = micro(matrix=[9e10, 9e10, 9e10, 7e10], copy=[1e10] * 4, triad=[1e10] * 4, peak=None, virtual=True)
    for ranks in (1, 2, 3):
        found = battery_findings([own, *[launched(compute_seconds=[1.0] * ranks)] * 5], NOTHING, others=1.0)
        assert by_check(found)[2].verdict == "FAIL"


def test_a_rank_at_the_threshold_itself_is_not_late() -> None:
    warn = CHECKS[STRAGGLER].warn
    assert warn is not None
    own = micro(matrix=[9e10, 7e10], peak=None, virtual=True)
    (found,) = battery_findings([own, *[launched(compute_seconds=[warn, 1.0])] * 5], NOTHING, others=1.0, selected={2})
    assert found.evidence.endswith(f"rank 1 is at {warn:.3f} of the best rank")


@pytest.mark.parametrize(("standard_errors", "verdict"), [(2.6, "WARN"), (3.2, "FAIL")])
def test_a_bound_of_three_launches_has_two_degrees_of_freedom(standard_errors: float, verdict: str) -> None:
    """t(0.95, 2) = 2.92; with 3 degrees it would be 2.35."""
    spread = 0.2 * math.sqrt(3) / standard_errors
    launches = [launched(compute_seconds=[1.0, math.exp(0.2 + step * spread)]) for step in (-1, 0, 1)]
    found = battery_findings(launches, NOTHING, others=1.0, selected={11})
    assert {one.verdict for one in found} == {verdict}


def test_a_probe_is_one_of_what_it_ran_and_of_everything_where_it_ran_nothing() -> None:
    probes = {
        "exchanges": probing(exchanges=[exchange(0, 1, 1e9)]),
        "replays": probing(replays=replays()),
        "soaks": probing(soaks=[soaked()]),
        "": probing(status=Status.CRASHED),
    }
    battery = JudgedBattery([*probes.values()], NOTHING, 0.05, (5,), {})
    for part in ("exchanges", "replays", "soaks"):
        assert battery.probes_with(part) == [probes[part], probes[""]]


def test_of_a_soak_that_nobody_asked_for_bit_errors_reject_and_slow_products_do_not() -> None:
    slow = soaked(product_flop_per_second=350e12, product_seconds=60.0)
    found = battery_findings([TWO_H200, probing(soaks=[slow] * 2)], NOTHING, others=1.0, selected={12})
    assert {one.check for one in found} == {12}
    for wrong, checks, verdict in ((0, {1}, Decision.ACCEPTED), (3, {1, 15}, Decision.REJECTED)):
        found = battery_findings([micro(), probing(soaks=[soaked(wrong=wrong)])], NOTHING, others=1.0, selected={1})
        assert {one.check for one in found} == checks
        assert decision(found) is verdict


def test_a_probe_of_two_ranks_without_exchanges_says_nothing_of_links() -> None:
    (found,) = battery_findings([surroundings(ranks=2), probing(replays=replays())], NOTHING, others=1.0, selected={5})
    assert found.evidence == "nothing in this battery measures it"


@pytest.mark.parametrize(("others", "verdict"), [(0.25, "FAIL"), (0.24, "INVALID")])
def test_as_much_as_other_processes_may_use_makes_no_rate_invalid(others: float, verdict: str) -> None:
    past = history_of(past={"5:link 0-1, messages of 16 byte": [9e9] * 3})
    busy = probing(exchanges=[exchange(0, 1, 1e9)], others_share=0.25)
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
    found = battery_findings([hung, phase, probing(soaks=[soaked(wrong=3)])], NOTHING, others=1.0, selected={14})
    assert {one.check for one in found if one.verdict != "NOT RUN"} == {1, 15}
    both = battery_findings([hung, phase], NOTHING, others=1.0, selected={1})
    assert {one.check for one in both} == {1}


@pytest.mark.parametrize(("status", "loaded"), [(Status.OK, [0, 1]), (Status.CRASHED, [])])
def test_gpus_were_under_load_where_a_load_ended_well(status: Status, loaded: list[int]) -> None:
    around = surroundings(device="cuda", gpus_with_ranks=[0, 1])
    assert JudgedBattery([around, micro(status=status)], NOTHING, 0.05, (5,), {}).loaded_gpus == loaded


@pytest.mark.parametrize(
    ("device", "cores", "quota", "verdict"),
    [
        ("cuda", 64, None, "FAIL"),
        ("cuda", 64, 8.0, "FAIL"),
        ("cuda", 64, 1.0, "INCONCLUSIVE"),  # a pod's limit
        ("cuda", 4, None, "INCONCLUSIVE"),  # a CPU set
        ("cuda", 0, None, "FAIL"),  # of an older record
    ],
)
def test_times_of_gpus_whose_ranks_have_no_processor_each_reject_nothing(device, cores, quota, verdict):
    around = surroundings(device=device, ranks=8, devices=8, cores=cores, host=HostState(quota_cores=quota))
    own = [around, micro(matrix=[9e14] * 7 + [6e14], copy=[1e12] * 8, triad=[1e12] * 8, host_device={"x": 1e10})]
    found = battery_findings(own, NOTHING, others=1.0, selected=(2,))
    (slow,) = [one for one in found if one.subject == "matrix rate"]
    assert slow.verdict == verdict
    if verdict != "FAIL":
        assert slow.evidence.endswith(f"{min(cores, quota or cores):.3g} processors: a quota or a CPU set may be why")
    wrong = msgspec.structs.replace(own[1], wrong_products=["one"])
    bits = battery_findings([around, wrong], NOTHING, others=1.0, selected=(1,))
    assert "FAIL" in {one.verdict for one in bits}
