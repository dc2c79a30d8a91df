"""More tensor-parallel ranks than key-value heads, which then have copies of them: as one process computes them."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case

pytestmark = pytest.mark.ranks

CASES = [Case("starcoder", "fp32", "tp2"), Case("starcoder", "fp32", "tp2,pp2,1f1b,recompute-selective")]
RARE = [
    Case("normed-heads", "fp32", "tp4"),
    Case("llama2-mini", "fp32", "tp4"),
    Case("starcoder", "fp32", "dp2,tp2,sp,zero3"),
    Case("starcoder", "16bit", "tp4,sp,recompute-full"),
    Case("starcoder", "16bit", "tp2,sp,fused"),
    Case("starcoder", "fp32", "dp2,tp2,zero1"),
    Case("starcoder", "fp32", "dp2,tp2,sp,zero1,reduce-scatter"),
    Case("starcoder", "fp32", "cp2,tp2"),
    Case("llama2-mini", "16bit", "tp4,sp"),
]
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.rare) for case in RARE)]
NAME = operator.attrgetter("name")


@pytest.mark.parametrize("case", ALL, ids=NAME)
def test_copies_of_key_value_heads_compute_what_one_process_does_at_the_predicted_cost(
    case: Case, executed: Executions
) -> None:
    found = disagreements(executed(case), executed(case.single))
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("case", [CASES[0]], ids=NAME)
def test_a_copy_whose_gradient_is_its_ranks_own_is_told(case: Case, executed: Executions) -> None:
    right = executed(case)
    name, rows = "blocks.1.attention.query_key_value.weight", 2 * right.job.architecture.head_dim
    gradients = [dict(own) for own in right.gradients]
    part, dim = gradients[1][name]
    other = part.clone()
    other[-rows:] /= 2
    gradients[1][name] = other, dim
    assert torch.equal(part[-rows:], right.gradients[0][name][0][-rows:])
    lines = disagreements(right._replace(gradients=gradients), None)
    assert lines == [f"gradient of {name} on rank 1: not that of the other ranks of its replica"]
