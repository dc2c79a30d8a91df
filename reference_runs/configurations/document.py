"""A configuration as it is written: TOML, JSON, YAML, or a list of arguments, as nested tables of values."""

from __future__ import annotations

import ast
import json
import operator
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reference_runs.errors import InputError
from reference_runs.regular_file import typed_text

SUFFIXES = {
    ".toml": "TOML",
    ".json": "JSON",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".txt": "arguments",
    ".args": "arguments",
    ".sh": "arguments",
}
MOST_VALUES = 20_000  # of a file; aliases of YAML repeat what they name
MOST_DEPTH = 40
_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=([^(\s#]*)\s*(?:#.*)?$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|\d)(?::?-([^}]*))?\}?")
_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}")  # all of an array, which the file assigns and so says too
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
_COMMAND = re.compile(r"\$\(\(?[^()]*\)?\)|`[^`]*`")
_INNERMOST = 8  # commands within commands that are read
_OF_CONFIGURATIONS = re.compile(  # keys by which a broken file is known for a configuration all the same
    r"\b(?:zero_optimization|train_batch_size|parallelism|local_batch_size|model_spec|base_model|model_name_or_path"
    r"|\w*micro_?batch_?size\w*|per_device_train_batch_size|gradient_accumulation_steps|finetuning_type"
    r"|tensor_model_parallel_size|pipeline_model_parallel_size|distributed_type|_component_|seq_len(?:gth)?"
    r"|sequence_len|global_batch_size|hidden_size|bf16|fp16)\b"
)
_COMMENT = re.compile(r"(^|\s)#.*$")
_WORD = re.compile(r"--?[A-Za-z][\w.-]*|[A-Za-z_][\w.]*=.*|\+{1,2}[A-Za-z_][\w.]*=.*", re.DOTALL)


class NoDocumentError(InputError):
    """A file that holds no table of keys, so that it is no configuration of anything."""


class Document(NamedTuple):
    """Contents of a file.

    Args:
        form: TOML, JSON, YAML or arguments.
        values: tables within tables; of arguments one table, with names without leading hyphens.
    """

    form: str
    values: dict[str, Any]


def read_document(path: Path) -> Document:
    """The document in a file, by its suffix.

    Raises:
        InputError: unreadable, or a broken configuration.
        NoDocumentError: a list, nothing, no text, or broken without a key of a configuration in it.
    """
    form = SUFFIXES[path.suffix.casefold()]
    text = ""
    try:
        text = typed_text(path)
        values = _PARSERS[form](text)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoDocumentError("not UTF-8") from error
    except RecursionError as error:
        raise _broken(text, "nested too deeply") from error
    except ValueError as error:  # what TOML's, JSON's and the shell's readers raise
        raise _broken(text, f"broken {form}: {_first_line(error)}") from error
    if not isinstance(values, Mapping):
        raise NoDocumentError(f"{form} of {_KINDS.get(type(values), 'one value')}, no table of keys")
    return Document(form, {str(key): value for key, value in values.items()})


def _broken(text: str, what: str) -> InputError:
    """The error of a broken file: a configuration where a key of one is in it."""
    if _OF_CONFIGURATIONS.search(text):
        return InputError(what)
    return NoDocumentError(f"no key of a training is in it; {what}")


_KINDS: dict[type, str] = {list: "a list", str: "a text", type(None): "nothing"}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their dotted keys; lists stay whole.

    Raises:
        InputError: more than can be meant.
    """
    found: dict[str, Any] = {}
    for key, value in _leaves(values, "", 0):
        found[key] = value
        if len(found) > MOST_VALUES:
            raise InputError(f"more than {MOST_VALUES:,} values")
    return found


def _leaves(values: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MOST_DEPTH:
        raise InputError("nested too deeply")
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


def _yaml(text: str) -> Any:
    """The plain values of YAML 1.1; no objects are made."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(_first_line(error)) from error


def _arguments(text: str) -> dict[str, Any]:
    """Names and values of `--name value`, `--name=value` and `name=value`; a name without a value is true.

    Variables that the file assigns itself are replaced; nothing is executed.
    """
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in text.replace("\\\n", " ").split("\n"):
        bare = _computed(_COMMENT.sub("", line), variables)
        if assigned := _ASSIGNED.match(bare):
            variables[assigned[1]] = _replaced(assigned[2].strip("\"'"), variables)
            continue
        try:
            words += shlex.split(_replaced(bare.strip("()").replace("=(", " "), variables))
        except ValueError:  # a quotation over several lines, as programs within a shell file have
            words += bare.split()
    return _named(words)


def _computed(text: str, variables: Mapping[str, str]) -> str:
    """The text with whole-number arithmetic worked out, and without the words of commands, which only a shell knows."""
    if "$(" not in text and "`" not in text and "[" not in text:
        return text
    text = _ARITHMETIC.sub(lambda found: _worked_out(found[1], variables), _ARRAY.sub("", _filled_in(text, variables)))
    for _ in range(_INNERMOST):
        text, number = _COMMAND.subn("${computed}", text)
        if not number:
            break
    return text


def _filled_in(text: str, variables: Mapping[str, str]) -> str:
    """The text with the variables within arithmetic replaced."""
    return _replaced(text, variables) if "$((" in text else text


def _worked_out(expression: str, variables: Mapping[str, str]) -> str:
    """Whole-number arithmetic as a shell does it; the expression where there is more to it."""
    named = re.sub(r"[A-Za-z_]\w*", lambda found: variables.get(found[0], found[0]), expression)
    try:
        return str(_whole(ast.parse(named.strip().replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return "${computed}"


def _whole(node: ast.expr) -> int:
    """The value of whole numbers, + - * / % and brackets.

    Raises:
        ValueError: anything else.
        ArithmeticError: a division by 0.
    """
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_whole(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_whole(left), _whole(right))
        case _:
            raise ValueError(ast.dump(node)[:60])


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _named(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if not _WORD.fullmatch(word):
            if name:
                found[name] = word if found[name] is True else f"{found[name]} {word}"
                name = "" if word.isdigit() else name  # what follows a number is no part of it
            continue
        name, said, value = word.partition("=")
        name = name.lstrip("-+")
        found[name] = value if said else True
        name = "" if said else name
    return found


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[2] or found[0]), text)


def _first_line(error: Exception) -> str:
    """An error's words on one line; a YAML error's problem and its place."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"{problem}, line {mark.line + 1}"
    return " ".join(str(error).split())[:200]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "TOML": tomllib.loads,
    "JSON": json.loads,
    "YAML": _yaml,
    "arguments": _arguments,
}
