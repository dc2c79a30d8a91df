"""The model that a configuration names: of a config.json beside it, of a recorded run, or of models.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference_runs.catalog import load, reference_run, run_of
from reference_runs.configurations.configuration import is_file
from reference_runs.errors import InputError
from reference_runs.hugging_face.families import imported_values
from reference_runs.model_sizes import SIZES
from reference_runs.named_runs import any_of, command_name, folded_name, meant_run, named_runs, run_names
from reference_runs.run import ReferenceRun
from reference_runs.run_text import run_text

MOST_LETTERS = 200  # of a model's name that are read
MODELS = Path(__file__).parent / "models.toml"
_ENDINGS = re.compile(
    r"(?:instruct|chat|it|base|hf|tokenizer|fp16|bf16|gptq|awq|flexattn|varlenattn|flex|varlen|v\d\.\d|[02]\d[0-3]\d)+$"
)


class UnknownModelError(InputError):
    """A model whose shape is not known here."""


def model_of(
    name: str, shape: Mapping[str, Any] | None, directory: Path, *, sequence: int | None
) -> tuple[ReferenceRun, str]:
    """The model of a configuration, and the name to print.

    Args:
        name: as it is written.
        shape: keys of a config.json that the configuration itself says.
        directory: of the configuration.
        sequence: tokens of a sample.

    Raises:
        InputError: no model is named, or its configuration cannot be read or is not described.
        UnknownModelError: the name is of none that is known here.
    """
    if shape is not None:
        return _run(shape, "its own sizes", sequence), name or "its own sizes"
    for place in (directory / name, Path(name), directory) if name else (directory,):
        if is_file(found := place / "config.json") and _names_model(found):
            run = _from_file(found, sequence)
            return run, name or run.name
    if not name:
        raise InputError("missing model: it names none; put its config.json beside the file, or say --model")
    if name.endswith((".json", ".toml")):
        path = beside if is_file(beside := directory / name) else Path(name)
        return (load(path) if path.suffix == ".toml" else _from_file(path, sequence)), name
    return named_model(name, sequence=sequence), name


def has_model(directory: Path) -> bool:
    """Whether a model's config.json lies in a directory."""
    return is_file(found := directory / "config.json") and _names_model(found)


def asked_model(name: str) -> str:
    """The model that an option names, found: its name, or the absolute path of its file or directory.

    Raises:
        InputError: no such file, or one that describes no model.
        UnknownModelError: none is known by that name; the nearest one is suggested.
    """
    path = Path(name)
    if name.endswith((".json", ".toml")) or has_model(path):
        if not has_model(path) and not is_file(path):
            raise InputError("no such file", got=name)
        model_of(name, None, Path(), sequence=None)
        return str(path.absolute())
    try:
        named_model(name, sequence=None)
    except UnknownModelError as error:
        meant = meant_run(name, [*run_names(), *(command_name(each) for each in SIZES.glob("*.toml")), *_shape_names()])
        allowed = "a recorded run, a model of reference_runs/sizes, config.json, or a run file"
        raise UnknownModelError("unknown model", got=name[:MOST_LETTERS], meant=meant, allowed=allowed) from error
    return name


def named_model(name: str, *, sequence: int | None) -> ReferenceRun:
    """The model of that name: a recorded run, one of `sizes`, or of models.toml.

    Raises:
        UnknownModelError: none, or several.
    """
    name = name[:MOST_LETTERS]
    short = _ENDINGS.sub("", folded_name(name).removeprefix("meta")) or folded_name(name)
    for each in (name, short):
        if len(runs := named_runs(each)) == 1:
            return reference_run(runs[0])
        if runs:
            raise UnknownModelError("unknown model: its name says no size", allowed=any_of(runs))
    sizes = {folded_name(command_name(path)): path for path in SIZES.glob("*.toml")}
    plain = {key.replace(".", ""): path for key, path in sizes.items()} | sizes
    if (path := plain.get(short)) is not None:
        return load(path)
    if (config := _shapes().get(short)) is not None:
        return _run(config, name, sequence)
    raise UnknownModelError("unknown model: put its config.json beside the file")


@functools.cache
def _shapes() -> dict[str, dict[str, Any]]:
    return {folded_name(name): model["config"] for model in _models() for name in model["names"]}


def _shape_names() -> list[str]:
    return [name for model in _models() for name in model["names"]]


@functools.cache
def _models() -> list[dict[str, Any]]:
    with MODELS.open("rb") as file:
        models: list[dict[str, Any]] = tomllib.load(file)["models"]
    return models


def _names_model(path: Path) -> bool:
    """Whether a config.json is of a model: other programs call theirs so too."""
    from reference_runs.hugging_face.configuration import read_configuration

    try:
        return bool(read_configuration(path))
    except InputError:
        return False


def _from_file(path: Path, sequence: int | None) -> ReferenceRun:
    from reference_runs.configured_run import configured_run

    return configured_run(path, sequence=sequence)


def _run(config: Mapping[str, Any], name: str, sequence: int | None) -> ReferenceRun:
    run = imported_values(config, Path(f"{name}.json"), sequence=sequence)
    text = run_text(run.title, run.sources, run.facts, comments=())
    return run_of(tomllib.loads(text), name=name, where=name)
