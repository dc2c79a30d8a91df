"""Functions of imported modules get the code of a mutant, in place: nothing is imported or collected again."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType

OPTIMIZED = 0x1  # of a function's code; a module's and a class's have it not
FunctionPlace = tuple[str, int]  # qualified name and first line
LiveFunctions = dict[tuple[str, str, int], list[FunctionType]]  # by file and place


def changed_functions(path: str, old: str, new: str) -> dict[FunctionPlace, CodeType] | None:
    """The functions whose code differs; None where something else differs, which only a new import can show.

    A module's or a class's own statements, with defaults and decorators of their functions, are something else.
    """
    before, after = (compile(text, path, "exec", dont_inherit=True) for text in (old, new))
    if _own_statements(before) != _own_statements(after):
        return None
    functions: dict[FunctionPlace, list[tuple[CodeType, CodeType]]] = {}
    codes = [list(_nested(code)) for code in (before, after)]
    if [_place(code) for code in codes[0]] != [_place(code) for code in codes[1]]:
        return None
    for one, other in zip(*codes, strict=True):
        if one.co_flags & OPTIMIZED:
            functions.setdefault(_place(one), []).append((one, other))
    different = {place: pairs for place, pairs in functions.items() if any(one != other for one, other in pairs)}
    if any(len(pairs) > 1 or pairs[0][0].co_freevars != pairs[0][1].co_freevars for pairs in different.values()):
        return None
    return {place: pairs[0][1] for place, pairs in different.items()}


def live_functions(paths: Iterable[str]) -> LiveFunctions:
    """All functions of these files that exist in this process."""
    wanted, found = set(paths), LiveFunctions()
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in wanted:
            code = thing.__code__
            found.setdefault((code.co_filename, *_place(code)), []).append(thing)
    return found


def swap(live: LiveFunctions, path: str, changed: Mapping[FunctionPlace, CodeType]) -> None:
    """Give them the changed code."""
    for place, code in changed.items():
        for function in live.get((path, *place), ()):
            function.__code__ = code


def _place(code: CodeType) -> FunctionPlace:
    return code.co_qualname, code.co_firstlineno


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _own_statements(code: CodeType) -> tuple[object, ...]:
    """Statements that the code of a module or class executes by itself, and those of the classes in it."""
    constants = []
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            constants.append((type(constant), constant))
        elif not constant.co_flags & OPTIMIZED:
            constants.append((CodeType, _own_statements(constant)))
    return code.co_code, code.co_names, tuple(constants)
