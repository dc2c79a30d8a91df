"""Effects of one change of a layout, of its batch or of its machine on the step: each computed, none guessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from reference_runs.catalog import check_layout
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, StageAssignment
from reference_runs.run import Recipe, Workload
from suite.predict.analytic.machine import Machine
from suite.predict.plan.enumeration import SCHEDULES, divides_layers
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found
from suite.predict.recorded_run.sweep import LayoutFigures, layout_figures

LEAST_GAIN = 0.001  # of a step; less is not worth a line


class HelpfulChange(NamedTuple):
    """One change and what it does.

    Args:
        words: what is changed, from what to what.
        time: of the same tokens, less 1: below 0 it takes less.
        more_bytes: on the fullest rank.
        fits: within the memory of the question.
        allowed: by the software, where the layout changes.
    """

    words: str
    time: float
    more_bytes: float
    fits: bool
    allowed: bool


def helpful_changes(question: Question, found: Found, *, top: int = 3) -> list[HelpfulChange]:
    """The `top` single changes that save most time, the most helpful first; those that save nothing are left out.

    What the search could have taken is named because it does not fit, or because the software does not execute it.
    """
    before = _per_token(found.figures)
    changes = []
    for words, allowed, recipe, layout, machine in _changed(question, found.layout):
        try:
            check_layout(Workload(question.architecture, recipe, layout), "--fix")
        except InputError:
            continue
        figures = layout_figures(Workload(question.architecture, recipe, layout), machine)
        time = _per_token(figures) / before - 1
        if time < -LEAST_GAIN:
            more = figures.peak_bytes - found.figures.peak_bytes
            fits = figures.peak_bytes <= question.memory_bytes
            changes.append(HelpfulChange(words, time, more, fits, allowed))
    return sorted(changes, key=lambda change: change.time)[:top]


def _per_token(figures: LayoutFigures) -> float:
    return 1 / figures.tokens_per_second


class _Variation(NamedTuple):
    words: str
    allowed: bool
    recipe: Recipe
    layout: Layout
    machine: Machine


def _changed(question: Question, layout: Layout) -> Iterator[_Variation]:
    """Each single change of the layout, of the batch and of the machine."""
    recipe, machine, able = question.recipe, question.machine, question.layouts
    for words, word, fields in _layout_changes(layout, question):
        changed = msgspec.structs.replace(layout, **fields)
        dealt = "uneven" in able or divides_layers(question.architecture, changed)
        yield _Variation(words, (word is None or word in able) and dealt, recipe, changed, machine)
    doubled = msgspec.structs.replace(recipe, global_batch=2 * recipe.global_batch)
    words = f"global batch {recipe.global_batch:,} -> {doubled.global_batch:,} samples"
    yield _Variation(words, True, doubled, layout, machine)
    network = 2 * machine.network_bytes_per_second
    faster = msgspec.structs.replace(machine, network_bytes_per_second=network)
    gbits = f"{machine.network_bytes_per_second * 8e-9:,.0f} -> {network * 8e-9:,.0f} Gbit/s"
    yield _Variation(f"network of a node {gbits}", True, recipe, layout, faster)


def _layout_changes(layout: Layout, question: Question) -> Iterator[tuple[str, str | None, dict[str, object]]]:
    """Words of a change, the word of `SEARCHED` that the software needs for it, and the fields that it changes."""
    micro, data = layout.micro_batch, layout.data_parallel
    for size in (2 * micro, micro // 2):
        if size:
            yield f"micro-batch {micro} -> {size}", None, {"micro_batch": size}
    for word, field in (("tp", "tensor_parallel"), ("pp", "pipeline_stages"), ("cp", "context_parallel")):
        size = getattr(layout, field)
        if data % 2 == 0:
            changed = f"{word}{size},dp{data} -> {word}{2 * size},dp{data // 2}"
            yield (
                changed,
                "cp-fused" if word == "cp" and layout.fused_attention else word,
                {field: 2 * size, "data_parallel": data // 2},
            )
        if size % 2 == 0:
            changed = f"{word}{size},dp{data} -> {word}{size // 2},dp{2 * data}"
            yield changed, None, {field: size // 2, "data_parallel": 2 * data}
    if layout.pipeline_stages > 1:
        chunks = layout.virtual_stages
        if not layout.schedule.shape_of_v:
            yield f"interleave{chunks} -> interleave{2 * chunks}", "interleave", {"virtual_stages": 2 * chunks}
        for schedule in SCHEDULES:
            if layout.schedule is not schedule:
                virtual = 2 if schedule.shape_of_v else 1 if layout.schedule.shape_of_v else chunks
                changes = {"schedule": schedule, "virtual_stages": virtual}
                yield f"{layout.schedule} -> {schedule}", schedule.value, changes
        for assignment in StageAssignment:
            if layout.stage_assignment is not assignment:
                words = f"{layout.stage_assignment} -> {assignment} dealt to stages"
                yield words, "layers-and-tables", {"stage_assignment": assignment}
    for order in (Layout().rank_order, question.stages_first):
        if layout.rank_order != order:
            needed = None if order in question.orders else "any-order"
            yield f"order {layout.rank_order} -> {order}", needed, {"rank_order": order}
    if layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "sequence parallelism", "sp", {"sequence_parallel": True}
    for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE):
        if layout.recomputation is not recomputation and layout.recomputation is not Recomputation.NONE:
            needed = None if recomputation is Recomputation.NONE else "recompute-selective"
            fields: dict[str, object] = {
                "recomputation": recomputation,
                "recomputed_modules": (),
                "checkpoint_layers": 1,
            }
            yield f"recompute-{layout.recomputation} -> recompute-{recomputation}", needed, fields
    for stage, scatters, words in ((0, False, "zero0"), (1, True, "zero1,reduce-scatter")):
        if (layout.zero_stage, layout.reduce_scatter) != (stage, scatters):
            needed = "reduce-scatter" if scatters else None
            yield f"zero{layout.zero_stage} -> {words}", needed, {"zero_stage": stage, "reduce_scatter": scatters}
    if not layout.fused_attention:
        yield "fused attention", "fused", {"fused_attention": True}
