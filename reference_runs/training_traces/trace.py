"""A device's part of a trace: when its kernels ran, who launched them, and what the host did meanwhile."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.training_traces.products import TimedProduct

_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)


class Label(NamedTuple):
    """Name of a span, and all else that spans of a kind have in common.

    Args:
        category: kernel, copy, operator, annotation or runtime.
        collective: of a kernel that communicates, what was called, where the trace says it.
        group: its process group: a description, or a number.
        ranks: of that group.
        records_graph: of an operator: whether autograd recorded it for a backward pass.
    """

    name: str
    category: str
    collective: str = ""
    group: str = ""
    ranks: str = ""
    records_graph: bool = False


class Spans:
    """Spans of time in nanoseconds, column by column: a trace has millions.

    Attributes:
        labels: indices of each span's label.
        links: of a kernel, when the host launched it; of what the host does, its thread.
    """

    def __init__(self) -> None:
        self.labels, self.starts, self.ends, self.links = array("l"), array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, label: int, start: int, end: int, link: int) -> None:
        """Append one span."""
        self.labels.append(label)
        self.starts.append(start)
        self.ends.append(end)
        self.links.append(link)


class Labels:
    """Each label once, with its number."""

    def __init__(self) -> None:
        self.all: list[Label] = []
        self._numbers: dict[Label, int] = {}

    def number(self, label: Label) -> int:
        """The label's index in `all`."""
        found = self._numbers.setdefault(label, len(self.all))
        if found == len(self.all):
            self.all.append(label)
        return found


class DeviceTrace(msgspec.Struct):
    """The trace of one device, or of a host that computes itself.

    Args:
        rank: None: neither the trace nor its file's name says it.
        kernels: kernels and copies of the device; none: the host computes.
        host: operators, annotations, and calls that wait for the device.
        notes: what a reader should know of how the file was read.
        products: of the device's kernels those whose shapes the trace says.
    """

    where: str
    rank: int | None
    labels: list[Label]
    kernels: Spans
    host: Spans
    notes: list[str]
    products: list[TimedProduct] = []


def rank_of_name(path: Path) -> int | None:
    """The rank that a file's name says; None: none."""
    match = _RANK.search(path.name)
    return int(match[1]) if match else None
