"""Describes the environment of the Python that runs it, as JSON: python suite/execute/environment.py FILE.

An older Python has to understand it too, so that it can say how old it is.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import site
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NEEDED = ("torch", "numpy", "msgspec", "psutil", "tokenizers")  # what ranks import
FOUND = "triton"  # what PyTorch imports when it needs it
OLDEST = (3, 11)


def main(path: str) -> None:
    """Write the description to `path`."""
    facts: dict[str, Any] = {"executable": sys.executable, "prefix": sys.prefix}
    facts.update({"python": platform.python_version(), "build": sys.version})
    if sys.version_info >= OLDEST:
        _add_packages(facts)
    Path(path).write_text(json.dumps(facts), encoding="utf-8")


def _add_packages(facts: dict[str, Any]) -> None:
    import importlib.metadata
    import importlib.util

    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():  # the first of a name is the one that is imported
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-"), _version(distribution))
    facts["packages"] = packages
    facts["startup"] = _startup_files()
    facts["lacking"] = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if facts["lacking"]:
        return
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("suite.execute.__main__")  # and with it whatever ranks import
    except Exception as error:  # whatever it is, it is said
        facts["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return
    facts["torch"] = _torch_build(torch)
    facts["modules"] = _module_directories()


def _torch_build(torch: ModuleType) -> dict[str, str]:
    build = {"version": torch.__version__, "commit": torch.version.git_version}
    build.update({"CUDA": torch.version.cuda, "HIP": torch.version.hip})
    return {name: str(value or "") for name, value in build.items()}


def _version(distribution: importlib.metadata.Distribution) -> str:
    """Version; where it was not installed from an index, with the commit that pip recorded, or with "editable"."""
    version = distribution.version or "unknown"
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    commit = origin.get("vcs_info", {}).get("commit_id", "")
    if commit:
        return f"{version} (commit {commit[:12]})"
    return f"{version} (editable)" if origin.get("dir_info", {}).get("editable") else version


def _startup_files() -> dict[str, str]:
    """Code that runs whenever this Python starts: digest of its text, by the name of its file."""
    directories = site.getsitepackages()
    names = ["sitecustomize"]
    if site.ENABLE_USER_SITE:
        directories.append(site.getusersitepackages())
        names.append("usercustomize")
    specs = filter(None, map(importlib.util.find_spec, names))
    paths = [Path(spec.origin) for spec in specs if spec.origin]
    paths += [path for directory in directories for path in sorted(Path(directory).glob("*.pth"))]
    found = {}
    for path in paths:
        text = path.read_bytes()
        if path.suffix != ".pth" or any(line.startswith((b"import ", b"import\t")) for line in text.splitlines()):
            found[path.name] = hashlib.sha256(text).hexdigest()[:16]
    return found


def _module_directories() -> dict[str, str]:
    """Directories of the packages that ranks have imported, by name: neither Python's own nor the suite's."""
    own = Path(str(sys.modules["suite"].__file__)).resolve().parent.parent
    standard = Path(str(os.__file__)).resolve().parent
    found = {}
    for name in sorted({module.partition(".")[0] for module in sys.modules} | {FOUND}):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # of __main__, and of modules without a file
            continue
        directories = list(spec.submodule_search_locations or []) if spec is not None else []
        if directories and Path(directories[0]).resolve().parent not in (own, standard):
            found[name] = directories[0]
    return found


if __name__ == "__main__":
    main(sys.argv[1])
