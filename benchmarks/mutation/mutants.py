"""Mutants of a module, by cosmic-ray's operators, without those that cannot change what the module does."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Not tried, because a test finds them without looking: bits of numbers that have none raise TypeError, so does an order
# of None. And `==` and `is` are the same of small numbers and of members of an enumeration, by CPython's grace.
_BITS = "BitAnd|BitOr|BitXor|LShift|RShift"
_IDLE = re.compile(
    rf"BinaryOperator_(?!{_BITS})[A-Za-z]+_({_BITS})$|BinaryOperator_({_BITS})_(?!{_BITS})"
    r"|Operator_(Is|IsNot)_(?!Is)|Operator_[A-Za-z]+(?<!Is)(?<!IsNot)_(Is|IsNot)$|_(Invert|Not)$(?<!Delete_Not)|_Invert_"
)
_STAR_TO_SLASH = "ReplaceBinaryOperator_Mul_Div"
_EXCEPTIONS = "ExceptionReplacer"  # fails for one name of several that has a dot: `except (OSError, zlib.error)`
_POWER = "_Pow"  # Triton's tensors have none
_POINTERS = ("_ptr", "_rows", "pointer", "pointers")  # as kernels name them
_CACHES = {"cache", "functools.cache", "lru_cache", "cached_property"}
TextSpan = tuple[tuple[int, int], tuple[int, int]]


class Mutant(NamedTuple):
    """One change of one module.

    Args:
        occurrence: which of the places that the operator can change.
        line: of the change, from 1.
    """

    module: str
    operator: str
    occurrence: int
    line: int


class LineChange(NamedTuple):
    """A line before and after a mutation, and the whole text of the module with it."""

    before: str
    after: str
    text: str


def mutants(root: Path, module: str) -> list[Mutant]:
    """All mutants of a module that count."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    path = root / module
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    left_out, kernels = list(_not_counted(tree)), list(_kernels(tree))
    nodes = list(ast_nodes(get_ast_from_path(path)))
    found = []
    for name in sorted(operator_names()):
        if _IDLE.search(name):
            continue
        kind = get_operator(name)
        if kind.arguments():  # of a name that the user must give
            continue
        operator, occurrence = kind(), -1
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                occurrence += 1
                if name.endswith(_EXCEPTIONS) and "." in lines[start[0] - 1][start[1] : end[1]]:
                    continue
                spans = [*left_out, *kernels] if name.endswith(_POWER) else left_out
                if not any(first <= start and end <= last for first, last in spans):
                    found.append(Mutant(module, name, occurrence, start[0]))
    return found


def change(root: Path, mutant: Mutant) -> LineChange | None:
    """The mutant's change; None where the operator does not apply after all, changes nothing, or leaves no Python.

    The star before parameters that are named is an operator to it. A slash in its place is Python, and lets callers
    name them as before.
    """
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text = (root / mutant.module).read_text(encoding="utf-8")
    mutated = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
    if mutated is None or mutated == text or not _is_python(mutated):
        return None
    if mutant.operator.endswith(_STAR_TO_SLASH) and _products(mutated) == _products(text):
        return None
    old, new = text.splitlines(), mutated.splitlines()
    first = next(index for index, (a, b) in enumerate(zip([*old, ""], [*new, ""], strict=False)) if a != b)
    return LineChange(old[first].strip(), new[first].strip() if first < len(new) else "", mutated)


def _products(text: str) -> int:
    return sum(isinstance(node, ast.Mult) for node in ast.walk(ast.parse(text)))


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _not_counted(tree: ast.Module) -> Iterator[TextSpan]:
    """Places where a change means nothing: annotations, asserts, caches, and what only a type checker reads.

    Annotations are never evaluated but by msgspec, which reads no operator but `|` in them, and types that have a name
    (`Pair = tuple[int, int]`) only where a module is imported. An assert says what types cannot, and so does zip's
    `strict`; `frozen` and `kw_only` of a struct let mypy refuse code that is not there. A cache changes how often a
    function is computed, not what it returns. A path and a text have no operator but `/`, two texts none but `+`, two
    dicts none but `|`, a kernel's pointer and a number none but `+`: every other one raises TypeError, which a test
    finds without looking, or reads memory that is nobody's. An overload is never called.
    """
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield _span(annotation)
            case ast.FunctionDef(decorator_list=[ast.Name(id="overload"), *_]):
                yield _span(node)
            case ast.FunctionDef(returns=returns, decorator_list=decorators):
                yield from (_span(each) for each in [returns] if each is not None)
                for each in decorators:
                    if ast.unparse(each).partition("(")[0] in _CACHES:
                        (first, column), last = _span(each)
                        yield (first, max(column - 1, 0)), (last[0] + 1, 0)
            case ast.Assert() | ast.keyword(arg="strict" | "frozen" | "kw_only" | "maxsize"):
                yield _span(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()) if _of_type(name):
                yield _span(node)
            case ast.BinOp(left=left, right=right) if _joins(node):
                yield _span(left)[1], _span(right)[0]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield _span(node)
            case _:
                pass


def _kernels(tree: ast.Module) -> Iterator[TextSpan]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "triton.jit" for each in node.decorator_list):
            yield _span(node)


def _of_type(name: str) -> bool:
    return name.lstrip("_")[:1].isupper() and not name.isupper()


def _joins(node: ast.expr) -> bool:
    """Whether it is `path / "text"`, goes on with `/ name`, joins a text or a dict to another, or moves a pointer."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return _is_text(right) or _joins(left)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _is_text(left) or _is_text(right) or _is_pointer(left)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return any(isinstance(each, ast.Dict | ast.DictComp) for each in (left, right))
        case _:
            return False


def _is_pointer(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and _is_pointer(node.left)
    return isinstance(node, ast.Name) and node.id.endswith(_POINTERS)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _span(node: ast.expr | ast.stmt | ast.keyword) -> TextSpan:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)
