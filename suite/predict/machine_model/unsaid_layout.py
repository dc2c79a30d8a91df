"""What a stack does where a layout leaves it unsaid: how ZeRO-1 reduces gradients."""

from __future__ import annotations

from reference_runs.layout import Layout, named_fields
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind
from reference_runs.stack import RecordedStack
from reference_runs.unsaid_reduction import reduction_of_stack


def as_executed(run: ReferenceRun, layout: Layout, words: str | None, software: RecordedStack) -> Layout:
    """The layout with what `reduction_of_stack` says of the stack.

    Only where neither the run's file nor the `words` of an option say how ZeRO-1 reduces gradients.
    """
    named = named_fields(words, where="--layout") if words else {}
    if "reduce_scatter" in named or "layout.reduce_scatter" in run.facts:
        return layout
    bucket = run.facts.get("layout.bucket_bytes")
    stated = "bucket_bytes" in named or (bucket is not None and bucket.kind is not Kind.ASSUMED)
    return reduction_of_stack(layout, software, bucket_stated=stated)
