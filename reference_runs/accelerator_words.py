"""The words of an accelerator's name as people write it: model, board and memory, without vendor, count and machine."""

from __future__ import annotations

import re
from typing import NamedTuple

# vendor, generation, kind of machine
_AROUND = frozenset(
    (
        *("nvidia", "amd", "instinct", "geforce", "tesla", "huawei", "google", "cloud", "intel", "habana", "aws"),
        *("ampere", "hopper", "blackwell", "volta", "turing", "ada", "tensor", "core", "gpu", "gpus"),
        *("dgx", "hgx", "oam", "server", "workstation", "edition"),
    )
)
_BOARDS = frozenset(("sxm", "pcie", "nvl"))
_RACKS = {"gb200": "nvl72", "gb300": "nvl72", "rubin": "nvl72"}  # by model, the domain that its accelerators all have
_COUNT = re.compile(r"(?<![a-z0-9])(?:\d+\s*[x\u00d7*]\s*(?=[a-z])|[x\u00d7*]\s*\d+(?![a-z0-9]))")
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)[\s_-]*gi?b(?![a-z0-9])")
_OF_A_SERIES = re.compile(r"[a-z]{1,3}\d{2,3}[a-z]?")


class GpuWords(NamedTuple):
    """The words of a GPU's name apart: "NVIDIA A100-SXM4-80GB" is the model {a100}, the board {sxm}, 80 GB."""

    model: frozenset[str]
    boards: frozenset[str]
    sizes: frozenset[float]

    @property
    def series(self) -> frozenset[str]:
        """The words that alone tell one model from another, such as b300."""
        return frozenset(word for word in self.model if _OF_A_SERIES.fullmatch(word))


def folded(name: str) -> str:
    """The name in small letters, with single hyphens between its words."""
    return "-".join(re.split(r"[\s_-]+", name.casefold().strip()))


def name_words(name: str) -> tuple[str, ...]:
    """The words of an accelerator's name: "A100 80GB SXM" and "a100-sxm_80gb" have the same ones."""
    return tuple(sorted(folded(name).split("-")))


def system_words(text: str) -> list[str]:
    """The words of a system's or a file's name: of "XE9680x8H100-SXM_DGXB200" are xe9680, h100, sxm, b200."""
    return re.findall(r"[^\s_\-()\[\],/.]+", re.sub(r"[dh]gx|(?<![a-z])x\d+", " ", text.casefold()))


def gpu_words(text: str) -> GpuWords:
    """The words of `text` without vendor, count, kind of machine and kind of memory."""
    bare = _COUNT.sub(" ", text.casefold())
    sizes = frozenset(map(float, _SIZE.findall(bare)))
    said = re.split(r"[\s_\-()\[\],/]+", _SIZE.sub(" ", bare))
    said = [re.sub(r"^sxm\d$", "sxm", word) for word in said if word and not re.fullmatch(r"hbm\d?e?", word)]
    racks = {_RACKS[word] for word in said if word in _RACKS}
    boards = _BOARDS.intersection(said)
    return GpuWords(frozenset(said) - boards - _AROUND - racks, boards, sizes)
