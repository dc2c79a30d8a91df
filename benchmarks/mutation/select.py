"""Which tests a mutant gets: those that run its statement, those of its module's own files first."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.mutation.warm import CollectedTests

MOST_SECONDS = 60.0  # of a processor, of the tests of one mutant; those of its module's own files are not left out


def statement_lines(text: str, line: int) -> range:
    """The lines of the innermost statement at a line; of one that holds others, those of its head."""
    found = range(line, line + 1)
    least = None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            first, last = node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.match_case):
            first = last = node.pattern.lineno
        else:
            continue
        body = getattr(node, "body", None) or [getattr(case, "pattern", None) for case in getattr(node, "cases", [])]
        if body:
            last = max(first, min(last, body[0].lineno - 1) if not isinstance(node, ast.match_case) else last)
        if first <= line <= last and (least is None or last - first < least):
            found, least = range(first, last + 1), last - first
    return found


def chosen_tests(
    collected: CollectedTests, module: str, lines: Iterable[int] | None, own_files: Sequence[str], *, own_all: bool
) -> list[int]:
    """Tests that run any of the lines, in the order in which to run them.

    None of the lines: of the module, and all of its own files, as a test may read what an import made without running
    any of its functions.

    Args:
        own_files: of the module, whose tests come first.
        own_all: also those of its own files that run none of the lines, in this process; the shortest first.
    """
    by_line = collected.lines[module]
    wanted = by_line if lines is None else lines
    running = {test for line in wanted for test in by_line.get(line, ())}
    running -= {*collected.failed}  # they say nothing
    own = {index for index, name in enumerate(collected.names) if name.partition("::")[0] in own_files}
    own -= {*collected.failed}
    work = collected.work or collected.seconds
    if own_all:
        first = sorted(own, key=lambda test: work[test])
    else:
        first = sorted(own & running if running and lines is not None else own)
    left = MOST_SECONDS - sum(work[test] for test in first)
    chosen = list(first)
    for test in _from_each_file(collected.names, sorted(running - set(first), key=lambda test: work[test])):
        left -= work[test]
        if left < 0:
            break
        chosen.append(test)
    return [*first, *sorted(chosen[len(first) :])]


def _from_each_file(names: Sequence[str], tests: Sequence[int]) -> list[int]:
    """The first test of each file, then the second ones: what runs a line otherwise than all others is not left out."""
    seen = Counter[str]()
    turn = dict[int, int]()
    for test in tests:
        file = names[test].partition("::")[0]
        turn[test] = seen[file]
        seen[file] += 1
    return sorted(tests, key=lambda test: turn[test])
