"""Estimates of other projects, read from the files of the releases that the session `opinions` installs."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any


def function_of(package: str, file: str, name: str, **needed: Any) -> Callable[..., Any]:
    """A function of a package's file that needs nothing of its module but `needed`: to import that starts much."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    # the file inherits this one's annotations: names of its types stay words
    exec(compile(ast.Module([function], []), file, "exec"), needed)
    return needed[name]
