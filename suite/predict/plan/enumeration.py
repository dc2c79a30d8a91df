"""Every layout that divides model, batch and accelerators: counts, which make arrays, and switches, which do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, Schedule, StageAssignment
from reference_runs.quantities import divisors
from reference_runs.run import Architecture, Workload
from suite.predict.plan.question import Question

if TYPE_CHECKING:
    import numpy

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SMALL_BATCH = 64  # samples of a step, up to which every divisor is a micro-batch: 3 of 3, not 1 and 2 alone
COUNTS = (
    *("data_parallel", "tensor_parallel", "pipeline_stages", "context_parallel", "virtual_stages", "micro_batch"),
)
CONTEXT = COUNTS.index("context_parallel")
AXES_OF_COUNTS = 4  # the first of `COUNTS`: dp, tp, pp, cp
INTERLEAVED = (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)
SCHEDULES = (Schedule.ZERO_BUBBLE, Schedule.ZBV, Schedule.DUALPIPEV)  # besides 1f1b, which all software has


def enumerated(question: Question) -> Iterator[tuple[Layout, numpy.ndarray[Any, Any]]]:
    """Each combination of switches with the counts that it has, as columns in the order of `COUNTS`; none is empty."""
    import numpy

    for experts in question.sizes("ep", divisors(question.architecture.experts or 1)):
        known: dict[tuple[Schedule, StageAssignment], numpy.ndarray[Any, Any]] = {}
        for layout in _switches(question, experts):
            schedule = layout.schedule if layout.schedule.shape_of_v else Schedule.ONE_F_ONE_B
            kind = (schedule, layout.stage_assignment)
            if kind not in known:
                counts = list(_counts(question, experts, *kind))
                known[kind] = numpy.array(counts, dtype=float).reshape(len(counts), len(COUNTS)).T
            columns = known[kind]
            chosen = columns[:, _compatible(question, layout, columns)]
            if chosen.shape[1]:
                yield layout, chosen


def _counts(
    question: Question, experts: int, schedule: Schedule, assignment: StageAssignment
) -> Iterator[tuple[int, ...]]:
    """`COUNTS` of the layouts that `check_layout` lets pass with some other switches."""
    architecture, recipe = question.architecture, question.recipe
    plain = msgspec.structs.replace(
        question.base,
        schedule=schedule,
        stage_assignment=assignment,
        recomputation=Recomputation.NONE,
        recomputed_modules=(),
        checkpoint_layers=1,
        zero_stage=0,
        shard_ranks=None,
        sequence_parallel=False,
        expert_parallel=experts,
        accumulation=None,
    )
    slots = _slots(architecture, assignment)
    node = question.machine.accelerators_per_node
    for context, tensor, stages in itertools.product(
        question.sizes("cp", divisors(question.ranks)),
        question.sizes("tp", divisors(node)),
        question.sizes("pp", range(1, architecture.layers + 1)),
    ):
        data, rest = divmod(question.ranks, context * experts * tensor * stages)
        if rest or data not in question.values("data_parallel", (data,)):
            continue
        if schedule.shape_of_v:
            chunks = question.values("virtual_stages", (2 if stages > 1 else 1,))
        else:
            chunks = question.sizes("interleave", _chunks(slots, stages))
        for virtual in chunks:
            if "uneven" not in question.layouts and slots % (stages * virtual):
                continue
            for micro_batch in question.values("micro_batch", micro_batches(recipe.global_batch)):
                counts = (data, tensor, stages, context, virtual, micro_batch)
                layout = msgspec.structs.replace(plain, **dict(zip(COUNTS, counts, strict=True)))
                try:
                    check_layout(Workload(architecture, recipe, layout), "--fix")
                except InputError:
                    continue
                yield counts


def _switches(question: Question, experts: int) -> Iterator[Layout]:
    """The question's layout with that expert parallelism and every combination of what is no count."""
    words = question.layouts
    layout = msgspec.structs.replace(
        question.base, **{"accumulation": None, **question.fixed, "expert_parallel": experts}
    )
    recomputations = [Recomputation.NONE]
    if "recompute-selective" in words:
        recomputations.append(Recomputation.SELECTIVE)
    dense = question.architecture.experts is None and question.architecture.key_value_rank is None
    if "recompute-selective-op" in words and dense:
        recomputations.append(Recomputation.SELECTIVE_OP)
    if "recompute-full" in words:
        recomputations.append(Recomputation.FULL)
    schedules = (Schedule.ONE_F_ONE_B, *(schedule for schedule in SCHEDULES if schedule in words))
    node = question.machine.accelerators_per_node
    copied = (None, node) if "shard" in words and 1 < node < question.ranks else (None,)
    for (zero, scatters), shards, recomputation, schedule, sequence, fused, assignment, offload in itertools.product(
        _zero_forms(question),
        question.values("shard_ranks", copied),
        question.values("recomputation", recomputations),
        question.values("schedule", schedules),
        question.values("sequence_parallel", (False, True) if "sp" in words else (False,)),
        question.values("fused_attention", question.fused),
        question.assignments,
        question.offloads,
    ):
        if shards and zero < 2:
            continue
        modules = layout.recomputed_modules if recomputation is Recomputation.SELECTIVE else ()
        selects_scores = recomputation is Recomputation.SELECTIVE and not modules
        if fused and selects_scores and "recomputation" not in question.fixed:
            continue  # there are none to repeat
        if recomputation is Recomputation.SELECTIVE_OP and not fused:
            continue  # not described
        full = recomputation is Recomputation.FULL
        yield msgspec.structs.replace(
            layout,
            zero_stage=zero,
            shard_ranks=shards,
            reduce_scatter=scatters,
            recomputation=recomputation,
            recomputed_modules=modules,
            checkpoint_layers=layout.checkpoint_layers if full else 1,
            schedule=schedule,
            sequence_parallel=sequence,
            fused_attention=fused,
            stage_assignment=assignment,
            offload=offload,
        )


def _zero_forms(question: Question) -> list[tuple[int, bool]]:
    """ZeRO stages, and whether the first scatters gradients."""
    words = question.layouts
    stages = [0, *(stage for stage in (1, 2, 3) if f"zero{stage}" in words)]
    forms = [scatters for word, scatters in (("all-reduce", False), ("reduce-scatter", True)) if word in words]
    return [
        (stage, scatters)
        for stage in question.values("zero_stage", stages)
        for scatters in (question.values("reduce_scatter", forms or (False,)) if stage == 1 else (False,))
    ]


def _compatible(question: Question, layout: Layout, columns: numpy.ndarray[Any, Any]) -> Any:
    """For each column whether the switches of `layout` have a meaning for it, and software that has them."""
    data, tensor, stages, context, virtual, _ = columns
    holders = data * context * layout.expert_parallel
    allowed = data > 0
    if layout.zero_stage and "zero_stage" not in question.fixed:
        allowed &= holders > 1
    if layout.zero_stage >= 2:
        allowed &= (stages == 1) & (question.recipe.adapter_rank is None)
    if (shards := layout.shard_ranks) is not None:
        allowed &= (data * context % shards == 0) & (shards % context == 0) & (layout.expert_parallel == 1)
    if layout.fused_attention and "cp-fused" not in question.layouts and "context_parallel" not in question.fixed:
        allowed &= context == 1
    if layout.sequence_parallel:
        allowed &= (tensor > 1) & (question.architecture.sequence % tensor == 0)
    if layout.schedule is not Schedule.ONE_F_ONE_B and "schedule" not in question.fixed:
        allowed &= stages > 1
    if layout.stage_assignment is not question.assignments[0]:
        allowed &= stages > 1
    if layout.schedule not in INTERLEAVED and not layout.schedule.shape_of_v:
        allowed &= virtual == 1
    return allowed


def divides_layers(architecture: Architecture, layout: Layout) -> bool:
    """Whether every chunk has as many layers, tables counted where the assignment counts them."""
    chunks = layout.pipeline_stages * layout.virtual_stages
    return layout.pipeline_stages == 1 or _slots(architecture, layout.stage_assignment) % chunks == 0


def _slots(architecture: Architecture, assignment: StageAssignment) -> int:
    return architecture.layers + (2 if assignment is StageAssignment.LAYERS_AND_TABLES else 0)


def micro_batches(global_batch: int) -> Sequence[int]:
    """Micro-batches that are searched; those that do not divide the batch of a replica are left out later."""
    return MICRO_BATCHES if global_batch > SMALL_BATCH else divisors(global_batch)


def _chunks(layers: int, stages: int) -> list[int]:
    """Virtual stages, of each number of layers a chunk the least: 1, and up to as many as there are layers."""
    each = sorted({-(-layers // (stages * layers_each)) for layers_each in range(1, layers // stages + 1)})
    return [1, *(count for count in each if count > 1 and stages > 1 and stages * count <= layers)]
