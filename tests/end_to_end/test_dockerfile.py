"""The Dockerfile makes the image that deploy/kubernetes names; its words are checked here, and not its build."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest

from suite.paths import ROOT

FILE = ROOT / "deploy" / "Dockerfile"
TEXT = FILE.read_text(encoding="utf-8").replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_is_copied_exists_and_the_wheel_s_parts_are_all_copied() -> None:
    sources = [name for words in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.MULTILINE) for name in words.split()]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert {path.partition("/")[0] for path in build["targets"]["wheel"]["only-include"]} <= {*sources}
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"} <= {*sources}  # which the build reads


def test_extras_and_constraints_that_it_installs_exist() -> None:
    ((constraints, extras),) = re.findall(r'pip install .*--constraint (\S+) --editable "\.\[(.*)\]"', TEXT)
    assert (ROOT / constraints).exists()
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()
    assert "execute" in extras.split(",")


def test_its_name_and_places_are_those_of_the_manifests() -> None:
    (place,) = re.findall(r"^WORKDIR (.*)$", TEXT, re.MULTILINE)
    name = f"suite:{PROJECT['version']}"
    assert f"--tag {name} ." in TEXT
    for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml"):
        manifest = path.read_text(encoding="utf-8")
        assert set(re.findall(r"image: (\S+)", manifest)) <= {name}, path
        assert set(re.findall(r"SUITE_ROOT, value: ([^}]*)", manifest)) <= {place}, path
        assert set(re.findall(r"SUITE_PYTHON, value: ([^}]*)", manifest)) <= {f"{place}/.venv/bin/python"}, path
    assert "python -m venv .venv" in TEXT


def test_the_linter_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("NOT RUN: no hadolint on the PATH")
    done = subprocess.run(["hadolint", str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
