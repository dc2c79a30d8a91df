"""Environments say what they are, what they lack is one line, and everything that differs between two is named."""

from __future__ import annotations

import os
import sys
import time
import tomllib

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.execute import environment as probe
from suite.machine import environments
from suite.machine.environments import Environment, differences, environment_of
from suite.machine.interpreter import Interpreter
from suite.paths import ROOT

TORCH = {"version": "2.13.0", "commit": "c" * 40, "CUDA": "", "HIP": ""}
ANSWER = Environment(
    executable="/usr/bin/python",
    prefix="/opt/old",
    python="3.12.1",
    build="3.12.1 (main) [GCC 12]",
    packages={"torch": "2.13.0", "numpy": "2.3", "sympy": "1.13"},
    torch=TORCH,
)


@pytest.fixture
def python(tmp_path):
    """A function that makes an executable: a Python that answers so, or a script of these lines."""

    def made(answer=None, script=""):
        path = tmp_path / "python"
        if answer is not None:
            (tmp_path / "answer.json").write_bytes(msgspec.json.encode(answer))
            script = f'cp {tmp_path}/answer.json "$2"'
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return made


def refusal(executable):
    with pytest.raises(InputError) as refused:
        environment_of(executable, where="--python")
    return str(refused.value)


def test_what_is_no_python_of_an_environment_that_runs_ranks_is_one_line(python, tmp_path):
    allowed = "allowed: the Python of another environment, as in OLD/bin/python"
    assert refusal("/no/where") == f"--python: no such file; got '/no/where', {allowed}"
    assert refusal(str(tmp_path)).startswith("--python: a directory; got")
    (tmp_path / "text").write_text("")
    assert refusal(str(tmp_path / "text")).startswith("--python: not executable; got")
    silent = python(script="true")
    assert refusal(silent) == f"--python: no Python: it says nothing; got '{silent}', {allowed}"
    assert "no Python: version 3.12 is not installed; got" in refusal(
        python(script="echo version 3.12 is not installed >&2; echo more >&2; exit 127")
    )
    traceback = python(script="echo 'Traceback (most recent call last):' >&2; echo 'SyntaxError: no' >&2; exit 1")
    assert "no Python: SyntaxError: no; got" in refusal(traceback)
    old = python(msgspec.structs.replace(ANSWER, python="3.9.18"))
    assert refusal(old) == f"--python: Python 3.9.18; got '{old}', allowed: 3.11 or newer"
    bare = python(msgspec.structs.replace(ANSWER, lacking=["torch", "msgspec"]))
    words = f"--python: {bare} lacks torch, msgspec, which ranks import: {bare} -m pip install torch msgspec"
    assert refusal(bare) == words
    broken = python(msgspec.structs.replace(ANSWER, failed="ImportError: libcudart.so.13"))
    assert refusal(broken) == f"--python: {broken} does not run this suite's ranks: ImportError: libcudart.so.13"


def test_a_python_that_hangs_is_ended_with_its_children(python, monkeypatch):
    monkeypatch.setattr(environments, "ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    assert "timed out after 0.3 seconds" in refusal(python(script="sleep 100; true"))
    assert time.monotonic() - began < 30


def test_the_oldest_python_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={environments.OLDEST}"
    assert ".".join(map(str, probe.OLDEST)) == environments.OLDEST


def test_a_link_to_a_python_stays_one_because_its_place_is_its_environment(python, tmp_path):
    real = python(ANSWER)
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "python"
    link.symlink_to(real)
    assert environment_of(str(link), where="--python").executable == str(link)


def test_this_shells_own_paths_reach_this_environment_alone(python, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("PYTHONHOME", "/home")
    script = f'cp {tmp_path}/answer.json "$2"; echo "$PYTHONPATH $PYTHONHOME $PYTHONSAFEPATH" > {tmp_path}/seen'
    path = python(ANSWER)
    (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    environment_of(path, where="--python")
    assert (tmp_path / "seen").read_text() == f"{ROOT}  1\n"
    environment_of(path, where="--python", foreign=False)
    assert (tmp_path / "seen").read_text() == f"{ROOT}{os.pathsep}/mine /home 1\n"
    inherited = Interpreter(executable="x", withheld=("PYTHONPATH",), variables={"A": "1"}).environment()
    assert ("PYTHONPATH" in inherited, inherited["PYTHONHOME"], inherited["A"]) == (False, "/home", "1")


def test_each_environment_compiles_into_caches_of_its_own(tmp_path):
    old, new = (ANSWER.interpreter(tmp_path / name, foreign=name == "old") for name in ("old", "new"))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        assert old.variables[name].startswith(f"{tmp_path}/old/")
        assert new.variables[name].startswith(f"{tmp_path}/new/")
    assert (old.withheld != (), new.withheld) == (True, ())


def test_records_name_python_and_every_package_that_computes():
    packages = {"torch": "2.13.0", "triton": "3.7", "nvidia-nccl-cu13": "2.28", "megatron-core": "0.15", "rich": "15"}
    facts = msgspec.structs.replace(ANSWER, packages=packages, identity="old 12345678").software
    assert facts == {
        "python": "3.12.1",
        "torch": "2.13.0",
        "torch commit": "c" * 40,
        "triton": "3.7",
        "nvidia-nccl-cu13": "2.28",
        "megatron-core": "0.15",
        "environment": "old 12345678",
    }
    assert ANSWER.software["triton"] == "not installed"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        ({"python": "3.13.0", "build": "other"}, ["python 3.12.1 -> 3.13.0"]),
        ({"build": "3.12.1 [Clang]"}, ["python 3.12.1, built otherwise: 3.12.1 (main) [GCC 12] -> 3.12.1 [Clang]"]),
        (
            {"packages": {"torch": "2.14.0", "sympy": "1.14", "rich": "15"}, "torch": TORCH | {"version": "2.14.0"}},
            ["torch 2.13.0 -> 2.14.0", "sympy 1.13 -> 1.14", "numpy 2.3 -> not installed", "rich not installed -> 15"],
        ),
        ({"torch": TORCH | {"commit": "d"}}, [f"torch commit {'c' * 40} -> d"]),
        ({"torch": TORCH | {"CUDA": "13.0"}}, ["torch CUDA unknown -> 13.0"]),
        (
            {"startup": {"sitecustomize.py": "1"}, "prefix": "/opt/new"},
            ["sitecustomize.py, which runs whenever Python starts: only in /opt/new"],
        ),
    ],
)
def test_every_difference_is_a_line_and_what_computes_comes_first(changes, lines):
    assert differences(ANSWER, msgspec.structs.replace(ANSWER, **changes)) == lines


def test_a_build_that_is_on_the_path_alone_and_other_startup_code_are_named():
    old = msgspec.structs.replace(ANSWER, packages={}, startup={"a.pth": "1"})
    new = msgspec.structs.replace(old, torch=TORCH | {"version": "2.14.0a0"}, startup={"a.pth": "2"})
    assert differences(old, new) == ["torch 2.13.0 -> 2.14.0a0", "a.pth, which runs whenever Python starts: other code"]


def test_an_edited_file_of_an_equal_version_is_named_and_makes_another_environment(python, tmp_path):
    for side in ("old", "new"):
        for name in ("__init__.py", "nn.py", "lib/kernel.so", "__pycache__/nn.pyc"):
            path = tmp_path / side / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("text")
    sides = [
        msgspec.structs.replace(ANSWER, modules={"torch": str(tmp_path / side / "torch")}) for side in ("old", "new")
    ]
    assert differences(*sides) == []
    before = environment_of(python(sides[1]), where="--python").identity
    (tmp_path / "new" / "torch" / "__pycache__" / "nn.pyc").write_text("other code")
    assert environment_of(python(sides[1]), where="--python").identity == before
    (tmp_path / "new" / "torch" / "nn.py").write_text("TEXT")
    assert differences(*sides) == ["torch 2.13.0: files differ: nn.py"]
    assert environment_of(python(sides[1]), where="--python").identity != before
    for number in range(3):
        (tmp_path / "new" / "torch" / f"a{number}.py").touch()
    assert differences(*sides) == ["torch 2.13.0: files differ: a0.py, a1.py, a2.py and 1 more"]
    (tmp_path / "old" / "torch" / "nothing").symlink_to("/no/where")
    assert differences(sides[0], sides[0]) == []


def test_the_probe_describes_the_python_that_runs_it(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "sitecustomize").mkdir(parents=True)
    (site / "path.pth").write_text("/opt/more\n")
    (site / "code.pth").write_text("import os\n")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site)])
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    monkeypatch.setattr(probe, "NEEDED", ("msgspec", "no_such_module"))
    answer = tmp_path / "answer.json"
    probe.main(str(answer))
    found = msgspec.json.decode(answer.read_bytes(), type=Environment)
    assert (found.python, found.prefix) == (sys.version.split()[0], sys.prefix)
    assert found.lacking == ["no_such_module"]
    assert found.packages["msgspec"] == msgspec.__version__
    assert {"code.pth"} == {name for name in found.startup if name.endswith(".pth")}
