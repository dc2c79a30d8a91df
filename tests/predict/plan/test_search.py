"""The search finds what a plain loop over all layouts finds, and nothing that the question excludes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_runs.catalog import check_layout, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import Workload
from reference_runs.stack import SEARCHED
from suite.predict.plan.search import MICRO_BATCHES, Question, SearchResult, search
from suite.predict.recorded_run.sweep import LayoutFigures, layout_figures
from tests.support.layouts import machine_of

GPT2 = reference_run("gpt2-124m")
NEOX = reference_run("gpt-neox-20b")


def question(ranks: int, **changes: object) -> Question:
    """Of GPT-2 with a batch that many layouts divide."""
    recipe = msgspec.structs.replace(GPT2.recipe, global_batch=64)
    machine = msgspec.structs.replace(machine_of(NEOX), accelerators_per_node=8)
    asked = Question(GPT2.architecture, recipe, Layout(), machine, ranks, machine.memory_bytes)
    return asked._replace(**changes)


def every_layout(asked: Question) -> Iterator[tuple[Layout, LayoutFigures]]:
    """All fitting layouts by a plain loop, each computed alone."""
    layers, node = asked.architecture.layers, asked.machine.accelerators_per_node
    for tensor, stages, context, virtual, micro_batch in itertools.product(
        range(1, node + 1), range(1, layers + 1), range(1, asked.ranks + 1), range(1, layers + 1), MICRO_BATCHES
    ):
        data, rest = divmod(asked.ranks, tensor * stages * context)
        if rest or node % tensor or layers % (stages * virtual) or asked.architecture.sequence % context:
            continue
        for zero, sequence, recomputation, schedule in itertools.product(
            ((0, False), (1, False), (1, True), (2, False), (3, False)),
            (False, True),
            (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL),
            (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE),
        ):
            layout = Layout(
                data_parallel=data,
                tensor_parallel=tensor,
                pipeline_stages=stages,
                context_parallel=context,
                virtual_stages=virtual,
                micro_batch=micro_batch,
                zero_stage=zero[0],
                reduce_scatter=zero[1],
                sequence_parallel=sequence,
                recomputation=recomputation,
                schedule=schedule,
            )
            if (sequence and tensor == 1) or (zero[0] and data * context == 1) or (zero[0] >= 2 and stages > 1):
                continue
            if stages == 1 and schedule is Schedule.ZERO_BUBBLE:
                continue
            workload = Workload(asked.architecture, asked.recipe, layout)
            try:
                check_layout(workload, "here")
            except InputError:
                continue
            figures = layout_figures(workload, asked.machine)
            if figures.peak_bytes <= asked.memory_bytes:
                yield layout, figures


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_search_finds_the_best_of_all_layouts(ranks: int) -> None:
    # the search leaves out numbers of chunks that deal no other layers to the fullest chunk; here all of them divide
    asked = question(ranks)
    expected = sorted(every_layout(asked), key=lambda pair: (pair[1].step_seconds, pair[1].peak_bytes))
    result = search(asked, top=5)
    for name in ("step_seconds", "peak_bytes"):
        values = [getattr(figures, name) for _, figures in expected[:5]]
        assert [getattr(each.figures, name) for each in result.best] == pytest.approx(values, rel=1e-12)
    assert result.fitting >= len(expected)


asked_questions = st.builds(
    question,
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24]),
    memory_bytes=st.sampled_from([2e9, 4e9, 8e9, 80e9]),
    layouts=st.lists(st.sampled_from(SEARCHED), unique=True).map(tuple),
    fused=st.sampled_from([(False,), (True,), (False, True)]),
)


def found(asked: Question, top: int = 1000) -> SearchResult:
    return search(asked, top=top)


@settings(max_examples=25)
@given(asked_questions)
def test_what_is_found_divides_fits_and_is_what_the_software_executes(asked: Question) -> None:
    result = found(asked)
    assert result.fitting <= result.considered
    for layout, figures in result.best:
        check_layout(Workload(asked.architecture, asked.recipe, layout), "here")
        assert layout.ranks == asked.ranks
        assert figures.peak_bytes <= asked.memory_bytes
        words = set(asked.layouts)
        assert layout.tensor_parallel == 1 or "tp" in words
        assert layout.pipeline_stages == 1 or "pp" in words
        assert layout.context_parallel == 1 or "cp" in words
        assert layout.virtual_stages == 1 or "interleave" in words
        assert not layout.sequence_parallel or "sp" in words
        assert layout.zero_stage == 0 or f"zero{layout.zero_stage}" in words
        assert layout.recomputation is Recomputation.NONE or f"recompute-{layout.recomputation}" in words
        assert layout.schedule is Schedule.ONE_F_ONE_B or "zero-bubble" in words
        alone = layout_figures(Workload(asked.architecture, asked.recipe, layout), asked.machine)
        assert figures == pytest.approx(alone, rel=1e-12)


@settings(max_examples=25)
@given(asked_questions, st.sampled_from(SEARCHED))
def test_more_memory_and_more_able_software_never_cost_time(asked: Question, word: str) -> None:
    before = found(asked, top=1)
    roomier = found(asked._replace(memory_bytes=2 * asked.memory_bytes), top=1)
    abler = found(asked._replace(layouts=tuple({*asked.layouts, word})), top=1)
    for after in (roomier, abler):
        assert after.fitting >= before.fitting or word in ("all-reduce", "reduce-scatter")
        if before.best:
            assert after.best[0].figures.step_seconds <= before.best[0].figures.step_seconds * (1 + 1e-12) or (
                word == "reduce-scatter" and "all-reduce" not in asked.layouts
            )


def test_a_fixed_field_has_that_value_whatever_the_software_executes() -> None:
    fixed = {"tensor_parallel": 3, "zero_stage": 3, "micro_batch": 3, "recomputation": Recomputation.FULL}
    recipe = msgspec.structs.replace(GPT2.recipe, global_batch=96)
    result = found(question(6, layouts=(), recipe=recipe, fixed=fixed))
    assert result.best
    for layout, _ in result.best:
        assert {key: getattr(layout, key) for key in fixed} == fixed


def test_where_nothing_fits_the_smallest_is_named() -> None:
    result = found(question(8, memory_bytes=1e6))
    assert not result.best
    assert result.fitting == 0
    assert result.smallest is not None
    roomy = found(question(8), top=100000)
    assert result.smallest.figures.peak_bytes == min(each.figures.peak_bytes for each in roomy.best)


def test_no_layout_divides_a_prime_number_of_ranks_beyond_the_batch() -> None:
    assert found(question(997)) == SearchResult(0, 0, 0, [], None)
