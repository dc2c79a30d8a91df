"""Results without the paths of the machine that made them, for a repository that others read.

python -m suite.records.private_paths results/recorded
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from suite.paths import ROOT, cache_directory, whole_file


def private_directories() -> dict[Path, str]:
    """Directories of this machine, and what stands for them: nothing for the checkout and for scratch directories."""
    return {ROOT: "", cache_directory().parent: "~/.cache/", Path.home(): "~/", Path(tempfile.gettempdir()): ""}


def without_private_paths(text: str, directories: Mapping[Path, str]) -> str:
    """`text` with each path below one of `directories` from there on, below the innermost one."""
    for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
        if len(directory.parts) > 1:  # a home directory may be the root
            text = re.sub(rf"(?<![\w.~/-]){re.escape(str(directory))}/", directories[directory], text)
    return text


def remove_private_paths(results: Path) -> list[Path]:
    """Rewrite the JSON files below a results directory that name such paths; returns those files."""
    directories = private_directories()
    changed = []
    for path in sorted(results.rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        if (public := without_private_paths(text, directories)) != text:
            with whole_file(path) as temporary:
                temporary.write_text(public, encoding="utf-8")
            changed.append(path)
    return changed


if __name__ == "__main__":
    for directory in sys.argv[1:]:
        print(f"{len(remove_private_paths(Path(directory)))} files without private paths in {directory}")
