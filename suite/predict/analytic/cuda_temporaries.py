"""Allocations in passing of PyTorch's CUDA kernels, and of libraries outside of PyTorch's allocator."""

from __future__ import annotations

import math

from suite.machine.gpu import Gpu, SdpaBackend
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32

# of a reduction, aten/src/ATen/native/cuda/Reduce.cuh
MOST_THREADS = 512  # MAX_NUM_THREADS
WARP = 32
MOST_VECTOR = 4  # input_vec_size: outputs that a thread sums at a time
LEAST_VALUES, MOST_VALUES = 16, 256  # min_values_per_thread, max_values_per_thread

# Assumed, as no library says it: nothing here was measured
CONTEXT_BYTES = 600 * 2**20  # of a process on an H100: driver, PyTorch's and cuBLAS's kernels
NCCL_BUFFER_BYTES = 4 * 2**20  # NCCL_BUFFSIZE, for each channel and peer; sent and received apart
NCCL_CHANNELS, NCCL_PEERS = 24, 2  # of a ring over NVLink

SMALL_INDICES = 3072  # embedding_backward_cuda_kernel is used above
ROWS_OF_SEGMENT = 10  # NROWS_PER_THREAD
INT64 = 8

FLASH_3_HEAD_DIMS = (64, 96, 128, 192, 256)  # of its kernels, which pad others

# what fused attention keeps of the random generator on the device: seed and offset
GENERATOR_BYTES: dict[SdpaBackend, tuple[int, ...]] = {
    SdpaBackend.FLASH: (16, 8),
    SdpaBackend.FLASH_3: (16, 8),
    SdpaBackend.CUDNN: (8, 8),
    SdpaBackend.EFFICIENT: (),
}


def column_sum_buffer_bytes(rows: int, columns: int, gpu: Gpu) -> tuple[int, int]:
    """Bytes of the two buffers by which blocks add up their parts of a sum over rows: partial sums, semaphores.

    Each thread sums v columns of vectors, v = 4 where that divides the columns. w threads lie along the columns and h
    along the rows, w h = 512 / v. With y values a thread (rows / h), and blocks that fill the processors:
        c = max(min(ceil(blocks / grid), ceil(y / 16)), ceil(y / 256))     blocks that share an output
        4 columns c w v    partial sums, fp32 (w v times what is read back)
        4 grid             semaphores
    Both are 0 where y is below 256 or one block does.

    Source: aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig, global_memory_size, semaphore_size. A bias's
    gradient is such a sum; 16,384 rows of 512 columns take 64 MiB.
    """
    vector = math.gcd(columns, MOST_VECTOR)
    most = MOST_THREADS // vector
    outputs = columns // vector
    along_columns, along_rows = (min(_power_of_two(size), most) for size in (outputs, rows))
    width = min(along_columns, WARP)
    height = min(along_rows, most // width)
    width = min(along_columns, most // height)
    if rows < min(16 * height, MOST_VALUES):
        return 0, 0
    values = ceil_division(rows, height)
    grid = ceil_division(outputs, width)
    at_once = gpu.processors * (gpu.threads // (width * height))
    if values < MOST_VALUES or grid > at_once:
        return 0, 0
    fill, fewest = ceil_division(at_once, grid), ceil_division(values, MOST_VALUES)
    shared = max(min(fill, ceil_division(values, LEAST_VALUES)), fewest)
    if shared == 1:
        return 0, 0
    return FP32 * columns * shared * width * vector, FP32 * grid


def _power_of_two(size: int) -> int:
    """The largest power of two up to `size`."""
    return 1 << (size.bit_length() - 1)


def embedding_backward_bytes(tokens: int, rows: int, hidden: int) -> tuple[int, int]:
    """Bytes that an embedding's backward pass needs besides its gradient: indices, and partial sums.

    With N tokens and V rows of D columns, for N > 3072 (a smaller number is added up without):
        3 * 8 N                          sorted indices, where they come from, how many are equal
        16 min(N, V)                     segments of equal indices
        (4 D + 8) (N // 10 + min(N, V))  fp32 sums of at most 10 rows, and where they begin

    Source: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu; scratch of the sort (a few hundred bytes a thousand
    tokens) is left out.
    """
    if tokens <= SMALL_INDICES:
        return 0, 0
    segments = min(tokens, rows)
    partial = tokens // ROWS_OF_SEGMENT + segments
    return 3 * INT64 * tokens + 2 * INT64 * segments + INT64 * partial, FP32 * hidden * partial


def attention_workspace_bytes(kernel: SdpaBackend, *, heads: int, length: int, head_dim: int) -> int:
    """Bytes that fused attention's backward pass needs besides the gradients: fp32 sums of the queries' gradient, and a
    product a row. `heads` are those of all samples.

        flash               4 (K + 1) T heads, T rounded up to 128, K to 32 (above 128 to 64)
        FlashAttention 3    4 (K + 2) T heads, T rounded up to 128, above K = 64 to 64, K to 64, 96, 128, 192 or 256
        memory-efficient    4 (K + 2) T heads, T rounded up to 32, K to 64
        cuDNN               4 (K + 1) T heads: assumed, as cuDNN's front end lays it out; the library alone knows

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd; attention_backward.cu; of
    FlashAttention 3 hopper/flash_api.cpp, mha_bwd (its semaphores, and sums of keys that queries share, are left out);
    cudnn-frontend, scaled_dot_product_flash_attention.h, dQ_accum and softmax_sum.
    """
    if kernel is SdpaBackend.CUDNN:
        return FP32 * heads * length * (head_dim + 1)
    if kernel is SdpaBackend.FLASH_3:
        wide = next(size for size in FLASH_3_HEAD_DIMS if size >= head_dim)
        return FP32 * heads * _rounded(length, 128 if wide == FLASH_3_HEAD_DIMS[0] else 64) * (wide + 2)
    if kernel is SdpaBackend.EFFICIENT:
        return FP32 * heads * _rounded(length, 32) * (_rounded(head_dim, 64) + 2)
    return FP32 * heads * _rounded(length, 128) * (_rounded(head_dim, 32 if head_dim <= 128 else 64) + 1)


def _rounded(size: int, step: int) -> int:
    return ceil_division(size, step) * step


def bytes_outside_allocator(groups: int) -> int:
    """Bytes that a process takes on its GPU outside of PyTorch's allocator, with `groups` NCCL communicators."""
    return CONTEXT_BYTES + groups * NCCL_CHANNELS * NCCL_PEERS * 2 * NCCL_BUFFER_BYTES
