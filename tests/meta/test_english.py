"""Docstrings begin with what they return, or with the verb: never with a bare "Of", "What", "That" or "Those"."""

from __future__ import annotations

import ast

from suite.paths import ROOT

ROOMS = ("suite", "reference_runs", "kernels", "benchmarks", "tests", ".ci", "package", "docs")
BARE = {"Of", "What", "That", "Those"}
DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def clipped(text: str) -> list[str]:
    """First lines of docstrings that begin with a bare word."""
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, DESCRIBED)]
    return [docstring.splitlines()[0] for docstring in found if docstring and docstring.split()[0].strip(",:") in BARE]


def test_docstrings_begin_with_the_thing_or_the_verb() -> None:
    paths = [ROOT / "noxfile.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
    found = {str(path.relative_to(ROOT)): clipped(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert clipped('"""Of the worst."""\nclass A:\n    """What it is."""\ndef f():\n    """Whatever."""\n') == [
        "Of the worst.",
        "What it is.",
    ]
