"""Names of the recorded runs, and which one a model's name means: "meta-llama/Llama-2-7b-hf" is llama2-7b."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from reference_runs.errors import nearest

RUNS = Path(__file__).parent / "runs"
_SIZE = re.compile(r"-(?:\d+x)?[\d.]+[bm](?:-.*)?$")
_ENDINGS = ("hf", "base", "pretrain", "pretraining", "v0.1", "v0.3")


def command_name(path: Path) -> str:
    """The name that the command line uses for a recorded run: the file's stem with hyphens."""
    return path.stem.replace("_", "-")


def run_names() -> list[str]:
    """Names of the recorded runs, sorted."""
    return sorted(command_name(path) for path in RUNS.glob("*.toml"))


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "", name.casefold())


@functools.cache
def _names() -> dict[str, str]:
    """Folded names -> run; a name without its size where one run alone has it."""
    names = {_folded(name): name for name in run_names()}
    stems: dict[str, list[str]] = {}
    for name in run_names():
        stems.setdefault(_folded(_SIZE.sub("", name)), []).append(name)
    return {stem: runs[0] for stem, runs in stems.items() if len(runs) == 1} | names


def named_run(model: str) -> str | None:
    """The recorded run of the model that is called so; None: none is.

    Letters' case, what stands between them, an owner in front ("meta-llama/") and endings such as "-hf" do not count.
    """
    folded = _folded(model.rpartition("/")[2])
    for ending in ("", *_ENDINGS):
        if folded.endswith(ending):
            short = folded.removesuffix(ending).removeprefix("meta")
            if found := _names().get(short):
                return found
    return None


def meant_run(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that an unknown name perhaps means: the run of a model that is called so, or a near one."""
    names = list(names)
    named = named_run(name)
    return named if named in names else nearest(name, names)
