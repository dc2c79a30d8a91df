"""Bytes and messages of mixtures of experts in one step as it is executed here: rows, their numbers, and balancing."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Balancing, Workload
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.parameters import total_elements
from suite.predict.analytic.process_groups import Traffic
from suite.predict.analytic.stage_layers import stage_layer_kinds
from suite.predict.analytic.traffic import expert_traffic
from suite.predict.simulation.shared_inputs import INT64
from suite.predict.simulation.state import unlearned_tensors_of_rank

INT32 = 4


def executed_expert_traffic(workload: Workload, *, stage: int) -> list[tuple[str, Traffic]]:
    """All-to-alls of one rank in a step by element type, where experts are equally busy.

    `expert_traffic` without sequence parallelism, as tensor-parallel ranks route the hidden states of all positions;
    and for each of its forward passes, repeated ones too, one of E int64: the rows of each expert. With a capacity all
    places are sent, empty ones too, and no numbers.
    Given the routing, two of four payloads are of the rows that the rank's experts compute, not of those that its
    tokens have (see `suite.predict.executed_run.routing`).
    """
    architecture, recipe, layout = workload
    if layout.expert_parallel == 1:
        return []
    whole = workload._replace(layout=msgspec.structs.replace(layout, sequence_parallel=False))
    rows = expert_traffic(whole, stage=stage, micro_batches=accumulation(recipe, layout))
    if architecture.capacity_factor is not None:
        tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
        size = architecture.expert_rows(tokens=tokens) * architecture.hidden * WEIGHT_ELEMENT_BYTES[recipe.precision]
        return [(WORK_DTYPES[recipe.precision], Traffic("ep", "all_to_all", rows.messages * size, rows.messages))]
    passes = expert_passes(workload, stage=stage)
    numbers = Traffic("ep", "all_to_all", INT64 * (architecture.experts or 0) * passes, passes)
    return [(WORK_DTYPES[recipe.precision], rows), ("fp32", numbers)]


def expert_passes(workload: Workload, *, stage: int) -> int:
    """Forward passes through layers with experts that a rank of `stage` makes in a step, repeated ones too."""
    architecture, recipe, layout = workload
    passes = 0
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        if kind.experts is not None:
            passes += layers + repeated_layers(layout.recomputation, layers)
    return accumulation(recipe, layout) * passes


def balancing_traffic(workload: Workload, *, stage: int) -> Traffic:
    """The rows of each expert in a step, int32, that a rank all-reduces where a bias balances experts, in one message.

    4 E l bytes with E experts in l layers of the rank.
    """
    architecture, layout = workload.architecture, workload.layout
    if layout.state_ranks == 1:
        return Traffic("dp", "all_reduce", 0, 0)
    experts = total_elements(unlearned_tensors_of_rank(architecture, layout, stage=stage))
    return Traffic("dp", "all_reduce", INT32 * experts, 1 if experts else 0)


def context_balancing_traffic(workload: Workload, *, stage: int) -> Traffic:
    """The rows of each expert, fp32, that context-parallel ranks all-reduce for the losses that balance experts.

    With E experts, for each of the rank's layers with experts and each micro-batch of b samples, in backward passes:
        auxiliary loss        4 E       a message
        loss of a sequence    4 b E     a message
    """
    architecture, recipe, layout = workload
    experts = architecture.experts or 0
    numbers = [experts] if architecture.balancing is Balancing.AUXILIARY_LOSS else []
    if architecture.sequence_loss_weight is not None:
        numbers.append(layout.micro_batch * experts)
    if layout.context_parallel == 1:
        return Traffic("cp", "all_reduce", 0, 0)
    kinds = stage_layer_kinds(architecture, layout, stage=stage)
    passes = accumulation(recipe, layout) * sum(layers for kind, layers in kinds if kind.experts is not None)
    return Traffic("cp", "all_reduce", FP32 * passes * sum(numbers), passes * len(numbers))
