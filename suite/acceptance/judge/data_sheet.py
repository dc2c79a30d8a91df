"""Rates of links that a known GPU should reach, and rates that none can: by its data sheet, with the place in it."""

from __future__ import annotations

from operator import attrgetter

from reference_runs.accelerator import Accelerator
from reference_runs.sourced import Kind
from suite.acceptance.judge.expected_rates import ExpectedRate, UpperLimit

# By name of a link's rate, its published fact, and the share of it below which a check warns: a judgement of what good
# nodes reach, so that nothing fails by it. GPUs that all copy at once may share one uplink. A node's own past is held
# to the narrower thresholds of the check itself; GEMMs, memory and all-reduces to floors (`floors.py`).
RATES: dict[str, tuple[str, float]] = {
    "host link": ("board.host_bytes_per_second_both_ways", 0.80),
    "pair": ("board.link_bytes_per_second_both_ways", 0.78),
    "all-to-all": ("board.link_bytes_per_second_both_ways", 0.70),
}
# By name of a rate, the published fact that none exceeds. Clocks and rounding may add this much to it
LIMITS = {
    "copy": "board.memory_bytes_per_second",
    "triad": "board.memory_bytes_per_second",
    "host link": "board.host_bytes_per_second_both_ways",
    "pair": "board.link_bytes_per_second_both_ways",
    "all-to-all": "board.link_bytes_per_second_both_ways",
    "ring": "board.link_bytes_per_second_both_ways",
    "nvls": "board.link_bytes_per_second_both_ways",
}
PRODUCTS = {"product": ("bf16", "fp16"), "sustained product": ("bf16", "fp16"), "FP8 product": ("fp8",)}
MOST = 1.02
_WHOLE_NODE = ("pair", "all-to-all")  # with as many GPUs as the link's switch usually joins
_ALL_REDUCE = ("ring", "nvls")


def expected(gpu: Accelerator | None, name: str, gpus: int = 0) -> list[ExpectedRate]:
    """The rate of this name in `RATES`, in one direction; empty where it is not known.

    Args:
        gpus: in the node, for rates of links.
    """
    if gpu is None:
        return []
    label, warn = RATES[name]
    share = gpu.board.pair_share if name in _WHOLE_NODE else 1.0
    rate = _rate(gpu, label)
    if rate is None or share is None or (name in _WHOLE_NODE and gpus != gpu.board.accelerators_per_node):
        return []
    return [ExpectedRate(value=share * rate, source=_source(gpu, label), warn=warn, fail=None)]


def upper_limit(gpu: Accelerator | None, name: str, gpus: int = 0) -> UpperLimit | None:
    """The limit that a rate of this name in `LIMITS` or `PRODUCTS`, measured well, cannot exceed; None: not known.

    A switch that sums ("nvls") sends one copy out and one back over each link, in which time a ring's bus bandwidth
    counts 2 (n - 1) / n of the message. Where the library chose the algorithm, this is the limit too.

    Args:
        gpus: n, for an all-reduce.
    """
    if gpu is None:
        return None
    if name in PRODUCTS:
        peaks = gpu.peak_flop_per_second
        dtype = next((dtype for dtype in PRODUCTS[name] if dtype in peaks), None)
        if dtype is None:
            return None
        return UpperLimit(MOST * peaks[dtype], f"{MOST:g} of the {_source(gpu, f'peak_flop_per_second.{dtype}')}")
    rate = _rate(gpu, LIMITS[name])
    if rate is None or (name in (*_WHOLE_NODE, *_ALL_REDUCE) and "PCIe" in gpu.board.link):
        return None  # a bridge joins two such cards beside PCIe
    factor = 2 * (gpus - 1) / gpus if name == "nvls" and gpus else 1.0
    times = "" if factor == 1 else f" x 2 ({gpus} - 1) / {gpus}"
    return UpperLimit(MOST * factor * rate, f"{MOST:g}{times} of the {_source(gpu, LIMITS[name])}")


def _rate(gpu: Accelerator, label: str) -> float | None:
    """The published value, of one direction where it is of both."""
    rate: float | None = attrgetter(label.removesuffix("_both_ways"))(gpu)
    return rate


def _source(gpu: Accelerator, label: str) -> str:
    """Where the value comes from: "data sheet of NVIDIA H200 ...: Interconnect, 128 GB/s both ways"."""
    fact = gpu.facts[label]
    both = " both ways" if label.endswith("both_ways") else ""
    value = f"{fact.value:g} {fact.unit}{both}"
    if fact.kind is Kind.ASSUMED:
        return f"{gpu.title}: assumed {value}: {fact.why}"
    return f"data sheet of {gpu.title}: {value}, {fact.source}"
