"""Layout of an MLPerf submission: the variables that its config_*.sh exports. The file is read, never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import typed_text

_ASSIGNED = re.compile(r"^\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=(.*)$")
_DEFAULTED = re.compile(r"""^\s*:\s*"?\$\{([A-Za-z_]\w*):?=(.*)\}"?\s*$""")
_INCLUDED = re.compile(r"""^\s*(?:source|\.)\s+["']?.*?([\w.-]+\.sh)["']?\s*$""")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^${}]*))?\}|([A-Za-z_]\w*))")
_ARITHMETIC = re.compile(r"^\$\(\((.+)\)\)$")
_MOST_FILES, _MOST_LETTERS, _MOST_OF_A_LINE = 8, 200, 2000  # that include each other; of a value; of a line read
_ON, _OFF = ("1", "true", "yes"), ("0", "false", "no", "none", "null", "")


class Shell(NamedTuple):
    """Variables of a configuration.

    Args:
        lacking: files that it includes and that are not beside it.
    """

    values: dict[str, str]
    lacking: tuple[str, ...]
    where: str


def configuration_beside(log: Path) -> Path | None:
    """The config_*.sh in the directory of a log; None without any.

    Raises:
        InputError: there are several.
    """
    found = sorted(log.absolute().parent.glob("config_*.sh"))
    found = [path for path in found if not path.name.startswith("config_common")]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError("several configurations beside the log", got=names, allowed="one (--config)", where=str(log))
    return found[0] if found else None


def read_shell(path: Path) -> Shell:
    """The variables that the configuration at `path` sets, with those of the files beside it that it includes.

    Variables and whole-number arithmetic in values are replaced; a value with anything else stays as it is written.

    Raises:
        InputError: unreadable file, or too many that include each other.
    """
    values: dict[str, str] = {}
    lacking: list[str] = []
    _read(path, values, lacking, depth=0)
    return Shell(values, tuple(lacking), shown_path(path))


def _read(path: Path, values: dict[str, str], lacking: list[str], *, depth: int) -> None:
    where = shown_path(path)
    if depth == _MOST_FILES:
        raise InputError(f"more than {_MOST_FILES} configurations include each other", where=where)
    try:
        text = typed_text(path)
    except OSError as error:
        raise InputError(f"cannot read the configuration: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError("expected a text file", where=where) from error
    for line in text.replace("\\\n", " ").split("\n"):
        if len(line) > _MOST_OF_A_LINE:
            continue
        if included := _INCLUDED.match(line):
            beside = path.parent / included[1]
            if beside.is_file():
                _read(beside, values, lacking, depth=depth + 1)
            elif included[1] not in lacking:
                lacking.append(included[1])
        elif defaulted := _DEFAULTED.match(line):
            values.setdefault(defaulted[1], _value(defaulted[2], values))
        elif assigned := _ASSIGNED.match(line):
            values[assigned[1]] = _value(assigned[2], values)


def _value(written: str, values: Mapping[str, str]) -> str:
    """A value without its quotes and the comment after it, its variables and arithmetic replaced."""
    text = written.strip()
    if text[:1] in ("'", '"'):
        text = text[1:].partition(text[0])[0]
    elif not text.startswith("$(("):
        text = text.partition(" #")[0].partition(";")[0].strip()
    text = _VARIABLE.sub(lambda found: values.get(found[1] or found[3], found[2] or ""), text[:_MOST_LETTERS])
    arithmetic = _ARITHMETIC.match(text.partition(" #")[0].strip())
    return _computed(_named(arithmetic[1], values)) if arithmetic else text


def _named(expression: str, values: Mapping[str, str]) -> str:
    """The expression with names of variables, which arithmetic needs no $ for, replaced."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: values.get(found[0], found[0]), expression)


def _computed(expression: str) -> str:
    """The whole number that an expression of + - * / and brackets is, or the expression where it is none."""
    try:
        return str(_number(ast.parse(expression.strip()[:_MOST_LETTERS], mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return expression


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():  # of whole numbers, rounded towards zero, as a shell does
                return left // right if left * right >= 0 else -(-left // right)
    raise ValueError("no arithmetic of whole numbers")


def count(shell: Shell, *names: str) -> int | None:
    """The whole number above 0 of the first of these variables that is set; None without any, or where it is off.

    Raises:
        InputError: another value.
    """
    for name in names:
        text = shell.values.get(name, "").strip()
        if text.casefold() in _OFF:
            continue
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InputError(name, got=repr(text), allowed="a whole number of 1 or more", where=shell.where)
        return int(text)
    return None


def flag(shell: Shell, name: str) -> bool | None:
    """Whether the variable is on; None where it is not set.

    Raises:
        InputError: another value.
    """
    if name not in shell.values:
        return None
    text = shell.values[name].strip().casefold()
    if text not in (*_ON, *_OFF):
        raise InputError(name, got=repr(shell.values[name]), allowed="0, 1, true or false", where=shell.where)
    return text in _ON


def layout_cells(shell: Shell) -> Iterator[tuple[str, str]]:
    """Columns of a published table, and what the configuration says of them.

    Raises:
        InputError: a value that is none, or axes that do not divide the accelerators.
    """
    sizes = {column: count(shell, *names) for column, names in _SIZES.items()}
    nodes, of_node = count(shell, "DGXNNODES", "NNODES"), count(shell, "DGXNGPU", "GPUS_PER_NODE")
    yield from ((column, str(size)) for column, size in sizes.items() if size is not None)
    if nodes is not None and of_node is not None:
        yield "gpus", str(nodes * of_node)
        inner = (sizes["tp"] or 1) * (sizes["pp"] or 1) * (sizes["cp"] or 1)
        if nodes * of_node % inner:
            what = f"tp * pp * cp = {inner} does not divide the accelerators"
            raise InputError(what, got=f"{nodes} (DGXNNODES) * {of_node} (DGXNGPU)", where=shell.where)
        yield "dp", str(nodes * of_node // inner)
    if of_node is not None:
        yield "gpus_per_node", str(of_node)
    if (sequence_parallel := flag(shell, "SEQ_PARALLEL")) is not None:
        yield "sp", str(int(sequence_parallel))
    if (narrow := flag(shell, "FP8")) is not None:
        yield "dtype", "fp8" if narrow else "bf16"


_SIZES = {
    "tp": ("TENSOR_MODEL_PARALLEL",),
    "pp": ("PIPELINE_MODEL_PARALLEL",),
    "cp": ("CONTEXT_PARALLEL",),
    "ep": ("EXPERT_MODEL_PARALLEL", "EXPERT_PARALLEL"),
    "vpp": ("INTERLEAVED_PIPELINE", "VIRTUAL_PIPELINE_MODEL_PARALLEL"),
    "micro_batch": ("MICRO_BATCH_SIZE",),
    "seq_len": ("ENCODER_SEQ_LENGTH", "SEQ_LENGTH", "MAX_SEQ_LENGTH"),
}
