"""Rows of the fleet's table, from answers and pairs that are made up."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from suite.fleet.accept import better, group_sizes, reason
from suite.fleet.fleet_record import FleetRow, NodeAnswer, PairResult
from suite.fleet.judge import NodeFacts, battery_faults, first_batteries, rows
from suite.fleet.pairs import pairings
from suite.fleet.siblings import battery_values
from suite.fleet.verdicts import BAD
from suite.job.events import Status
from suite.machine.profile import read
from suite.machine.timing_tables import Subject
from suite.paths import RECORDED
from suite.records.battery import BatteryEnd, CheckFinding, CheckVerdict, read_half
from tests.support.batteries import ended

NAMES = ["n1", "n2", "n3", "n4"]
FLEETS = 100


def battery(
    values: dict[str, float],
    findings: list[CheckFinding] = [],  # noqa: B006
    *,
    virtual: bool | None = None,
    device: str = "cpu",
) -> BatteryEnd:
    made = [
        CheckFinding(
            check=int(key.split()[0]),
            subject=key,
            verdict=CheckVerdict.PASS,
            measured=value,
            compared_as=key.partition(" ")[2],
        )
        for key, value in values.items()
    ]
    options = {"device": device}
    return ended([*made, *findings], options=options, virtual=virtual)


def facts(code: int = 0, *batteries: BatteryEnd) -> NodeFacts:
    answer = NodeAnswer(node="n", exit_code=code, started=0.0, finished=1.0, words="said")
    return NodeFacts([answer], batteries)


def pair(first: str, second: str, **fields: object) -> PairResult:
    usual = {"bytes_per_second": 1e9, "clock_offset": 0.0, "products": [1e9, 1e9]}
    return PairResult(first=first, second=second, status="ok", **(usual | fields))  # type: ignore[arg-type]


def all_pairs(**by_node: dict[str, float]) -> list[PairResult]:
    """A ring of four, with the faults of nodes: "link" a share, "clock" seconds ahead, "products" a share."""
    results = []
    for first, second in [names for of_round in pairings(NAMES) for names in of_round]:
        own = [by_node.get(name, {}) for name in (first, second)]
        link = min(each.get("link", 1.0) for each in own)
        clock = own[1].get("clock", 0.0) - own[0].get("clock", 0.0)
        products = [1e9 * each.get("products", 1.0) for each in own]
        results.append(pair(first, second, bytes_per_second=1e9 * link, clock_offset=clock, products=products))
    return results


def test_a_fault_is_named_by_node_and_part_and_the_others_are_accepted() -> None:
    faults: dict[str, tuple[dict[str, float], str]] = {
        "n1": ({"products": 0.2}, "products (processor)"),
        "n2": ({"link": 0.1}, "link of the node"),
        "n3": ({"products": 0.2, "link": 0.3}, "products (processor)"),
        "n4": ({"clock": -20.0}, "clock"),
    }
    for node, (fault, part) in faults.items():
        table, links = rows({name: facts() for name in NAMES}, all_pairs(**{node: fault}))
        assert [(row.node, row.verdict, row.part) for row in table if row.verdict != "accepted"] == [
            (node, "rejected", part)
        ]
        assert links == []


@pytest.mark.parametrize(
    ("code", "verdict", "part", "check"),
    [(3, CheckVerdict.INCONCLUSIVE, "time limit", 14), (1, CheckVerdict.FAIL, "slow, not hung", 17)],
)
def test_of_a_slow_node_the_cause_comes_before_its_battery_that_took_too_long(
    code: int, verdict: CheckVerdict, part: str, check: int
) -> None:
    late = battery({}, [CheckFinding(check=check, subject="probe", verdict=verdict, part=part, evidence="after 60 s")])
    known = {name: facts() for name in NAMES} | {"n1": facts(code, late)}
    (row,) = [row for row in rows(known, all_pairs(n1={"products": 0.2}))[0] if row.verdict != "accepted"]
    assert (row.node, row.verdict, row.part) == ("n1", "rejected", f"products (processor); {part}")
    cause, consequence = row.evidence.split("; ")[:2]
    assert cause.startswith("0.20, 0.20")
    assert consequence.startswith(f"check {check}")
    assert reason(row).startswith(f"suite: products (processor); {part}: rejected: 0.20")
    (alone,) = [row for row in rows(known, all_pairs())[0] if row.verdict != "accepted"]
    assert alone.part == part


def test_what_decides_the_verdict_comes_first() -> None:
    """A battery that failed to run, beside products that reject."""
    crashed = CheckFinding(
        check=14, subject="", verdict=CheckVerdict.FAIL, part="rank 1", evidence="crashed", status=Status.CRASHED
    )
    known = {name: facts() for name in NAMES} | {"n1": facts(4, battery({}, [crashed]))}
    (row,) = [row for row in rows(known, all_pairs(n1={"products": 0.2}))[0] if row.verdict != "accepted"]
    assert (row.verdict, row.part) == ("rejected", "products (processor); rank 1")


def test_one_bad_link_rejects_no_node_and_is_named() -> None:
    results = [
        msgspec.structs.replace(result, bytes_per_second=1e7) if result.names == ("n2", "n3") else result
        for result in all_pairs()
    ]
    table, links = rows({name: facts() for name in NAMES}, results)
    assert {row.verdict for row in table} == {"accepted"}
    assert [link.partition(":")[0] for link in links] == ["n2-n3"]


def test_exit_codes_and_silence_are_verdicts_of_their_own() -> None:
    known = {
        "good": facts(0),
        "bad": facts(1),
        "open": facts(3),
        "crashed": facts(4),
        "silent": NodeFacts(why_none="no answer within 60 s"),
        "busy": NodeFacts(not_run="allocated"),
    }
    table, _ = rows(known, [])
    assert {row.node: row.verdict for row in table} == {
        "good": "accepted",
        "bad": "rejected",
        "open": "not decidable",
        "crashed": "execution failed",
        "silent": "no answer",
        "busy": "not run",
    }
    assert [row.node for row in table if row.verdict in BAD] == ["bad", "crashed", "silent"]


def test_a_figure_stands_out_only_where_two_batteries_say_so() -> None:
    others = {name: facts(0, battery({"1 product": 1.0 + number / 100})) for number, name in enumerate(NAMES[1:])}
    slow = battery({"1 product": 0.4})
    once = {"n1": facts(0, slow, battery({"1 product": 1.0})), **others}
    twice = {"n1": facts(0, slow, slow), **others}
    first = first_batteries(once)
    assert first.failures("n1", slow)
    assert not list(battery_faults("n1", once["n1"], first))
    (fault,) = battery_faults("n1", twice["n1"], first)
    assert fault.part == "product"


@pytest.mark.parametrize(
    ("virtual", "device", "verdict"),
    [(True, "cpu", "accepted"), (False, "cpu", "rejected"), (None, "cpu", "rejected"), (True, "cuda", "rejected")],
)
def test_slow_products_of_a_virtual_machines_cpu_are_a_remark(virtual: bool | None, device: str, verdict: str) -> None:
    def made(rate: float) -> BatteryEnd:
        return battery({"1 product": rate, "3 copy": 1.0}, virtual=virtual, device=device)

    known = {name: facts(0, made(1.0 + number / 100)) for number, name in enumerate(NAMES[1:])}
    known["n1"] = facts(0, made(0.4), made(0.4))
    row = next(row for row in rows(known, [])[0] if row.node == "n1")
    assert row.verdict == verdict
    assert ("remark: check 1 product: 0.40 of" in row.evidence) is (verdict == "accepted")
    assert bool(first_batteries(known).failures("n1", made(0.4))) is (verdict == "rejected")
    slow_copy = battery({"1 product": 1.0, "3 copy": 0.4}, virtual=virtual, device=device)
    (fault,) = battery_faults("n1", facts(0, slow_copy, slow_copy), first_batteries(known))
    assert fault.part == "copy"  # other figures count on every machine


def test_the_part_leads_the_reason_which_is_short_and_ascii() -> None:
    row = FleetRow(node="n1", verdict="rejected", part="clock Ω", evidence='20 s "ahead"\n' * 60)
    words = reason(row)
    assert words.startswith("suite: clock")
    assert len(words) <= 200
    assert words.isascii()
    assert "\n" not in words


def test_what_a_second_measurement_does_not_find_does_not_count() -> None:
    first = pair("a", "b", bytes_per_second=1e7, clock_offset=3.0, products=[1e8, 1e9])
    kept = better(first, pair("a", "b"))
    assert (kept.bytes_per_second, kept.clock_offset, kept.products) == (1e9, 0.0, [1e9, 1e9])
    assert better(first, pair("a", "b", wrong=2)).wrong == 2


def test_groups_double_up_to_all_nodes() -> None:
    assert [group_sizes(count) for count in (1, 2, 3, 4, 7)] == [[], [2], [2, 3], [2, 4], [2, 4, 7]]


def recorded_rates() -> list[dict[str, float]]:
    """The rates that batteries compare, as the project's recorded calibrations found them: one machine, seven times.

    Its memory was between 0.82 and 1.6 of the median, its messages between 0.75 and 1.2: other guests share the host.
    """
    found = []
    for path in sorted((RECORDED / "machines").glob("*.json")):
        profile = read(path)
        rates = {"1 product": profile.achievable_flop_per_second("bf16", ranks=2)}
        rates |= {f"3 {move}": profile.memory_bytes_per_second(move, ranks=2) for move in ("copy", "triad")}
        for check, operation in ((5, "send"), (6, "all_reduce")):
            line = profile.line(Subject(operation=operation, ranks=2))
            rates[f"{check} {operation}"] = line.sizes[-1] / line.timings[-1].seconds
        found.append(rates)
    return found


def quick_batteries() -> list[BatteryEnd]:
    """Ten of one virtual machine; they are older than the fact, which their micro-measurements have."""
    found = []
    for path in sorted((RECORDED / "quick_batteries" / "acceptance").glob("*.end.json")):
        end = read_half(path, BatteryEnd)
        assert end.virtual is None
        found.append(msgspec.structs.replace(end, virtual=True))
    return found


def clean_fleets(recorded: Sequence[BatteryEnd], nodes: int) -> Iterator[dict[str, NodeFacts]]:
    """Each node has what the machine had at another recorded time; what fails is measured again, at any of them."""
    generator = random.Random(39)
    for _ in range(FLEETS):
        drawn = generator.sample(recorded, nodes)
        known = {f"n{node}": facts(0, first) for node, first in enumerate(drawn)}
        compared = first_batteries(known)
        for name, first in list(known.items()):
            if compared.failures(name, first.batteries[0]):
                known[name] = facts(0, first.batteries[0], generator.choice(recorded))
        yield known


def drained(known: dict[str, NodeFacts]) -> list[str]:
    return [row.node for row in rows(known, [])[0] if row.verdict in BAD]


@pytest.mark.parametrize("nodes", [4, 6])
def test_of_100_clean_fleets_at_most_one_drains_a_node(nodes: int) -> None:
    calibrations = [battery(rates) for rates in recorded_rates()]
    for recorded in (calibrations, quick_batteries()):
        assert len(recorded) > nodes
        assert sum(bool(drained(known)) for known in clean_fleets(recorded, nodes)) <= 1


@pytest.mark.parametrize("virtual", [False, True])
def test_of_the_same_fleets_a_node_at_half_its_rate_is_drained(virtual: bool) -> None:
    """So that the limits which spare the clean ones still find something."""
    recorded = quick_batteries() if virtual else [battery(rates) for rates in recorded_rates()]
    found = 0
    for known in clean_fleets(recorded, 6):
        first = known["n0"].batteries[0]
        slow = battery({name: rate / 2 for name, rate in battery_values(first).items()}, virtual=first.virtual)
        slow = msgspec.structs.replace(slow, hashes=first.hashes, options=first.options)
        found += drained(known | {"n0": facts(0, slow, slow)}) == ["n0"]
    assert found >= 0.95 * FLEETS
