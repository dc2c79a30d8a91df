"""Rates that a known GPU should reach: shares of its data sheet, and what good GPUs sustain; each with its source."""

from __future__ import annotations

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.errors import InputError
from reference_runs.sourced import Kind
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, MATRIX
from suite.acceptance.judge.expected_rates import ExpectedRate

# Shares of the data sheet's rate below which a check warns and fails: a judgement of what good nodes reach, not yet
# compared with a GPU node of ours. A node's own past is held to the narrower thresholds of the check itself. Links only
# warn: GPUs that all copy at once may share one uplink to the host, and no measurement of messages is known.
COPY, TRIAD = (0.74, 0.70), (0.85, 0.80)
HOST_LINK = (0.80, None)
PAIR = (0.78, None)


def known_gpu(models: str) -> Accelerator | None:
    """The GPU of these comma-separated models as the catalog has it; None where they differ, or it has none."""
    names = set(models.split(", "))
    try:
        return accelerator(names.pop()) if len(names) == 1 else None
    except InputError:
        return None


def product_expected(gpu: Accelerator | None) -> list[ExpectedRate]:
    """Of 16-bit products: what good GPUs of the model sustain in large ones; assumed, so that it only warns."""
    rate = gpu.sustained.product_flop_per_second if gpu else None
    warn = CHECKS[MATRIX].warn
    if gpu is None or rate is None or warn is None:
        return []
    return [ExpectedRate(value=rate, source=_source(gpu, "sustained.product_flop_per_second"), warn=warn, fail=None)]


def memory_expected(gpu: Accelerator | None, operation: str) -> list[ExpectedRate]:
    """Of a copy or triad beyond every cache."""
    thresholds = COPY if operation == "copy" else TRIAD
    return (
        [] if gpu is None else [_share(gpu, gpu.board.memory_bytes_per_second, "memory_bytes_per_second", thresholds)]
    )


def host_expected(gpu: Accelerator | None) -> list[ExpectedRate]:
    """Of a copy from or to pinned memory of the host, in one direction."""
    rate = gpu.board.host_bytes_per_second if gpu else None
    return [] if gpu is None or rate is None else [_share(gpu, rate, "host_bytes_per_second_both_ways", HOST_LINK)]


def pair_expected(gpu: Accelerator | None, gpus: int) -> list[ExpectedRate]:
    """Of messages between two GPUs, in a node with as many GPUs as the link's switch usually joins."""
    if gpu is None or gpu.board.pair_share is None or gpus != gpu.board.accelerators_per_node:
        return []
    rate = gpu.board.pair_share * gpu.board.link_bytes_per_second
    return [_share(gpu, rate, "link_bytes_per_second_both_ways", PAIR)]


def all_reduce_expected(gpu: Accelerator | None, ranks: int) -> list[ExpectedRate]:
    """Of the bus bandwidth of an all-reduce of a whole node: that of a ring; assumed, so that it only warns."""
    rate = gpu.sustained.ring_bytes_per_second if gpu else None
    warn = CHECKS[ALL_REDUCE].warn
    if gpu is None or rate is None or warn is None or ranks != gpu.board.accelerators_per_node:
        return []
    return [ExpectedRate(value=rate, source=_source(gpu, "sustained.ring_bytes_per_second"), warn=warn, fail=None)]


def _share(gpu: Accelerator, rate: float, key: str, thresholds: tuple[float, float | None]) -> ExpectedRate:
    return ExpectedRate(value=rate, source=_source(gpu, f"board.{key}"), warn=thresholds[0], fail=thresholds[1])


def _source(gpu: Accelerator, label: str) -> str:
    """Where the value comes from: "data sheet of NVIDIA H200 ...: Interconnect, 128 GB/s both ways"."""
    fact = gpu.facts[label]
    both = " both ways" if label.endswith("both_ways") else ""
    value = f"{fact.value:g} {fact.unit}{both}"
    if fact.kind is Kind.ASSUMED:
        return f"{gpu.title}: assumed {value}: {fact.why}"
    return f"data sheet of {gpu.title}: {value}, {fact.source}"
