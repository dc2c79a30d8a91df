"""What torch.compile lacks here is found before a launch, by compiling what Triton and Inductor would."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.machine.compilers import compilation_missing


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    compilation_missing.cache_clear()
    yield
    compilation_missing.cache_clear()


def compiler(directory: Path, name: str, script: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda", "no C compiler (gcc or clang on the PATH, or CC)"), ("cpu", "no C++ compiler (g++ on the PATH, or CXX)")],
)
def test_a_missing_compiler_is_named(device: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert compilation_missing(device) == words


@pytest.mark.parametrize(("name", "device"), [("clang", "cuda"), ("gcc", "cuda"), ("g++", "cpu")])
def test_a_compiler_on_the_path_that_compiles_is_enough(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert compilation_missing(device) == ""


@pytest.mark.parametrize(("device", "variable"), [("cuda", "CC"), ("cpu", "CXX")])
def test_a_compiler_that_fails_is_quoted(
    device: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiler(tmp_path, "cc", "echo 'cc: fatal error: cannot execute cc1' >&2; exit 1")
    monkeypatch.setenv(variable, str(path))
    assert compilation_missing(device).endswith(f"{path} fails: cc: fatal error: cannot execute cc1")
    monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    compilation_missing.cache_clear()
    assert "does not run" in compilation_missing(device)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_missing_headers_of_python_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
    assert compilation_missing("cuda") == f"no Python.h in {tmp_path} (Debian: python3-dev)"
