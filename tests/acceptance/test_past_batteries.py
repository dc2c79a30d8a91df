"""Accepted batteries of the same hardware and software are a node's past; other nodes of a fleet need its hardware."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.errors import InputError
from suite import paths
from suite.acceptance.past_batteries import NodeIdentity, history, measured_values
from suite.records.battery import CheckFinding, CheckVerdict, Decision, PastBattery, encode
from tests.support.batteries import ended

ALIKE = {"device": "cpu", "ranks": "2"}


def battery(results, number, *, value=1.0, verdict=CheckVerdict.PASS, compared_as="copy", **changes):
    """One record with one rate, of this node unless it is said otherwise."""
    directory = results / "acceptance"
    directory.mkdir(parents=True, exist_ok=True)
    rate = CheckFinding(check=3, subject="copy", verdict=verdict, measured=value, compared_as=compared_as)
    hashes = {"hardware": changes.pop("hardware", "h"), "software": changes.pop("software", "s")}
    usual = {"id": str(number), "node": "here", "finished": float(number), "hashes": hashes, "options": ALIKE}
    path = directory / f"{number}.end.json"
    path.write_bytes(encode(ended([rate], **(usual | changes))))
    return path


def of_here(results, fleet=None):
    return history(results, fleet, NodeIdentity("here", "h", "s", "cpu", 2))


def values(known, name="copy"):
    """Past and fleet values of check 3."""
    past, fleet = known.of(3, name)
    return measured_values(past), measured_values(fleet)


def test_rejected_batteries_and_those_of_another_machine_or_stack_are_no_past(tmp_path):
    battery(tmp_path, 1, value=1.0)
    battery(tmp_path, 2, value=2.0, decision=Decision.REJECTED)
    battery(tmp_path, 3, value=3.0, hardware="other")
    battery(tmp_path, 4, value=4.0, software="other")
    for number, node in ((5, "there"), (7, "another")):
        battery(tmp_path, number, value=5.0, node=node)
    battery(tmp_path, 6, value=6.0)
    known = of_here(tmp_path)
    assert values(known) == ([1.0, 6.0], [])
    assert known.past_problems == ["2 accepted batteries of this node had other hardware or software: not its past"]


def test_the_projects_own_batteries_are_nobodys_past(tmp_path, monkeypatch):
    """Batteries that a fresh clone brings, where results are stored without --results."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    monkeypatch.setattr(paths, "RECORDED", tmp_path / "recorded")
    battery(tmp_path / "recorded", 1, software="other")
    battery(tmp_path / "recorded", 2)
    known = of_here(tmp_path)
    assert (values(known), known.past_problems, known.judged) == (([], []), [], [])


@pytest.mark.parametrize("options", [{"device": "cpu", "ranks": "1"}, {"device": "cuda", "ranks": "2"}, {}])
def test_a_battery_of_other_ranks_or_of_another_device_is_not_compared(tmp_path, options):
    battery(tmp_path, 1, value=1.0, options=options)
    battery(tmp_path, 2, value=2.0, node="there", options=options)
    battery(tmp_path, 3, value=3.0)
    known = of_here(tmp_path, tmp_path)
    assert values(known) == ([3.0], [])
    assert known.dated(bad()).good_until.battery == "3"
    assert known.past_problems == ["1 accepted battery of this node had another device or other ranks: not its past"]
    summary = "fleet: 0 other nodes with the same hardware count; left out: 1 with another device or other ranks"
    assert (known.fleet_summary, known.fleet_problems) == (summary, [summary])


def test_a_newer_battery_of_another_node_that_measured_in_another_way_hides_no_older_value(tmp_path):
    battery(tmp_path, 1, value=1.0, node="there", compared_as="small")
    battery(tmp_path, 2, value=2.0, node="there", compared_as="large")
    battery(tmp_path, 3, value=3.0, node="there", compared_as="large")
    known = of_here(tmp_path / "none", tmp_path)
    assert (values(known, "small")[1], values(known, "large")[1]) == ([1.0], [3.0])


def test_of_each_other_node_the_newest_battery_counts(tmp_path):
    battery(tmp_path / "a", 1, value=1.0, node="there")
    battery(tmp_path / "a", 2, value=2.0, node="there")
    battery(tmp_path / "b", 3, value=3.0, node="elsewhere")
    battery(tmp_path / "b", 4, value=4.0, node="here")
    battery(tmp_path / "b", 5, value=5.0, node="old", hardware="other")
    known = of_here(tmp_path / "none", tmp_path)
    assert sorted(values(known)[1]) == [2.0, 3.0]
    assert known.fleet_nodes == 2


def test_a_fleet_says_how_many_nodes_count_and_why_others_do_not(tmp_path):
    battery(tmp_path, 1, node="a")
    battery(tmp_path, 2, node="b", software="other")
    battery(tmp_path, 3, node="c", hardware="other")
    battery(tmp_path, 4, node="d", hardware="other")
    battery(tmp_path, 5, node="e", options={"device": "cpu", "ranks": "1"})
    battery(tmp_path, 6, node="f", decision=Decision.REJECTED)
    battery(tmp_path, 7, node="a", decision=Decision.REJECTED)
    known = of_here(tmp_path / "none", tmp_path)
    assert known.fleet_summary == (
        "fleet: 2 other nodes with the same hardware count (1 with other software); left out: 1 not accepted, "
        "1 with another device or other ranks, 2 with other hardware"
    )
    assert known.fleet_problems == []
    assert of_here(tmp_path).fleet_summary == ""


def test_a_truncated_record_is_named_and_left_out(tmp_path):
    battery(tmp_path, 1, node="there")
    damaged = battery(tmp_path, 2, node="elsewhere")
    damaged.write_bytes(damaged.read_bytes()[:-200])
    known = of_here(tmp_path / "none", tmp_path)
    assert known.fleet_nodes == 1
    (problem,) = known.fleet_problems
    assert str(damaged) in problem


def test_a_fleet_that_is_no_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="no directory"):
        of_here(tmp_path, tmp_path / "missing")


def bad(verdict=CheckVerdict.FAIL, check=3, subject="copy"):
    return CheckFinding(check=check, subject=subject, verdict=verdict)


def test_a_failure_is_dated_by_the_batteries_that_passed_and_failed_before_it(tmp_path):
    """By `good_until_and_bad_since`: others say neither."""
    verdicts = [CheckVerdict.PASS, CheckVerdict.INVALID, CheckVerdict.HANG, CheckVerdict.WARN, CheckVerdict.FAIL]
    for number, verdict in enumerate(verdicts, start=1):
        rejected = Decision.ACCEPTED if verdict is CheckVerdict.PASS else Decision.REJECTED
        battery(tmp_path, number, verdict=verdict, decision=rejected)
    found = of_here(tmp_path).dated(bad())
    assert found.good_until == PastBattery(battery="1", finished=1.0)
    assert found.bad_since == PastBattery(battery="3", finished=3.0)


def test_a_warning_dates_from_warnings_and_a_failure_does_not(tmp_path):
    battery(tmp_path, 1)
    battery(tmp_path, 2, verdict=CheckVerdict.WARN)
    known = of_here(tmp_path)
    assert known.dated(bad(CheckVerdict.WARN)).bad_since.battery == "2"
    assert known.dated(bad(CheckVerdict.FAIL)).bad_since is None
    for verdict in (CheckVerdict.PASS, CheckVerdict.INVALID, CheckVerdict.INCONCLUSIVE, CheckVerdict.NOT_RUN):
        assert known.dated(bad(verdict)) == bad(verdict)


def test_no_other_node_stack_check_or_subject_dates_a_failure(tmp_path):
    battery(tmp_path, 1, node="there")
    battery(tmp_path, 2, software="other")
    battery(tmp_path, 3)
    known = of_here(tmp_path)
    assert known.dated(bad()).good_until.battery == "3"
    assert known.dated(bad(subject="triad")).good_until is None
    assert known.dated(bad(check=4)).good_until is None
    other = bad(subject="another name of it")
    for name, dated in (("copy", True), ("copies", False), ("cop", False)):
        found = known.dated(msgspec.structs.replace(other, compared_as=name))
        assert (found.good_until is not None) == dated
    assert known.dated(bad(subject="")).good_until.battery == "3"  # nothing of the check ended well
