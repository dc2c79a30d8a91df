"""PyTorch's caching allocator on CUDA: what it reserves for tensors that live at the same time.

Constants from c10/cuda/CUDACachingAllocator.cpp (torch 2.x, `max_split_size` and `expandable_segments` unset).
"""

from __future__ import annotations

from collections.abc import Iterable

from reference_runs.layout import Recomputation, Schedule
from reference_runs.placement import head_stage
from reference_runs.run import Residual, Workload
from reference_runs.stack import Keeping
from suite.predict.analytic.activations import (
    checkpoint_bytes,
    embedding_activation_bytes,
    head_activation_bytes,
    inputs_stay_in_place,
    kept_by_operator,
    kept_units,
    layer_activation_bytes,
    score_bytes,
)
from suite.predict.analytic.eager_modules import NO_KEEPING
from suite.predict.analytic.elementwise import larger, smaller
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, micro_batches_in_flight
from suite.predict.analytic.stage_layers import stage_layer_kinds, stage_layers
from suite.predict.analytic.stage_memory import StageMemory

MINIMUM_BLOCK = 512  # kMinBlockSize
SMALL_REQUEST = 2**20  # kSmallSize
SMALL_SEGMENT = 2 * 2**20  # kSmallBuffer
LARGE_REQUEST = 10 * 2**20  # kMinLargeAlloc
LARGE_SEGMENT = 20 * 2**20  # kLargeBuffer
LARGE_ROUNDING = 2 * 2**20  # kRoundLarge


def block_bytes(tensor_bytes: float) -> float:
    """Bytes of the block that holds a tensor: rounded up to 512; an empty tensor holds none.

    Source: CUDACachingAllocator.cpp, round_size. `torch.cuda.memory_allocated` sums these.
    """
    return -(-tensor_bytes // MINIMUM_BLOCK) * MINIMUM_BLOCK


def reserved_bytes(tensors: Iterable[tuple[float, float]]) -> float:
    """Bytes of the segments that hold `tensors`, given as (bytes of one, number of them), without fragmentation.

        2 MiB ceil(S / 2 MiB)      S bytes of blocks up to 1 MiB
        20 MiB ceil(M / 20 MiB)    M bytes of blocks below 10 MiB
        segment by segment         blocks from 10 MiB on, each rounded up to 2 MiB

    A lower bound for the tensors of each of the three sizes by themselves: blocks that do not divide a segment leave a
    rest, and segments of tensors long freed stay reserved. Tensors from 10 MiB on may find room in a 20 MiB segment
    that is there already, one in each; the formula gives them segments of their own.

    Source: CUDACachingAllocator.cpp, get_allocation_size, should_split and get_pool.
    """
    small: float = 0
    large: float = 0
    own: float = 0
    for size, count in tensors:
        block = block_bytes(size)
        total = count * block
        is_small, is_own = (block <= SMALL_REQUEST) * 1, (block >= LARGE_REQUEST) * 1
        small = small + is_small * total
        own = own + is_own * count * (-(-block // LARGE_ROUNDING) * LARGE_ROUNDING)
        large = large + (1 - is_small - is_own) * total
    shared = -(-small // SMALL_SEGMENT) * SMALL_SEGMENT + -(-large // LARGE_SEGMENT) * LARGE_SEGMENT
    return own + shared


Tensors = list[tuple[float, float]]


def _times(tensors: Tensors, number: float) -> Tensors:
    return [(size, count * number) for size, count in tensors]


def _layer_tensors(workload: Workload, keeping: Keeping) -> tuple[Tensors, Tensors]:
    """Activations of one layer as (bytes of one, number of them): all but the scores, and the scores."""
    kinds = layer_activation_bytes(workload, keeping)
    scores = score_bytes(workload)
    pairs = {"dropout masks"} | ({"norm inputs"} if workload.architecture.residual is not Residual.PARALLEL else set())
    others = [(size // 2, 2) if kind in pairs else (size, 1) for kind, size in kinds.items() if kind not in scores]
    return [*others], [(size, 1) for size in scores.values()]


def _recomputation_tensors(workload: Workload, keeping: Keeping, *, layers: int) -> tuple[Tensors, Tensors]:
    """Sizes that one unit of recomputation keeps, and those that the backward pass computes again at a time.

    An input that stays in place is taken off the latter by a negative number of tensors.
    """
    layout = workload.layout
    others, scores = _layer_tensors(workload, keeping)
    some = (layers > 0) * 1
    if layout.recomputation is Recomputation.NONE:
        return others + scores, []
    if layout.recomputation is Recomputation.SELECTIVE:
        return others, _times(scores, some)
    checkpoint = checkpoint_bytes(workload)
    if layout.recomputation is Recomputation.SELECTIVE_OP:
        kept: Tensors = [(size, 1) for size in kept_by_operator(workload, keeping).values()]
        return kept, [*_times(others + scores, some), *_times(kept, -some)]
    if layout.recomputation is Recomputation.FULL:
        again = _times(others + scores, smaller(layers, layout.checkpoint_layers))
        return [(checkpoint, 1)], [*again, (checkpoint, -some * inputs_stay_in_place(layout))]
    alone = (layers == layout.virtual_stages) * some
    return [(checkpoint, 1)], [*_times(others + scores, some), (checkpoint, -alone * inputs_stay_in_place(layout))]


def reserved_peak_bytes(
    workload: Workload, memory: StageMemory, *, stage: int, micro_batches: int, keeping: Keeping = NO_KEEPING
) -> float:
    """Bytes that the allocator reserves on a rank of `stage` during a step: its `memory` laid into segments.

    Weights, gradients, each part of the optimizer state and the buffers are one flat tensor each, as Megatron-LM,
    DeepSpeed and ZeRO keep them; activations lie kind by kind and layer by layer. What is reserved is not given back,
    so it is the most of the three instants. A lower bound: fragmentation, which comes on top, is not predicted.
    """
    architecture, layout = workload.architecture, workload.layout
    layers = stage_layers(architecture, layout, stage=stage)
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    units: Tensors = []
    one: Tensors = []
    again: Tensors = []
    for kind, number in stage_layer_kinds(architecture, layout, stage=stage):
        unit, once_more = _recomputation_tensors(Workload(kind, workload.recipe, layout), keeping, layers=number)
        one += _times(unit, kept_units(layout, layers=number))
        if not units or not isinstance(number, int) or number > 0:
            units, again = unit, once_more
    embedding = embedding_activation_bytes(workload)
    one += [(size, (stage == 0) * 1) for size in embedding.values()]
    heads = (stage == head_stage(layout)) * (micro_batches if layout.schedule is Schedule.GPIPE else 1)
    head = [(size, heads) for size in head_activation_bytes(workload, keeping).values()]
    waiting = _times(one, in_flight - 1) if layout.schedule in NO_FLUSH else []
    constant = [(part, 1) for part in (*memory[2:5], memory.weights)]
    state = [*constant, (memory.gradients, 1)]
    buffers = (memory.buffers, 1)
    forward = reserved_bytes(
        [*constant, (memory.gradients, (micro_batches > 1) * 1), *_times(one, in_flight), *head, *again, buffers]
    )
    backward = reserved_bytes([*state, *waiting, *_times(units, (layers > 0) * 1), *again, buffers])
    return larger(larger(forward, backward), reserved_bytes([*state, *waiting, (memory.temporary, 1)]))
