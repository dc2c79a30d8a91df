"""Commands that need no torch import none and start fast; the import contracts themselves run in their own session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest

from suite.paths import ROOT
from tests.support.starts import command_seconds

WITHOUT_TORCH = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "pandas", "numpy"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""
START_SECONDS = 0.3
WITH_FRAMES = ("validate", "formulas")  # whose tables are made by pandas


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["runs", "--json"],
        ["show", "bloom-176b"],
        ["show", "bloom-mini", "--json"],
        ["predict", "bloom-176b"],
        ["predict", "bloom-mini", "--json"],
        ["predict", "bloom-176b", "--choices", "--on", "h200"],
        ["show", "a100"],
        ["validate"],
        ["validate", "--help"],
        ["formulas"],
        ["reproduce"],
        ["reproduce", "--help"],
        ["accept", "--help"],
        ["ladder"],
        ["ladder", "--help"],
        ["accept", "--checks"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_command_runs_without_torch(arguments: list[str]) -> None:
    start = WITHOUT_TORCH.replace(', "pandas", "numpy"', "") if arguments[0] in WITH_FRAMES else WITHOUT_TORCH
    done = _python(f"{start}\nfrom suite.__main__ import main\nsys.exit(main({arguments!r}))")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_check_for_torch_can_fail() -> None:
    done = _python(f"{WITHOUT_TORCH}\nimport suite.execute.training.loop")
    assert done.returncode != 0
    assert "torch is not to be imported here" in done.stderr


ONE_BIT_ALONE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        ours = "suite.execute.parallel.one_bit"
        above = name == "suite" or ours.startswith(f"{name}.") or name == ours or name.startswith(f"{ours}.")
        if name.partition(".")[0] in ("triton", "reference_runs") or name.startswith("suite") and not above:
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""


def test_one_bit_adam_needs_torch_and_kernels_alone() -> None:
    done = _python(
        f"{ONE_BIT_ALONE}\nfrom suite.execute.parallel.one_bit import OneBitAdam; print(OneBitAdam.__name__)"
    )
    assert (done.returncode, done.stdout) == (0, "OneBitAdam\n"), done.stderr
    other = _python(f"{ONE_BIT_ALONE}\nimport suite.execute.parallel.mesh")
    assert "suite.execute.parallel.mesh is not to be imported here" in other.stderr


@pytest.mark.timing
def test_a_command_starts_within_the_stated_time() -> None:
    assert command_seconds("runs") <= START_SECONDS


@pytest.mark.timing
def test_a_command_that_does_more_takes_longer() -> None:
    assert command_seconds("validate", turns=3) > 2 * command_seconds("runs")


def test_the_contract_without_torch_names_every_room_but_execute() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {f"suite.{path.stem}" for path in (ROOT / "suite").iterdir() if not path.stem.startswith("__")}
    (without_torch,) = (contract for contract in contracts if contract["type"] == "forbidden")
    assert without_torch["forbidden_modules"] == ["torch", "triton", "suite.execute"]
    named = rooms - {"suite.execute"} | {"suite.__main__", "reference_runs"}
    assert set(without_torch["source_modules"]) == named


@pytest.mark.parametrize("columns", [80, 120])
def test_every_fact_is_shown_with_its_source(columns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "suite", "show", "bloom-176b"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": str(columns)},
    )
    facts = re.split(r"\n(?=architecture\.|recipe\.|layout\.)", done.stdout.partition("\nsources\n")[0])[1:]
    assert len(facts) > 40
    for fact in facts:
        assert re.search(
            r"(stated|derived|assumed),?\s+(source\s+)?(slurm|readme|paper|calculat|megatron|pytorch)", fact
        ), fact
