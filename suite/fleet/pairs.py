"""Which nodes are measured together, and which of two is at fault: a node, or the link between two."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from suite.fleet.fleet_record import PairResult

NodePair = tuple[str, str]
LEAST_RATE = 0.70  # of what the fastest quarter of pairs reaches: as of other nodes, no good one is below
LEAST_PRODUCTS = 0.70  # of the partner's at the same time
MOST_CLOCK_SECONDS = 1.0  # build tools, credentials and records of shared directories compare clocks to the second


class Blame(NamedTuple):
    """Parts at fault for what pairs found: nodes, links between good nodes, and pairs that leave it open."""

    nodes: list[str]
    links: list[NodePair]
    undecided: list[NodePair]


def pairings(names: Sequence[str]) -> list[list[NodePair]]:
    """Rounds of pairs without a common node, after which every node has had two partners; one with two nodes.

    A ring: each node with the next. Its links alternate between two rounds; an odd ring has a third with one link.
    """
    count = len(names)
    if count < 2:
        return []
    if count == 2:
        return [[(names[0], names[1])]]
    links = [(names[n], names[(n + 1) % count]) for n in range(count)]
    whole = links if count % 2 == 0 else links[:-1]
    rounds = [whole[0::2], whole[1::2]]
    return rounds if count % 2 == 0 else [*rounds, links[-1:]]


def blamed(pairs: Iterable[NodePair], bad: Collection[NodePair]) -> Blame:
    """Which nodes or links explain the bad pairs.

    A node is at fault where all of its pairs are bad, two at least, and some partner is good with another. A link is
    where both ends are good with others. What is left is not decided: of two nodes alone, nobody knows.
    """
    measured = list(pairs)
    own: dict[str, list[NodePair]] = {}
    for pair in measured:
        for name in pair:
            own.setdefault(name, []).append(pair)
    good = {name for name, with_it in own.items() if any(pair not in bad for pair in with_it)}
    partners = {name: {n for pair in with_it for n in pair if n != name} for name, with_it in own.items()}
    nodes = [name for name, with_it in own.items() if len(with_it) > 1 and name not in good and partners[name] & good]
    open_pairs = [pair for pair in measured if pair in bad and not set(pair) & set(nodes)]
    links = [pair for pair in open_pairs if set(pair) <= good]
    return Blame(nodes, links, [pair for pair in open_pairs if pair not in links])


def slow_links(results: Sequence[PairResult]) -> list[NodePair]:
    """Pairs whose link is slower than 70 % of what the fastest quarter of them reaches, or damages messages.

    One bad node makes two pairs bad: of three nodes that is most of them, so that no median tells.
    """
    rates = sorted(pair.bytes_per_second for pair in results if pair.bytes_per_second is not None)
    least = LEAST_RATE * rates[math.ceil(0.75 * len(rates)) - 1] if rates else 0.0
    slow = [r.names for r in results if r.bytes_per_second is not None and r.bytes_per_second < least]
    return [*slow, *(r.names for r in results if r.wrong and r.names not in slow)]


def without_contact(results: Sequence[PairResult]) -> list[NodePair]:
    """Pairs whose launch did not end well."""
    return [pair.names for pair in results if pair.status != "ok"]


def clocks_apart(results: Sequence[PairResult]) -> list[NodePair]:
    """Pairs whose clocks certainly differ by more than a second."""
    return [
        pair.names
        for pair in results
        if pair.clock_offset is not None and abs(pair.clock_offset) - pair.clock_uncertainty > MOST_CLOCK_SECONDS
    ]


def slower_products(results: Sequence[PairResult]) -> dict[str, list[float]]:
    """By node, its products over its partner's at the same time, once for each partner."""
    ratios: dict[str, list[float]] = {}
    for pair in results:
        if len(pair.products) == 2 and all(pair.products):
            first, second = pair.products
            ratios.setdefault(pair.first, []).append(first / second)
            ratios.setdefault(pair.second, []).append(second / first)
    return ratios


def slow_nodes(results: Sequence[PairResult]) -> list[str]:
    """Nodes whose products are below 70 % of every partner's, of two at least."""
    ratios = slower_products(results)
    return [name for name, own in ratios.items() if len(own) > 1 and max(own) < LEAST_PRODUCTS]


def to_repeat(results: Sequence[PairResult]) -> list[NodePair]:
    """Pairs that found something: it counts if a second measurement finds it too."""
    slow = {name for name, own in slower_products(results).items() if min(own) < LEAST_PRODUCTS}
    found = {*slow_links(results), *clocks_apart(results), *without_contact(results)}
    return [pair.names for pair in results if pair.names in found or slow & set(pair.names)]
