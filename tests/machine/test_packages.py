"""A Python that lacks packages says so in a line: which, what needs them, and how to get them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.machine.packages import PACKAGES, compilation_missing, described, installing, lacking
from suite.paths import ROOT
from tests.support.hidden_modules import environment_without

OF_EVERY_COMMAND = {"typer", "rich", "msgspec", "tabulate"}
NEEDED_BY_LAUNCHES = {"torch", "psutil", "tokenizers", "numpy"}  # with numpy, which torch imports where it is


def suite(arguments: str, hidden: set[str], directory: Path, module: str = "suite") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments.split()]
    environment = environment_without(hidden, directory)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)


def test_what_every_command_needs_is_named_with_its_version_in_a_line(tmp_path: Path) -> None:
    done = suite("runs", {"msgspec"}, tmp_path)
    wanted = f'error: {sys.executable} lacks msgspec (every command): {sys.executable} -m pip install "msgspec>='
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(wanted)
    assert done.stderr.count("\n") == 1
    everything = suite("runs", OF_EVERY_COMMAND, tmp_path).stderr
    assert all(f"{name} (every command)" in everything for name in OF_EVERY_COMMAND)


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


@pytest.mark.parametrize("arguments", ["predict bloom-176b", "ladder", "accept --checks"])
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


def test_what_is_lacking_is_named_with_the_versions_that_the_project_takes() -> None:
    assert lacking(["pytest", "no_such_module", "sys"]) == [("no_such_module", "no_such_module", "this command")]
    assert installing([PACKAGES["pytest"]]) == f'{sys.executable} -m pip install "pytest>=8"'
    assert described([PACKAGES["liger_kernel"]]) == (
        f'liger-kernel (kernel benchmarks, to compare with): {sys.executable} -m pip install "liger-kernel>=0.5"'
    )


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that alone is on the PATH; every question is asked anew."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    compilation_missing.cache_clear()
    yield tmp_path
    compilation_missing.cache_clear()


def compiler(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_compiler_on_the_path_that_compiles_is_enough_and_a_missing_one_is_named(compilers: Path) -> None:
    missing = {
        "cuda": "no C compiler (gcc or clang on the PATH, or CC)",
        "cpu": "no C++ compiler (g++ on the PATH, or CXX)",
    }
    assert {device: compilation_missing(device) for device in missing} == missing
    for name, device in (("clang", "cuda"), ("gcc", "cuda"), ("g++", "cpu")):
        path = compiler(compilers / name, "exit 0")
        compilation_missing.cache_clear()
        assert compilation_missing(device) == ""
        path.unlink()


def test_a_compiler_that_fails_is_quoted(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiler(compilers / "cc", "echo 'cc: fatal error: cannot execute cc1' >&2; exit 1")
    for device, variable in (("cuda", "CC"), ("cpu", "CXX")):
        monkeypatch.setenv(variable, str(path))
        assert compilation_missing(device).endswith(f"{path} fails: cc: fatal error: cannot execute cc1")
        monkeypatch.setenv(variable, str(compilers / "nowhere"))
        compilation_missing.cache_clear()
        assert "does not run" in compilation_missing(device)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_missing_headers_of_python_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
    compilation_missing.cache_clear()
    assert compilation_missing("cuda") == f"no Python.h in {tmp_path} (Debian: python3-dev)"
    compilation_missing.cache_clear()
