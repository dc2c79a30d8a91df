from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from suite.predict.analytic.one_bit_compression import (
    compressed_all_reduce_sent_bytes,
    compressed_all_reduce_traffic,
    compressed_elements,
    compression_ratio,
    error_feedback_bytes,
    training_saving,
)

ELEMENTS = st.integers(1, 10**6)


def test_bytes_equal_the_worked_table() -> None:
    table = {  # ranks and elements: padded, sent, ratios to fp32 and bf16 of two printed decimals
        (2, 1_000_003): (1_000_016, 125_010, 32.00, 16.00),
        (3, 65_536): (65_592, 10_948, 31.93, 15.96),
        (4, 1_000): (1_024, 216, 27.78, 13.89),
    }
    found = {
        (ranks, elements): (
            compressed_elements(elements, ranks=ranks),
            compressed_all_reduce_sent_bytes(elements, ranks=ranks),
            round(compression_ratio(elements, ranks=ranks, element_bytes=4), 2),
            round(compression_ratio(elements, ranks=ranks, element_bytes=2), 2),
        )
        for ranks, elements in table
    }
    assert found == table


def played_through(elements: int, ranks: int) -> tuple[list[int], list[int], list[int]]:
    """Bytes that each rank sends in both phases, message by message, then its worker and its server error's bytes."""
    multiple = ranks * math.lcm(ranks, 8)
    padded = elements + -elements % multiple
    chunk = padded // ranks
    sent = [0] * ranks
    signs = [[(element + rank) % 3 > 0 for element in range(padded)] for rank in range(ranks)]

    def packed(bits: list[bool]) -> bytes:
        return bytes(sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))

    received: list[list[bytes]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        for server in range(ranks):
            message = packed(signs[rank][server * chunk : (server + 1) * chunk])
            received[server].append(message)
            if server != rank:
                sent[rank] += len(message) + 4  # the signs and the scale
    assert all(len(messages) == ranks for messages in received)
    for server in range(ranks):
        for rank in range(ranks):
            if rank != server:
                sent[server] += len(received[server][0]) + 4
    return sent, [4 * elements] * ranks, [4 * chunk] * ranks


@given(st.integers(1, 3000), st.integers(1, 9))
def test_bytes_equal_both_phases_played_through(elements: int, ranks: int) -> None:
    sent, worker, server = played_through(elements, ranks)
    for rank in range(ranks):
        assert compressed_all_reduce_sent_bytes(elements, ranks=ranks) == sent[rank]
        assert error_feedback_bytes(elements, ranks=ranks) == worker[rank] + server[rank]


@given(st.integers(2, 64), st.sampled_from([2, 4]))
def test_the_ratio_tends_to_the_bits_of_an_element(ranks: int, element_bytes: int) -> None:
    bits = 8 * element_bytes
    # N / 8 bytes pass the ring twice; padding adds at most n lcm(n, 8) <= 8 n^2 elements, scales 8 n bytes = 32 n
    # elements' worth: a share of (8 n^2 + 32 n) / N of the sent bytes
    for elements in (10**9, 10**12):
        ratio = compression_ratio(elements, ranks=ranks, element_bytes=element_bytes)
        assert bits / (1 + (8 * ranks**2 + 32 * ranks) / elements) <= ratio <= bits


@example(150, 850, 16)
@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(2, 64))
def test_the_saving_equals_bytes_added_up_step_by_step(warm_up: int, compressed: int, ratio: int) -> None:
    """4.9 with a warm-up of 15 % of the steps."""
    steps = warm_up + compressed
    plain = sum(ratio for _ in range(steps))
    sent = sum(ratio if step < warm_up else 1 for step in range(steps))
    # a handful of float operations
    assert training_saving(warmup_share=warm_up / steps, ratio=ratio) == pytest.approx(plain / sent, rel=1e-14)


@given(st.lists(st.tuples(ELEMENTS, st.integers(2, 40)), min_size=1, max_size=5))
def test_arrays_equal_one_number_after_the_other(rows: list[tuple[int, int]]) -> None:
    elements, ranks = (numpy.array(column, dtype=float) for column in zip(*rows, strict=True))
    sent = compressed_all_reduce_sent_bytes(elements, ranks=ranks)
    kept = error_feedback_bytes(elements, ranks=ranks)
    ratios = compression_ratio(elements, ranks=ranks, element_bytes=4)
    for place, (one, n) in enumerate(rows):
        assert sent[place] == compressed_all_reduce_sent_bytes(one, ranks=n)
        assert kept[place] == error_feedback_bytes(one, ranks=n)
        assert ratios[place] == compression_ratio(one, ranks=n, element_bytes=4)


def test_all_vectors_travel_in_one_message_of_each_phase() -> None:
    for vectors, ranks, messages in (([1000], 1, 0), ([1000], 2, 1), ([1000, 7, 9], 4, 1), ([], 2, 0)):
        traffic = compressed_all_reduce_traffic(vectors, ranks=ranks)
        phases = [(each.operation, each.messages) for each in traffic]
        assert phases == [("all_to_all", messages), ("all_gather", messages)]
        assert all((each.payload_bytes > 0) == (messages > 0) for each in traffic)
