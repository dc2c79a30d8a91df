"""Evidence becomes the right verdict on the right part."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from suite.acceptance import check_table
from suite.acceptance.check_table import CHECKS
from suite.acceptance.evidence import Exchange, LaunchPurpose
from suite.acceptance.findings import decision
from suite.acceptance.judge.bit_errors import replay_finding, soak_finding
from suite.acceptance.judge.judge import RULES, JudgedBattery, battery_findings
from suite.acceptance.judge.launches import exact_findings, jitter_findings, loss_findings, time_findings
from suite.acceptance.judge.rates import exchange_findings, micro_findings
from suite.acceptance.measurements import pipeline_stages
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.machine.cpu_contention import Competitor
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


@pytest.mark.parametrize(
    ("of_rank_1", "verdict"),
    [
        ([1.1, 1.1, 1.1, 1.1, 1.1], CheckVerdict.FAIL),
        ([1.07, 1.13, 1.1, 1.02, 1.15], CheckVerdict.FAIL),
        ([1.3, 1.2, 1.1, 0.8, 0.75], CheckVerdict.WARN),  # the median is beyond the limit, and the ranks take turns
    ],
)
def test_a_straggler_is_late_in_all_launches(of_rank_1, verdict):
    launches = [launched(compute_seconds=[1.0, seconds]) for seconds in of_rank_1]
    found = by_check(time_findings(launches, NOTHING))[check_table.STRAGGLER]
    assert (found.verdict, found.part) == (verdict, "rank 1: compute")
    assert ("take turns" in found.evidence) == (verdict is CheckVerdict.WARN)


def test_the_looks_of_one_miniature_leave_those_of_another_alone():
    both = [*times(1.6), *(msgspec.structs.replace(one, run="opt-mini") for one in times(1.6, count=3))]
    found = battery_findings(both, NOTHING, others=0.05, selected={8}, looks_of={"opt-mini": (3,)})
    assert {f.subject: f.verdict for f in found} == {"bloom-mini": CheckVerdict.FAIL, "opt-mini": CheckVerdict.FAIL}
    short = battery_findings(both, NOTHING, others=0.05, selected={8})
    assert {f.subject: f.verdict for f in short} == {
        "bloom-mini": CheckVerdict.FAIL,
        "opt-mini": CheckVerdict.INCONCLUSIVE,
    }


def test_the_checks_are_numbered_as_in_the_table_and_every_threshold_lies_on_its_side():
    assert [check.number for check in CHECKS] == list(range(18))
    for check in CHECKS:
        if check.warn is not None and check.fail is not None:
            assert check.fail < check.warn < 1 or 0 < check.warn < check.fail, check.name


def test_a_rank_with_slow_products_is_named():
    found = {f.check: f for f in micro_findings(micro(matrix=[9e10, 6e10]), NOTHING)}
    assert (found[1].verdict, found[1].part) == (CheckVerdict.FAIL, "matrix rate of rank 1")
    assert (found[2].verdict, found[2].part) == (CheckVerdict.FAIL, "matrix rate of rank 1")
    assert "rank 1 60.0" in found[2].evidence
    clean = {f.check: f for f in micro_findings(micro(), NOTHING)}
    assert (clean[1].verdict, clean[2].verdict) == (CheckVerdict.PASS, CheckVerdict.PASS)
    assert clean[3].verdict is CheckVerdict.NOT_RUN


def test_memory_is_judged_by_this_nodes_past():
    known = history_of(past={"3:copy": [1e10, 1.01e10, 0.99e10], "3:triad": [1e10, 1.01e10, 0.99e10]})
    found = [f for f in micro_findings(micro(copy=[1e10, 0.8e10]), known) if f.check == 3]
    assert [(f.subject, f.verdict) for f in found] == [
        ("copy", CheckVerdict.FAIL),
        ("triad", CheckVerdict.PASS),
        ("copy and triad of all ranks", CheckVerdict.NOT_RUN),  # of another name in the past
    ]
    assert found[0].part == "memory bandwidth (rank 1 slowest)"


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
    bad = [(f.subject, f.part) for f in found if f.verdict is CheckVerdict.FAIL]
    assert bad == [("link 1-3", "link 1-3")]


def test_a_wrong_sum_names_the_rank_that_got_it():
    found = exchange_findings(probing(exchanges=exchanges(2, wrong=1)), NOTHING)
    (bad,) = [f for f in found if f.verdict is CheckVerdict.FAIL]
    assert (bad.check, bad.subject, bad.part) == (6, "sums to the bit", "rank 1")


def test_rates_of_messages_are_compared_with_those_of_as_many_bytes():
    def found(bytes):
        own = [msgspec.structs.replace(one, bytes=bytes) for one in exchanges(2)]
        return [f for f in exchange_findings(probing(exchanges=own), past) if not f.subject.endswith("to the bit")]

    past = History()
    before = found(16)
    past = history_of(past={f"{f.check}:{f.compared_as}": [2 * f.measured] for f in before})
    assert {(f.check, f.verdict) for f in found(16)} == {(5, CheckVerdict.FAIL), (6, CheckVerdict.FAIL)}
    assert {(f.check, f.verdict) for f in found(64)} == {(5, CheckVerdict.NOT_RUN), (6, CheckVerdict.NOT_RUN)}


def test_products_are_compared_with_the_best_of_as_many_shapes():
    def found(points, known=NOTHING):
        return micro_findings(micro(peak=None, points=points), known)[0]

    past = history_of(past={f"1:{found(27).compared_as}": [2e11]})
    assert [found(points, past).verdict for points in (27, 64)] == [CheckVerdict.FAIL, CheckVerdict.NOT_RUN]


def test_one_unequal_figure_fails_and_is_quoted():
    bad = launched(unequal=["messages dp all_reduce: 6 measured, 5 predicted"])
    (found,) = exact_findings([launched(), bad])
    assert found.verdict is CheckVerdict.FAIL
    assert "6 measured, 5 predicted" in found.evidence
    (clean,) = exact_findings([launched()])
    assert (clean.verdict, clean.evidence) == (CheckVerdict.PASS, "40 figures equal")


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.04, CheckVerdict.PASS), (0.06, CheckVerdict.WARN), (0.12, CheckVerdict.FAIL)]
)
def test_the_unexplained_share_is_limited(share, verdict):
    found = by_check(time_findings(times(1.0, measured_terms={"forward": 1.0, "unexplained": share}), NOTHING))[9]
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(1.02, CheckVerdict.PASS), (1.05, CheckVerdict.WARN), (1.11, CheckVerdict.FAIL)]
)
def test_a_slow_rank_is_named_by_its_compute_alone(seconds, verdict):
    found = by_check(time_findings(times(1.0, compute_seconds=[1.0, seconds]), NOTHING))[11]
    assert found.verdict is verdict
    assert ("rank 1" in found.part) == (verdict is not CheckVerdict.PASS)


STAGES = [0, 0, 1, 1]  # of dp2, pp2: the last stage has the head too


@pytest.mark.parametrize(
    ("seconds", "verdict", "part"),
    [
        ([1.0, 1.01, 1.3, 1.31], CheckVerdict.PASS, ""),
        ([1.0, 1.01, 1.31, 1.5], CheckVerdict.FAIL, "rank 3: compute"),
        ([1.2, 1.0, 1.3, 1.31], CheckVerdict.FAIL, "rank 0: compute"),
    ],
)
def test_only_ranks_of_one_pipeline_stage_are_held_to_each_other(seconds, verdict, part):
    found = by_check(time_findings(times(1.0, compute_seconds=seconds, stages=STAGES), NOTHING))[11]
    assert (found.verdict, found.part) == (verdict, part)
    assert found.evidence.startswith("stage 0: rank 0")


def test_a_rank_alone_on_its_stage_has_nothing_to_be_compared_with():
    found = by_check(time_findings(times(1.0, compute_seconds=[1.0, 1.5], stages=[0, 1]), NOTHING))[11]
    assert found.verdict is CheckVerdict.NOT_RUN
    assert "each pipeline stage has one rank" in found.evidence
    uneven = by_check(time_findings(times(1.0, compute_seconds=[1.0, 1.0, 1.5], stages=[0, 0, 1]), NOTHING))[11]
    assert uneven.verdict is CheckVerdict.PASS


def test_launches_tell_the_pipeline_stages_their_ranks():
    assert pipeline_stages(miniature(reference_run("bloom-176b"), "cpu", ranks=4).layout) == STAGES
    assert pipeline_stages(miniature(reference_run("bloom-176b"), "cpu", ranks=2).layout) == []
    assert pipeline_stages(
        msgspec.structs.replace(Layout(), data_parallel=2, pipeline_stages=2, rank_order="pp-dp-tp-cp")
    ) == [0, 1, 0, 1]


def test_jitter_needs_200_steps_and_sees_both_spread_and_tail():
    def jitter(timed):
        return jitter_findings([launched(purpose=LaunchPurpose.JITTER, timed=timed)])[0].verdict

    assert jitter([1.0] * 199) is CheckVerdict.NOT_RUN
    assert jitter([1.0] * 200) is CheckVerdict.PASS
    assert jitter([0.9, 1.1] * 100) is CheckVerdict.FAIL
    assert jitter([1.0] * 196 + [1.2] * 4) is CheckVerdict.FAIL
    assert jitter_findings([launched()])[0].verdict is CheckVerdict.NOT_RUN


def test_another_loss_from_the_same_stack_fails_and_another_stack_is_not_compared():
    other = launched(losses=[8.9, 8.8, 8.70001])
    (found,) = loss_findings([launched(), launched(), other], NOTHING)
    assert found.verdict is CheckVerdict.FAIL
    assert "step 2: 8.70001, not 8.7" in found.evidence
    apart = loss_findings([launched(), launched(), msgspec.structs.replace(other, stack="t")], NOTHING)
    assert [f.verdict for f in apart] == [CheckVerdict.PASS, CheckVerdict.NOT_RUN]
    (past,) = loss_findings([launched()], History(losses={"s": [8.9, 8.8, 8.6]}))
    assert past.verdict is CheckVerdict.FAIL


def test_another_loss_where_training_is_not_deterministic_is_no_failure():
    free, other = (launched(losses=[8.9, 8.8, last], deterministic=False) for last in (8.7, 8.70001))
    (found,) = loss_findings([free, other], NOTHING)
    assert (found.verdict, found.part) == (CheckVerdict.NOT_RUN, "")
    assert "not deterministic" in found.evidence
    assert "step 2: 8.70001, not 8.7" in found.evidence
    (past,) = loss_findings([free], History(losses={"s": [8.9, 8.8, 8.6]}))
    assert past.verdict is CheckVerdict.NOT_RUN
    assert loss_findings([free, free], NOTHING)[0].verdict is CheckVerdict.PASS


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_loss_that_does_not_fall_fails(deterministic):
    flat, falling = (
        launched(losses=[8.9 - step * n / 10 for n in range(30)], deterministic=deterministic) for step in (0, 1)
    )
    (found,) = loss_findings([flat, flat], NOTHING)
    assert (found.verdict, found.part) == (CheckVerdict.FAIL, "training")
    (found,) = loss_findings([flat, falling], NOTHING)
    assert found.verdict is CheckVerdict.FAIL
    assert found.part.startswith("arithmetic or links" if deterministic else "training")
    failed = launched(status=Status.NAN, deterministic=deterministic)
    assert loss_findings([falling, failed], NOTHING)[0].verdict is CheckVerdict.FAIL


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(Status.HANG, CheckVerdict.HANG), (Status.NAN, CheckVerdict.FAIL), (Status.OUT_OF_MEMORY, CheckVerdict.FAIL)],
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
        (CheckVerdict.FAIL, Status.CRASHED, "rank 1", "crashed: m")
    }


def test_in_an_invalid_environment_times_are_invalid_and_exact_figures_keep_their_verdict():
    bad = [launched(unequal=["x"])]
    evidence = [surroundings(others_share=0.9), micro(matrix=[9e10, 6e10]), *bad]
    found = battery_findings(evidence, NOTHING, others=0.05)
    verdicts = {(f.check, f.verdict) for f in found}
    assert (1, CheckVerdict.INVALID) in verdicts
    assert (2, CheckVerdict.INVALID) in verdicts
    assert (7, CheckVerdict.FAIL) in verdicts
    calm = battery_findings([surroundings(), *evidence[1:]], NOTHING, others=0.05)
    assert {(f.check, f.verdict) for f in calm} >= {(1, CheckVerdict.FAIL), (2, CheckVerdict.FAIL)}


def test_what_passes_is_invalid_too_where_the_environment_is_and_bits_are_not():
    good = [
        micro(matrix=[9e10, 9e10]),
        *times(1.0, cpu_slowdown=1.0),
        probing(exchanges=exchanges(2), replays=replays()),
    ]
    past = history_of(past={f"{name}, messages of 0 byte": [1e9] for name in ("5:link 0-1", "6:busbw of 2 ranks")})
    noisy = [1, 2, 3, 5, 6, 8, 9, 11]
    calm, disturbed = (
        battery_findings([surroundings(others_share=share), *good], past, others=0.05) for share in (0.01, 0.9)
    )
    before = {(f.check, f.subject): f.verdict for f in calm}
    assert CheckVerdict.INVALID not in before.values()
    for finding in disturbed:
        earlier = before[finding.check, finding.subject]
        if earlier is CheckVerdict.PASS and finding.check in noisy and not finding.subject.endswith("to the bit"):
            assert finding.verdict is CheckVerdict.INVALID, finding
            assert finding.evidence.startswith("PASS in an invalid environment")
        elif finding.subject != "other processes":
            assert finding.verdict is earlier, finding
    changed = {f.check for f in disturbed if f.verdict is CheckVerdict.INVALID and f.check}
    assert changed >= {2, 6, 8, 9, 11}
    assert {f.verdict for f in disturbed if f.check in (7, 14)} == {CheckVerdict.PASS}


def test_other_processes_during_a_launch_count_as_much_as_before():
    found = battery_findings([surroundings(), launched(others_share=0.5)], NOTHING, others=0.05)
    (others,) = [f for f in found if f.subject == "other processes"]
    assert (others.verdict, others.measured) == (CheckVerdict.INVALID, 0.5)


def test_other_processes_during_exact_figures_alone_invalidate_nothing():
    exact = launched(purpose=LaunchPurpose.EXACT, others_share=0.5, steal_share=0.5)
    found = battery_findings([surroundings(), launched(others_share=0.01), exact], NOTHING, others=0.05)
    (others,) = [f for f in found if f.subject == "other processes"]
    assert (others.verdict, others.measured) == (CheckVerdict.PASS, 0.01)


@pytest.mark.parametrize(
    ("shares", "part"),
    [
        ({"others_share": 0.3, "steal_share": 0.2}, "other processes: ended since, or not visible"),
        ({"others_share": 0.2, "steal_share": 0.3}, "other guests of the host"),
    ],
)
def test_what_took_the_most_of_the_processors_is_named(shares, part):
    found = battery_findings([surroundings(), launched(**shares)], NOTHING, others=0.05)
    assert [f.part for f in found if f.subject == "other processes"] == [part]


@pytest.mark.parametrize("shares", [{"others_share": 0.5}, {"steal_share": 0.5}])
def test_with_other_processes_a_low_rate_of_exchanges_is_invalid_and_a_good_one_stands(shares):
    fast, slow = exchanges(2), exchanges(2, slow=(0, 1))
    rates = {(one.rank, one.peer): one.bytes_per_second for one in fast}
    (usual,) = {rate for (rank, peer), rate in rates.items() if peer is not None and rank < peer}
    size = fast[0].bytes
    past = history_of(past={f"5:link 0-1, messages of {size} byte": [usual] * 9})

    def verdicts(probe):
        return {f.subject: f.verdict for f in battery_findings([surroundings(), probe, *times(1.0)], past, others=0.05)}

    calm, bad = verdicts(probing(exchanges=fast)), verdicts(probing(exchanges=slow))
    assert (calm["link 0-1"], bad["link 0-1"]) == (CheckVerdict.PASS, CheckVerdict.FAIL)
    busy, good = (verdicts(probing(exchanges=some, **shares)) for some in (slow, fast))
    assert busy == bad | {"link 0-1": CheckVerdict.INVALID}
    assert good == calm


def test_what_made_times_invalid_is_said_without_check_0():
    busy = surroundings(others_share=0.9, competitors=[Competitor(pid=7, name="busyloop", cores=1.8)])
    (of_time, why) = sorted(
        battery_findings([busy, *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8}), key=lambda f: -f.check
    )
    assert (of_time.check, of_time.verdict) == (8, CheckVerdict.INVALID)
    assert (why.check, why.verdict) == (0, CheckVerdict.INVALID)
    assert "busyloop (pid 7)" in why.part
    exact = battery_findings([busy, *times(1.0)], NOTHING, others=0.05, selected={7})
    assert [(f.check, f.verdict) for f in exact] == [(7, CheckVerdict.PASS)]
    quiet = battery_findings([surroundings(), *times(1.0)], NOTHING, others=0.05, looks=(5,), selected={8})
    assert {f.check for f in quiet} == {8}


def test_each_check_has_one_rule_which_finds_nothing_of_other_checks():
    assert sorted(number for rule in RULES for number in rule.checks) == list(range(len(CHECKS)))
    evidence = [surroundings(), micro(), *times(1.0), probing(exchanges=exchanges(2), replays=replays())]
    case = JudgedBattery(evidence, NOTHING, 0.05, (5,), {})
    for rule in RULES:
        assert {found.check for found in rule.findings(case, [])} <= set(rule.checks)


def test_every_selected_check_without_evidence_is_not_run():
    found = battery_findings([], NOTHING, others=0.05)
    assert {f.check for f in found} == set(range(18))
    assert {f.verdict for f in found} == {CheckVerdict.NOT_RUN}
    assert decision(found) is Decision.UNDECIDED
    assert {f.check for f in battery_findings([], NOTHING, others=0.05, selected={7, 14})} == {7, 14}


def test_one_rank_has_nobody_to_exchange_with_whatever_else_the_probe_did():
    alone = [surroundings(ranks=1), probing(replays=replays(ranks=1))]
    found = [f for f in battery_findings(alone, NOTHING, others=0.05) if f.check in (5, 6)]
    assert [(f.verdict, f.evidence) for f in found] == [
        (CheckVerdict.NOT_RUN, "one rank has nobody to exchange with") for _ in (5, 6)
    ]


def test_a_wrong_number_of_devices_is_invalid():
    found = battery_findings([surroundings(devices_expected=8)], NOTHING, others=0.05)
    (devices,) = [f for f in found if f.subject == "devices"]
    assert (devices.verdict, devices.part) == (CheckVerdict.INVALID, "cores: 2 in place of 8")


def test_a_failure_of_a_check_that_is_not_selected_is_reported_of_bits_of_a_soak_alone():
    flat = [launched(losses=[9.0] * 30, deterministic=True)] * 2
    findings = battery_findings([surroundings(), *flat], NOTHING, others=0.05, selected={0})
    assert {finding.check for finding in findings} == {0}
    every = battery_findings([surroundings(), *flat], NOTHING, others=0.05)
    assert by_check(every)[16].verdict is CheckVerdict.FAIL


@pytest.mark.parametrize(
    ("device", "ranks_on", "loads", "words"),
    [
        ("cuda", [], [micro()], "not known on which GPUs ranks ran"),
        ("cuda", [], [], "no rank ran on it"),
        ("cuda", [0], [micro()], "no rank ran on it"),
        ("cpu", [], [micro()], "no rank ran on it"),
        ("cuda", [], [micro(status=Status.CRASHED), launched(status=Status.HANG)], "no load ended well"),
        ("cuda", [], [micro(status=Status.CRASHED), launched()], "not known on which GPUs ranks ran"),
    ],
)
def test_why_a_gpu_had_no_load(device, ranks_on, loads, words):
    around = surroundings(device=device, gpus_with_ranks=ranks_on)
    battery = JudgedBattery([around, *loads], NOTHING, 0.05, (5,), {})
    assert battery.why_idle.startswith(words)


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
