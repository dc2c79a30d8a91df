"""Names of the recorded runs, and which one a model's name means: "meta-llama/Llama-2-7b-hf" is llama2-7b."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from reference_runs.errors import nearest

RUNS = Path(__file__).parent / "runs"
_SIZE = re.compile(r"-(?:\d+x)?[\d.]+[bm](?:-.*)?$")
_SIZES = re.compile(r"\d+(?:\.\d+)?[bm](?![a-z0-9])")
_ENDINGS = ("hf", "base", "pretrain", "pretraining", "instruct", "chat", "v0.1", "v0.3", "base8k")
# models of other names with the shape of a recorded one, and shorter names of those recorded
_ALSO = {
    **{f"llama3-{size}": f"llama3.1-{size}" for size in ("8b", "70b", "405b")},
    **{"llama3.3-70b": "llama3.1-70b", "deepseek-r1": "deepseek-v3", "deepseek-v3-671b": "deepseek-v3"},
    **{"gpt2-small": "gpt2-124m", "gpt2-medium": "gpt2-350m", "gpt2-large": "gpt2-774m", "gpt2-xl": "gpt2-1558m"},
    **{"grok1-314b": "grok-1", "gpt-175b": "gpt3-175b", "qwen3-moe-30b-a3b": "qwen3-30b-a3b"},
    "qwen3-moe-235b-a22b": "qwen3-235b-a22b",
    **{f"deepseek-r1-distill-llama-{size}": f"llama3.1-{size}" for size in ("8b", "70b")},
}


def command_name(path: Path) -> str:
    """The name that the command line uses for a recorded run: the file's stem with hyphens."""
    return path.stem.replace("_", "-")


def run_names() -> list[str]:
    """Names of the recorded runs, sorted."""
    return sorted(command_name(path) for path in RUNS.glob("*.toml"))


def folded_name(model: str) -> str:
    """A model's name without an owner in front ("meta-llama/"), letters' case, and what stands between its words."""
    return re.sub(r"[^a-z0-9.]+", "", model.rpartition("/")[2].casefold())


def has_sizes(asked: str, name: str) -> bool:
    """Whether what is asked for has each size that is in a model's name: "pythia-14b" does not have that of 1.4b.

    A size's dot may be "_": "qwen2_5_0_5b" has 0.5b.
    """
    own = asked.rpartition("/")[2].casefold()
    sizes = (size.replace(".", "[._]") for size in _SIZES.findall(name))
    return all(re.search(rf"(?<![\d.]){size}", own) for size in sizes)


@functools.cache
def _names() -> dict[str, tuple[str, list[str]]]:
    """Folded names -> the name, and the run; a name without its size -> the runs of all sizes."""
    names: dict[str, tuple[str, list[str]]] = {}
    for name in run_names():
        sizeless = _SIZE.sub("", name)
        names.setdefault(folded_name(sizeless), (sizeless, []))[1].append(name)
    for name, run in (_ALSO | {run: run for run in run_names()}).items():
        names[folded_name(name)] = (name, [run])
    return {folded.replace(".", ""): runs for folded, runs in names.items()} | names


def named_runs(model: str) -> list[str]:
    """The recorded runs of the model that is called so; several where its size is not said.

    Letters' case, what stands between them, an owner in front ("meta-llama/"), endings such as "-hf", and that a head
    for further tokens is left out ("w/o MTP") do not count; nor does a missing dot of a version: "llama31-405b" is
    llama3.1-405b, and "llama3-18b" none. What else stands in brackets does: "Llama 2 (7B)" is llama2-7b, "GPT3 (1.3B)"
    no recorded run.
    """
    folded = folded_name(re.sub(r"\(?w/o mtp\)?", "", model, flags=re.IGNORECASE))
    for ending in ("", *_ENDINGS):
        if folded.endswith(ending):
            short = folded.removesuffix(ending).removeprefix("meta").removeprefix("nvidia")
            name, runs = _names().get(short, ("", []))
            if runs and has_sizes(model, name):
                return runs
    return []


def says_size(model: str) -> bool:
    """Whether a model's name says which size it is: "Llama 2 (7B)" does, and "DeepSeek-V3" as the run's own name."""
    own = folded_name(model) in {folded_name(run) for run in run_names()}
    return own or re.search(r"\d ?[bm](?![a-z])", model.casefold()) is not None


def meant_run(name: str, names: Iterable[str]) -> str | None:
    """Which of `names` an unknown name perhaps means: the runs of a model that is called so, or else a near one."""
    names = list(names)
    return any_of([run for run in named_runs(name) if run in names]) or nearest(name, names)


def any_of(names: Sequence[str]) -> str | None:
    """The names as one text, "a, b or c"; None of none."""
    if len(names) < 2:
        return names[0] if names else None
    return f"{', '.join(names[:-1])} or {names[-1]}"
