"""A node's environment is known without importing torch, and whatever the driver does."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.first_hour import environment
from suite.first_hour.environment import node_environment
from suite.machine.packages import Package


def test_missing_packages_and_compilers_are_told_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Package("no_such_module", "no-such-package", "regress")
    monkeypatch.setattr(environment, "PACKAGES", {"no_such_module": missing})
    monkeypatch.setattr(environment, "lacking", lambda modules: [missing for _ in modules])
    monkeypatch.setattr(environment, "compilation_missing", lambda device: f"no compiler for {device}")
    found = node_environment("cpu")
    assert found.lacking == [missing]
    assert found.installing.endswith("-m pip install no-such-package")
    assert found.compilation_missing == "no compiler for cpu"
    assert (found.devices, found.driver) == ((), {})


def test_a_driver_that_hangs_or_is_missing_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = -q ] && exec sleep 60\necho "asked $*"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(environment, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(environment, "cuda_device_list", lambda: ())
    found = node_environment("cuda").driver
    assert found["state"].startswith("no answer: ")
    assert "timed out" in found["state"]
    assert found["links"] == "asked nvlink -s\n"
