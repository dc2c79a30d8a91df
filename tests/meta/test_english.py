"""Docstrings begin with the thing or the verb, never with a bare "Of" or "What"; printed differences have no sign."""

from __future__ import annotations

import ast
import re

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


SIGNED = re.compile(r":\+[,.0-9]*[%defg]?\}|\"\+[,.0-9]+[%defg]\"")
SCORES = re.compile(r"\.?\bz:\+|clock_offset:\+|score\.fitted:\+|scores\.all_terms:\+")  # and points of a mean error


def test_no_printed_difference_has_a_sign() -> None:
    """Differences are in words, by `suite/metrics/difference_words.py`; scores without an expected side have signs."""
    signed = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "suite").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if SIGNED.search(line) and not SCORES.search(line)
    ]
    assert signed == []
