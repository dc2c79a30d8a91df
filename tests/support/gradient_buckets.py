"""Gradient buckets of a whole model, and of a stage by a walk over all its tensors."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout
from reference_runs.run import Architecture
from suite.predict.analytic.gradient_buckets import stage_gradient_buckets
from suite.predict.analytic.parameters import chunk_tensors


def gradient_buckets(architecture: Architecture, *, bucket_bytes: int) -> list[int]:
    return stage_gradient_buckets(architecture, Layout(bucket_bytes=bucket_bytes), stage=0, element_bytes=4)


def walked_buckets(architecture: Architecture, layout: Layout, stage: int, element_bytes: int) -> list[int]:
    """Every tensor of the stage in turn, with no shortcut over layers."""
    # the textbook's stage is one chunk
    one_chunk = msgspec.structs.replace(layout, virtual_stages=1)
    tensors = chunk_tensors(architecture, one_chunk, chunk=stage)
    buckets, filled = [], 0
    for tensor in reversed([tensor for tensor in tensors if tensor.learned]):
        filled += element_bytes * tensor.elements
        if filled >= layout.bucket_bytes:
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets
