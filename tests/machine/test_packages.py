"""A Python that lacks packages says so in a line: which, what needs them, and how to get them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.machine.packages import PACKAGES, described, installing, lacking
from suite.paths import ROOT
from tests.support.hidden_modules import environment_without

OF_EVERY_COMMAND = {"typer", "rich", "msgspec", "tabulate"}
NEEDED_BY_LAUNCHES = {"torch", "psutil", "tokenizers", "numpy"}  # with numpy, which torch imports where it is


def suite(arguments: str, hidden: set[str], directory: Path, module: str = "suite") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments.split()]
    environment = environment_without(hidden, directory)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("hidden", sorted(OF_EVERY_COMMAND))
def test_a_package_of_every_command_is_named_with_its_version(hidden: str, tmp_path: Path) -> None:
    done = suite("runs", {hidden}, tmp_path)
    wanted = f'error: {sys.executable} lacks {hidden} (every command): {sys.executable} -m pip install "{hidden}>='
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(wanted)
    assert done.stderr.count("\n") == 1


def test_all_that_every_command_needs_is_named_at_once(tmp_path: Path) -> None:
    done = suite("runs", OF_EVERY_COMMAND, tmp_path)
    assert all(f"{name} (every command)" in done.stderr for name in OF_EVERY_COMMAND)


@pytest.mark.parametrize(
    ("arguments", "module", "hidden"),
    [
        ("regress gpt2-mini", "suite", "ruptures"),
        ("results list", "suite", "pandas"),
        ("--help", "benchmarks.kernels", "pytest_benchmark"),
    ],
)
def test_a_command_names_the_package_that_it_lacks_before_it_launches_anything(
    arguments: str, module: str, hidden: str, tmp_path: Path
) -> None:
    done = suite(arguments, {hidden}, tmp_path, module)
    assert done.returncode == 2
    assert f"{sys.executable} lacks {PACKAGES[hidden].name} ({PACKAGES[hidden].needed_by})" in done.stderr
    assert f'-m pip install "{PACKAGES[hidden].name}>=' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["runs", "show bloom-176b", "predict bloom-176b", "ladder", "accept --checks"])
def test_bare_commands_need_four_packages(arguments: str, tmp_path: Path) -> None:
    done = suite(arguments, set(PACKAGES) - OF_EVERY_COMMAND | {"platformdirs"}, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.ranks
def test_a_launch_needs_no_more_than_is_said(tmp_path: Path) -> None:
    hidden = set(PACKAGES) - OF_EVERY_COMMAND - NEEDED_BY_LAUNCHES | {"platformdirs"}
    arguments = f"reproduce gpt2-mini --device cpu --ranks 2 --steps 6 --no-calibrate --results {tmp_path / 'results'}"
    done = suite(arguments, hidden, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "gpt2-mini: pass" in done.stdout


def test_what_is_installed_is_not_lacking() -> None:
    assert lacking(["pytest", "no_such_module", "sys"]) == [("no_such_module", "no_such_module", "this command")]


def test_versions_are_those_that_the_project_takes() -> None:
    assert installing([PACKAGES["pytest"]]) == f'{sys.executable} -m pip install "pytest>=8"'
    assert described([PACKAGES["liger_kernel"]]) == (
        f'liger-kernel (kernel benchmarks, to compare with): {sys.executable} -m pip install "liger-kernel>=0.5"'
    )
