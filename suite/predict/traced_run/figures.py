"""Figures that traces expect of a launch: one trace a rank, or one for all where ranks are alike."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import StepTrace
from suite.metrics.figures import ACTIVATIONS, ALLOCATED, Figure, Quantity, with_maximum_over_ranks

LOSS_BYTES = 4  # of the all-reduce by which ranks know their mean loss, after each step
TOLERANCE = 0.02
KEPT_REASON = "the same operators keep the same tensors; the tolerance is for other versions of them"
PEAK_REASON = "every tensor of the step, and cuBLAS's workspaces; not what other kernels take inside"
GLOO_REASON = "not judged: gloo's threads hold FSDP2's messages a while longer, by one to three units' gradients"


def step_flop(trace: StepTrace) -> tuple[int, int]:
    """Model and hardware flop of a rank's step: without and with what the backward pass computes again."""
    hardware = again = 0
    for call in trace.operators:
        flop = call.calls * call.flop
        hardware += flop
        if call.phase in (TracePhase.RECOMPUTATION, TracePhase.UPDATE):  # Muon multiplies matrices too
            again += flop
        elif call.phase is TracePhase.BACKWARD and call.kind is OperatorKind.ATTENTION:
            again += flop // 5  # a fused backward pass computes the scores, one of its five products, again
    return hardware - again, hardware


def traced_figures(
    traces: Sequence[StepTrace], *, axis: str, ranks: int, shared: bool, gloo: bool = False, workspaces: int = 0
) -> list[Figure]:
    """Everything but times that traces expect of a launch on so many ranks.

    Args:
        traces: of each rank, or of one that all are like.
        axis: on which the ranks share the model.
        shared: whether each rank stores a part of it.
        gloo: whether messages go through gloo; the peak of ranks that share the model is then not judged.
        workspaces: bytes that libraries have on each GPU all the time.
    """
    of_ranks = list(traces) if len(traces) == ranks else [traces[0]] * ranks
    flop = [step_flop(trace) for trace in of_ranks]
    stored = [trace.stored_parameters for trace in of_ranks]
    work = [
        (Quantity.PARAMETERS, stored),
        (Quantity.MODEL_FLOP, [model for model, _ in flop]),
        (Quantity.HARDWARE_FLOP, [hardware for _, hardware in flop]),
    ]
    whole = [
        Figure(quantity, values[0] if quantity is Quantity.PARAMETERS and not shared else sum(values))
        for quantity, values in work
    ]
    own = [Figure(quantity, value, rank=rank) for quantity, values in work for rank, value in enumerate(values)]
    kept = [
        figure
        for rank, trace in enumerate(of_ranks)
        for figure in _of_rank(rank, trace, axis=axis, ranks=ranks, workspaces=workspaces)
    ]
    if shared and gloo:
        kept = [_unjudged(figure) for figure in kept]
    return [*whole, *own, *with_maximum_over_ranks(kept)]


def _unjudged(figure: Figure) -> Figure:
    """The figure; a peak without its tolerance."""
    if figure.quantity is not Quantity.PEAK_BYTES:
        return figure
    return msgspec.structs.replace(figure, tolerance=None, why=GLOO_REASON)


def _of_rank(rank: int, trace: StepTrace, *, axis: str, ranks: int, workspaces: int) -> list[Figure]:
    sent = {each.operation: (each.payload_bytes, each.messages) for each in trace.collectives}
    if ranks > 1:
        payload, messages = sent.get("all_reduce", (0, 0))
        sent["all_reduce"] = (payload + LOSS_BYTES, messages + 1)
    kept, peak = sum(trace.kept_bytes.values()), trace.peak_bytes + workspaces
    return [
        Figure(Quantity.WEIGHT_BYTES, trace.weight_bytes, rank=rank, why="buffers too"),
        Figure(Quantity.GRADIENT_BYTES, trace.gradient_bytes, rank=rank),
        Figure(Quantity.OPTIMIZER_BYTES, trace.optimizer_bytes, rank=rank),
        Figure(
            Quantity.ACTIVATION_BYTES, kept, rank=rank, convention=ACTIVATIONS, tolerance=TOLERANCE, why=KEPT_REASON
        ),
        Figure(Quantity.PEAK_BYTES, peak, rank=rank, convention=ALLOCATED, tolerance=TOLERANCE, why=PEAK_REASON),
        *(
            Figure(quantity, value, axis=axis, operation=operation, rank=rank)
            for operation, values in sorted(sent.items())
            for quantity, value in zip((Quantity.PAYLOAD_BYTES, Quantity.MESSAGES), values, strict=True)
        ),
    ]
