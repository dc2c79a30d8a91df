"""Commands that need no torch import none and start fast; the import contracts themselves run in their own session."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WITHOUT_TORCH = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "numpy"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""
START_SECONDS = 0.3


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
        ["reproduce"],
        ["reproduce", "--help"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_command_runs_without_torch(arguments: list[str]) -> None:
    done = _python(f"{WITHOUT_TORCH}\nfrom suite.__main__ import main\nsys.exit(main({arguments!r}))")
    assert done.returncode == 0, done.stderr
    assert "bloom" in done.stdout.lower() or "Usage" in done.stdout


def test_the_check_for_torch_can_fail() -> None:
    done = _python(f"{WITHOUT_TORCH}\nimport suite.execute.train")
    assert done.returncode != 0
    assert "torch is not to be imported here" in done.stderr


def test_a_command_starts_within_the_stated_time() -> None:
    # the least of several starts is what the program needs; the rest is what the machine was doing
    least = min(_seconds_of_start() for _ in range(7))
    assert least <= START_SECONDS


def _seconds_of_start() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "suite", "runs"], cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - start
