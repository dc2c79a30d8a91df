"""Sizes of models: the table models.toml, and the models of the sizes that people ask for, 1 to 671 billion."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from reference_runs.catalog import reference_run
from reference_runs.configured_run import run_of_values
from reference_runs.named_runs import folded_name
from reference_runs.run import Architecture

MODELS = Path(__file__).parent / "models.toml"
RECORDED = (
    *("llama2-7b", "llama3.1-8b", "llama2-13b", "qwen3-30b-a3b", "mixtral-8x7b", "llama3.1-70b", "mixtral-8x22b"),
    *("qwen3-235b-a22b", "llama3.1-405b", "deepseek-v3"),
)
NOT_RECORDED = ("llama3.2-1b", "llama3.2-3b", "qwen3-14b", "qwen3-32b")
_SIZE = re.compile(r"-((?:\d+x)?[\d.]+b)(?:-a[\d.]+b)?$")
_UNSAID = {"deepseek-v3": "671B"}


class ModelSize(NamedTuple):
    """A model, and its size as people call it: 7B, 8x7B."""

    name: str
    size: str
    architecture: Architecture


class KnownModel(NamedTuple):
    """A line of models.toml.

    Args:
        also: further names of the model, or of one of the same sizes.
        sources: package and the name in it where the sizes were read, in the order in which they count.
        not_read: keys of `config` that no source states.
        config: keys of a config.json.
    """

    also: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    not_read: tuple[str, ...]
    config: dict[str, Any]


def model_sizes() -> list[ModelSize]:
    """The models of all sizes."""
    shapes = {name: reference_run(name).architecture for name in RECORDED}
    table = known_models()
    shapes |= {name: run_of_values(table[name].config, name).architecture for name in NOT_RECORDED}
    return [ModelSize(name, size_word(name), architecture) for name, architecture in shapes.items()]


def size_word(name: str) -> str:
    """The size in a model's name; the name itself where it says none."""
    found = _SIZE.search(name)
    return found[1].upper().replace("X", "x") if found else _UNSAID.get(name, name)


@functools.cache
def known_models() -> dict[str, KnownModel]:
    """The models of the table by name."""
    return {
        name: _known_model(family, line)
        for family, lines in _table().items()
        if family != "packages"
        for name, line in lines.items()
    }


def packages() -> dict[str, dict[str, str]]:
    """The release and the files of it in which sizes were read, by package."""
    found: dict[str, dict[str, str]] = _table()["packages"]
    return found


@functools.cache
def folded_models() -> dict[str, tuple[str, str]]:
    """The names in the table as `dotless_name` gives them, each with itself and its line's name."""
    return {dotless_name(each): (each, name) for name, line in known_models().items() for each in (name, *line.also)}


def dotless_name(model: str) -> str:
    """A model's name as `folded_name` gives it, without dots: torchtune's qwen2_5_7b is Qwen2.5-7B.

    So is qwen2-57b; see `has_sizes`.
    """
    return folded_name(model).replace(".", "")


@functools.cache
def _table() -> dict[str, Any]:
    with MODELS.open("rb") as file:
        return tomllib.load(file)


def _known_model(family: str, line: dict[str, Any]) -> KnownModel:
    of_line = dict(line)
    also, source, not_read, null = (of_line.pop(key, ()) for key in ("also", "source", "not_read", "null"))
    sources = tuple((package, called) for package, _, called in (each.partition(" ") for each in source.split(", ")))
    config = {"model_type": family} | of_line | dict.fromkeys(null)
    return KnownModel(tuple(also), sources, tuple(not_read), config)
