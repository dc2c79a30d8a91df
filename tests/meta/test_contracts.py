"""Commands that need no torch import none and start fast; the import contracts themselves run in their own session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from suite.paths import ROOT
from tests.support.configurations import PUBLISHED, written

WITHOUT_TORCH = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "transformers", "peft", "pandas", "numpy"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""
COMMANDS = (
    "runs",
    "runs --json",
    "show bloom-176b",
    "show bloom-mini --json",
    "show a100",
    "predict bloom-176b",
    "predict bloom-mini --json",
    "predict bloom-176b --choices --on h200",
    "diagnose --run gpt2-124m --on a100-sxm-80gb --batch 480 --layout dp8,micro12 --stack pytorch --step-time 0.56",
    "validate --help",
    "formulas",
    "schema predict",
    "reproduce",
    "reproduce --help",
    "accept --help",
    "accept --checks",
    "ladder",
    "ladder --help",
    "--help",
)
WITH_FRAMES = (  # whose tables are made by pandas, and whose layouts are searched by NumPy
    "validate",
    "predict CONFIGURATION",
    "fit CONFIGURATION --on h100 --gpus 8",
)
MOST_MODULES = {"runs": 350, "predict bloom-176b": 500}  # 307 and 440 on 2026-11-28


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(("commands", "allowed"), [(COMMANDS, ""), (WITH_FRAMES, ', "pandas", "numpy"')])
def test_commands_run_without_torch(commands: tuple[str, ...], allowed: str, tmp_path: Path) -> None:
    configuration = written(tmp_path / "config.json", PUBLISHED["llama3.1-8b"][0])
    commands = tuple(command.replace("CONFIGURATION", str(configuration)) for command in commands)
    code = f"{WITHOUT_TORCH.replace(allowed, '')}\nfrom suite.__main__ import main\n"
    done = _python(f"{code}for command in {commands}: assert main(command.split()) == 0, command")
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


def test_commands_start_with_few_modules() -> None:
    """A count that no slow processor changes; `nox -s times` measures the seconds."""
    for command, most in MOST_MODULES.items():
        done = _python(f"import sys; from suite.__main__ import main; main({command.split()}); print(len(sys.modules))")
        assert int(done.stdout.split()[-1]) <= most, command


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
