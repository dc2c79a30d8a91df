"""What a stack does where a layout leaves it unsaid: how ZeRO-1 reduces gradients."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout, named_fields
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind
from reference_runs.stack import RecordedStack

MEGATRON_CORE = "megatron-core"  # and with a CUDA graph
BUCKET_PARAMETERS, BUCKET_PARAMETERS_OF_A_RANK = 40_000_000, 1_000_000  # Megatron-Core's default of bucket_size
FP32 = 4


def as_executed(run: ReferenceRun, layout: Layout, words: str | None, software: RecordedStack) -> Layout:
    """The layout with the gradients of ZeRO-1 reduce-scattered, where that is all that the stack does.

    Only where neither the run's file nor the `words` of an option say how, and the stack executes ZeRO-1 by
    reduce-scatter alone. Megatron-Core's distributed optimizer then has its own buckets, unless a source states others:
    max(40e6, 1e6 n) parameters of 4 bytes with n ranks.

    Source: Megatron-Core, core/distributed/param_and_grad_buffer.py and distributed_data_parallel_config.py (known
    code); https://github.com/NVIDIA/Megatron-LM/pull/482 counts such messages of the example in its README.
    """
    named = named_fields(words, where="--layout") if words else {}
    said = "reduce_scatter" in named or "layout.reduce_scatter" in run.facts
    alone = "reduce-scatter" in software.layouts and "all-reduce" not in software.layouts
    if layout.zero_stage != 1 or layout.reduce_scatter or said or not alone:
        return layout
    layout = msgspec.structs.replace(layout, reduce_scatter=True)
    bucket = run.facts.get("layout.bucket_bytes")
    stated = "bucket_bytes" in named or (bucket is not None and bucket.kind is not Kind.ASSUMED)
    if stated or not software.name.startswith(MEGATRON_CORE):
        return layout
    parameters = max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_OF_A_RANK * layout.state_ranks)
    return msgspec.structs.replace(layout, bucket_bytes=FP32 * parameters)
