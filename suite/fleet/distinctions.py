"""Distinctions of nodes that stand out from their siblings: a rack, a driver, a kernel that more of them have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from suite.fleet.battery_queries import NodeVerdict

RARE = 0.01  # that any value distinguishes by chance, however many are compared


class Distinction(msgspec.Struct, frozen=True, kw_only=True):
    """A value that nodes which stand out have more often than others.

    Args:
        attribute: rack or firmware; `value` of it.
        standing_out, nodes: of the nodes with this value, how many stand out, and how many there are.
        others_standing_out, others: of those with another value.
        p: that so many or more of them stand out by chance.
    """

    attribute: str
    value: str
    standing_out: int
    nodes: int
    others_standing_out: int
    others: int
    p: float


def distinctions(nodes: Sequence[NodeVerdict], standing_out: Collection[str]) -> list[Distinction]:
    """Values that too many of the nodes `standing_out` have for chance, the rarest first.

    Of N nodes K stand out; of n with the value k do: p = P(X >= k), X hypergeometric (N, K, n), one-sided as Fisher's
    exact test. A value counts where p < 0.01 / values compared (Bonferroni). Values of fewer than two nodes that stand
    out are not compared: one node is no pattern.

    Args:
        standing_out: their hashes.
    """
    from scipy.stats import hypergeom  # 0.4 s to import, for this alone

    own: dict[tuple[str, str], set[str]] = {}
    having: dict[str, set[str]] = {}  # of each attribute, the nodes of which it is known
    for node in nodes:
        for attribute, value in attributes(node):
            own.setdefault((attribute, value), set()).add(node.node)
            having.setdefault(attribute, set()).add(node.node)
    wanted = set(standing_out)
    compared = {key: names for key, names in own.items() if len(names & wanted) > 1 and names != having[key[0]]}
    found = []
    for (attribute, value), names in compared.items():
        whole = having[attribute]
        seen, all_seen = len(names & wanted), len(whole & wanted)
        p = float(hypergeom.sf(seen - 1, len(whole), all_seen, len(names)))
        if p < RARE / len(compared):
            found.append(
                Distinction(
                    attribute=attribute,
                    value=value,
                    standing_out=seen,
                    nodes=len(names),
                    others_standing_out=all_seen - seen,
                    others=len(whole) - len(names),
                    p=p,
                )
            )
    return sorted(found, key=lambda one: (one.p, one.attribute, one.value))


def attributes(node: NodeVerdict) -> Iterator[tuple[str, str]]:
    """Attributes of a node and their values: its rack, and each part of its firmware."""
    if node.rack:
        yield "rack", node.rack
    for part in node.firmware.split(", ") if node.firmware else ():
        yield "firmware", part
