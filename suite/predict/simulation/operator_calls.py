"""The operator calls of one rank in a step as it is executed here: both passes and the update, with sizes."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.run import Objective, Precision, Workload
from suite.job.options import DEFAULT_OPTIONS, StepOptions, TrainingOptions, Update
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES, optimizer_shards
from suite.predict.analytic.process_groups import group_ranks
from suite.predict.analytic.traffic import reduced_gradient_element_bytes
from suite.predict.simulation.autograd_tape import OperatorCalls, Tape
from suite.predict.simulation.memory_blocks import Allocator
from suite.predict.simulation.shared_inputs import INT64
from suite.predict.simulation.simulated_rank import SimulatedRank
from suite.predict.simulation.state import (
    RankPosition,
    is_shared_out,
    optimizer_groups,
    parameter_tensors_of_rank,
    rank_shard_elements,
    stored_element_bytes,
    timed_dtype,
)

# Passes over a tensor of the optimizers that are not fused, priced as the operators that move as many bytes:
# a scale reads one tensor and writes one, an add reads two and writes one.
#   foreach, loop   decay, second moment, square root, quotient, epsilon; moments and weights with the gradient: add
#   adafactor       norms of rows, columns, weight and update; decay, quotient, clamp, root; product, weights: add
UPDATE_PASSES: dict[Update, dict[str, int]] = {
    Update.FOREACH: {"scale": 5, "add": 3},
    Update.LOOP: {"scale": 5, "add": 3},
    Update.FUSED: {},
    Update.ADAFACTOR: {"scale": 5, "add": 2, "vector_norm": 4},
}
FUSED_ADAM_BYTES = 28  # an element in fp32: weight and moments read and written, gradient read
LOADING_CALLS, LOADING_CALLS_OF_SAMPLE = 6, 8  # assumed, see `loading_calls`
# Assumed, in views of the host's timing: what Python does to reach a gradient and its weight; a view and two slices by
# Python's indices into a flat shard, each as long as two views
VIEWS_OF_TENSOR, VIEWS_OF_FLAT_TENSOR = 2, 6
ADAM_CALLS = 9  # operators on each tensor, besides what their passes over memory take
LOGGING_CALLS = 8  # of the norms that are logged: norm, .item(), square, sum, add, .item(), and widening twice


class ChunkCalls(NamedTuple):
    """Operator calls of one micro-batch in one chunk of the model.

    Args:
        number: of the chunk in the whole model.
        calls: by whether they belong to the backward pass.
        last: the same of the step's last micro-batch.
    """

    number: int
    calls: OperatorCalls
    last: OperatorCalls


def micro_batch_calls(workload: Workload, options: StepOptions, *, stage: int) -> list[ChunkCalls]:
    """Calls of a micro-batch in each chunk of a rank of `stage`: an ordinary one that adds to earlier ones' gradients
    (the only one, where there is one), and the last one, whose gradients are reduced."""
    tape = Tape(Allocator(), stops_early=not options.compiled)
    rank = SimulatedRank(tape, workload, options, stage=stage)
    several = accumulation(workload.recipe, workload.layout) > 1
    of_chunks = []
    for number, chunk in zip(rank.numbers, rank.chunks, strict=True):
        ordinary = OperatorCalls()
        for last in (False, False, True) if several else (True,):
            ordinary, tape.calls = tape.calls, OperatorCalls()
            rank.backward(rank.forward(chunk), last=last)
        of_chunks.append(ChunkCalls(number, ordinary if several else tape.calls, tape.calls))
    return of_chunks


def loading_calls(workload: Workload) -> OperatorCalls:
    """Calls that make one micro-batch on the host: its texts sliced, stacked and widened by small operators.

    With b samples of s positions 4 + 3 b operators are dispatched: an index in the order selected, read and its text
    sliced, for each sample; a stack, a widening and two slices. Assumed: they take as long as 6 + 8 b of the measured
    calls, because each is an index from Python; and with blanks, which Python fills in token by token, a token as long
    as a call: b s more. Nothing was measured for either; the term of data loading shows how far they are off.
    """
    architecture, recipe, layout = workload
    tape = Tape(Allocator())
    calls = LOADING_CALLS + LOADING_CALLS_OF_SAMPLE * layout.micro_batch
    if recipe.objective is Objective.BLANK_INFILLING:
        calls += layout.micro_batch * architecture.sequence
    tape.count("call", times=calls)
    return tape.calls


def batch_tensor_bytes(workload: Workload) -> list[int]:
    """Bytes of each tensor of a micro-batch, int64: tokens, targets; with blanks positions and who sees them."""
    architecture, recipe, layout = workload
    each = INT64 * layout.micro_batch * architecture.sequence // layout.context_parallel
    return [each, each, each, 2 * each] if recipe.objective is Objective.BLANK_INFILLING else [each, each]


def update_calls(
    workload: Workload, training: TrainingOptions = DEFAULT_OPTIONS, *, stage: int, replica: int
) -> OperatorCalls:
    """Calls of the update: gradient norm, clipping, Adam, and weights rounded from their masters.

    In one pass (`one-pass-update`) the last three are one kernel, priced as fused Adam by the bytes that it moves.

    ZeRO-1 over several ranks copies every gradient into a flat fp32 shard, unless it was scattered to it; else it goes
    from tensor to tensor.
    """
    tape = Tape(Allocator())
    if workload.layout.fully_sharded or optimizer_shards(workload.layout) == 1:
        _update_by_tensor(tape, workload, training, RankPosition(stage, replica))
    else:
        _update_in_flat_shards(tape, workload, stage=stage, one_pass=training.updates_in_one_pass)
    return tape.calls


def _update_by_tensor(tape: Tape, workload: Workload, training: TrainingOptions, position: RankPosition) -> None:
    architecture, recipe, layout = workload
    reduced, dtype = timed_dtype(reduced_gradient_element_bytes(recipe.precision)), WORK_DTYPES[recipe.precision]
    in_passing, one_pass = recipe.precision is Precision.FP16_NO_MASTER, training.updates_in_one_pass
    widens = not one_pass or recipe.precision is Precision.FP16_GRADIENT_COPY
    if layout.fully_sharded and not in_passing:
        dtype = reduced = "fp32"
    tensors = parameter_tensors_of_rank(architecture, layout, stage=position.stage)
    elements = [tensor.elements for tensor in tensors]
    if layout.fully_sharded and layout.state_ranks > 1:
        elements = [rank_shard_elements([tensor], layout, replica=position.replica) for tensor in tensors]
    if one_pass:
        _count(tape, "vector_norm", sum(elements), "fp32" if widens else reduced)
        _count_adam(tape, workload, sum(elements), reduced)
    for size in elements:
        tape.count("view", times=VIEWS_OF_TENSOR)
        if reduced != "fp32" and widens:
            _count(tape, "to_fp32", size, reduced)
        if not one_pass:
            _count(tape, "vector_norm", size)
            _count_masters(tape, size, dtype, in_passing=in_passing)
        for operation, times in UPDATE_PASSES[training.update].items():
            tape.count(operation, size, variant="forward", times=times)
        adam_calls = 0 if training.update is Update.FUSED else ADAM_CALLS
        tape.count("call", times=adam_calls + LOGGING_CALLS * training.synchronises)
        if training.synchronises:
            _count(tape, "vector_norm", size)
            _count(tape, "scale", size)
        if training.keeps_gradients or (layout.data_parallel > 1 and not layout.flushes):
            _count(tape, "zeros", size)
    if training.update is Update.FUSED:
        _count(tape, "adam", 0 if one_pass else sum(elements))
        tape.count("adam_tensor", times=len(tensors))


def _update_in_flat_shards(tape: Tape, workload: Workload, *, stage: int, one_pass: bool) -> None:
    architecture, recipe, layout = workload
    reduced = timed_dtype(reduced_gradient_element_bytes(recipe.precision))
    in_passing, scattered = recipe.precision is Precision.FP16_NO_MASTER, layout.scatters_gradients
    for tensor in parameter_tensors_of_rank(architecture, layout, stage=stage):
        shards = group_ranks(layout, "edp" if is_shared_out(tensor, layout) else "dp")
        _count(tape, "vector_norm", tensor.elements // shards if scattered else tensor.elements, reduced)
        tape.count("view", times=VIEWS_OF_FLAT_TENSOR)
        if not scattered:
            _count(tape, "scale" if reduced == "fp32" else "to_fp32", tensor.elements // shards, reduced)
    for group in optimizer_groups(workload, stage=stage):
        elements = group.share
        _count(tape, "zeros", group.padded if scattered else elements)
        if scattered:
            _count(tape, "scale", group.padded, reduced)
            if reduced != "fp32" and (not one_pass or recipe.precision is Precision.FP16_GRADIENT_COPY):
                _count(tape, "to_fp32", elements, reduced)
        if one_pass:
            _count_adam(tape, workload, elements, reduced if scattered else "fp32")
            continue
        _count_masters(tape, elements, WORK_DTYPES[recipe.precision], in_passing=in_passing)
        _count(tape, "adam", elements)


def _count_adam(tape: Tape, workload: Workload, elements: int, gradients: str) -> None:
    _count(tape, "adam", elements * one_pass_element_bytes(workload, gradients) // FUSED_ADAM_BYTES)


def one_pass_element_bytes(workload: Workload, gradients: str = "fp32") -> int:
    """Bytes that an update in one pass moves for an element: gradient, weight, two moments, and a 16-bit copy.

    Weights without masters are read and written as they are stored. Kept copies of gradients are fp32, like those of
    flat shards that were not scattered.
    """
    precision, layout = workload.recipe.precision, workload.layout
    stored = stored_element_bytes(precision) if layout.fully_sharded else WEIGHT_ELEMENT_BYTES[precision]
    has_masters = precision.has_masters and stored < FP32
    weight = FP32 if has_masters else stored
    kept = precision is Precision.FP16_GRADIENT_COPY
    gradient = FP32 if gradients == "fp32" or kept else stored
    return gradient + 2 * weight + 4 * FP32 + stored * has_masters


def _count(tape: Tape, operation: str, elements: int, dtype: str = "fp32") -> None:
    if elements:
        tape.count(operation, elements, variant="" if operation == "adam" else "forward", dtype=dtype)


def _count_masters(tape: Tape, elements: int, dtype: str, *, in_passing: bool) -> None:
    """A gradient that is scaled, a weight that is rounded from its master, and the master made of it."""
    if not elements:
        return
    tape.count("scale", elements, variant="forward")
    if dtype != "fp32":
        tape.count("from_fp32", elements, variant="forward", dtype=dtype)
    if in_passing:
        tape.count("to_fp32", elements, variant="forward", dtype=dtype)
