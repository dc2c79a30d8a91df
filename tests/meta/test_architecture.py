"""The limits of the architecture can fail: each on a tree that breaks it, and on none that does not."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def limits() -> ModuleType:
    """The script, as a module of its own, so that a test may change its limits."""
    spec = importlib.util.spec_from_file_location("architecture_limits", ROOT / ".ci" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(limits: ModuleType, root: Path, **rooms: str) -> list[str]:
    """What is broken in a tree of one module a room, each with its text; other rooms up to the number are empty."""
    for number in range(limits.ROOMS - len(rooms)):
        rooms[f"empty{number}"] = ""
    for name, text in rooms.items():
        (root / "suite" / name).mkdir(parents=True)
        (root / "suite" / name / "module.py").write_text(text, encoding="utf-8")
    broken: list[str] = limits.broken(limits.modules(root))
    return broken


def function(lines: int, comment: str = "") -> str:
    """Of so many lines, the first of which is its signature."""
    return f"def long():{comment}\n" + "    pass\n" * (lines - 1)


def test_a_tree_within_all_limits_breaks_none(limits: ModuleType, tmp_path: Path) -> None:
    upper = "from suite.low.module import Two\nclass One: pass\n" + function(limits.MOST_LINES_OF_FUNCTION)
    assert problems(limits, tmp_path, high=upper, low="class Two: pass\n") == []


def test_too_few_rooms_are_counted(limits: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "suite" / "alone").mkdir(parents=True)
    (tmp_path / "suite" / "alone" / "module.py").write_text("", encoding="utf-8")
    assert limits.broken(limits.modules(tmp_path)) == [f"1 rooms, allowed: {limits.ROOMS}"]


def test_rooms_that_import_each_other_are_a_cycle_and_so_is_what_stands_on_them(
    limits: ModuleType, tmp_path: Path
) -> None:
    texts = {"a": "import suite.b.module\n", "b": "from suite.a import module\n", "above": "import suite.a.module\n"}
    assert problems(limits, tmp_path, **texts) == ["rooms in or above a cycle: a, above, b"]


@pytest.mark.parametrize(
    "text",
    [
        "import suite.low.module\n",
        "from suite.low.module import name\n",
        "from suite.low import module\n",
        "from suite import low\n",
        "def late():\n    import suite.low.module\n",
        "if TYPE_CHECKING:\n    from suite.low.module import name\n",
    ],
)
def test_an_import_is_an_arrow_wherever_it_stands_and_counts_once_for_two_rooms(
    limits: ModuleType, tmp_path: Path, text: str
) -> None:
    limits.MOST_ARROWS = 0
    assert problems(limits, tmp_path, high=2 * text, low="") == ["1 arrows between rooms, allowed: 0"]


def test_rooms_on_too_many_floors_are_counted(limits: ModuleType, tmp_path: Path) -> None:
    names = [f"floor{number}" for number in range(limits.MOST_FLOORS + 1)]
    texts = dict.fromkeys(names, "") | {above: f"import suite.{below}.module\n" for below, above in pairwise(names)}
    assert problems(limits, tmp_path, **texts) == [f"{len(names)} floors, allowed: {limits.MOST_FLOORS}"]


def test_a_longer_function_needs_a_reason_on_the_line_of_its_name(limits: ModuleType, tmp_path: Path) -> None:
    longer = limits.MOST_LINES_OF_FUNCTION + 1
    line = f"suite.a.module.long: {longer} lines, allowed: {limits.MOST_LINES_OF_FUNCTION}"
    method = "class Of:\n" + "".join(f"    {part}\n" for part in function(longer).splitlines())
    reasoned = function(longer, "  # long: one formula")
    elsewhere = function(longer - 1) + "    # long: not in its signature\n    pass\n"
    texts = {"a": function(longer), "b": method, "c": reasoned, "d": elsewhere}
    assert problems(limits, tmp_path, **texts) == [
        line,
        line.replace(".a.", ".b."),
        line.replace(".a.", ".d.").replace(str(longer), str(longer + 1), 1),
    ]


def test_a_class_name_that_stands_twice_is_named_with_its_modules_also_with_an_underscore(
    limits: ModuleType, tmp_path: Path
) -> None:
    texts = {"a": "class Both: pass\nclass _Private: pass\n", "b": "class _Both: pass\nclass _Own: pass\n"}
    assert problems(limits, tmp_path, **texts) == ["type Both stands in suite.a.module, suite.b.module"]


def test_a_type_alias_counts_like_a_class_and_other_names_do_not(limits: ModuleType, tmp_path: Path) -> None:
    texts = {
        "a": "class Key: pass\nMap = dict[str, int]\nRun = Callable[[], None]\nOther = Annotated[int, 1]\n",
        "b": "_Key = tuple[str, int]\nMap = dict[str, str]\nRun = Callable[[int], None]\n",
        "c": "Other = Annotated[str, 1]\ndef local():\n    Map = dict[str, int]\n",
    }
    names = ("Key", "Map", "Run")
    assert problems(limits, tmp_path, **texts) == [
        f"type {name} stands in suite.a.module, suite.b.module" for name in names
    ]


def test_a_longer_module_is_named_and_the_median_has_a_limit_of_its_own(limits: ModuleType, tmp_path: Path) -> None:
    most = limits.MOST_LINES_OF_MODULE
    line = f"suite.a.module: {most + 1} lines, allowed: {most}"
    assert problems(limits, tmp_path / "one", a="\n" * (most + 1), b="\n" * most) == [line]
    median = limits.MEDIAN_LINES_OF_MODULE
    rooms = {f"room{number}": "\n" * (median + 1) for number in range(limits.ROOMS)}
    said = f"the median module has {median + 1} lines, allowed: {median}"
    assert problems(limits, tmp_path / "all", **rooms) == [said]


def test_the_exit_code_says_whether_a_limit_is_broken(
    limits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits.ROOT = tmp_path
    problems(limits, tmp_path, high="from suite.low import module\n")
    assert limits.main() == 0
    assert f"{limits.ROOMS} rooms, 1 floors, 0 arrows" in capsys.readouterr().out  # there is no room named low
    limits.MOST_FLOORS = 0
    assert limits.main() == 1
    assert capsys.readouterr().out.endswith("1 floors, allowed: 0\n")
