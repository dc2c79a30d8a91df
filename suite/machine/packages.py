"""Packages and compilers that commands need, which this machine lacks, and how to get them; none is imported."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shlex
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

from reference_runs.errors import InputError
from suite.paths import DISTRIBUTION, INSTALLED, ROOT, cache_directory

OWN = ("suite", "reference_runs", "kernels", "refruns")
_LAUNCHES = "reproduce, calibrate, accept, regress, ladder, dry-run"
LAUNCHES = ("torch", "psutil", "tokenizers")  # modules that ranks import, or what prepares a launch
CHECK_SECONDS = 20.0  # of a compiler
IMPORT_SECONDS = 120.0  # of PyTorch from a disk that others use


class Package(NamedTuple):
    """A package by its module, its name for pip, what needs it, and the extra of this project that brings it."""

    module: str
    name: str
    needed_by: str
    extra: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether its module can be found here."""
        return find_spec(self.module) is not None


PACKAGES = {
    package.module: package
    for package in (
        *(Package(name, name, "every command") for name in ("typer", "rich", "msgspec", "tabulate")),
        Package("torch", "torch", _LAUNCHES, "execute"),
        Package("psutil", "psutil", _LAUNCHES),
        Package("transformers", "transformers", "models that are traced", "models"),
        Package("bitsandbytes", "bitsandbytes", "--qlora, --optimizer adamw-8bit", "models"),
        Package("peft", "peft", "--lora, --qlora", "models"),
        Package("tokenizers", "tokenizers", _LAUNCHES),
        Package("pynvml", "nvidia-ml-py", "accept and calibrate on GPUs", "execute"),
        Package(
            "triton",
            "triton",
            "--kernels triton, --optimizations one-pass-update, kernel tests and benchmarks",
            "kernels",
        ),
        Package("cudnn", "nvidia-cudnn-frontend", "--optimizations packed-gradients"),
        Package("flash_attn_interface", "flash-attn-3", "--optimizations flash-attention-3"),
        Package("pandas", "pandas", "results, report, validate, regress"),
        Package("numpy", "numpy", "regress, and the page of report"),
        Package("scipy", "scipy", "regress, fit, reproduce --launches, and the page of report"),
        Package("yaml", "pyyaml", "fit DIRECTORY, of files in YAML"),
        Package("ruptures", "ruptures", "regress, and the page of report", "regress"),
        Package("plotly", "plotly", "the page of report, and explore", "report"),
        Package("jinja2", "jinja2", "the page of report, and explore", "report"),
        Package("dash", "dash", "explore", "explore"),
        Package("mkdocs", "mkdocs", "the site of the documentation", "docs"),
        Package("material", "mkdocs-material", "the site of the documentation", "docs"),
        Package("matplotlib", "matplotlib", "pictures", "fit"),
        Package("tomli_w", "tomli-w", "refit", "fit"),
        Package("pyarrow", "pyarrow", "results export --format parquet", "tables"),
        Package("duckdb", "duckdb", "fleet report", "fleet"),
        Package("pytest", "pytest", "kernel tests and benchmarks", "first-hour"),
        Package("hypothesis", "hypothesis", "tests", "first-hour"),
        Package("xdist", "pytest-xdist", "kernel tests, several at a time", "first-hour"),
        Package("pytest_benchmark", "pytest-benchmark", "kernel benchmarks", "first-hour"),
        Package("liger_kernel", "liger-kernel", "kernel benchmarks, to compare with"),
    )
}


class BrokenPackageError(Exception):
    """A package is installed and does not import."""


def require(*modules: str, anew: bool = False) -> None:
    """Check that packages are installed, before anything is launched or written; none is imported here.

    Those of ranks are also imported once, in another process: ranks that cannot import one would crash their launch.

    Args:
        anew: import even what imported before: a verdict about hardware must not rest on it.

    Raises:
        InputError: one is not installed.
        BrokenPackageError: one of a rank's is installed and does not import.
    """
    if missing := lacking(modules):
        raise InputError(lacking_line(missing))
    for module in (name for name in modules if name in LAUNCHES):
        _try_import(module, anew)


def lacking_line(packages: Iterable[Package]) -> str:
    """Which packages this Python lacks, and how to get them."""
    return f"{sys.executable} lacks {described(packages)}"


def lacking(modules: Iterable[str]) -> list[Package]:
    """The packages that are not installed."""
    packages = (PACKAGES.get(module, Package(module, module, "this command")) for module in modules)
    return [package for package in packages if not package.is_installed]


def of_every_command() -> list[str]:
    """The modules of the packages without which no command runs."""
    return [package.module for package in PACKAGES.values() if package.needed_by == "every command"]


def installing(packages: Iterable[Package]) -> str:
    """The command that installs packages: by this project's extras, or else at versions that the project takes."""
    listed = [*packages]
    extras = ",".join(dict.fromkeys(package.extra for package in listed if package.extra))
    words = [sys.executable, "-m", "pip", "install"]
    if extras:
        words += [f"{DISTRIBUTION}[{extras}]"] if INSTALLED else ["-e", f"{ROOT}[{extras}]"]
    words += [_requirements().get(package.name, package.name) for package in listed if not package.extra]
    return shlex.join(words)


def described(packages: Iterable[Package]) -> str:
    """Packages, what needs each, and how to get them, in one line."""
    listed = [*packages]
    names = ", ".join(f"{package.name} ({package.needed_by})" for package in listed)
    return f"{names}: {installing(listed)}"


def broken(error: ImportError) -> str:
    """Error of a package that is installed and does not import; empty for a module that is not there, or is ours."""
    name = (error.name or "").partition(".")[0]
    if name in OWN or (isinstance(error, ModuleNotFoundError) and lacking([name])):
        return ""
    return f"{name or 'a package'} is installed, but does not import: {error}"


@cache
def _try_import(module: str, anew: bool = False) -> None:
    """Import a module in another process, once for each installation: a file in the cache remembers that it worked.

    Args:
        anew: whether the file does not count.

    Raises:
        BrokenPackageError: it does not import.
    """
    origin = Path(getattr(find_spec(module), "origin", None) or module)
    remembered: Path | None = None
    installation = f"{sys.executable} {origin} {origin.stat().st_mtime_ns if origin.exists() else 0}"
    with contextlib.suppress(InputError):  # without a cache it is tried every time
        remembered = cache_directory() / f"imports-{hashlib.sha256(installation.encode()).hexdigest()[:16]}"
        if remembered.exists() and not anew:
            return
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BrokenPackageError(f"{module} is installed, but its import took over {IMPORT_SECONDS:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BrokenPackageError(f"{module} is installed, but does not import: {said}")
    if remembered is not None:
        with contextlib.suppress(OSError):
            remembered.write_text(f"{installation}\n", encoding="utf-8")


@cache
def _requirements() -> dict[str, str]:
    """Requirements of this project by the package's name, without conditions."""
    if INSTALLED:
        from importlib import metadata  # 20 ms, and not needed where nothing is missing

        wanted = metadata.requires(DISTRIBUTION) or []
    else:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        lists = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
        wanted = [*project["project"]["dependencies"], *itertools.chain(*lists)]
    plain = [requirement.partition(";")[0].strip() for requirement in wanted]
    return {re.split(r"[\s<>=!~\[]", requirement, maxsplit=1)[0]: requirement for requirement in plain}


def compilation_missing(device: str) -> str:
    """The compiler or header that torch.compile lacks here for "cpu" or "cuda", in words; empty where it lacks none.

    On CUDA Triton compiles its launcher as C (triton/runtime/build.py), on a CPU Inductor its kernels as C++
    (torch/_inductor/cpp_builder.py). Both include Python.h. So a file that includes it is compiled, in 0.2 s.
    """
    language, variable = ("C", "CC") if device == "cuda" else ("C++", "CXX")
    names = ["gcc", "clang"] if device == "cuda" else ["g++"]
    compiler = os.environ.get(variable) or next(filter(shutil.which, names), None)
    if compiler is None:
        return f"no {language} compiler ({' or '.join(names)} on the PATH, or {variable})"
    return _why_not_compiling(language, compiler)


@cache
def _why_not_compiling(language: str, compiler: str) -> str:
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
