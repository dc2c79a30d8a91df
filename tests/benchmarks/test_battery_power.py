"""Drawn batteries: good ones are hardly rejected, planted faults are found by their part, and too few say nothing."""

from __future__ import annotations

import random

import msgspec
import pytest

from benchmarks import battery_power
from benchmarks.battery_power import FAULTS, DrawnNode, RecordedBattery, interval, judged, outcomes, past
from suite.acceptance.battery_record import BatteryRecord
from suite.acceptance.evidence import Exchange, LaunchPurpose
from suite.acceptance.judge.rates import BY_TURNS
from suite.commands import exit_codes
from suite.records.battery import Decision
from tests.support.batteries import launched, micro, moments, probing


def exchanges(rate):
    return [
        Exchange(rank=rank, peer=peer, bytes_per_second=rate, wrong=0, first="", bytes=2**24)
        for rank in (0, 1)
        for peer in (1 - rank, None)
    ]


def recorded(count, spread, decision=Decision.ACCEPTED):
    """Batteries of one machine whose speeds differ by `spread`, and their launches by a third of it."""
    chance = random.Random(1)

    def about(value, share):
        return value * (1 + share * chance.gauss(0, 1))

    batteries = []
    for number in range(count):
        launches = []
        for _ in range(5):
            compute = [about(0.9, spread / 3), about(0.9, spread / 3)]
            launches.append(launched(step_seconds=0.1 + max(compute), compute_seconds=compute))
        copy = about(1e10, spread)
        rates = {"matrix": [about(9e10, spread / 3)] * 2, "copy": [copy, copy], "triad": [copy, copy]}
        probe = probing(exchanges=exchanges(about(1e9, spread)))
        batteries.append(RecordedBattery(f"b{number}", "cpu", decision, [micro(**rates)], launches, [probe]))
    return batteries


@pytest.mark.parametrize("name", FAULTS)
def test_on_a_steady_machine_every_fault_is_found_by_its_part_and_no_good_node_rejected(name):
    fault, part = FAULTS[name]
    counts = outcomes(recorded(10, 0.01), 20, fault, part, 1)
    assert counts == {"accepted" if name == "none" else "rejected": 20}


def test_on_a_machine_whose_memory_varies_less_is_found():
    found = outcomes(recorded(10, 0.2), 20, *FAULTS["memory 20 % slower"], 1)["rejected"]
    assert found < battery_power.LEAST_FOUND * 20


def test_one_bad_measurement_of_three_is_a_warning():
    """As `accept` does it: the first exchange is slow, two more are not."""
    batteries = recorded(10, 0.01)
    known, made = past(random.Random(1), batteries), []

    node = DrawnNode(random.Random(2), batteries)

    def once(launches):
        made.append(launches)
        one = node(launches)
        return battery_power.slow_link(one) if len(made) == 1 else one

    found = judged(once, known)
    links = [one for one in found if one.part.startswith("link")]
    assert made == [battery_power.LOOKS[1], battery_power.LOOKS[0], battery_power.LOOKS[0]]
    assert links
    assert {one.verdict.value for one in links} == {"WARN"}
    assert all("not in two more" in one.evidence for one in links)


def test_by_turns_a_slow_rank_is_found_where_launches_and_products_say_nothing():
    """Ranks disturb each other by a third."""
    batteries = [
        battery._replace(micro=[msgspec.structs.replace(one, moments=[moments(), moments()]) for one in battery.micro])
        for battery in recorded(10, 1 / 3)
    ]
    found = judged(DrawnNode(random.Random(2), batteries, battery_power.slow_rank), past(random.Random(1), batteries))
    (finding,) = [one for one in found if one.subject == BY_TURNS]
    assert (finding.verdict.value, finding.part) == ("FAIL", "processor of rank 1")
    assert finding.ratio == pytest.approx(1 / 1.1)
    good = judged(DrawnNode(random.Random(2), batteries), past(random.Random(1), batteries))
    assert [one.verdict.value for one in good if one.subject == BY_TURNS] == ["PASS"]


def test_an_interval_of_no_rejection_is_that_of_clopper_and_pearson():
    assert interval(0, 100) == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)))


def test_recorded_batteries_are_read_with_what_their_clocks_measured(tmp_path, capsys):
    for decision in (Decision.ACCEPTED, Decision.REJECTED):
        record = BatteryRecord(tmp_path, profile="quick", options={})
        record.keep("micro-measurements", [micro(), micro(set_aside=True)])
        launches = [launched(purpose=LaunchPurpose.EXACT), *(launched() for _ in range(5))]
        record.keep("bloom-mini times", launches)
        record.keep("probe", [probing(exchanges=exchanges(1e9))])
        record.close(decision, [], {})
    (first, _) = found = battery_power.recorded_batteries([tmp_path])
    assert [one.decision for one in found] == ["accepted", "rejected"] or len(found) == 2
    assert (len(first.micro), len(first.launches), len(first.probes), first.is_whole) == (1, 5, 1, True)
    assert battery_power.main([str(tmp_path)]) == exit_codes.INCONCLUSIVE
    out = capsys.readouterr().out
    assert "recorded: 1 of 2 (1.3% to 98.7%) of good nodes rejected" in out
    assert "2 whole batteries, 3 needed" in out
    bad = next(one.path for one in found if one.decision == "rejected")
    battery_power.main([str(tmp_path), "--bad", bad.rpartition("/")[2].removesuffix(".end.json")])
    assert "recorded: 0 of 1 " in capsys.readouterr().out


def test_what_is_not_as_promised_is_a_failure(monkeypatch):
    assert battery_power.report(recorded(4, 0.01), 10, 1) == exit_codes.PASS
    monkeypatch.setitem(FAULTS, "memory 20 % slower", (lambda battery: battery, "memory"))
    assert battery_power.report(recorded(4, 0.01), 10, 1) == exit_codes.FAIL
