"""Commands that sessions of the noxfile run, without nox, which the tests' environment does not have."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from suite.paths import ROOT


class Session:
    """Notes what it is asked to run, and answers with a number of GPUs."""

    def __init__(self, place: Path, answer: str, *posargs: str) -> None:
        self.posargs, self.env, self.ran = list(posargs), dict[str, str](), list[tuple[str, ...]]()
        self.virtualenv = SimpleNamespace(location=str(place))
        self._answer = answer

    def install(self, *packages: str) -> None:
        """Nothing."""

    def run(self, *command: str, silent: bool = False, **_options: Any) -> str | None:
        if not silent:
            self.ran.append(command)
        return self._answer if silent else None


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    nox, command = ModuleType("nox"), ModuleType("nox.command")
    nox.__dict__.update(
        session=lambda function=None, **_options: function or (lambda named: named),
        options=SimpleNamespace(),
        project=SimpleNamespace(load_toml=lambda name: tomllib.loads((ROOT / name).read_text(encoding="utf-8"))),
    )
    command.__dict__["CommandFailed"] = RuntimeError
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.setitem(sys.modules, "nox.command", command)
    monkeypatch.chdir(ROOT)
    return runpy.run_path("noxfile.py")


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ("0\n", ["cpu 2", "cpu 1"]),
        ("UserWarning: an old driver (found version 9)\n1\n", ["cpu 2", "cpu 1", "cuda 1"]),
        ("8\n", ["cpu 2", "cpu 1", "cuda 1"]),
    ],
)
def test_the_accuracy_table_is_made_behind_a_calibration_on_the_processor_and_on_one_gpu_where_there_is_one(
    answer: str, places: list[str], noxfile: dict[str, Any], tmp_path: Path
) -> None:
    session = Session(tmp_path, answer, "gpt2-mini")
    noxfile["accuracy"](session)
    first, *runs, last = [" ".join(command[3:]) for command in session.ran]
    devices = [place.split() for place in places]
    assert first == "calibrate --device cpu --ranks 2"
    assert runs == [
        f"reproduce gpt2-mini --device {device} --ranks {ranks} {execution} --launches 3"
        for device, ranks in devices
        for execution in ("--no-compile", "--compile")
    ]
    assert last == "report"


def test_sessions_read_the_extras_and_what_an_extra_names_is_resolved(noxfile: dict[str, Any]) -> None:
    wanted = noxfile["requirements"]("explore", "test")
    names = [re.split(r"[<>=;\[]", requirement)[0] for requirement in wanted]
    assert {"typer", "dash", "plotly", "ruptures", "pytest", "hatchling"} <= {*names}
    assert not [requirement for requirement in wanted if requirement.startswith("llm-reference-runs")]
    assert len({*names}) == len(names)
    project = noxfile["PROJECT"]
    listed = [*project["dependency-groups"], *project["project"]["optional-dependencies"]]
    assert len({*listed}) == len(listed)


def test_the_projects_own_results_are_measured_anew_where_they_lie_and_nothing_else_of_theirs_goes(
    noxfile: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constraints.txt").touch()
    for name in ("records/bloom-mini/old", "records/gpt2-mini-ladder/kept", "acceptance/old", "convergence/kept"):
        path = tmp_path / "results" / "recorded" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    session = Session(tmp_path, "0\n", "setups", "battery", "tables")
    noxfile["record"](session)
    published = ("python", "-m", "suite.records.private_paths", "results/recorded")
    measuring = [command for command in session.ran if command != published]
    assert all("--results results/recorded" in " ".join(command) for command in measuring)
    assert [command[3] for command in measuring[-2:]] == ["accept", "report"]
    assert [session.ran.index(command) + 1 for command in measuring[-3:]] == [
        number for number, command in enumerate(session.ran) if command == published
    ]
    assert [path.name for path in (tmp_path / "results").rglob("*") if path.is_file()] == ["kept", "kept"]


def test_one_part_of_the_projects_own_results_is_measured_alone(
    noxfile: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constraints.txt").touch()
    for name in ("records/bloom-mini", "records/gpt2-mini-ladder", "ladder", "machines"):
        (tmp_path / "results" / "recorded" / name).mkdir(parents=True)
    session = Session(tmp_path, "0\n", "ladder")
    noxfile["record"](session)
    assert [command[2] for command in session.ran] == ["suite", "suite.records.private_paths"]
    assert sorted(path.name for path in (tmp_path / "results" / "recorded").rglob("*")) == [
        "bloom-mini",
        "machines",
        "records",
    ]


def test_the_tests_over_simulated_gpus_take_pytorch_s_cuda_build_and_see_eight_devices(
    noxfile: dict[str, Any], tmp_path: Path
) -> None:
    session = Session(tmp_path, "", "-m", "not long")
    installed: list[tuple[str, ...]] = []
    session.install = lambda *packages: installed.append(packages)  # type: ignore[method-assign]
    noxfile["simulated_gpu"](session)
    assert any(f"torch==={noxfile['locked']('torch')}" in packages for packages in installed)
    assert not any(name.startswith("torch") for name in installed[0])  # a build for CPUs, and NVIDIA's libraries
    built, tested = session.ran
    assert built[-1].endswith("build.py")
    assert tested[tested.index("--devices") + 1] == "8"
    assert tested[-2:] == ("-m", "not long")


def test_the_tests_over_simulated_gpus_are_not_run_where_a_package_cannot_be_had(
    noxfile: dict[str, Any], tmp_path: Path
) -> None:
    session = Session(tmp_path, "")
    reasons: list[str] = []

    def refuse(*packages: str) -> None:
        if any(name.startswith("torch===") for name in packages):
            raise RuntimeError

    def skip(reason: str) -> None:
        reasons.append(reason)
        raise StopIteration

    session.install = refuse  # type: ignore[method-assign]
    session.skip = skip  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        noxfile["simulated_gpu"](session)
    assert reasons[0].startswith("NOT RUN: PyTorch")
    assert session.ran == []
