"""deploy/reframe/battery.py: what each end of `accept` is to ReFrame, whose names are made up here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from suite.paths import ROOT


class SanityError(Exception):
    """A check that failed."""


class SkippedError(Exception):
    """A check that was left out."""


class Check:
    """The base class of checks."""

    def skip_if(self, condition: bool, why: str) -> None:
        if condition:
            raise SkippedError(why)


def equal(measured: object, expected: object, msg: str) -> bool:
    if measured != expected:
        raise SanityError(msg)
    return True


@pytest.fixture
def battery(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the check."""

    def same(made: Any) -> Any:
        return made

    modules: dict[str, dict[str, Any]] = {
        "reframe": {"simple_test": same, "RunOnlyRegressionTest": Check},
        "reframe.core": {},
        "reframe.utility": {},
        "reframe.utility.sanity": {"assert_eq": equal},
        "reframe.core.builtins": {
            "run_before": lambda _stage: same,
            "sanity_function": same,
            "variable": lambda _kind, value: value,
        },
        "reframe.core.exceptions": {"SanityError": SanityError},
    }
    for name, names in modules.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    spec = importlib.util.spec_from_file_location("battery", ROOT / "deploy" / "reframe" / "battery.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.Battery


def test_each_exit_code_is_its_own(battery: Any, tmp_path: Path) -> None:
    """Only 1 and 4 with a verdict fail as the node's fault; bad usage fails as nobody's, and the rest is skipped."""
    wrong = []
    for code, has_verdict, end, words in (
        (0, True, "passes", ""),
        (1, True, "fails", "GPU 3"),
        (4, True, "fails", "GPU 3"),
        (3, True, "skipped", "not decided: GPU 3"),
        (3, False, "skipped", "not decided: error: lacks torch"),
        (2, False, "fails", "bad usage, the node is not judged: error: lacks torch"),
        (1, False, "fails", "no verdict, the node is not judged: error: lacks torch"),
        (127, False, "fails", "no verdict, the node is not judged"),
    ):
        check = battery()
        check.the_command()
        assert check.postrun_cmds == ['echo "suite: exit code $?"']
        verdict = json.dumps({"exit_code": code, "summary": "GPU 3"}) + "\n" if has_verdict else ""
        (tmp_path / "out").write_text(f"{verdict}suite: exit code {code}\n")
        (tmp_path / "err").write_text("quick: about 5 s\nerror: lacks torch\n")
        check.__dict__.update(vars(SimpleNamespace(stagedir=str(tmp_path), stdout="out", stderr="err")))
        found, said = "passes", ""
        try:
            check.accepted()
        except (SanityError, SkippedError) as error:
            found, said = ("fails" if isinstance(error, SanityError) else "skipped"), str(error)
        if (found, words in said) != (end, True):
            wrong.append((code, has_verdict, found, said))
    assert wrong == []
