"""The limits of the architecture can fail: a tree that breaks each of them, and one that breaks none."""

from __future__ import annotations

import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

from suite.paths import ROOT

LIMITS: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "architecture.py"))
LONGEST, LARGEST, HIGHEST = LIMITS["MOST_LINES_OF_FUNCTION"], LIMITS["MOST_LINES_OF_MODULE"], LIMITS["MOST_FLOORS"]


def problems(root: Path, **rooms: str) -> list[str]:
    """Broken limits of a tree of one module a room, each with its text; other rooms up to the number are empty."""
    rooms |= {f"empty{number}": "" for number in range(LIMITS["ROOMS"] - len(rooms))}
    for name, text in rooms.items():
        (root / "suite" / name).mkdir(parents=True)
        (root / "suite" / name / "module.py").write_text(text, encoding="utf-8")
    broken: list[str] = LIMITS["broken"](LIMITS["modules"](root))
    return broken


def function(lines: int, comment: str = "") -> str:
    """A function of so many lines, the first of which is its signature."""
    return f"def long():{comment}\n" + "    pass\n" * (lines - 1)


def test_a_tree_at_its_limits_breaks_none(tmp_path: Path) -> None:
    high = "from suite.low.module import Two\nclass One: pass\n" + function(LONGEST)
    reasoned = function(LONGEST + 1, "  # long: one formula")
    assert problems(tmp_path, high=high, low="class Two: pass\n", other=reasoned, large="\n" * LARGEST) == []


def test_whatever_is_beyond_a_limit_is_named(tmp_path: Path) -> None:
    elsewhere = function(LONGEST) + "    # long: not in its signature\n    pass\n"
    texts = {
        "large": "\n" * (LARGEST + 1),
        "long": function(LONGEST + 1),
        "reason": elsewhere,
        "one": "class Both: pass\nMap = dict[str, int]\nOther = Annotated[int, 1]\nclass _Own: pass\n",
        "two": "class _Both: pass\nMap = dict[str, str]\nOther = Annotated[str, 1]\nclass Another: pass\n",
    }
    assert problems(tmp_path, **texts) == [
        f"suite.large.module: {LARGEST + 1} lines, allowed: {LARGEST}",
        f"suite.long.module.long: {LONGEST + 1} lines, allowed: {LONGEST}",
        f"suite.reason.module.long: {LONGEST + 2} lines, allowed: {LONGEST}",
        "type Both stands in suite.one.module, suite.two.module",
        "type Map stands in suite.one.module, suite.two.module",
    ]


def test_a_cycle_names_its_rooms_and_those_above_it_wherever_an_import_stands(tmp_path: Path) -> None:
    texts = {
        "a": "def late():\n    import suite.b.module\n",
        "b": "if TYPE_CHECKING:\n    from suite.a import module\n",
        "above": "from suite import a\n",
    }
    assert problems(tmp_path, **texts) == ["rooms in or above a cycle: a, above, b"]


def test_rooms_and_floors_are_counted(tmp_path: Path) -> None:
    names = [f"floor{number}" for number in range(HIGHEST + 1)]
    texts = dict.fromkeys(names, "") | {above: f"import suite.{below}.module\n" for below, above in pairwise(names)}
    assert problems(tmp_path / "high", **texts) == [f"{len(names)} floors, allowed: {HIGHEST}"]
    (tmp_path / "few" / "suite" / "alone").mkdir(parents=True)
    (tmp_path / "few" / "suite" / "alone" / "module.py").touch()
    assert LIMITS["broken"](LIMITS["modules"](tmp_path / "few")) == [f"1 rooms, allowed: {LIMITS['ROOMS']}"]
