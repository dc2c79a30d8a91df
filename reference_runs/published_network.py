"""What the cells of a published row say of the network: how many accelerators are joined without it, and its rate."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from reference_runs.accelerator import accelerator
from reference_runs.published_run import Cells, UnusableError

_RATE = re.compile(r"(?:(\d+) ?x ?.*?)?(?<![\d.])(\d+(?:\.\d*)?|\.\d+) ?([GT])(bit/s|b/s|bps|bE\b|b\b|B/s|Bps)")
_INSIDE = re.compile(r"nvlink|nvswitch|\bnvl\d*\b|xgmi|infinity fabric", re.IGNORECASE)


class Network(NamedTuple):
    """The network of a row.

    Args:
        accelerators_per_node: that reach each other without it.
        bytes_per_second: out of so many together; None: not known, and not needed where they hold the run.
    """

    accelerators_per_node: int
    bytes_per_second: float | None


def network_of(cells: Cells, device: str) -> Network:
    """The rate as a number, else as the words of `inter_link`, else as assumed.

    Where the link of a board joins several hosts, and the row counts the accelerators of one, all that it joins are a
    node here, and what leaves a host is multiplied by their number: 4 x 400 Gbit/s of a GB200's compute tray are
    72 x 400 Gbit/s of NVL72.

    Raises:
        UnusableError: the run has more accelerators than one node, and no rate is known.
    """
    counted = cells.count("gpus_per_node")
    joined = accelerator(device).board.joined(counted)
    if joined != counted:
        cells.assumed.append(f"gpus_per_node {counted} = {joined}")
    if (rate := _of_a_host(cells)) is not None:
        return Network(joined, rate * joined / counted)
    if cells.count("gpus") <= joined:
        return Network(joined, None)
    if not cells.said("network_bytes_per_second"):
        what = "inter_link and network_bytes_per_second are blank, or name no rate"
        raise UnusableError(f"{what}, for more than one node")
    return Network(joined, cells.positive("network_bytes_per_second"))


def _of_a_host(cells: Cells) -> float | None:
    """What the row states of one host."""
    if cells.stated.get("network_bytes_per_second"):
        return cells.positive("network_bytes_per_second")
    return worded_bytes_per_second(cells.stated.get("inter_link", ""))


@cache
def worded_bytes_per_second(text: str) -> float | None:
    """Bytes per second out of a node in words such as "8x HDR InfiniBand 200Gb/s per node"; None: no rate in them.

    A count in front multiplies; b is a bit and B a byte. Of several rates the highest: the others are of storage and
    management. A part that names NVLink is of links inside.
    """
    outside = " ; ".join(part for part in re.split(r"[,;+]", text) if not _INSIDE.search(part))
    rates = [
        int(count or 1) * float(rate) * {"G": 1e9, "T": 1e12}[prefix] / (1 if unit.startswith("B") else 8)
        for count, rate, prefix, unit in _RATE.findall(outside)
    ]
    return max(rates, default=0.0) or None
