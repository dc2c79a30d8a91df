"""A Python that lacks packages, as an image made for something else would."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FINDER = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else found(name, path, target)
PathFinder.find_spec = find_spec
"""


def environment_without(names: Iterable[str], directory: Path) -> dict[str, str]:
    """The environment of processes, and of their children, in which the modules cannot be imported."""
    text = FINDER.format(names={*names})
    (directory / "sitecustomize.py").write_text(text, encoding="utf-8")
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
