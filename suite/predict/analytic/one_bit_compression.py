"""One-bit Adam's compressed all-reduce: its bytes, what it saves, and the state that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.analytic.process_groups import Traffic, ring_sent_bytes

BITS_PER_BYTE = 8


def compressed_elements(elements: int, *, ranks: int) -> int:
    """Elements of a vector padded for the compressed all-reduce: to a multiple of n lcm(n, 8) for n ranks.

    Each rank serves a chunk of N / n elements, whose sign bits fill whole bytes: a multiple of 8 n would do, and is the
    same wherever n is 1, 2, 4 or 8.
    Source: DeepSpeed 0.19.6, runtime/fp16/onebit/adam.py (divider).
    """
    # greatest common divisor of n and 8: 1, doubled for each power of two that divides n
    common = 1 + (ranks % 2 == 0) + 2 * (ranks % 4 == 0) + 4 * (ranks % 8 == 0)
    multiple = ranks * (ranks * BITS_PER_BYTE // common)
    return ceil_division(elements, multiple) * multiple


def compressed_all_reduce_traffic(vectors: Sequence[int], *, ranks: int) -> list[Traffic]:
    """Traffic over "dp" of one rank that averages vectors of so many momenta in one bit each, once a step.

    With N padded elements of a vector (see `compressed_elements`) and n ranks, summed over vectors:
        all_to_all    N / 8 + 4 n    sign bits, eight a byte: each rank gets every rank's bits of the chunk that it
                                     serves, and the fp32 scale of what the other sent
        all_gather    N / 8 + 4 n    sign bits of the served chunks' means, and their fp32 scales

    Source: Tang et al. 2021, arXiv 2102.02888, section 4 (gather, average, scatter). Differs from DeepSpeed 0.19.6,
    runtime/comm/nccl.py, in that scales travel with the signs, and all vectors together: two messages a step there are
    four for each tensor.
    """
    several = (ranks > 1) * (len(vectors) > 0)
    packed = sum(compressed_elements(elements, ranks=ranks) // BITS_PER_BYTE for elements in vectors)
    payload = several * (packed + len(vectors) * FP32 * ranks)
    return [Traffic("dp", "all_to_all", payload, several * 1), Traffic("dp", "all_gather", payload, several * 1)]


def compressed_all_reduce_sent_bytes(elements: int, *, ranks: int) -> int:
    """Bytes that one rank sends in one compressed all-reduce of `elements`: N (n - 1) / (4 n) + 8 (n - 1).

    2 (n - 1) N / (8 n)   sign bits of all_to_all and all_gather
    8 (n - 1)             two fp32 scales to each other rank

    Source: as `compressed_all_reduce_traffic`.
    """
    traffic = compressed_all_reduce_traffic([elements], ranks=ranks)
    sent = [ring_sent_bytes(t.operation, payload_bytes=t.payload_bytes, ranks=ranks) for t in traffic]
    return sent[0] + sent[1]


def compression_ratio(elements: int, *, ranks: int, element_bytes: int) -> float:
    """How many times fewer bytes a rank sends than in a ring all-reduce of `elements` of `element_bytes` each.

    Many elements: 8 e, that is 32 against fp32 and 16 against 16-bit gradients, whatever the number of ranks (two or
    more). Scales and padding take from it: 27.8 against fp32 for 1000 elements on four ranks.
    Source: Tang et al. 2021, arXiv 2102.02888, section 1 counts bits alone: 32 and 16.

    Raises:
        ZeroDivisionError: one rank, which sends nothing.
    """
    plain = ring_sent_bytes("all_reduce", payload_bytes=element_bytes * elements, ranks=ranks)
    return plain / compressed_all_reduce_sent_bytes(elements, ranks=ranks)


def training_saving(*, warmup_share: float, ratio: float) -> float:
    """How many times fewer bytes a whole training sends when its steps after the warm-up send 1 / `ratio` as many.

    1 / (w + (1 - w) / r), with r = 16 against an all-reduce in 16 bits:
        w             share of the steps that are warm-up: ordinary Adam, uncompressed
        (1 - w) / r   the compressed rest

    Source: Tang et al. 2021, arXiv 2102.02888, section 4: warm-up of 15 to 25 % of the steps; 4.9 for w = 15 %, which
    the paper's "up to 5x" rounds.
    """
    return 1 / (warmup_share + (1 - warmup_share) / ratio)


def error_feedback_bytes(elements: int, *, ranks: int) -> int:
    """Bytes of error feedback that one rank keeps of a vector of N elements, N' padded: 4 N + 4 N' / n.

    4 N        worker error: what its own signs missed, of every element
    4 N' / n   server error: what the mean's signs missed, of the chunk that it serves

    It comes on top of Adam's state and is not sharded: the momentum has to be whole on every rank.
    Source: Tang et al. 2021, arXiv 2102.02888, algorithm 1. Differs from DeepSpeed 0.19.6,
    runtime/fp16/onebit/adam.py, which pads both.
    """
    return FP32 * (elements + compressed_elements(elements, ranks=ranks) // ranks)
