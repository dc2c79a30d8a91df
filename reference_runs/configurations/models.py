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
from reference_runs.named_runs import any_of, command_name, folded_name, named_runs
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
    for place in dict.fromkeys((directory / name, directory)):
        if is_file(found := place / "config.json") and _names_model(found):
            run = _from_file(found, sequence)
            return run, name or run.name
    if not name:
        raise InputError("missing model: it names none; put its config.json beside the file, or say --model")
    if name.endswith((".json", ".toml")):
        path = Path(name)
        return (load(path) if path.suffix == ".toml" else _from_file(path, sequence)), name
    return named_model(name, sequence=sequence), name


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
    with MODELS.open("rb") as file:
        models = tomllib.load(file)["models"]
    return {folded_name(name): model["config"] for model in models for name in model["names"]}


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
