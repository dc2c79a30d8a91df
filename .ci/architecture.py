"""Prints the rooms of suite/, their floors and the arrows between them; exits with 1 where a limit is broken.

An arrow is an import of one room by another, however many modules it joins. A floor is a set of rooms that import none
of each other and only rooms below. import-linter holds each import to its direction; this script counts.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("suite", "reference_runs", "kernels", "benchmarks")
ROOMS = 16
MOST_FLOORS = 8
MOST_ARROWS = 81
MOST_LINES_OF_MODULE = 400
MOST_LINES_OF_FUNCTION = 60  # without its docstring: that of a formula has every term, with its source
ALIASED = ("tuple", "dict", "Callable")
REASON = "# long:"  # on the line of a longer function's `def`, with the reason behind it


class Module(NamedTuple):
    """A module of the project: its dotted name, its lines of text and its syntax tree."""

    name: str
    lines: list[str]
    tree: ast.Module


def modules(root: Path) -> list[Module]:
    """All modules of the project, by name."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text(encoding="utf-8")
            found.append(Module(name, text.splitlines(), ast.parse(text)))
    return found


def room(name: str) -> str | None:
    """The room of a module of suite/, "commands" for `suite.commands.runs`; None for what stands at its root."""
    parts = name.split(".")
    return parts[1] if parts[0] == "suite" and len(parts) > 2 else None


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports: of modules, or of what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(found: list[Module]) -> dict[str, set[str]]:
    """The rooms that each room imports."""
    rooms = {place for module in found if (place := room(module.name))}
    result: dict[str, set[str]] = {place: set() for place in rooms}
    for module in found:
        here = room(module.name)
        if here is not None:
            result[here] |= {there for name in imported(module.tree) if (there := room(name + ".")) in rooms - {here}}
    return result


def floors(graph: dict[str, set[str]]) -> list[set[str]]:
    """Rooms by floor, the lowest first; rooms of a cycle, and those above it, are on none."""
    result: list[set[str]] = []
    below: set[str] = set()
    while floor := {place for place, into in graph.items() if place not in below and into <= below}:
        result.append(floor)
        below |= floor
    return result


def long_functions(found: list[Module]) -> Iterator[str]:
    """Functions of more lines than allowed that state no reason."""
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) else None
                described = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                length = (node.end_lineno or node.lineno) - node.lineno + 1 - described
                signature = "\n".join(module.lines[node.lineno - 1 : node.body[0].lineno])
                if length > MOST_LINES_OF_FUNCTION and REASON not in signature:
                    yield f"{module.name}.{node.name}: {length} lines, allowed: {MOST_LINES_OF_FUNCTION}"


def type_names(tree: ast.Module) -> Iterator[str]:
    """Names of a module's classes, and of its aliases of a tuple, dict or callable type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            generic = node.value.value
            if isinstance(generic, ast.Name) and generic.id in ALIASED:
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def repeated_types(found: list[Module]) -> Iterator[str]:
    """Names that several classes or type aliases have, with an underscore or without."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for name in type_names(module.tree):
            places[name.lstrip("_")].append(module.name)
    yield from (f"type {name} stands in {', '.join(where)}" for name, where in places.items() if len(where) > 1)


def broken(found: list[Module]) -> list[str]:
    """The limits that the modules break, a line each."""
    graph = arrows(found)
    levels = floors(graph)
    count = sum(map(len, graph.values()))
    lines = {module.name: len(module.lines) for module in found if module.name.startswith("suite.")}
    result = []
    if len(graph) != ROOMS:
        result.append(f"{len(graph)} rooms, allowed: {ROOMS}")
    if missing := set(graph) - set().union(*levels):
        result.append(f"rooms in or above a cycle: {', '.join(sorted(missing))}")
    if len(levels) > MOST_FLOORS:
        result.append(f"{len(levels)} floors, allowed: {MOST_FLOORS}")
    if count > MOST_ARROWS:
        result.append(f"{count} arrows between rooms, allowed: {MOST_ARROWS}")
    for name, length in lines.items():
        if length > MOST_LINES_OF_MODULE:
            result.append(f"{name}: {length} lines, allowed: {MOST_LINES_OF_MODULE}")
    return [*result, *long_functions(found), *repeated_types(found)]


def main() -> int:
    """Print the picture, then what is broken."""
    found = modules(ROOT)
    graph = arrows(found)
    levels = floors(graph)
    for number, floor in reversed(list(enumerate(levels, start=1))):
        for place in sorted(floor):
            inside = [len(module.lines) for module in found if room(module.name) == place]
            below = ", ".join(sorted(graph[place]))
            print(f"floor {number}  {place:12} {len(inside):3} modules {sum(inside):6,} lines  -> {below}")
    lines = [len(module.lines) for module in found if module.name.startswith("suite.")]
    whole = sum(len(module.lines) for module in found)
    print(f"{len(graph)} rooms, {len(levels)} floors, {sum(map(len, graph.values()))} arrows; {whole:,} lines")
    print(f"suite/: {len(lines)} modules, median {statistics.median(lines):.0f} lines, largest {max(lines)}")
    problems = broken(found)
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
