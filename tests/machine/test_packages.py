"""A Python that lacks packages says so in a line: which, what needs them, and how to get them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from suite.__main__ import COMMANDS, main
from suite.machine import packages
from suite.machine.packages import PACKAGES, BrokenPackageError, compilation_missing, described, installing, lacking
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
    wanted = f"error: {sys.executable} lacks msgspec (every command): {sys.executable} -m pip install 'msgspec>="
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(wanted)
    assert done.stderr.count("\n") == 1
    everything = suite("runs", OF_EVERY_COMMAND, tmp_path).stderr
    assert all(f"{name} (every command)" in everything for name in OF_EVERY_COMMAND)


@pytest.mark.parametrize(
    ("arguments", "module", "hidden"),
    [("results list", "suite", "pandas"), ("--help", "benchmarks.kernels", "pytest_benchmark")],
)
def test_a_process_names_the_package_that_it_lacks(arguments: str, module: str, hidden: str, tmp_path: Path) -> None:
    done = suite(arguments, {hidden}, tmp_path, module)
    assert done.returncode == 2
    assert f"{sys.executable} lacks {PACKAGES[hidden].name} ({PACKAGES[hidden].needed_by})" in done.stderr
    assert f"{sys.executable} -m pip install " in done.stderr
    assert done.stderr.count("\n") == 1


# A command line -> the module without which it cannot do its work, and the extra that brings it
NEEDED = {
    "reproduce bloom-mini": ("torch", "execute"),
    "reproduce bloom-176b-slice": ("torch", "execute"),
    "reproduce bloom-mini --device cpu --kernels triton": ("triton", "kernels"),
    "reproduce bloom-mini --schedule passes.png": ("matplotlib", "fit"),
    "dry-run bloom-176b": ("torch", "execute"),
    "calibrate": ("torch", "execute"),
    "accept": ("torch", "execute"),
    "ladder gpt2-mini": ("torch", "execute"),
    "regress bloom-mini": ("torch", "execute"),
    "regress kernels": ("ruptures", "regress"),
    "fleet accept": ("torch", "execute"),
    "fleet report records": ("duckdb", "fleet"),
    "report": ("plotly", "report"),
    "explore": ("dash", "explore"),
    "explore --static page.html": ("jinja2", "report"),
    "refit": ("tomli_w", "fit"),
    "validate --plot plot.svg": ("matplotlib", "fit"),
    "plan bloom-176b --picture plan.png": ("matplotlib", "fit"),
    "results export --format parquet --out launches.parquet": ("pyarrow", "tables"),
}
# A command line that works without any extra -> its exit code in a directory without results
WITHOUT_EXTRAS = {
    "runs": 0,
    "show bloom-176b": 0,
    "import --help": 0,
    "predict bloom-176b": 0,
    "fit gpt2-124m --on h100-sxm --gpus 2": 0,
    "plan gpt2-124m --on h100-sxm --gpus 2": 0,
    f"validate {ROOT / 'reference_runs/published/megatron_sc21_table1.csv'}": 0,
    "diagnose --run gpt2-124m --on a100-sxm-80gb --layout dp8 --stack pytorch --step-time 0.56": 0,
    "formulas": 0,
    "ladder": 0,
    "schema predict": 0,
    "accept --checks": 0,
    "results list": 3,
    "report --no-page": 3,
    "first-hour --list --device cpu": 0,
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No module of an extra can be imported, no process started, and results are looked for in an empty directory."""
    for package in PACKAGES.values():
        if package.extra not in ("", "first-hour"):  # the latter runs this test
            monkeypatch.setitem(sys.modules, package.module, None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("suite.machine.devices.has_driver", lambda: False)
    monkeypatch.setattr("suite.reproduce.device_use.compilation_missing", lambda _device: "")  # asks a compiler

    def refuse(*_arguments: object, **_options: object) -> None:
        pytest.fail("a process is started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.mark.usefixtures("bare")
def test_every_command_that_needs_an_extra_says_in_one_line_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = {}
    for line, (module, extra) in NEEDED.items():
        with monkeypatch.context() as patch:
            if module != "torch":  # present, so that it is the other one that is missed
                patch.setitem(sys.modules, "torch", ModuleType("torch"))
                sys.modules["torch"].__spec__ = ModuleSpec("torch", None)
                patch.setattr(packages, "_try_import", lambda *_arguments: None)
            code = main(line.split())
        printed = capsys.readouterr()
        name = PACKAGES[module].name
        said = printed.err
        is_line = (code, printed.out, said.count("\n")) == (2, "", 1)
        if not (is_line and f" {name} (" in said and re.search(rf"[\[,]{extra}[\],]", said)):
            wrong[line] = (code, said)
    assert wrong == {}
    assert list(tmp_path.iterdir()) == []
    assert {line.split()[0] for line in (*NEEDED, *WITHOUT_EXTRAS)} == set(COMMANDS)


def test_every_other_command_works_without_any_extra(tmp_path: Path) -> None:
    hidden = {package.module for package in PACKAGES.values() if package.extra}
    code = (
        "import sys\nfrom suite.__main__ import main\n"
        "for line in sys.argv[1:]: print(f'<{main(line.split())}>', file=sys.stderr)\n"
    )
    results = {
        line: "--results" if line.split()[0] in ("results", "report", "first-hour") else "" for line in WITHOUT_EXTRAS
    }
    lines = [f"{line} {option} {tmp_path / 'none'}" if option else line for line, option in results.items()]
    done = subprocess.run(
        [sys.executable, "-c", code, *lines],
        cwd=ROOT,
        env=environment_without(hidden, tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    codes = [int(word) for word in re.findall(r"^<(.*)>$", done.stderr, re.MULTILINE)]
    assert dict(zip(WITHOUT_EXTRAS, codes, strict=False)) == WITHOUT_EXTRAS, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("line", "module"),
    [("accept", "torch"), ("reproduce bloom-mini", "torch"), ("results list", "pandas"), ("explore", "dash")],
)
def test_a_package_that_is_there_and_does_not_import_gives_its_own_error(
    line: str, module: str, tmp_path: Path
) -> None:
    package = tmp_path / module
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libgone.so: cannot open', name=__name__)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "suite", *line.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"error: {module} is installed, but does not import: ")
    assert "libgone.so: cannot open" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_import_that_worked_is_not_tried_again_until_the_package_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "tried_once.py"
    module.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    packages._try_import.__wrapped__("tried_once")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_arguments, **_options: pytest.fail("tried again"))
        packages._try_import.__wrapped__("tried_once")
        with pytest.raises(pytest.fail.Exception, match="tried again"):
            packages._try_import.__wrapped__("tried_once", anew=True)
    module.write_text("raise ImportError('now broken')\n")
    os.utime(module, (1, 1))
    with pytest.raises(BrokenPackageError, match="now broken"):
        packages._try_import.__wrapped__("tried_once")


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
    assert lacking(["pytest", "no_such_module", "sys"]) == [("no_such_module", "no_such_module", "this command", "")]
    assert installing([PACKAGES["pytest"]]) == f"{sys.executable} -m pip install -e '{ROOT}[first-hour]'"
    assert described([PACKAGES["liger_kernel"]]) == (
        f"liger-kernel (kernel benchmarks, to compare with): {sys.executable} -m pip install 'liger-kernel>=0.5'"
    )


def test_every_extra_has_what_its_packages_say_and_every_package_of_an_extra_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        extra: {re.split(r"[<>=;\[]", one)[0] for one in listed if not one.startswith(project["name"])}
        for extra, listed in project["optional-dependencies"].items()
    }
    named = {package.name: package.extra for package in PACKAGES.values() if package.extra}
    assert named == {name: extra for extra, names in extras.items() for name in names}


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that alone is on the PATH; every question is asked anew."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    packages._why_not_compiling.cache_clear()
    yield tmp_path
    packages._why_not_compiling.cache_clear()


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
        packages._why_not_compiling.cache_clear()
        assert compilation_missing(device) == ""
        path.unlink()


def test_a_compiler_that_fails_is_quoted(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiler(compilers / "cc", "echo 'cc: fatal error: cannot execute cc1' >&2; exit 1")
    for device, variable in (("cuda", "CC"), ("cpu", "CXX")):
        monkeypatch.setenv(variable, str(path))
        assert compilation_missing(device).endswith(f"{path} fails: cc: fatal error: cannot execute cc1")
        monkeypatch.setenv(variable, str(compilers / "nowhere"))
        packages._why_not_compiling.cache_clear()
        assert "does not run" in compilation_missing(device)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_missing_headers_of_python_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
    packages._why_not_compiling.cache_clear()
    assert compilation_missing("cuda") == f"no Python.h in {tmp_path} (Debian: python3-dev)"
    packages._why_not_compiling.cache_clear()
