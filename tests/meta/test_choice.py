"""Which tests run by default, by measured durations; and turns of those that need the machine for themselves."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.choice import (
    FIXTURE_SECONDS,
    MEDIUM,
    MEDIUM_SECONDS,
    QUICK,
    QUICK_SECONDS,
    SLOW,
    Duration,
    chosen,
    put_long_files_first,
    read,
    write,
)
from tests.support.turns import turn


class Item(SimpleNamespace):
    """A test item, with what is asked of pytest's."""

    __hash__ = object.__hash__

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def cases(test: str, count: int, marks: str = "", fixtures: str = "") -> list[Any]:
    file = test.partition("::")[0]
    known = {name: [SimpleNamespace(scope=name, baseid=file)] for name in fixtures.split()}
    shared = SimpleNamespace(name2fixturedefs=known)
    return [Item(nodeid=f"{test}[{number}]", marks=marks.split(), _fixtureinfo=shared) for number in range(count)]


def test_a_test_is_quick_unless_its_cases_are_known_to_take_long() -> None:
    new, short, middling, long, kept, many = (
        cases("test_a.py::test_new", 2),
        cases("test_a.py::test_short", 3),
        cases("test_b.py::test_middling", 1),
        cases("test_b.py::test_long", 1),
        cases("test_b.py::test_kept", 1, "always"),
        cases("test_c.py::test_many", 10),
    )
    durations = {
        "test_a.py::test_short": Duration(QUICK_SECONDS, 3),
        "test_b.py::test_middling": Duration(QUICK_SECONDS + 0.1, 1),
        "test_b.py::test_long": Duration(MEDIUM_SECONDS + 0.1, 1),
        "test_b.py::test_kept": Duration(100.0, 1),
        "test_c.py::test_many": Duration(5 * QUICK_SECONDS, 10),
        "test_d.py::test_gone": Duration(100.0, 1),
    }
    items = [*new, *short, *middling, *long, *kept, *many]
    assert chosen(items, durations, QUICK) == {*new, *short, *kept, many[0], many[5]}
    assert chosen(items, durations, MEDIUM) == {*middling, *many} - {many[0], many[5]}
    assert chosen(items, durations, SLOW) == {*long}
    put_long_files_first(items, durations)
    assert [item.nodeid[:9] for item in items] == ["test_b.py"] * 3 + ["test_c.py"] * 10 + ["test_a.py"] * 5


def test_a_test_that_would_make_the_fixture_of_a_long_one_is_not_quick() -> None:
    long, sharing, kept = (
        cases("test_a.py::test_long", 1, fixtures="module"),
        cases("test_a.py::test_sharing", 2, fixtures="module"),
        cases("test_c.py::test_kept", 1, "always", fixtures="module"),
    )
    others = [
        *cases("test_c.py::test_sharing", 1, fixtures="module"),
        *cases("test_a.py::test_own", 1, fixtures="function"),
        *cases("test_b.py::test_b", 1, fixtures="module"),
    ]
    durations = dict.fromkeys(("test_a.py::test_long", "test_c.py::test_kept"), Duration(FIXTURE_SECONDS + 0.1, 1))
    assert chosen([*long, *sharing, *kept, *others], durations, QUICK) == {*kept, *others}


def test_durations_of_all_cases_are_summed_and_short_ones_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "durations.tsv"
    before = {"c.py::test_c": Duration(5.0, 1), "a.py::test_a": Duration(9.0, 1)}
    measured = {"b.py::test_b[x]": 0.4, "b.py::test_b[y]": 0.3, "a.py::test_a": 2.0, "a.py::test_short": 0.2}
    write(path, measured, before)
    assert read(path) == {
        "a.py::test_a": Duration(2.0, 1),
        "b.py::test_b": Duration(0.7, 2),
        "c.py::test_c": Duration(5.0, 1),
    }


def hold(directory: Path, alone: bool, held: threading.Event, released: threading.Event) -> None:
    with turn(directory, alone=alone):
        held.set()
        released.wait()


def test_one_that_is_alone_waits_for_others_which_begin_no_more(tmp_path: Path) -> None:
    states = [(threading.Event(), threading.Event()) for _ in range(4)]
    for number, (held, released) in enumerate(states):
        threading.Thread(target=hold, args=(tmp_path, number == 2, held, released), daemon=True).start()
        held.wait(None if number < 2 else 0.2)
    (one, end_one), (two, end_two), (alone_, end_alone), (later, end_later) = states
    assert [event.is_set() for event in (one, two, alone_, later)] == [True, True, False, False]
    end_one.set()
    end_two.set()
    alone_.wait()
    assert not later.wait(0.1)
    end_alone.set()
    later.wait()
    end_later.set()
