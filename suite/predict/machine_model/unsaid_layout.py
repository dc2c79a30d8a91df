"""Defaults of a stack where a layout leaves them unsaid: whether it fuses attention, how ZeRO-1 reduces gradients."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout, named_fields
from reference_runs.run import Architecture, Mask, Position, ReferenceRun
from reference_runs.sourced import Kind
from reference_runs.stack import GENERIC, AttentionKernel, RecordedStack, stack_of
from reference_runs.unsaid_reduction import reduction_of_stack


def fuses_attention(architecture: Architecture, software: RecordedStack) -> bool:
    """Whether the stack computes the model's attention in a fused kernel: with a plain causal mask, without ALiBi."""
    is_plain = architecture.mask is Mask.CAUSAL and architecture.position is not Position.ALIBI
    return is_plain and software.switches.attention is not AttentionKernel.UNFUSED


def usual_layout(run: ReferenceRun, stack_name: str | None = None) -> Layout:
    """The layout behind words that leave fields unsaid: as the run recorded it; else attention as its stack has it.

    Args:
        stack_name: the stack in place of the run's.
    """
    if run.recorded_layout is not None:
        return run.recorded_layout
    software = stack_of(stack_name or (run.software.stack if run.software else None))
    return Layout(fused_attention=fuses_attention(run.architecture, software))


def as_executed(run: ReferenceRun, layout: Layout, words: str | None, software: RecordedStack) -> Layout:
    """The layout with attention as the stack has it, and with what `reduction_of_stack` says of the stack.

    Only where neither the run's file nor the `words` of an option say whether attention is fused, or how ZeRO-1 reduces
    gradients.
    """
    named = named_fields(words, where="--layout") if words else {}
    own = run.software is not None and stack_of(run.software.stack).name == software.name != GENERIC
    unsaid = run.recorded_layout is None or (own and "layout.fused_attention" not in run.facts)
    if unsaid and "fused_attention" not in named:
        layout = msgspec.structs.replace(layout, fused_attention=fuses_attention(run.architecture, software))
    if "reduce_scatter" in named or "layout.reduce_scatter" in run.facts:
        return layout
    bucket = run.facts.get("layout.bucket_bytes")
    stated = "bucket_bytes" in named or (bucket is not None and bucket.kind is not Kind.ASSUMED)
    return reduction_of_stack(layout, software, bucket_stated=stated)
