"""Bytes and messages of data parallelism: per rank and step, handed to collectives and sent."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Recipe
from suite.predict.memory import FP32, WEIGHT_ELEMENT_BYTES, group_elements, shard_elements
from suite.predict.parameters import parameter_tensors


class Traffic(NamedTuple):
    """What one rank hands to one kind of collective in one step."""

    axis: str
    operation: str
    payload_bytes: int
    messages: int


def gradient_buckets(architecture: Architecture, *, bucket_bytes: int) -> list[int]:
    """Bytes of each bucket in which DistributedDataParallel all-reduces fp32 gradients, in the order of their issue.

    Gradients become ready in the reverse of the order in which the forward pass read the parameters. A bucket is
    closed as soon as it holds `bucket_bytes`. (A first bucket of 1 MiB belongs to the default cap alone; a cap that
    is given, as here, holds for all.)

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size and rebuild_buckets (from the second step on).
    """
    buckets: list[int] = []
    filled = 0
    for tensor in reversed(parameter_tensors(architecture)):
        filled += FP32 * tensor.elements
        if filled >= bucket_bytes:
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets


def data_parallel_traffic(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[Traffic]:
    """What one rank hands to the data-parallel collectives of one step; empty on one rank.

        all_reduce    4 N bytes of fp32 gradients, in buckets, once a step (not once a micro-batch),
                      and the 4 bytes of the loss, to report its mean
        all_gather    from ZeRO-1 on: the new weights, one message for each optimizer group; its output is counted,
                      w n ceil(N / n) bytes with w bytes a weight

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 7.2.1 (2 Psi for stage 1, as for plain data
    parallelism; here the two halves differ in element size and the gradient is all-reduced whole, as BLOOM's
    BF16_Optimizer does, so ZeRO-1 adds an all-gather).
    """
    n = layout.data_parallel
    if n == 1:
        return []
    buckets = gradient_buckets(architecture, bucket_bytes=layout.bucket_bytes)
    traffic = [Traffic("dp", "all_reduce", sum(buckets) + FP32, len(buckets) + 1)]
    if layout.zero_stage >= 1:
        groups = group_elements(architecture, recipe)
        element = WEIGHT_ELEMENT_BYTES[recipe.precision]
        gathered = sum(element * n * shard_elements(elements, n) for elements in groups)
        traffic.append(Traffic("dp", "all_gather", gathered, len(groups)))
    return traffic


def ring_factor(operation: str, *, ranks: int) -> Fraction:
    """Bytes that leave a rank for each payload byte of a ring collective over `ranks`.

    all_reduce        2 (n - 1) / n   reduce-scatter, then all-gather: n - 1 chunks of S / n each
    all_gather        (n - 1) / n     of the output
    reduce_scatter    (n - 1) / n     of the input

    Source: nccl-tests, doc/PERFORMANCE.md.
    Differs from the often quoted 2 S by (n - 1) / n: half at n = 2, 1.6 % at n = 64.

    Raises:
        ValueError: ranks < 1 or an operation without a ring form here.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    factors = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    if operation not in factors:
        raise ValueError(f"no ring factor for {operation!r}; allowed: {', '.join(factors)}")
    return Fraction(factors[operation] * (ranks - 1), ranks)


def ring_sent_bytes(operation: str, *, payload_bytes: int, ranks: int) -> int:
    """Bytes that one rank sends for `payload_bytes` in ring collectives over `ranks`, rounded to a byte."""
    return round(payload_bytes * ring_factor(operation, ranks=ranks))
