"""Classes of equal ranks, and a step's counts from those of two shorter steps."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.job.dry_run_job import AskedStep, Moment, StepCounts
from suite.job.events import CountedCollective
from suite.predict.simulation.state import executed_state, rank_position
from suite.reproduce.dry_run.rank_classes import executed_steps, of_whole_step, rank_classes
from tests.support.rank_reports import finished

TWO = (AskedStep(3, in_flight=2), AskedStep(4, in_flight=2))


def workload(layout: str, run: str = "bloom-176b") -> Workload:
    recorded = reference_run(run)
    return recorded.workload._replace(layout=parse_layout(layout, base=recorded.layout))


def counted(micro_batches: int, fixed: int, each: int) -> StepCounts:
    """Every count of a step is `fixed` and `each` for each micro-batch; model flop have nothing fixed."""
    value = fixed + each * micro_batches
    counts = finished(
        7,
        coordinates={"dp": 0, "tp": 0, "pp": 0},
        model_flop=each * micro_batches,
        hardware_flop=value,
        collectives=[CountedCollective("tp", "all_reduce", value, value)],
        peak_bytes=value,
    )
    at_peak = Moment("backward pass", {"weights": fixed, "message buffers": each * micro_batches})
    return StepCounts(
        micro_batches=micro_batches, counts=counts, stage_parameters=0, fullest=[at_peak], history=[at_peak]
    )


def test_every_rank_is_in_one_class_with_the_ranks_that_store_as_much():
    # 14,336 rows and more do not divide by 48: the last shards are shorter
    for layout, classes in (("dp8,tp4,pp12,zero1", 12), ("dp384,tp1,pp1,zero0", 1), ("dp48,tp8,pp1,zero3", 2)):
        of = workload(layout)
        found = rank_classes(of)
        assert sum(each.ranks for each in found) == of.layout.ranks == 384
        assert len(found) >= classes
        states = set()
        for each in found:
            position = rank_position(of.layout, each.rank)
            assert position.stage == each.stage
            states.add((each.stage, executed_state(of, stage=position.stage, replica=position.replica)))
        assert len(states) == len(found)


@given(fixed=st.integers(0, 10**12), each=st.integers(0, 10**12), least=st.integers(1, 40), more=st.integers(1, 500))
def test_the_line_through_two_steps_is_exact(fixed, each, least, more):
    steps = [counted(least, fixed, each), counted(least + 1, fixed, each)]
    whole = of_whole_step(steps, least + more, alike=steps)
    assert msgspec.structs.replace(whole, history=[]) == msgspec.structs.replace(
        counted(least + more, fixed, each), history=[]
    )


@given(fixed=st.integers(0, 10**12), other=st.integers(0, 10**12), each=st.integers(0, 10**12))
def test_a_rank_that_is_alike_lends_its_line(fixed, other, each):
    alike = [counted(5, other, each), counted(6, other, each)]
    own = counted(4, fixed, each)
    without_activations = msgspec.structs.replace(own.counts, activation_bytes=0)
    whole = of_whole_step([msgspec.structs.replace(own, counts=without_activations)], 40, alike=alike)
    assert msgspec.structs.replace(whole, history=[]) == msgspec.structs.replace(counted(40, fixed, each), history=[])


def test_stages_between_the_first_and_the_last_with_as_many_layers_are_alike():
    alike = [each.alike for each in rank_classes(workload("dp8,tp4,pp12,zero1"))]
    assert alike == [0, *[320] * 10, 352]
    assert [each.alike for each in rank_classes(workload("dp64,tp2,pp3,interleave2"))] == [0, 128, 256]
    shards = rank_classes(workload("dp48,tp8,pp1,zero3"))
    assert {each.alike for each in shards} == {0}


EXECUTED = {
    "dp32,tp4,pp3": [(5, 6), (3, 4), (3, 4)],
    "dp24,tp4,pp4": [(TWO[0], TWO[1], 7), (5,), (3, 4), (3, 4)],
    "dp24,tp4,pp4,gpipe": [(5, 6), (5,), (5, 6), (5, 6)],
    "dp24,tp4,pp4,accumulate8": [(8,)] * 4,
    "dp24,tp4,pp4,accumulate9": [(TWO[0], TWO[1], 7), (5,), (3, 4), (3, 4)],
    "dp32,tp4,pp3,interleave2": [(6, 9)] * 3,
    "dp384,tp1,pp1,accumulate1": [(1,)],
    "dp384,tp1,pp1,accumulate9": [(3, 4)],
}


def test_a_step_is_executed_whole_where_it_is_short_and_stands_for_itself():
    found = {}
    for layout in EXECUTED:
        of = workload(layout)
        batch = of.layout.replicas * of.layout.micro_batch * (of.layout.accumulation or 128)
        of = of._replace(recipe=msgspec.structs.replace(of.recipe, global_batch=batch))
        steps = [executed_steps(of, each) for each in rank_classes(of)]
        found[layout] = [tuple(step if step in TWO else step.micro_batches for step in rank) for rank in steps]
    assert found == EXECUTED
    step = counted(3, 5, 7)
    assert of_whole_step([step], 3, alike=[step]) == step
