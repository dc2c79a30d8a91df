"""The model that a configuration names: of a config.json beside it, of a recorded run, or of models.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reference_runs.catalog import load, reference_run
from reference_runs.configurations.configuration import is_file
from reference_runs.configured_run import configured_run, run_of_values
from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.model_sizes import dotless_name, folded_models, known_models, packages
from reference_runs.named_runs import any_of, folded_name, has_sizes, meant_run, named_runs, run_names
from reference_runs.run import ReferenceRun

MOST_LETTERS = 200  # of a model's name that are read
_ENDINGS = re.compile(
    r"(?:instruct|chat|it|base|hf|tokenizer|fp16|bf16|gptq|awq|bnb|nf4|4bit|dequantized|flexattn|varlenattn|flex|varlen|"
    r"v\d\.\d|[02]\d[0-3]\d|\d{1,3}k)+$"
)
_OTHERS = {  # what a name says of a model that is more than a decoder of text
    "it reads pictures or sound": re.compile(r"vl(?![a-z])|vlm|vision|omni|audio|voxtral|pixtral|llava|ocr"),
    "it gives a reward": re.compile(r"reward"),
}


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
        return run_of_values(shape, "its own sizes", sequence=sequence), name or "its own sizes"
    for place in (directory / name, Path(name), directory) if name else (directory,):
        if is_file(found := place / "config.json") and _names_model(found):
            run = configured_run(found, sequence=sequence)
            return run, name or run.name
    if not name:
        raise InputError("missing model: it names none; put its config.json beside the file, or say --model")
    if name.endswith((".json", ".toml")):
        path = beside if is_file(beside := directory / name) else Path(name)
        return (load(path) if path.suffix == ".toml" else configured_run(path, sequence=sequence)), name
    return named_model(name, sequence=sequence), name


def run_called(name: str, *, sequence: int | None = None, also: Iterable[str] = (), takes: str = "") -> ReferenceRun:
    """The run that a command's argument means: recorded, of a run file, of a config.json, or of a line of models.toml.

    Args:
        sequence: tokens of a sample, which a configuration and models.toml do not say.
        also: names that the caller takes besides; the refusal lists them.
        takes: further words for what the caller takes.

    Raises:
        InputError: as `reference_run` and `configured_run`.
    """
    if name.endswith(".json"):
        return configured_run(Path(name), sequence=sequence)
    if (model := sized_model(name)) is not None:
        try:
            return run_of_values(known_models()[model].config, model, sequence=sequence)
        except NotDescribedError as error:
            what = f"no formula describes it: {error.reason}"
            raise InputError(what, got=name, allowed="its config.json, which is traced") from error
    takes = f"a model by name (see `runs`), config.json, {takes}"
    return reference_run(name, also=also, near=known_models(), takes=takes)


def sized_model(name: str) -> str | None:
    """The line of models.toml that a name means; None of a file, and where a recorded run is called so."""
    if name.endswith((".json", ".toml")) or name in run_names() or named_runs(name):
        return None
    return _line_of(name)


def answered_by_formula(name: str) -> bool:
    """Whether an argument names a model, of which nothing was published that could be compared."""
    return name.endswith(".json") or sized_model(name) is not None


def name_with_source(name: str) -> str:
    """A name as it is printed: a model of models.toml with the release in which its sizes were read."""
    if (model := sized_model(name)) is None:
        return name
    package, _ = known_models()[model].sources[0]
    return f"{model} (sizes of {packages()[package]['release'].replace('==', ' ')})"


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
        meant = meant_run(name, [*run_names(), *known_models()])
        allowed = "a recorded run, a model of reference_runs/models.toml, config.json, or a run file"
        raise UnknownModelError("unknown model", got=name[:MOST_LETTERS], meant=meant, allowed=allowed) from error
    return name


def named_model(name: str, *, sequence: int | None) -> ReferenceRun:
    """The model of that name: a recorded run, or one of models.toml.

    Raises:
        UnknownModelError: none, or several.
    """
    name = name[:MOST_LETTERS]
    short = _short_name(name)
    for each in (name, short):
        if len(runs := named_runs(each)) == 1:
            return reference_run(runs[0])
        if runs:
            raise UnknownModelError("unknown model: its name says no size", allowed=any_of(runs))
    if (line := _line_of(name)) is not None:
        return run_of_values(known_models()[line].config, name, sequence=sequence)
    for what, words in _OTHERS.items():
        if words.search(name.casefold()):
            raise UnknownModelError(f"unknown model: by its name {what}, and only decoders of text are described")
    raise UnknownModelError("unknown model: put its config.json beside the file")


def _line_of(name: str) -> str | None:
    """The line of models.toml of that name."""
    spelled, line = folded_models().get(dotless_name(_short_name(name)), ("", None))
    return line if has_sizes(name, spelled) else None


def _short_name(name: str) -> str:
    """A model's folded name without what does not change its sizes."""
    folded = folded_name(name)
    return _ENDINGS.sub("", folded.removeprefix("meta").removeprefix("nvidia")) or folded


def _names_model(path: Path) -> bool:
    """Whether a config.json is of a model: other programs call theirs so too."""
    from reference_runs.hugging_face.configuration import read_configuration

    try:
        return bool(read_configuration(path))
    except InputError:
        return False
