"""What people write for a GPU around the catalog's name: "8x NVIDIA H100 80GB HBM3", "DGX B200", "GB200 (186GB)"."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.errors import nearest
from reference_runs.published_tables import load_tables

LEAST_SHARE = 0.9  # of a recorded memory: drivers say less than is on the board
_AROUND = frozenset(
    [
        *("nvidia", "amd", "instinct", "geforce", "tesla", "huawei", "google", "dgx", "hgx", "oam"),
        *("tensor", "core", "gpu", "gpus", "ampere", "hopper", "blackwell", "volta", "ada"),
    ]
)
_BOARDS = ("sxm", "pcie", "nvl")
_COUNT = re.compile(r"(?<![a-z0-9])(?:\d+\s*[x\u00d7*]\s*(?=[a-z])|[x\u00d7*]\s*\d+(?![a-z0-9]))")
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)[\s_-]*gi?b(?![a-z0-9])")
_OF_A_SERIES = re.compile(r"[a-z]{1,3}\d{2,3}[a-z]?")


class GpuWords(NamedTuple):
    """The words of a GPU's name apart: "NVIDIA A100-SXM4-80GB" is the model {a100}, the board {sxm}, 80 GB."""

    model: frozenset[str]
    boards: frozenset[str]
    sizes: frozenset[float]


class _GpuBoard(NamedTuple):
    name: str
    models: frozenset[frozenset[str]]
    board: str
    gib: tuple[float, ...]


def gpu_words(text: str) -> GpuWords:
    """The words of `text` without vendor, count, kind of machine and kind of memory."""
    bare = _COUNT.sub(" ", text.casefold())
    sizes = frozenset(map(float, _SIZE.findall(bare)))
    words = re.split(r"[\s_\-()\[\],/]+", _SIZE.sub(" ", bare))
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in words if word and not re.fullmatch(r"hbm\d?e?", word)]
    if "gb200" in words:
        words = [word for word in words if word != "nvl72"]
    boards = frozenset(words).intersection(_BOARDS)
    return GpuWords(frozenset(words) - boards - _AROUND, boards, sizes)


def worded_gpu(text: str) -> str | None:
    """The catalog's name of the GPU that these words mean; None: of none, or of several of which none is assumed.

    Without a board, that of the usual training machine is meant.
    """
    said = gpu_words(text)
    if len(said.boards) > 1 or len(said.sizes) > 1:
        return None
    boards = said.boards or ("", "sxm")
    meant = [
        each.name
        for each in _recorded()
        if said.model in each.models
        and each.board in boards
        and all(any(LEAST_SHARE * gib <= size <= gib for gib in each.gib) for size in said.sizes)
    ]
    if len(meant) > 1:
        assumed = {entry.accelerator for entry in load_tables().open_accelerators}
        meant = [name for name in meant if name in assumed]
    return meant[0] if len(meant) == 1 else None


@cache
def _recorded() -> tuple[_GpuBoard, ...]:
    found = []
    for name in accelerator_names():
        if name == "this-cpu":
            continue
        device = accelerator(name)
        models = frozenset(gpu_words(each).model for each in (name, *device.aliases)) - {frozenset()}
        board = next(iter(gpu_words(name).boards), "")
        others = [float(str(each.value)) for each in device.facts["board.memory_bytes"].readings]
        found.append(_GpuBoard(name, models, board, (device.board.memory_bytes / 2**30, *others)))
    return tuple(found)


def near_gpu(text: str) -> str | None:
    """The name that `text` perhaps misspells: none of another model than the one that it names, B200 for a B300."""
    known = [*accelerator_names(), *load_tables().accelerators]
    near = nearest(re.sub(r"[\s_-]+", "-", text.casefold()), [name.casefold() for name in known])
    models = {word for word in gpu_words(text).model if _OF_A_SERIES.fullmatch(word)}
    return near if near and models <= gpu_words(near).model else None
