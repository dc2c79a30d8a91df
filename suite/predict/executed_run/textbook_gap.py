"""Where traffic as executed departs from the papers': by how many payload bytes, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reference_runs.catalog import accumulation
from reference_runs.layout import StageAssignment
from reference_runs.run import Balancing, QueryKeyNorm, Residual, Workload
from suite.job.options import DEFAULT_STEP, StepOptions
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.flop import groups_stopped_early
from suite.predict.analytic.process_groups import Traffic
from suite.predict.analytic.traffic import step_traffic
from suite.predict.simulation.state import parameter_tensors_of_rank
from suite.predict.simulation.traffic import executed_traffic, scalar_traffic

TEXTBOOK_TERM = "textbook minus executed"


def textbook_differences(workload: Workload, options: StepOptions = DEFAULT_STEP) -> list[Figure]:
    """Payload bytes of `step_traffic` less those of `executed_traffic`, by axis and operation where they differ.

    On the rank that executes most of it, the first of them; scalars are left out on both sides.
    """
    stages = range(workload.layout.pipeline_stages)
    executed, textbook = [], []
    for stage, seen in enumerate(map(workload.at_stage, stages)):
        scalars = _payload(scalar_traffic(seen.layout))
        executed.append(_payload(executed_traffic(seen, options, stage=stage, replica=0)) - scalars)
        micro_batches = accumulation(seen.recipe, seen.layout)
        textbook.append(_payload(step_traffic(seen, stage=stage, micro_batches=micro_batches)))
    figures = []
    for axis, operation in dict.fromkeys(key for of_stage in (*executed, *textbook) for key in of_stage):
        fullest = max(stages, key=lambda stage: executed[stage][axis, operation])
        if difference := textbook[fullest][axis, operation] - executed[fullest][axis, operation]:
            figures.append(
                Figure(
                    Quantity.PAYLOAD_BYTES,
                    difference,
                    axis=axis,
                    operation=operation,
                    term=TEXTBOOK_TERM,
                    why="; ".join(_reasons(workload, axis, operation)),
                )
            )
    return figures


def _payload(traffic: list[Traffic]) -> Counter[tuple[str, str]]:
    return Counter({(entry.axis, entry.operation): entry.payload_bytes for entry in traffic})


def _reasons(workload: Workload, axis: str, operation: str) -> Iterator[str]:
    """The known difference in this operation on `axis`."""
    architecture, layout = workload.architecture, workload.layout
    if layout.virtual_stages > 1 and layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES:
        yield "layers are dealt to chunks"
    if axis == "dp" and layout.stage_replicas is not None:
        yield "all replicas of both ends sum a tied table at once"
    if axis == "dp" and architecture.balancing is Balancing.BIAS:
        yield "rows of experts are summed, in place of gradients of their biases"
    if axis == "ep" and architecture.capacity_factor is not None:
        yield "all places of experts are sent, empty ones too"
    elif axis == "ep":
        yield "the numbers of rows of each expert are exchanged too"
    if axis == "ep" and layout.sequence_parallel:
        yield "every tensor-parallel rank sends the rows of all positions"
    if axis in ("dp", "edp", "shard", "replicate") and layout.zero_stage >= 2:
        tensors = parameter_tensors_of_rank(architecture, layout, stage=0)
        if any(tensor.rows % layout.sharding_ranks for tensor in tensors):
            yield "fully_shard pads the rows of each tensor"
        if operation == "all_gather" and layout.zero_stage == 3 and layout.reshard_after_forward:
            yield "what is outside the layers stays gathered"
    if axis == "cp":
        yield "keys and values are gathered whole, and their gradients reduced and dealt, in place of a ring"
    if axis == "kv" and layout.zero_stage >= 2:
        yield "each rank reduces its shard of the gradients"
    if axis != "tp":
        return
    if architecture.top_query_layer and operation == "all_reduce":
        yield "the top-query layer's queries are an input too"
    if architecture.shared_norm:
        yield "what one norm gives is an input of two products"
    normed = architecture.query_key_norm is QueryKeyNorm.HEAD
    if normed and not layout.sequence_parallel and operation == "all_reduce" and layout.zero_stage >= 2:
        yield "each rank reduces its shard of the gradients"
    if architecture.experts is not None and operation == "all_reduce" and not layout.sequence_parallel:
        yield "each rank has a part of the gradients of routers"
    if architecture.experts is not None and operation != "all_reduce":
        yield "hidden states are gathered and summed, not the rows of their tokens"
    if layout.sequence_parallel and operation == "all_reduce":
        if architecture.balancing is Balancing.BIAS:
            yield "biases that balance experts have no gradients"
        if architecture.bias.projection or architecture.bias.feed_forward:
            yield "gradients of biases after a sum are whole"
        if layout.zero_stage >= 2:
            yield "each rank reduces its shard of the gradients"
        return
    if architecture.residual is Residual.PARALLEL:
        yield "a parallel residual is summed in two parts"
    if operation == "all_gather":
        yield "gathered inputs are kept"
    elif groups_stopped_early(workload, layers=architecture.layers):
        yield "recomputation stops before the last sum of a group"
