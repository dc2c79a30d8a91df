"""Tokens of a micro-batch on a rank, and elements of its hidden states."""

from __future__ import annotations

from reference_runs.run import Workload


def micro_batch_tokens(workload: Workload) -> int:
    """Tokens of one micro-batch on one rank: T = s b / c."""
    return workload.layout.micro_batch * workload.architecture.sequence // workload.layout.context_parallel


def hidden_elements(workload: Workload) -> int:
    """Elements of one micro-batch's hidden states on one rank between the split matrices: T h / u."""
    elements = micro_batch_tokens(workload) * workload.architecture.hidden
    return elements // workload.layout.tensor_parallel if workload.layout.sequence_parallel else elements
