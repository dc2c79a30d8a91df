"""What the cells of a published row say of the network: how many accelerators are joined without it, and its rate."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from reference_runs.accelerator import accelerator
from reference_runs.published_run import Cells, UnusableError

_RATE = re.compile(
    r"(?<![\d.])(\d+(?:\.\d*)?|\.\d+) ?([gt])(?:(bytes?/s|bits?/s|b(?:/s|ps|e)?)(?![a-z])|(?![a-z]))", re.IGNORECASE
)
_PORTS = r"(?:ports?|nics?|hcas?|interfaces?|rails?|adapters?)\b"
_BEFORE = re.compile(
    rf"(?<![\w.-])(?:(\d+) ?(?:[x\u00d7*](?! ?\d+\b(?! ?[gt.]))|(?=-?{_PORTS})|(?=\d+ ?[gt]))|[x\u00d7*](\d+)\b)",
    re.IGNORECASE,
)
_AFTER = re.compile(r"[x\u00d7*] ?(\d+)\b", re.IGNORECASE)
_OF_PORTS = re.compile(rf"(\d+)[ -]?{_PORTS}|(\d+) per node", re.IGNORECASE)
_EACH_PORT = re.compile(rf"(?:per|/|a) ?{_PORTS}|\beach\b", re.IGNORECASE)
_EACH_ACCELERATOR = re.compile(r"(?:per|/|each|a) ?(?:gpu|accelerator)\b", re.IGNORECASE)
_INSIDE = re.compile(r"nvlink|nvswitch|\bnvl\d*\b|xgmi|infinity fabric|\bintra", re.IGNORECASE)
_TO_THE_HOST = re.compile(r"pcie", re.IGNORECASE)
_LANES = re.compile(r"\b(?:4X|12X) ?(?=[EFHNX]DR)")  # of one port of InfiniBand
_NAMED_PORT = re.compile(
    r"(?:(\d+) ?[x\u00d7*] ?)?(?<![a-z])([ehnx]dr)(\d{3})?(?![a-z])(?:.*?[x\u00d7*] ?(\d+)\b)?", re.IGNORECASE
)
_GBITS_OF_A_PORT = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}  # of InfiniBand
_MOST_OF_AN_ACCELERATOR = 1e11  # bytes per second of its interfaces: beyond that a rate is of more than one host


class Network(NamedTuple):
    """The network of a row.

    Args:
        accelerators_per_node: that reach each other without it.
        bytes_per_second: out of so many together; None: not known, and not needed where they hold the run.
    """

    accelerators_per_node: int
    bytes_per_second: float | None


class WordedRate(NamedTuple):
    """Bytes per second that words name, over so many interfaces; 1 where they name none."""

    bytes_per_second: float
    interfaces: int


def network_of(cells: Cells, device: str) -> Network:
    """The rate as a number, else as the words of `inter_link`, else as assumed.

    Where the link of a board joins several hosts, all that it joins are a node here. A rate is of one host if the row
    counts the accelerators of a host, or says nothing of a node, or if its words have an interface for each of a
    host's: 4 x 400 Gbit/s of a GB200's compute tray are 72 x 400 Gbit/s of NVL72.

    Raises:
        UnusableError: the run has more accelerators than one node, and no rate is known.
    """
    counted, board = cells.count("gpus_per_node"), accelerator(device).board
    joined = board.joined(counted)
    if joined != counted:
        cells.assumed.append(f"gpus_per_node {counted} = {joined}")
    if (text := cells.stated.get("inter_link", "")) and not cells.stated.get("network_bytes_per_second"):
        host = board.accelerators_per_host or counted
        rate = worded_rate(text, counted if cells.stated.get("gpus_per_node") else host)
        if rate is not None:
            unsaid = not cells.stated.get("gpus_per_node") and rate.interfaces != joined
            of_host = rate.interfaces == host or (unsaid and rate.bytes_per_second <= host * _MOST_OF_AN_ACCELERATOR)
            whole = rate.bytes_per_second * joined / (host if of_host else counted)
            cells.assumed.append(f"inter_link {text} = {8e-9 * whole:,.6g} Gbit/s a node")
            return Network(joined, whole)
        cells.assumed.append(f"inter_link {text} = no rate")
    if cells.count("gpus") <= joined and not cells.stated.get("network_bytes_per_second"):
        return Network(joined, None)
    if not cells.said("network_bytes_per_second"):
        what = "inter_link and network_bytes_per_second are blank, or name no rate"
        raise UnusableError(f"{what}, for more than one node")
    return Network(joined, cells.positive("network_bytes_per_second") * joined / counted)


@cache
def worded_rate(text: str, accelerators: int) -> WordedRate | None:
    """What leaves a node with so many accelerators, in words such as "8x HDR 200Gb/s"; None: no rate in them.

    A count before or after the rate multiplies, one of ports what is said of each port, and the accelerators what is
    said of each; a small b is a bit, a large one a byte. Of several rates the highest: the others are of storage and
    management. A part that names NVLink is of links inside; one of PCIe counts where no other part has a rate.
    """
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", _LANES.sub("", text))
    plain = re.sub(r"(?<=\d),(?=\d{1,2} ?[GT])", ".", plain)
    parts = [part for part in re.split(r"[,;+]", plain) if not _INSIDE.search(part)]
    for those in (
        [part for part in parts if not _TO_THE_HOST.search(part)],
        [part for part in parts if _TO_THE_HOST.search(part)],
    ):
        rates = [rate for part in those if (rate := _of_part(part, text, accelerators))]
        if rates:
            return max(rates)
    return None


def _of_part(part: str, text: str, accelerators: int) -> WordedRate | None:
    found = _RATE.search(part)
    if found is None:
        return _of_a_named_port(part)
    number, prefix, unit = found.groups()
    is_bytes = bool(unit) and (unit.startswith("B") or unit.casefold().startswith("byte"))
    rate = float(number) * {"g": 1e9, "t": 1e12}[prefix.casefold()] / (1 if is_bytes else 8)
    before, after = _BEFORE.search(part[: found.end()]), _AFTER.search(part[found.end() :])
    if before and before.start() < found.start():
        count = int(before[1] or before[2])
    elif after:
        count = int(after[1])
    elif _EACH_ACCELERATOR.search(part):
        count = accelerators
    else:
        ports = _OF_PORTS.search(text if _EACH_PORT.search(part) else part)
        count = int(ports[1] or ports[2]) if ports else 1
    return WordedRate(count * rate, count) if rate > 0 else None


def _of_a_named_port(part: str) -> WordedRate | None:
    """Of words such as "8x NDR", which need a count: how many ports a node has is not in their name."""
    found = _NAMED_PORT.search(part)
    if found is None or not (count := found[1] or found[4]):
        return None
    gbits = int(found[3] or _GBITS_OF_A_PORT[found[2].casefold()])
    return WordedRate(int(count) * gbits * 1e9 / 8, int(count))
