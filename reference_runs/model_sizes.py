"""Models of the sizes that people ask for, from 1 to 671 billion parameters: recorded runs, and architectures alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from reference_runs.catalog import load, reference_run
from reference_runs.named_runs import command_name
from reference_runs.run import Architecture

SIZES = Path(__file__).parent / "sizes"  # models of which no training is recorded here
RECORDED = (
    *("llama2-7b", "llama3.1-8b", "llama2-13b", "qwen3-30b-a3b", "mixtral-8x7b", "llama3.1-70b", "mixtral-8x22b"),
    *("qwen3-235b-a22b", "llama3.1-405b", "deepseek-v3"),
)
_SIZE = re.compile(r"-((?:\d+x)?[\d.]+b)(?:-a[\d.]+b)?$")
_UNSAID = {"deepseek-v3": "671B"}


class ModelSize(NamedTuple):
    """A model, and its size as people call it: 7B, 8x7B."""

    name: str
    size: str
    architecture: Architecture


def model_sizes() -> list[ModelSize]:
    """The models of all sizes."""
    shapes = {name: reference_run(name).architecture for name in RECORDED}
    shapes |= {command_name(path): load(path).architecture for path in sorted(SIZES.glob("*.toml"))}
    return [ModelSize(name, size_word(name), architecture) for name, architecture in shapes.items()]


def size_word(name: str) -> str:
    """The size in a model's name; the name itself where it says none."""
    found = _SIZE.search(name)
    return found[1].upper().replace("X", "x") if found else _UNSAID.get(name, name)
