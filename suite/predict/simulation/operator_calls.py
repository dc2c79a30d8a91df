"""The work of one rank in a step as it is executed here: each operator of both passes and the update, with sizes."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.placement import chunk_layers
from reference_runs.run import Objective, Precision, Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions, Update
from suite.machine.half_precision import WORK_DTYPES, Kernels
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, optimizer_shards, shard_elements
from suite.predict.simulation.autograd_tape import Allocator, Tape, Works
from suite.predict.simulation.decoder import INT64
from suite.predict.simulation.state import optimizer_groups, own_shard_elements, parameter_tensors_of_rank
from suite.predict.simulation.step_memory import executed_chunks, gradients_of, run_micro_batch, sharding_of

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
LOADING_CALLS, LOADING_CALLS_OF_SAMPLE = 6, 8  # assumed, see `loading_works`
ADAM_CALLS = 9  # operators on each tensor, besides what their passes over memory take
LOGGING_CALLS = 8  # of the norms that are logged: norm, .item(), square, sum, add, .item(), and widening twice


class ChunkWorks(NamedTuple):
    """Work of one micro-batch in one chunk of the model.

    Args:
        number: of the chunk in the whole model.
        works: by whether they belong to the backward pass.
        last: the same of the step's last micro-batch.
    """

    number: int
    works: Works
    last: Works


def micro_batch_works(
    workload: Workload,
    *,
    stage: int,
    kernels: Kernels,
    compiled: bool,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> list[ChunkWorks]:
    """Work of a micro-batch in each chunk of a rank of `stage`: an ordinary one that adds to earlier ones' gradients
    (the only one, where there is one), and the last one, whose gradients are reduced."""
    architecture, recipe, layout = workload
    tape = Tape(Allocator(), stops_early=not compiled)
    gradients, sharding = gradients_of(tape, recipe, layout, script), sharding_of(tape, recipe, layout, kernels)
    chunks = executed_chunks(
        tape,
        workload,
        kernels,
        stage=stage,
        gradients=gradients,
        sharding=sharding,
        compiled=compiled,
        script=script,
    )
    numbers = range(stage, len(chunk_layers(architecture.layers, layout)), layout.pipeline_stages)
    several = accumulation(recipe, layout) > 1
    found = []
    for number, chunk in zip(numbers, chunks, strict=True):
        each: list[Works] = []
        for last in (False, False, True) if several else (True,):
            tape.works = Works()
            gradients.whole = last
            run_micro_batch(tape, chunk, workload, sharding=sharding, last=last)
            each.append(tape.works)
        found.append(ChunkWorks(number, each[-2] if several else each[0], each[-1]))
    return found


def loading_works(workload: Workload) -> Works:
    """Work of making one micro-batch on the host: its texts sliced, stacked and widened, as calls of small operators.

    With b samples of s positions 4 + 3 b operators are dispatched: a place in the order selected, read and its text
    sliced, for each sample; a stack, a widening and two slices. Assumed: they take as long as 6 + 8 b of the measured
    calls, because each is an index from Python; and with blanks, which Python fills in token by token, a token as long
    as a call: b s more. Nothing was measured for either; data loading is the term that tells how far they are off.
    """
    architecture, recipe, layout = workload
    tape = Tape(Allocator())
    calls = LOADING_CALLS + LOADING_CALLS_OF_SAMPLE * layout.micro_batch
    if recipe.objective is Objective.BLANK_INFILLING:
        calls += layout.micro_batch * architecture.sequence
    tape.work("call", times=calls)
    return tape.works


def batch_tensor_bytes(workload: Workload) -> list[int]:
    """Bytes of each tensor of a micro-batch, int64: tokens, targets; with blanks positions and who sees them."""
    each = INT64 * workload.layout.micro_batch * workload.architecture.sequence
    return [each, each, each, 2 * each] if workload.recipe.objective is Objective.BLANK_INFILLING else [each, each]


def update_works(
    workload: Workload,
    *,
    stage: int,
    replica: int,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> Works:
    """Work of the update: gradient norm, clipping, Adam, and weights rounded from their masters.

    ZeRO-1 over several ranks copies every gradient into a flat fp32 shard; else it goes from tensor to tensor.
    """
    architecture, recipe, layout = workload
    tape = Tape(Allocator())
    dtype = WORK_DTYPES[recipe.precision]
    each = BYTES_PER_PARAMETER[recipe.precision]
    reduced = "fp32" if each.gradients == FP32 else "fp16"

    def does(operation: str, elements: int, dtype: str = "fp32") -> None:
        if elements:
            tape.work(operation, elements, variant="" if operation.startswith("adam") else "forward", dtype=dtype)

    tensors = parameter_tensors_of_rank(architecture, layout, stage=stage)
    in_passing = recipe.precision is Precision.FP16_NO_MASTER
    shards = optimizer_shards(layout)
    if layout.fully_sharded or shards == 1:
        ranks = layout.data_parallel if layout.fully_sharded else 1
        if layout.fully_sharded and not in_passing:
            dtype = reduced = "fp32"
        elements = [own_shard_elements(tensor, ranks, replica=replica if ranks > 1 else 0) for tensor in tensors]
        for own in elements:
            if reduced != "fp32":
                does("to_fp32", own, reduced)
            does("vector_norm", own)
            tape.work("view", times=2)
            _master_works(tape, own, dtype, in_passing=in_passing)
            for operation, times in UPDATE_PASSES[script.update].items():
                tape.work(operation, own, variant="forward", times=times)
            tape.work("call", times=script_calls(script))
            if script.synchronises:
                does("vector_norm", own)
                does("scale", own)
            if script.keeps_gradients:
                does("zeros", own)
        if script.update is Update.FUSED:
            does("adam", sum(elements))
            tape.work("adam_tensor", times=len(tensors))
        return tape.works
    groups = optimizer_groups(workload, stage=stage)
    for tensor in tensors:
        does("vector_norm", tensor.elements, reduced)
        tape.work("view", times=6)
        does("scale" if reduced == "fp32" else "to_fp32", tensor.elements // shards, reduced)
    for group in groups:
        own = shard_elements(group, shards)
        does("zeros", own)
        _master_works(tape, own, dtype, in_passing=in_passing)
        does("adam", own)
    return tape.works


def _master_works(tape: Tape, elements: int, dtype: str, *, in_passing: bool) -> None:
    """A gradient that is scaled, a weight that is rounded from its master, and the master made of it."""
    if not elements:
        return
    tape.work("scale", elements, variant="forward")
    if dtype != "fp32":
        tape.work("from_fp32", elements, variant="forward", dtype=dtype)
    if in_passing:
        tape.work("to_fp32", elements, variant="forward", dtype=dtype)


def script_calls(script: TrainingOptions) -> int:
    """Calls of operators on each tensor in the update, where a fused one has none."""
    adam = 0 if script.update is Update.FUSED else ADAM_CALLS
    return adam + LOGGING_CALLS * script.synchronises
