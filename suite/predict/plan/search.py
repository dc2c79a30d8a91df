"""The search for a layout: every one that divides model, batch and accelerators, with its memory and its time.

Layouts that differ in counts alone are computed together, as arrays (recorded_run/sweep.py). What is no count (ZeRO
stage, recomputation, schedule and other switches) makes a call of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import Architecture, Recipe, Workload
from reference_runs.stack import SEARCHED
from suite.predict.analytic.machine import Machine
from suite.predict.recorded_run.sweep import LayoutFigures, layout_figures

if TYPE_CHECKING:
    import numpy

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SIZES = {
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "pp": "pipeline_stages",
    "interleave": "virtual_stages",
}
COUNTS = (
    *("data_parallel", "tensor_parallel", "pipeline_stages", "context_parallel", "virtual_stages", "micro_batch"),
)


class Question(NamedTuple):
    """What is looked for.

    Args:
        base: what no search varies: order of ranks, assignment of layers, buckets, groups of recomputation.
        ranks: accelerators of the job.
        memory_bytes: that a rank may fill.
        layouts: what the software executes, see `reference_runs.stack.SEARCHED`.
        fused: whether attention is fused; several values are all searched.
        fixed: fields of `Layout` that have one value, whatever the software executes, see
            `reference_runs.layout.named_fields`.
    """

    architecture: Architecture
    recipe: Recipe
    base: Layout
    machine: Machine
    ranks: int
    memory_bytes: float
    layouts: tuple[str, ...] = SEARCHED
    fused: tuple[bool, ...] = (False,)
    fixed: Mapping[str, object] = {}

    def values(self, field: str, searched: Iterable[Any]) -> tuple[Any, ...]:
        """The fixed value of a field of the layout, or those that are searched."""
        return (self.fixed[field],) if field in self.fixed else tuple(searched)

    def sizes(self, word: str, searched: Iterable[int]) -> tuple[int, ...]:
        """Sizes of an axis, by its word: the fixed one, or those that are searched; 1 where the software has none."""
        return self.values(SIZES[word], searched if word in self.layouts else (1,))


class Found(NamedTuple):
    """A layout with its figures, each a number."""

    layout: Layout
    figures: LayoutFigures


class SearchResult(NamedTuple):
    """The fitting layouts, the fastest first, at most as many as were asked for; and the one that needs least memory.

    Args:
        considered: layouts that divide model, batch and accelerators.
        fitting: of those, within the memory.
        within: of the fitting, at most so much slower than the fastest, by the share that was asked for.
        smallest: of the least peak, whether it fits or not; None where no layout divides.
    """

    considered: int
    fitting: int
    within: int
    best: list[Found]
    smallest: Found | None


def search(question: Question, *, top: int = 10, share: float = 0.0) -> SearchResult:
    """All layouts of `question`, of which the `top` fastest that fit are returned.

    Of layouts that take equally long, the one comes first that needs less memory.

    Args:
        share: relative difference of the step time up to which `SearchResult.within` counts.

    Raises:
        InputError: a fixed field has a value that no layout of the search can have.
    """
    import numpy

    groups: list[_Columns] = []
    for experts in question.sizes("ep", _divisors(question.architecture.experts or 1)):
        counts = list(_counts(question, experts))
        for layout in _switches(question, experts) if counts else ():
            columns = numpy.array(counts, dtype=float).T
            chosen = columns[:, _compatible(question, layout, columns)]
            if chosen.shape[1]:
                groups.append(_computed(question, layout, chosen))
    if not groups:
        return SearchResult(0, 0, 0, [], None)
    peak = numpy.concatenate([group.figures.peak_bytes for group in groups])
    seconds = numpy.concatenate([group.figures.step_seconds for group in groups])
    starts = numpy.cumsum([0, *(group.columns.shape[1] for group in groups)])

    def found(place: int) -> Found:
        of = int(numpy.searchsorted(starts, place, side="right")) - 1
        return groups[of].found(place - int(starts[of]))

    fits = numpy.flatnonzero(peak <= question.memory_bytes)
    order = fits[numpy.lexsort((peak[fits], seconds[fits]))]
    within = int((seconds[fits] <= seconds[order[0]] * (1 + share)).sum()) if len(order) else 0
    best = [found(int(place)) for place in order[:top]]
    return SearchResult(len(peak), len(fits), within, best, found(int(numpy.lexsort((seconds, peak))[0])))


class _Columns(NamedTuple):
    """Layouts that differ in `COUNTS` alone.

    Args:
        layout: one of them.
        columns: of counts, one a layout: [counts, layouts].
        figures: `LayoutFigures` of arrays with an entry a layout.
    """

    layout: Layout
    columns: numpy.ndarray[Any, Any]
    figures: Any

    def found(self, column: int) -> Found:
        counts = dict(zip(COUNTS, (int(count) for count in self.columns[:, column]), strict=True))
        values = LayoutFigures(*(float(figure[column]) for figure in self.figures))
        return Found(msgspec.structs.replace(self.layout, **counts), values)


def _computed(question: Question, layout: Layout, columns: numpy.ndarray[Any, Any]) -> _Columns:
    import numpy

    counted = msgspec.structs.replace(layout, **dict(zip(COUNTS, columns, strict=True)))
    figures = layout_figures(Workload(question.architecture, question.recipe, counted), question.machine)
    columnwise: Any = [numpy.broadcast_to(figure, columns.shape[1]) for figure in figures]
    return _Columns(layout, columns, LayoutFigures(*columnwise))


def _counts(question: Question, experts: int) -> Iterator[tuple[int, ...]]:
    """`COUNTS` of the layouts with that expert parallelism that `check_layout` lets pass with some switches."""
    architecture, recipe = question.architecture, question.recipe
    schedule: Any = question.fixed.get("schedule")
    plain = msgspec.structs.replace(
        question.base,
        schedule=schedule if schedule is not None and schedule.shape_of_v else Schedule.ONE_F_ONE_B,
        recomputation=Recomputation.NONE,
        checkpoint_layers=1,
        zero_stage=0,
        shard_ranks=None,
        sequence_parallel=False,
        expert_parallel=experts,
        accumulation=None,
    )
    node = question.machine.accelerators_per_node
    for context, tensor, stages in itertools.product(
        question.sizes("cp", _divisors(question.ranks)),
        question.sizes("tp", _divisors(node)),
        question.sizes("pp", range(1, architecture.layers + 1)),
    ):
        data, rest = divmod(question.ranks, context * experts * tensor * stages)
        if rest or data not in question.values("data_parallel", (data,)):
            continue
        for virtual in question.sizes("interleave", _chunks(architecture.layers, stages)):
            for micro_batch in question.values("micro_batch", MICRO_BATCHES):
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
    if "recompute-full" in words:
        recomputations.append(Recomputation.FULL)
    schedules = (Schedule.ONE_F_ONE_B, *([Schedule.ZERO_BUBBLE] if "zero-bubble" in words else []))
    for (zero, scatters), recomputation, schedule, sequence, fused in itertools.product(
        _zero_forms(question),
        question.values("recomputation", recomputations),
        question.values("schedule", schedules),
        question.values("sequence_parallel", (False, True) if "sp" in words else (False,)),
        question.values("fused_attention", question.fused),
    ):
        if fused and recomputation is Recomputation.SELECTIVE and "recomputation" not in question.fixed:
            continue  # there are no scores to repeat
        full = recomputation is Recomputation.FULL
        yield msgspec.structs.replace(
            layout,
            zero_stage=zero,
            reduce_scatter=scatters,
            recomputation=recomputation,
            checkpoint_layers=layout.checkpoint_layers if full else 1,
            schedule=schedule,
            sequence_parallel=sequence,
            fused_attention=fused,
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
        allowed &= stages == 1
    if layout.sequence_parallel:
        allowed &= (tensor > 1) & (question.architecture.sequence % tensor == 0)
    if layout.schedule is Schedule.ZERO_BUBBLE and "schedule" not in question.fixed:
        allowed &= stages > 1
    if layout.schedule not in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE) and not layout.schedule.shape_of_v:
        allowed &= virtual == 1
    return allowed


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _chunks(layers: int, stages: int) -> list[int]:
    """Virtual stages, of each number of layers a chunk the least: 1, and up to as many as there are layers."""
    each = sorted({-(-layers // (stages * layers_each)) for layers_each in range(1, layers // stages + 1)})
    return [1, *(count for count in each if count > 1 and stages > 1 and stages * count <= layers)]
