"""Layouts on simulated GPUs, over NCCL's stand-in: exact figures, and the values of one process.

The runs are the small ones of the table of layouts. Their operators are computed on the host, so that losses and
gradients are right where every message is.
"""

from __future__ import annotations

import pytest

from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case, table
from tests.simulated_cuda.environment import simulated_environment

pytestmark = pytest.mark.ranks

CHOSEN = {  # of each mesh and each way of sharding, one run: each run has features that the others lack
    Case("gpt2-mini", "fp32", "dp1,fused"),
    Case("opt-mini", "16bit", "dp2"),
    Case("gpt2-mini", "fp32", "dp2,zero1,fused"),
    Case("gpt2-mini", "16bit", "dp2,zero1,reduce-scatter"),
    Case("codegeex-mini", "fp32", "dp2,zero2,recompute-selective"),
    Case("glm-mini", "fp32", "dp2,zero3,recompute-full"),
    Case("gpt-neox-mini", "fp32", "dp4,zero3,shard2,micro1"),
    Case("bloom-mini", "fp32", "tp2,recompute-full"),
    Case("gpt-neox-mini", "fp32", "tp2,sp,fused"),
    Case("bloom-mini", "fp32", "pp2,1f1b"),
    Case("opt-mini", "fp32", "pp2,1f1b,interleave2"),
    Case("mt-nlg-mini", "fp32", "dp2,tp2,pp2,1f1b"),
    Case("gpt2-mini", "fp8", "dp2,zero1"),
}
CASES = [case if case in CHOSEN else pytest.param(case, marks=pytest.mark.rare) for case in table()]


@pytest.fixture(scope="session")
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executions:
    """Executes the cases of all selected tests, those of one mesh in one launch."""
    calls = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    environment = simulated_environment(8, values=1 << 30)
    cases = [case for case in calls if isinstance(case, Case)]
    return Executions(cases, tmp_path_factory.mktemp("layouts"), device="cuda", environment=environment)


@pytest.mark.timeout(3600)  # the first case of a mesh waits for all of its launch
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layout_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    single = executed(case.single) if case.is_compared else None
    assert disagreements(executed(case), single) == []


def test_every_chosen_case_is_one_of_the_table() -> None:
    assert set(table()) >= CHOSEN
