"""Python environments of this machine: what is installed in one, and what differs between two."""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from reference_runs.errors import InputError
from suite.machine.fingerprint import digest
from suite.machine.interpreter import Interpreter
from suite.machine.packages import PACKAGES
from suite.machine.scratch import scratch_directory
from suite.paths import ROOT

OLDEST = "3.11"  # as of requires-python
ANSWER_SECONDS = 180.0  # to import PyTorch from a cold disk
NAMED_FILES = 3
_OF_THIS_SHELL = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # of this shell: they belong to its own environment
# Packages whose version a record names: what PyTorch and Megatron compute with
_COMPUTING = re.compile(
    r"(torch|triton|pytorch|nvidia-|cuda|amd|rocm|intel|mkl|onednn|numpy$|tokenizers$|msgspec$|apex$|megatron|deepspeed$"
    r"|transformer-engine|flash|xformers|cutlass|quack|liger|fbgemm|nccl|cudnn|helion|tilelang)"
)


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A Python with its packages.

    Args:
        executable: as it was named; `prefix` the directory of its environment.
        build: version, compiler and date of the Python itself.
        packages: versions by distribution; with the commit where pip installed one.
        startup: files that run whenever it starts (sitecustomize, .pth files with code): digest by name.
        lacking: modules of ranks that are not there; `failed` why they cannot be imported.
        torch: version, commit, CUDA and HIP of PyTorch.
        modules: directories of the packages that ranks import.
        identity: name of its directory, and 8 digits of its content: versions, startup files, and sizes and times of
            the files in `modules`.
    """

    executable: str
    prefix: str
    python: str
    build: str = ""
    packages: dict[str, str] = {}
    startup: dict[str, str] = {}
    lacking: list[str] = []
    failed: str = ""
    torch: dict[str, str] = {}
    modules: dict[str, str] = {}
    identity: str = ""

    @property
    def software(self) -> dict[str, str]:
        """Facts for a record: Python, PyTorch, and the versions of all packages that compute."""
        named = {name: version for name, version in self.packages.items() if _COMPUTING.match(name)}
        absent = {"triton": "not installed"}
        own = {"python": self.python, "torch": self.torch["version"], "environment": self.identity}
        commit = {"torch commit": self.torch["commit"]} if self.torch.get("commit") else {}
        return absent | named | commit | own

    @property
    def versions(self) -> str:
        """Python and PyTorch with their versions, and Triton's, in a line."""
        commit = self.torch.get("commit", "")[:12]
        torch = self.torch.get("version", "unknown") + (f" (commit {commit})" if commit else "")
        return f"Python {self.python}, torch {torch}, triton {self.packages.get('triton', 'not installed')}"

    def interpreter(self, caches: Path, *, foreign: bool) -> Interpreter:
        """How ranks run in it: compiled kernels in caches of its own, modules never from the current directory.

        Args:
            foreign: it is not the environment of this process, so that this shell's PYTHONPATH is not its own.
        """
        names = {
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TRITON_CACHE_DIR": "triton",
            "TORCH_EXTENSIONS_DIR": "extensions",
        }
        variables = {name: str(caches / directory) for name, directory in names.items()}
        return Interpreter(
            executable=self.executable,
            variables=variables | {"PYTHONSAFEPATH": "1"},
            withheld=_OF_THIS_SHELL if foreign else (),
            software=self.software,
        )


def environment_of(executable: str, *, where: str, foreign: bool = True) -> Environment:
    """The environment of a Python, as it says itself.

    Raises:
        InputError: it is no Python, is too old, or lacks what ranks import; `where` names the option.
    """
    path = Path(os.path.abspath(executable))  # noqa: PTH100  # Path.resolve would follow a venv's link to its base
    allowed = "the Python of another environment, as in OLD/bin/python"
    if not path.is_file() or not os.access(path, os.X_OK):
        what = "a directory" if path.is_dir() else "not executable" if path.exists() else "no such file"
        raise InputError(what, got=repr(executable), allowed=allowed, where=where)
    found = _asked(str(path), where, allowed, foreign=foreign)
    if _number(found.python) < _number(OLDEST):
        raise InputError(f"Python {found.python}", got=repr(executable), allowed=f"{OLDEST} or newer", where=where)
    if found.lacking:
        names = [PACKAGES[module].name for module in found.lacking]
        install = f"{executable} -m pip install {' '.join(names)}"
        raise InputError(f"{executable} lacks {', '.join(names)}, which ranks import: {install}", where=where)
    if found.failed:
        raise InputError(f"{executable} does not run this suite's ranks: {found.failed}", where=where)
    return msgspec.structs.replace(found, identity=_identity(found))


def _identity(found: Environment) -> str:
    listed = {name: sorted(_listing(directory)) for name, directory in found.modules.items()}
    facts = [found.prefix, found.build, found.packages, found.startup, found.torch, listed]
    return f"{Path(found.prefix).name} {digest(facts)[:8]}"


def _asked(path: str, where: str, allowed: str, *, foreign: bool) -> Environment:
    """Answer of `suite/execute/environment.py` in that Python; output goes to files, which no child holds open."""
    variables = Interpreter(executable=path, withheld=_OF_THIS_SHELL if foreign else ()).environment()
    places = [str(ROOT), variables.get("PYTHONPATH", "")]
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONSAFEPATH": "1"}
    with scratch_directory(kind="environment-") as directory:
        answer, words = Path(directory) / "answer.json", Path(directory) / "stderr"
        command = [path, str(ROOT / "suite" / "execute" / "environment.py"), str(answer)]
        try:
            with words.open("wb") as log:
                _run_in_time(command, variables, log)
            if answer.exists():
                found = msgspec.json.decode(answer.read_bytes(), type=Environment)
                return msgspec.structs.replace(found, executable=path)
            said = words.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it says nothing"]
            why = said[-1 if said[0].startswith("Traceback") else 0]
        except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
            why = str(error)
    raise InputError(f"no Python: {why}", got=repr(path), allowed=allowed, where=where)


def _run_in_time(command: list[str], variables: dict[str, str], log: BinaryIO) -> None:
    process = subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        process.wait(timeout=ANSWER_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def differences(old: Environment, new: Environment) -> list[str]:
    """Differences between two environments, a line each; packages that compute and changed come first.

    Packages of one version in two places are compared file by file, if ranks import them.
    """
    lines = _changed("python", old.python, new.python)
    if not lines and old.build != new.build:
        lines = [f"python {new.python}, built otherwise: {_flat(old.build)} -> {_flat(new.build)}"]
    if old.torch.get("version") == new.torch.get("version"):
        for name in sorted({*old.torch, *new.torch} - {"version"}):
            lines += _changed(f"torch {name}", old.torch.get(name) or "unknown", new.torch.get(name) or "unknown")
    names = sorted({*old.packages, *new.packages}, key=lambda name: (_COMPUTING.match(name) is None, name))
    both = [name for name in names if name in old.packages and name in new.packages]
    for name in both + [name for name in names if name not in both]:
        lines += _changed(name, *(side.packages.get(name, "not installed") for side in (old, new)))
    if "torch" not in names:  # of a build that lies on the path and is not installed
        lines += _changed("torch", old.torch.get("version", "unknown"), new.torch.get("version", "unknown"))
    for name in sorted({*old.startup, *new.startup}):
        if old.startup.get(name) != new.startup.get(name):
            words = "other code" if name in old.startup and name in new.startup else "only in"
            side = "" if words == "other code" else f" {(old if name in old.startup else new).prefix}"
            lines.append(f"{name}, which runs whenever Python starts: {words}{side}")
    for name in sorted({*old.modules} & {*new.modules}):
        version = old.packages.get(name)
        if version == new.packages.get(name) and (files := _differing_files(old.modules[name], new.modules[name])):
            more = f" and {len(files) - NAMED_FILES} more" if len(files) > NAMED_FILES else ""
            lines.append(f"{name} {version or ''}: files differ: {', '.join(files[:NAMED_FILES])}{more}")
    return lines


def _changed(name: str, old: str, new: str) -> list[str]:
    return [] if old == new else [f"{name} {old} -> {new}"]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _differing_files(old: str, new: str) -> list[str]:
    """Paths of the files that only one of two directories has, or that differ in their bytes."""
    if Path(old).resolve() == Path(new).resolve():
        return []
    listed = [{name: size for name, size, _ in _listing(directory)} for directory in (old, new)]
    names = sorted({*listed[0], *listed[1]})
    return [
        name
        for name in names
        if listed[0].get(name) != listed[1].get(name) or not _same_bytes(f"{old}/{name}", f"{new}/{name}")
    ]


def _same_bytes(old: str, new: str) -> bool:
    return Path(old).samefile(new) or filecmp.cmp(old, new, shallow=False)


def _listing(directory: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of every file below it, but for bytecode."""
    for where, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(OSError):  # a link to nothing
                facts = path.stat()
                yield str(path.relative_to(directory)), facts.st_size, facts.st_mtime_ns
