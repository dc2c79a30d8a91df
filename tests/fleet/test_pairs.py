"""Who is at fault, by pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.fleet.fleet_record import PairResult
from suite.fleet.pairs import blamed, clocks_apart, pairings, slow_links, slow_nodes, to_repeat


def ring(count: int) -> list[tuple[str, str]]:
    return [pair for of_round in pairings([f"n{number}" for number in range(count)]) for pair in of_round]


def measured(pair: tuple[str, str], *, rate: float = 1e9, offset: float = 0.0, products=(1e9, 1e9)) -> PairResult:
    return PairResult(
        first=pair[0],
        second=pair[1],
        status="ok",
        bytes_per_second=rate,
        clock_offset=offset,
        clock_uncertainty=0.001,
        products=list(products),
    )


@given(st.integers(3, 60))
def test_every_node_has_two_partners_and_none_is_in_two_pairs_of_a_round(count: int) -> None:
    rounds = pairings([f"n{number}" for number in range(count)])
    for of_round in rounds:
        names = [name for pair in of_round for name in pair]
        assert len(names) == len(set(names))
    partners: dict[str, set[str]] = {}
    for first, second in ring(count):
        partners.setdefault(first, set()).add(second)
        partners.setdefault(second, set()).add(first)
    assert {len(others) for others in partners.values()} == {2}
    assert len(rounds) <= 3


@given(st.integers(4, 30), st.data())
def test_one_bad_node_is_blamed_and_not_its_partners(count: int, data: st.DataObject) -> None:
    bad = f"n{data.draw(st.integers(0, count - 1))}"
    pairs = ring(count)
    blame = blamed(pairs, [pair for pair in pairs if bad in pair])
    assert blame == ([bad], [], [])


@given(st.integers(4, 30), st.data())
def test_one_bad_link_is_blamed_and_no_node(count: int, data: st.DataObject) -> None:
    pairs = ring(count)
    bad = data.draw(st.sampled_from(pairs))
    assert blamed(pairs, [bad]) == ([], [bad], [])


def test_of_two_nodes_alone_nobody_knows_which_is_bad() -> None:
    assert blamed([("a", "b")], [("a", "b")]) == ([], [], [("a", "b")])


def test_where_every_pair_is_bad_no_node_is_blamed() -> None:
    pairs = ring(4)
    assert blamed(pairs, pairs).nodes == []


def test_a_link_is_slow_below_70_percent_of_the_others() -> None:
    for rate, expected in ((0.69e9, [("n0", "n1")]), (0.71e9, [])):
        results = [measured(pair, rate=rate if pair == ("n0", "n1") else 1e9) for pair in ring(4)]
        assert slow_links(results) == to_repeat(results) == expected


def test_a_node_with_a_slow_link_is_found_among_few() -> None:
    for count in (3, 4, 5, 9):
        results = [measured(pair, rate=1e7 if "n1" in pair else 1e9) for pair in ring(count)]
        assert blamed(ring(count), slow_links(results)).nodes == ["n1"]


def test_damaged_messages_make_a_fast_link_bad() -> None:
    pair = measured(("a", "b"))
    assert slow_links([PairResult(first="a", second="b", status="ok", bytes_per_second=1e9, wrong=1)]) == [("a", "b")]
    assert slow_links([pair]) == []


def test_clocks_are_apart_beyond_a_second() -> None:
    apart = {offset: bool(clocks_apart([measured(("a", "b"), offset=offset)])) for offset in (1.2, -20.0, 0.9)}
    assert apart == {1.2: True, -20.0: True, 0.9: False}


def test_a_node_is_slow_beside_every_partner_not_beside_one() -> None:
    slow = [measured(("a", "b"), products=(0.5, 1)), measured(("c", "a"), products=(1, 0.5))]
    once = [measured(("a", "b"), products=(0.5, 1)), measured(("c", "a"), products=(1, 1))]
    assert slow_nodes([*slow, measured(("b", "c"))]) == ["a"]
    assert slow_nodes([*once, measured(("b", "c"))]) == []
