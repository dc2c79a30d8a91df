"""Packages and compilers that commands need, which this machine lacks, and how to get them; none is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_LAUNCHES = "reproduce, calibrate, accept, regress, ladder"
CHECK_SECONDS = 20.0  # of a compiler


class Package(NamedTuple):
    """A package by its module, its name for pip, and what needs it."""

    module: str
    name: str
    needed_by: str

    @property
    def is_installed(self) -> bool:
        """Whether its module can be found here."""
        return find_spec(self.module) is not None


PACKAGES = {
    package.module: package
    for package in (
        *(Package(name, name, "every command") for name in ("typer", "rich", "msgspec", "tabulate")),
        Package("torch", "torch", _LAUNCHES),
        Package("psutil", "psutil", _LAUNCHES),
        Package("tokenizers", "tokenizers", _LAUNCHES),
        Package("pynvml", "nvidia-ml-py", "accept and calibrate on GPUs"),
        Package("triton", "triton", "--kernels triton, kernel tests and benchmarks"),
        Package("pandas", "pandas", "results, report, validate, formulas, regress"),
        Package("numpy", "numpy", "regress, and the page of report"),
        Package("scipy", "scipy", "regress, fit, reproduce --launches, and the page of report"),
        Package("ruptures", "ruptures", "regress, and the page of report"),
        Package("plotly", "plotly", "the page of report"),
        Package("jinja2", "jinja2", "the page of report"),
        Package("matplotlib", "matplotlib", "pictures of ladder, fit and kernel benchmarks"),
        Package("tomli_w", "tomli-w", "fit --write"),
        Package("pyarrow", "pyarrow", "results export --format parquet"),
        Package("duckdb", "duckdb", "fleet report"),
        Package("pytest", "pytest", "kernel tests and benchmarks"),
        Package("hypothesis", "hypothesis", "tests"),
        Package("xdist", "pytest-xdist", "kernel tests, several at a time"),
        Package("pytest_benchmark", "pytest-benchmark", "kernel benchmarks"),
        Package("liger_kernel", "liger-kernel", "kernel benchmarks, to compare with"),
    )
}


def lacking(modules: Iterable[str]) -> list[Package]:
    """The packages that are not installed."""
    packages = (PACKAGES.get(module, Package(module, module, "this command")) for module in modules)
    return [package for package in packages if not package.is_installed]


def of_every_command() -> list[str]:
    """The modules of the packages without which no command runs."""
    return [package.module for package in PACKAGES.values() if package.needed_by == "every command"]


def installing(packages: Iterable[Package]) -> str:
    """The command that installs packages at versions that the project takes."""
    names = [package.name for package in packages]
    return " ".join(
        [sys.executable, "-m", "pip", "install", *(f'"{_requirements().get(name, name)}"' for name in names)]
    )


def described(packages: Iterable[Package]) -> str:
    """Packages, what needs each, and how to get them, in one line."""
    listed = [*packages]
    names = ", ".join(f"{package.name} ({package.needed_by})" for package in listed)
    return f"{names}: {installing(listed)}"


@cache
def _requirements() -> dict[str, str]:
    """Requirements of pyproject.toml by the package's name, without conditions."""
    project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"]]
    for group in project["dependency-groups"].values():
        wanted += group
    plain = [requirement.partition(";")[0].strip() for requirement in wanted]
    return {requirement.partition(">")[0].partition("=")[0].strip(): requirement for requirement in plain}


@cache
def compilation_missing(device: str) -> str:
    """The compiler or header that torch.compile lacks here for "cpu" or "cuda", in words; empty where it lacks none.

    On CUDA Triton compiles its launcher as C (triton/runtime/build.py), on a CPU Inductor its kernels as C++
    (torch/_inductor/cpp_builder.py). Both include Python.h. So a file that includes it is compiled, in 0.2 s.
    """
    language, variable = ("C", "CC") if device == "cuda" else ("C++", "CXX")
    names = ["gcc", "clang"] if device == "cuda" else ["g++"]
    asked = os.environ.get(variable)
    compiler = asked or next(filter(shutil.which, names), None)
    if compiler is None:
        return f"no {language} compiler ({' or '.join(names)} on the PATH, or {variable})"
    scheme = sysconfig.get_default_scheme()
    include = sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]
    command = [compiler, f"-I{include}", "-fsyntax-only", f"-x{language.lower()}", "-"]
    source = "#include <Python.h>\n"
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, text=True, timeout=CHECK_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the {language} compiler {compiler} does not run ({error})"
    if done.returncode == 0:
        return ""
    words = [line.strip() for line in done.stderr.splitlines() if "error:" in line] or ["no word"]
    if "Python.h" in words[0]:
        return f"no Python.h in {include} (Debian: python3-dev)"
    return f"the {language} compiler {compiler} fails: {words[0]}"
