"""What of the messages inside layers computation does not hide, by switches of the software stack."""

from __future__ import annotations

from collections.abc import Sequence

from reference_runs.run import Workload
from suite.predict.analytic.elementwise import chosen, larger
from suite.predict.analytic.experts import chosen_experts
from suite.predict.analytic.layer_time import FUSED_BACKWARD, LayerTime
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_bound_operators import BACKWARD
from suite.predict.analytic.stage_layers import stage_layer_kinds


def exposed_tensor_parallel_share(workload: Workload, machine: Machine) -> float:
    """Share of the tensor-parallel messages that nothing hides: 1 / c in c pieces, of which all but one overlap.

    With sequence parallelism inside a node alone: it is gathers and scatters over a node's links that are cut up. Those
    around experts are whole: of k experts a token they are k of the 1 + k parts of a layer's bytes, shared ones one
    more. Source: Megatron-Core, tp_comm_overlap, an option of Transformer Engine's linear layers, not of experts.
    """
    architecture, layout = workload.architecture, workload.layout
    inside = layout.tensor_parallel <= machine.accelerators_per_node
    chunks = chosen(inside & layout.sequence_parallel, machine.stack.tensor_parallel_chunks, 1)
    if architecture.experts is None:
        return 1 / chunks
    parts = float(chosen_experts(architecture)) + (architecture.shared_experts > 0)
    sparse = 1 - (architecture.dense_layers or 0) / architecture.layers
    around_experts = sparse * parts / (1 + parts)
    return around_experts + (1 - around_experts) / chunks


def exposed_context_parallel_seconds(
    workload: Workload, machine: Machine, seconds: float, *, stage: int, kinds: Sequence[LayerTime], micro_batches: int
) -> float:
    """Seconds of a step's context-parallel messages, of `seconds` in all, that attention does not hide.

    Where the stack overlaps them, each of the c - 1 blocks on their way hides behind the attention of the block before
    it: (c - 1) / c of both passes of attention. Source: Liu et al. 2023, arXiv 2310.01889, section 3.
    """
    layout = workload.layout
    if not machine.stack.overlaps_context_parallel:
        return seconds
    layers = stage_layer_kinds(workload.architecture, layout, stage=stage)
    once = sum(number * kind.attention_seconds for kind, (_, number) in zip(kinds, layers, strict=True))
    passes = 1 + (FUSED_BACKWARD if layout.fused_attention else BACKWARD)
    share = (layout.context_parallel - 1) / layout.context_parallel
    return larger(seconds - share * micro_batches * passes * once, 0.0)
