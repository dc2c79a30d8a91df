"""Reduction of gradients that a stack executes under ZeRO-1 where nothing says it, and in which messages."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout
from reference_runs.stack import RecordedStack

MEGATRON_CORE, NANOTRON = "megatron-core", "nanotron"  # the first with a CUDA graph, too
BUCKET_PARAMETERS, BUCKET_PARAMETERS_OF_A_RANK = 40_000_000, 1_000_000  # Megatron-Core's default of bucket_size
FP32 = 4
FP32_OF_16_BIT = 2  # bytes of a gradient in fp32 over those of a 16-bit weight, which a bucket's cap counts


def reduction_of_stack(layout: Layout, software: RecordedStack, *, bucket_stated: bool = False) -> Layout:
    """The layout with the gradients of ZeRO-1 reduce-scattered, where the stack executes ZeRO-1 by that alone.

    Their messages then, unless a source states others:
        Megatron-Core    max(40e6, 1e6 n) parameters of 4 bytes with n ranks
        nanotron         DistributedDataParallel's buckets of 16-bit weights, whose gradients travel in fp32: twice the
                         cap
        others           as the layout says

    Source: Megatron-Core, core/distributed/param_and_grad_buffer.py and distributed_data_parallel_config.py;
    nanotron, optim/gradient_accumulator.py, get_fp32_accum_hook (known code);
    https://github.com/NVIDIA/Megatron-LM/pull/482 counts such messages of the example in its README.
    """
    alone = "reduce-scatter" in software.layouts and "all-reduce" not in software.layouts
    if layout.zero_stage != 1 or layout.reduce_scatter or not alone:
        return layout
    layout = msgspec.structs.replace(layout, reduce_scatter=True)
    if bucket_stated:
        return layout
    if software.name.startswith(MEGATRON_CORE):
        parameters = max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_OF_A_RANK * layout.state_ranks)
        return msgspec.structs.replace(layout, bucket_bytes=FP32 * parameters)
    if software.name == NANOTRON:
        return msgspec.structs.replace(layout, bucket_bytes=FP32_OF_16_BIT * layout.bucket_bytes)
    return layout
