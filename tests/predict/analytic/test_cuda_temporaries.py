"""Each term equals what PyTorch 2.13's allocator gave its kernels on a simulated H100 (memory history, 2026-11-25)."""

from __future__ import annotations

import torch

from suite.machine.gpu import H100, SdpaBackend
from suite.predict.analytic.cuda_temporaries import (
    attention_workspace_bytes,
    bytes_outside_allocator,
    column_sum_buffer_bytes,
    embedding_backward_bytes,
)


def test_a_sum_over_rows_has_the_buffers_that_pytorch_allocated() -> None:
    allocated = {
        (512, 48): (0, 0),
        (1024, 768): (6291456, 24),
        (2048, 768): (12582912, 24),
        (4096, 128): (4194304, 4),
        (4096, 4096): (134217728, 128),
        (8192, 640): (41943040, 20),
        (8192, 1920): (125829120, 60),
        (8192, 2560): (138936320, 80),
        (16384, 100): (3276800, 8),
        (16384, 102): (3342336, 8),
        (16384, 512): (67108864, 16),
        (16384, 2688): (139001856, 84),
        (32768, 768): (138412032, 24),
        (32768, 2304): (139198464, 72),
        (32768, 8192): (138412032, 256),
    }
    assert {size: column_sum_buffer_bytes(*size, H100) for size in allocated} == allocated


def test_fewer_processors_share_an_output_in_fewer_blocks() -> None:
    """64 blocks of columns, 16 of them on each processor: 33 and 17 blocks share an output of 132 and 66 processors.

    They do only where all are at work at once.
    """
    found = {n: column_sum_buffer_bytes(16384, 8192, H100._replace(processors=n)) for n in (132, 66, 4, 3, 1)}
    assert found[132][0] == 4 * 8192 * 33 * 32 * 4
    assert found[66][0] == 4 * 8192 * 17 * 32 * 4
    assert found[4][0] > 0
    assert found[4][1] == 4 * 64
    assert found[3] == found[1] == (0, 0)


def test_an_embedding_adds_up_the_partial_sums_that_pytorch_allocated() -> None:
    allocated = {
        (3072, 15680, 896): 0,
        (3073, 15680, 896): 12113920,
        (16384, 15680, 896): 62067712,
        (20000, 6000, 100): 3200000,
        (20000, 50000, 768): 67584000,
    }
    for (tokens, rows, hidden), partial in allocated.items():
        # three lists of tokens, two of segments, and the beginnings of partial sums, in int64
        segments = min(tokens, rows)
        lists = 3 * tokens + 2 * segments + tokens // 10 + segments
        expected = (8 * lists if partial else 0, partial)
        assert embedding_backward_bytes(tokens, rows, hidden) == expected, (tokens, rows, hidden)
    assert embedding_backward_bytes(1, 15680, 896) == (0, 0)


def test_fused_attention_of_32_heads_has_the_workspace_that_pytorch_allocated() -> None:
    allocated = {
        (SdpaBackend.FLASH, 1024, 48): 131072 + 8388608,
        (SdpaBackend.FLASH, 1000, 64): 131072 + 8388608,
        (SdpaBackend.FLASH, 1000, 80): 131072 + 12582912,
        (SdpaBackend.FLASH, 1024, 128): 131072 + 16777216,
        (SdpaBackend.FLASH, 1024, 160): 131072 + 25165824,
        (SdpaBackend.EFFICIENT, 1024, 64): 2 * 131072 + 8388608,
        (SdpaBackend.EFFICIENT, 1024, 84): 2 * 131072 + 16777216,
    }
    found = {
        (kernel, length, head_dim): attention_workspace_bytes(kernel, heads=32, length=length, head_dim=head_dim)
        for kernel, length, head_dim in allocated
    }
    assert found == allocated


def test_each_communicator_has_buffers_for_both_directions_of_both_neighbours() -> None:
    assert bytes_outside_allocator(3) - bytes_outside_allocator(1) == 2 * 24 * 4 * 4 * 2**20


def test_cudnns_workspace_is_a_sum_of_each_element_and_a_product_a_row() -> None:
    sums, products = torch.empty(6, 11, 48), torch.empty(6, 11)
    expected = sums.nbytes + products.nbytes
    assert attention_workspace_bytes(SdpaBackend.CUDNN, heads=6, length=11, head_dim=48) == expected
