"""DeepSpeed's estimates, read from the files of the release that the session `opinions` installs."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any


def deepspeed_function(file: str, name: str) -> Callable[..., Any]:
    """A function of a file of DeepSpeed that needs nothing of its module: importing that would build and start much."""
    found = importlib.util.find_spec("deepspeed")
    assert found is not None
    assert found.origin is not None
    tree = ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    names: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), file, "exec"), names)
    return names[name]
