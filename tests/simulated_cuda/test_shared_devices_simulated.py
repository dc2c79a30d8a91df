"""Ranks that share a simulated GPU, over gloo: exact figures, and the values of one process, as with a GPU each."""

from __future__ import annotations

import pytest

from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case
from tests.simulated_cuda.environment import simulated_environment

CASES = (Case("bloom-mini", "fp32", "dp2"), Case("opt-mini", "fp32", "pp2,1f1b,interleave2"))
LONG = (
    Case("opt-mini", "fp32", "dp2,zero3,recompute-full"),
    Case("bloom-mini", "fp32", "tp2,recompute-full"),
    Case("mt-nlg-mini", "fp32", "dp2,tp2,pp2,1f1b"),
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executions:
    environment = simulated_environment(1, values=1 << 30)
    directory = tmp_path_factory.mktemp("shared")
    return Executions([*CASES, *LONG], directory, device="cuda", shares_devices=True, environment=environment)


@pytest.mark.ranks
@pytest.mark.timeout(1800)  # the first case of a mesh waits for all of its launch
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)], ids=lambda case: case.name
)
def test_ranks_that_share_a_gpu_compute_what_one_process_does_at_the_predicted_cost(
    case: Case, executed: Executions
) -> None:
    assert disagreements(executed(case), executed(case.single)) == []
