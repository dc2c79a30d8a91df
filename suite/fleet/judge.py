"""Each node's verdict, from its batteries, its pairs and its siblings: one row of the fleet's table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from suite.acceptance.check_table import CHECKS
from suite.acceptance.findings import NOT_HUNG, TIME_LIMIT, joined_evidence
from suite.fleet import pairs
from suite.fleet.fleet_record import FleetRow, NodeAnswer, PairResult
from suite.fleet.pairs import NodePair
from suite.fleet.siblings import FirstBatteries, Siblings, battery_values, check_of
from suite.fleet.verdicts import ACCEPTED, FAILED, NO_ANSWER, NOT_RUN, REJECTED, UNDECIDED
from suite.records.battery import BatteryEnd, worst_of

_DECIDING = (NO_ANSWER, REJECTED, FAILED, UNDECIDED)  # of several verdicts on a node, the first of these
_BY_EXIT_CODE = {0: ACCEPTED, 1: REJECTED, 4: FAILED}  # others decide nothing about the node
LINK, PRODUCTS, CLOCK = "link", "products with a partner", "clock ahead"  # figures of pairs
CONSEQUENCES = (TIME_LIMIT, NOT_HUNG)  # parts of a battery that took too long: what is slow is another part
UNITS = {LINK: "byte/s", PRODUCTS: "flop/s", CLOCK: "s"}


_PairKind = tuple[str, list[NodePair], list[NodePair], Callable[[PairResult], str]]


class NodeFacts(NamedTuple):
    """Facts of a node before pairs: its answers, one for each attempt, and the verdicts of their batteries.

    Args:
        why_none: why it has no answer; empty where it has one, or was not asked.
        not_run: why it was not asked; empty where it was.
    """

    answers: Sequence[NodeAnswer] = ()
    batteries: Sequence[BatteryEnd] = ()
    why_none: str = ""
    not_run: str = ""


class _Fault(NamedTuple):
    """A part that is at fault, and what says so."""

    part: str
    evidence: str
    verdict: str = REJECTED


def rows(facts: Mapping[str, NodeFacts], results: Sequence[PairResult]) -> tuple[list[FleetRow], list[str]]:
    """The table, and the links that are at fault while both of their nodes are good, in words."""
    values = node_values(facts, results)
    all_nodes, first = Siblings(values), first_batteries(facts)
    units = UNITS | {name: check_of(name).unit for own in values.values() for name in own if name[0].isdigit()}
    faults, links = pair_faults(results)
    table = []
    for node, known in facts.items():
        own = sorted([*battery_faults(node, known, first), *faults.get(node, [])], key=_causes_first)
        verdict = _verdict(known, own)
        battery = known.batteries[-1] if known.batteries else None
        remarks = first.remarks(node, battery) if battery else []
        worst = worst_of(battery.findings) if battery else None
        table.append(
            FleetRow(
                node=node,
                verdict=verdict,
                part="; ".join(dict.fromkeys(fault.part for fault in own)),
                evidence=known.not_run or joined_evidence(*(fault.evidence for fault in own), *remarks),
                since=None if worst is None or worst.bad_since is None else worst.bad_since.finished,
                switch=known.answers[-1].switch if known.answers else "",
                battery=battery.id if battery else "",
                figures=all_nodes.beside(node, units),
            )
        )
    return table, links


def _causes_first(fault: _Fault) -> tuple[int, bool]:
    """Order of a node's faults: those that decide its verdict first, and causes before their consequences."""
    return _DECIDING.index(fault.verdict), fault.part in CONSEQUENCES


def _verdict(known: NodeFacts, faults: Sequence[_Fault]) -> str:
    if known.not_run:
        return NOT_RUN
    for verdict in _DECIDING:
        if any(fault.verdict == verdict for fault in faults):
            return verdict
    return ACCEPTED


def first_batteries(facts: Mapping[str, NodeFacts]) -> FirstBatteries:
    """The batteries that those of other nodes are compared with."""
    return FirstBatteries({node: known.batteries[0] for node, known in facts.items() if known.batteries})


def battery_faults(node: str, known: NodeFacts, first: FirstBatteries) -> Iterator[_Fault]:
    """Faults by a node's own batteries: of the last attempt, and beside its siblings where every attempt says so."""
    if known.why_none:
        yield _Fault("node", known.why_none, NO_ANSWER)
        return
    if not known.answers:
        return
    answer = known.answers[-1]
    verdict = _BY_EXIT_CODE.get(answer.exit_code, UNDECIDED)
    if verdict != ACCEPTED:
        worst = worst_of(known.batteries[-1].findings) if known.batteries else None
        if worst is None:
            yield _Fault("battery", answer.words or f"accept ended with code {answer.exit_code}", verdict)
        else:
            check = CHECKS[worst.check].name
            part = worst.part or worst.subject or check
            yield _Fault(part, joined_evidence(f"check {worst.check} ({check})", worst.evidence), verdict)
    if len(known.batteries) > 1:  # each is compared with all nodes: once is not worth it
        attempts = [first.failures(node, battery) for battery in known.batteries]
        for name, words in attempts[-1].items():
            if all(name in attempt for attempt in attempts):
                yield _Fault(name.partition(" ")[2] or name, f"check {name}: {words}, twice")


def pair_faults(results: Sequence[PairResult]) -> tuple[dict[str, list[_Fault]], list[str]]:
    """By node, what pairs found; and links at fault, or undecided, in words."""
    faults: dict[str, list[_Fault]] = {}
    links: list[str] = []
    measured = [pair.names for pair in results]
    by_names = {pair.names: pair for pair in results}
    lost = {name for pair in results for name in pair.lost}
    for name in lost:
        faults.setdefault(name, []).append(_Fault("node", "died while a pair was measured", NO_ANSWER))
    reached = [pair for pair in measured if by_names[pair].status == "ok"]
    ratios = pairs.slower_products(results)
    for name in pairs.slow_nodes(results):
        words = ", ".join(f"{ratio:.2f}" for ratio in ratios[name])
        faults.setdefault(name, []).append(
            _Fault("products (processor)", f"{words} of each partner's rate at the same time")
        )
    slow = set(faults)
    kinds: tuple[_PairKind, ...] = (
        ("link of the node", pairs.slow_links(results), reached, _link_words),
        ("clock", pairs.clocks_apart(results), reached, _clock_words),
        ("communication", pairs.without_contact(results), measured, lambda pair: f"{pair.status}: {pair.message}"),
    )
    for part, bad, among, said in kinds:
        counted = [pair for pair in among if not (set(pair) & lost)]
        blame = pairs.blamed(counted, [pair for pair in bad if pair in counted])
        for name in blame.nodes:
            if part == "link of the node" and name in slow:
                continue  # what is slow itself sends slowly
            own = [pair for pair in bad if name in pair]
            evidence = "; ".join(f"{'-'.join(pair)}: {said(by_names[pair])}" for pair in own)
            faults.setdefault(name, []).append(_Fault(part, evidence))
        for pair in blame.links:
            found = f"{part.split()[0]} at fault, both nodes are good with others: {said(by_names[pair])}"
            links.append(f"{'-'.join(pair)}: {found}")
        for pair in blame.undecided:
            if set(pair) & slow:
                continue
            evidence = f"{'-'.join(pair)}: {said(by_names[pair])}; which of both is open"
            for name in pair:
                faults.setdefault(name, []).append(_Fault(part, evidence, UNDECIDED))
    return faults, links


def _link_words(pair: PairResult) -> str:
    damaged = f", {pair.wrong} elements damaged" if pair.wrong else ""
    return f"{(pair.bytes_per_second or 0.0) / 1e6:,.1f} MB/s{damaged}"


def _clock_words(pair: PairResult) -> str:
    offset = pair.clock_offset or 0.0
    return f"{pair.second} is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} {pair.first}"


def node_values(facts: Mapping[str, NodeFacts], results: Sequence[PairResult]) -> dict[str, dict[str, float]]:
    """By node its figures: of its first battery, and of its pairs the median."""
    values = {name: battery_values(known.batteries[0]) if known.batteries else {} for name, known in facts.items()}
    own: dict[str, dict[str, list[float]]] = {}
    for pair in results:
        for index, name in enumerate(pair.names):
            mine = own.setdefault(name, {LINK: [], PRODUCTS: [], CLOCK: []})
            if pair.bytes_per_second is not None:
                mine[LINK].append(pair.bytes_per_second)
            if len(pair.products) == 2:
                mine[PRODUCTS].append(pair.products[index])
            if pair.clock_offset is not None:
                mine[CLOCK].append(pair.clock_offset if index else -pair.clock_offset)
    for name, figures in own.items():
        values.setdefault(name, {}).update({key: statistics.median(all_) for key, all_ in figures.items() if all_})
    return values
