"""Rates that a known GPU should reach: shares of its data sheet, and what good GPUs sustain; each with its source."""

from __future__ import annotations

from operator import attrgetter

from reference_runs.accelerator import Accelerator
from reference_runs.sourced import Kind
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, MATRIX
from suite.acceptance.judge.expected_rates import ExpectedRate

# By name of a rate, its published fact, and the shares of it below which a check warns and fails: a judgement of what
# good nodes reach, not yet compared with a GPU node of ours. A node's own past is held to the narrower thresholds of
# the check itself. Links only warn: GPUs that all copy at once may share one uplink to the host, and no measurement of
# messages is known. What good GPUs sustain in large products and in a ring's all-reduce is assumed: it only warns.
RATES: dict[str, tuple[str, float | None, float | None]] = {
    "product": ("sustained.product_flop_per_second", CHECKS[MATRIX].warn, None),
    "copy": ("board.memory_bytes_per_second", 0.74, 0.70),
    "triad": ("board.memory_bytes_per_second", 0.85, 0.80),
    "host link": ("board.host_bytes_per_second_both_ways", 0.80, None),
    "pair": ("board.link_bytes_per_second_both_ways", 0.78, None),
    "all-reduce": ("sustained.ring_bytes_per_second", CHECKS[ALL_REDUCE].warn, None),
}


def expected(gpu: Accelerator | None, name: str, gpus: int | None = None) -> list[ExpectedRate]:
    """The rate of this name in `RATES`, in one direction; empty where it is not known.

    Args:
        gpus: in the node, for rates of links: known for as many as the link's switch usually joins.
    """
    if gpu is None or gpus not in (None, gpu.board.accelerators_per_node):
        return []
    label, warn, fail = RATES[name]
    share = gpu.board.pair_share if name == "pair" else 1.0
    rate = attrgetter(label.removesuffix("_both_ways"))(gpu)
    if rate is None or share is None or warn is None:
        return []
    return [ExpectedRate(value=share * rate, source=_source(gpu, label), warn=warn, fail=fail)]


def _source(gpu: Accelerator, label: str) -> str:
    """Where the value comes from: "data sheet of NVIDIA H200 ...: Interconnect, 128 GB/s both ways"."""
    fact = gpu.facts[label]
    both = " both ways" if label.endswith("both_ways") else ""
    value = f"{fact.value:g} {fact.unit}{both}"
    if fact.kind is Kind.ASSUMED:
        return f"{gpu.title}: assumed {value}: {fact.why}"
    return f"data sheet of {gpu.title}: {value}, {fact.source}"
