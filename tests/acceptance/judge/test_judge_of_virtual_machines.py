"""A virtual machine, whose processors other guests share, fails for what launches bear out."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.evidence import LaunchPurpose
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.rates import BY_TURNS, PRODUCTS_BY_TURNS, micro_findings
from suite.job.events import Status
from tests.support.batteries import NOTHING, exchange, history_of, launched, micro, moments, probing


def verdicts(own, launches=(), past=NOTHING):
    found = battery_findings([own, *launches], past, others=1.0, selected=(1, 2))
    return {finding.check: finding.verdict for finding in found if finding.check in (1, 2)}


@pytest.mark.parametrize(("virtual", "verdict"), [(False, "FAIL"), (True, "WARN")])
def test_a_virtual_machine_is_not_rejected_for_products_of_cores_that_others_use(virtual: bool, verdict: str) -> None:
    assert verdicts(micro(peak=1e15, virtual=virtual))[1] == "WARN"  # of a peak that nobody measured
    (usual,) = (one for one in micro_findings(micro(peak=None), NOTHING) if one.check == 1)
    past = history_of(past={f"1:{usual.compared_as}": [2 * usual.measured]})
    assert verdicts(micro(peak=None, virtual=virtual), past=past)[1] == verdict


@pytest.mark.parametrize(
    ("virtual", "late", "verdict"),
    [
        (False, [1.0] * 5, "FAIL"),
        (True, [1.0] * 5, "WARN"),
        (True, [0.9] * 5, "WARN"),  # the other rank is late
        (True, [1.1] * 5, "FAIL"),
        (True, [1.02, 1.02, 1.02, 1.02, 1.02], "WARN"),  # always, but by less than what would warn
        (True, [1.05, 1.15, 1.08, 1.12, 1.1], "FAIL"),
        (True, [0.9, 1.3, 0.9, 1.2, 1.1], "WARN"),  # the median is as late, by chance
        (True, [], "FAIL"),
    ],
)
def test_a_virtual_machine_s_rank_with_slow_products_fails_where_launches_bear_it_out(
    virtual: bool, late: list[float], verdict: str
) -> None:
    own = micro(matrix=[9e10, 7e10], peak=None, virtual=virtual)
    assert verdicts(own, [launched(compute_seconds=[1.0, seconds]) for seconds in late])[2] == verdict


@pytest.mark.parametrize(
    ("slower", "virtual", "launches", "verdict"),
    [
        (1.02, True, [], "WARN"),
        (1.05, True, [], "FAIL"),  # which warns by turns too
        (1.02, False, [], "FAIL"),
        (1.02, True, [1.1] * 5, "FAIL"),  # launches decide where there are some
    ],
)
def test_without_launches_turns_say_whether_slow_products_of_a_virtual_machine_are_a_slow_rank(
    slower: float, virtual: bool, launches: list[float], verdict: str
) -> None:
    own = micro(matrix=[9e10, 7e10], peak=None, virtual=virtual, moments=[moments(), moments(slower=slower)])
    made = [launched(compute_seconds=[1.0, seconds]) for seconds in launches]
    found = battery_findings([own, *made], NOTHING, others=1.0, selected=(2,))
    (products,) = [one for one in found if one.subject == "matrix rate"]
    assert products.verdict == verdict
    if verdict == "WARN":
        assert products.evidence.endswith("of a virtual machine; alone, by turns, rank 1 is at 0.980 of the others")


@pytest.mark.parametrize(
    ("virtual", "late", "verdict"),
    [
        (False, [], "FAIL"),
        (False, [0.9] * 5, "FAIL"),
        (True, [1.1] * 5, "FAIL"),
        (True, [1.0] * 5, "WARN"),
        (True, [], "WARN"),
    ],
)
def test_a_virtual_machine_s_rank_that_is_slow_by_turns_fails_where_launches_bear_it_out(
    virtual: bool, late: list[float], verdict: str
) -> None:
    """A guest on the same core slowed one of two ranks of a good node for 45 s, while nothing else ran here."""
    own = micro(virtual=virtual, moments=[moments(), moments(slower=1.2)])
    made = [launched(compute_seconds=[1.0, seconds]) for seconds in late]
    found = battery_findings([own, *made], NOTHING, others=1.0, selected=(2,))
    by_turns = [one for one in found if one.subject in (BY_TURNS, PRODUCTS_BY_TURNS)]
    assert [one.verdict for one in by_turns] == [verdict, verdict]
    if not late and virtual:
        assert by_turns[0].evidence.endswith("of a virtual machine, and no launches say whether the rank is late")


@pytest.mark.parametrize(("virtual", "verdict"), [(False, "FAIL"), (True, "INCONCLUSIVE")])
def test_processors_of_a_virtual_machine_that_became_slower_decide_nothing(virtual: bool, verdict: str) -> None:
    """Processors of a good node, beside which nothing ran, were at 0.66 of what the micro-measurements found, twice."""
    launches = [launched(cpu_slowdown=1.5) for _ in range(5)]
    found = battery_findings([micro(virtual=virtual), *launches], NOTHING, others=1.0, looks=(5,), selected=(8,))
    (speed,) = [one for one in found if one.subject == "bloom-mini, CPU speed"]
    assert speed.verdict == verdict
    assert virtual is speed.evidence.endswith("whose processors and memory other guests may share")


def test_why_a_slow_rank_of_a_virtual_machine_only_warns() -> None:
    def evidence(late: list[float]) -> str:
        launches = [launched(compute_seconds=[1.0, seconds]) for seconds in late]
        own = micro(matrix=[9e10, 7e10], peak=None, virtual=True)
        found = battery_findings([own, *launches], NOTHING, others=1.0, selected=(2,))
        return found[0].evidence

    kept_up = evidence([1.02] * 5)
    assert kept_up.endswith("of a virtual machine; in launches rank 1 is at 0.980 of the best rank")
    assert evidence([0.9, 1.3, 0.9, 1.2, 1.1]).endswith("rank 1 is at 0.909 of the best rank, which may be chance")


def test_rates_of_a_virtual_machine_have_a_spread_from_ten_batteries_on() -> None:

    def found(virtual: bool, count: int) -> set[str]:
        past = history_of(past={"3:copy": [1.15e10] * count})
        of_clocks = battery_findings([micro(virtual=virtual)], past, others=1.0, selected=(3,))
        return {one.verdict for one in of_clocks if one.subject == "copy"}

    assert found(False, 3) == found(True, 10) == {"FAIL"}
    assert found(True, 9) == {"WARN"}


@pytest.mark.parametrize(
    ("virtual", "share", "verdict"),
    [(True, 0.51, "WARN"), (True, 0.003, "FAIL"), (False, 0.51, "FAIL"), (False, 0.003, "FAIL")],
)
@pytest.mark.parametrize("with_micro", [True, False])
def test_slow_messages_between_ranks_of_a_virtual_machine_warn_where_guests_may_be_why(
    virtual: bool, share: float, verdict: str, with_micro: bool
) -> None:
    """A good one's all-reduce had 0.51 of its past, a loopback that is limited to 100 Mbit/s has a hundredth."""
    values = {"5:link 0-1, messages of 16 byte": [1e9], "6:busbw of 2 ranks, messages of 16 byte": [1e9]}
    past = msgspec.structs.replace(history_of(past=values), virtual=virtual and not with_micro)
    sums = [exchange(rank, None, share * 1e9) for rank in range(2)]
    evidence = [probing(exchanges=[exchange(0, 1, share * 1e9), *sums])]
    evidence += [micro(virtual=virtual)] if with_micro else []
    found = battery_findings(evidence, past, others=1.0, selected=(5, 6))
    slow = [one for one in found if one.subject in ("link 0-1", "busbw of 2 ranks")]
    assert [one.verdict for one in slow] == [verdict, verdict]
    if verdict == "WARN":
        assert slow[0].evidence.endswith("whose processors and memory other guests may share: below 0.25 it would fail")


def test_wrong_messages_of_a_virtual_machine_fail() -> None:
    past = msgspec.structs.replace(NOTHING, virtual=True)
    found = battery_findings([probing(exchanges=[exchange(0, 1, 1e9, wrong=2)])], past, others=1.0, selected=(5,))
    assert "FAIL" in {one.verdict for one in found}


@pytest.mark.parametrize(("virtual", "verdict"), [(True, "WARN"), (False, "FAIL")])
def test_jitter_of_a_virtual_machine_only_warns(virtual: bool, verdict: str) -> None:
    launch = launched(purpose=LaunchPurpose.JITTER, timed=[1.0] * 190 + [1.5] * 10)
    past = msgspec.structs.replace(NOTHING, virtual=virtual)
    found = battery_findings([launch], past, others=1.0, selected=(10,))
    assert [one.verdict for one in found] == [verdict]
    gone = msgspec.structs.replace(launch, status=Status.CRASHED, message="gone")
    (crash,) = battery_findings([gone], past, others=1.0, selected=(10,))
    assert (crash.verdict, crash.status) == ("FAIL", Status.CRASHED)


@pytest.mark.parametrize(
    ("virtual", "slowdown", "verdict"),
    [
        (True, 1.4, "INCONCLUSIVE"),  # all of it is of processors that became slower
        (True, 1.05, "FAIL"),  # 1.43 of the prediction is left
        (True, 1.0, "FAIL"),
        (False, 1.4, "FAIL"),
    ],
)
def test_a_late_step_of_a_virtual_machine_is_open_where_slower_processors_explain_it(
    virtual: bool, slowdown: float, verdict: str
) -> None:
    speeds = dict.fromkeys(("product", "elementwise", "memory"), slowdown)
    late = launched(step_seconds=1.5, cpu_slowdown=slowdown, cpu_slowdowns=speeds)
    found = battery_findings([micro(virtual=virtual), *[late] * 5], NOTHING, others=1.0, looks=(5,), selected=(8,))
    (step,) = [one for one in found if one.subject == "bloom-mini"]
    assert step.verdict == verdict
    if verdict == "INCONCLUSIVE":
        assert step.evidence.endswith("other guests may share, 1.071 at their speed of before")


def test_wrong_products_of_a_virtual_machine_fail() -> None:
    own = micro(virtual=True, wrong_products=["one"])
    found = battery_findings([own], NOTHING, others=1.0, selected=(1,))
    assert "FAIL" in {finding.verdict for finding in found}


@pytest.mark.parametrize(
    ("virtual", "others", "own", "verdict"),
    [
        (True, 1.0, 1.0, "WARN"),  # guests took bandwidth while this rank was measured
        (True, 0.9, 0.9, "WARN"),
        (True, 0.65, 0.65, "FAIL"),  # all of the time
        (True, 1.0, 0.6, "FAIL"),  # one rank, at the same moments as the others
        (False, 1.0, 1.0, "FAIL"),
    ],
)
def test_slow_memory_of_a_virtual_machine_fails_where_several_moments_bear_it_out(
    virtual: bool, others: float, own: float, verdict: str
) -> None:
    of_ranks = [moments(copy=(share * 1e10,) * 3, triad=(share * 1e10,) * 3) for share in (others, own)]
    measured = micro(copy=[1e10, 6e9], virtual=virtual, moments=of_ranks)
    past = history_of(past={"3:copy": [1e10], "3:copy and triad of all ranks, at several moments": [1e10]})
    found = battery_findings([measured], past, others=1.0, selected=(3,))
    (copy,) = [one for one in found if one.subject == "copy"]
    assert copy.verdict == verdict
    if verdict == "WARN":
        assert copy.evidence.endswith(
            f"at several moments all ranks are at {others:.3f}, rank 1 at 1.000 of the others"
        )


def test_slow_memory_of_a_virtual_machine_without_such_moments_fails() -> None:
    past = history_of(past={"3:copy": [1e10]})
    found = battery_findings([micro(copy=[1e10, 6e9], virtual=True)], past, others=1.0, selected=(3,))
    assert [one.verdict for one in found if one.subject == "copy"] == ["FAIL"]
