"""The slow rank of collectives' durations, and of none where ranks are late by turns."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.training_traces.kineto import kineto_traces
from suite.predict.analytic.step_time import StepTime
from suite.predict.diagnosis.trace_causes import measured_terms, predicted_terms, slow_rank
from suite.predict.diagnosis.trace_terms import step_terms
from tests.support.gpu_traces import gpu_steps


def durations(ranks: int, late: int | None, by: float, draw: random.Random) -> list[dict[str, list[float]]]:
    """50 collectives that take 1 ms after all have come; each rank comes up to 0.2 ms late, one of them later."""
    of_ranks: list[list[float]] = [[] for _ in range(ranks)]
    for _ in range(50):
        arrivals = [draw.uniform(0, 2e-4) + (by if rank == late else 0.0) for rank in range(ranks)]
        for rank, arrival in enumerate(arrivals):
            of_ranks[rank].append(max(arrivals) - arrival + 1e-3)
    return [{"all-reduce mesh_dp": each} for each in of_ranks]


@given(st.integers(2, 8), st.data(), st.randoms(use_true_random=False))
def test_the_late_rank_is_found_and_by_how_much(ranks: int, data: st.DataObject, draw: random.Random) -> None:
    late = data.draw(st.integers(0, ranks - 1))
    found = slow_rank(durations(ranks, late, 0.01, draw), 5)
    assert found is not None
    assert found.place == late
    assert found.seconds == pytest.approx(50 * 0.01 / 5, rel=0.03)  # of 10 ms, others' own lateness is 0.2 at most


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_ranks_that_are_late_by_turns_cost_next_to_nothing(ranks: int, draw: random.Random) -> None:
    found = slow_rank(durations(ranks, None, 0.0, draw), 1)
    assert found is None or found.seconds < 50 * 1e-4


def test_groups_of_which_one_rank_alone_was_traced_say_nothing() -> None:
    assert slow_rank([{"a": [1.0]}, {"b": [2.0]}], 1) is None


def test_short_waits_of_many_collectives_do_not_hide_a_late_rank() -> None:
    """Rank 1 is 0.3 s late to five of nine; whoever is last in the others, by some 0.1 ms, is so by chance."""
    late = [0.3, 0.301, 0.3, 0.302, 0.3]
    first, second = [*late, *[1e-4] * 4], [*[1e-4] * 5, *[2e-4] * 4]
    found = slow_rank([{"a": first}, {"a": second}], 1)
    assert found is not None
    assert found.place == 1
    one_pause = [{"a": [2e-3, 1e-3, 2e-3, 1e-3, 9.0]}, {"a": [1e-3, 2e-3, 1e-3, 2e-3, 1e-3]}]
    assert slow_rank(one_pause, 1) is None  # last in 3 of 5: one long pause says nothing of the rank


def test_a_rank_with_another_number_of_collectives_is_not_compared() -> None:
    assert slow_rank([{"a": [1.0, 2.0]}, {"a": [2.0]}], 1) is None


@pytest.mark.parametrize("group", ["mesh_dp", "17"])
def test_exposed_traffic_is_compared_axis_by_axis_where_its_groups_are_known(tmp_path: Path, group: str) -> None:
    trace = gpu_steps(message=24_000.0)
    for event in trace.events:
        event["args"] |= {"Process Group Description": group} if "Process Group Name" in event["args"] else {}
    step = step_terms(kineto_traces(trace.write(tmp_path / "trace.json"))[0])
    fields = dict.fromkeys(StepTime._fields, 0.0) | {"tensor_parallel_seconds": 0.5, "data_parallel_seconds": 0.25}
    predicted = StepTime(**fields)
    found = {each.name: (each.seconds > 0, each.predicted_seconds) for each in measured_terms(step, predicted, None)}
    if group == "17":
        assert found["exposed communication and bubble"] == (True, 0.75)
    else:
        assert found["exposed data-parallel communication"] == (True, 0.25)
        assert found["exposed tensor-parallel communication"] == (False, 0.5)
        assert sum(predicted_terms(predicted).values()) == 0.75
