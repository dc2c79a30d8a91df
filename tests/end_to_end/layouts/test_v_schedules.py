"""Two chunks a rank in the shape of a V, so that the first one has embedding and head: as one process computes them."""

from __future__ import annotations

import operator

import pytest

from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case

pytestmark = pytest.mark.ranks

CASES = [Case("gpt2-mini", "fp32", "pp2,dualpipev")]
RARE = [
    Case("codegeex-mini", "fp32", "pp2,zbv"),
    Case("eight-layers", "fp32", "pp4,zbv,micro1"),
    Case("eight-tied-layers", "16bit", "pp4,dualpipev,micro1"),
    Case("llama3-mini", "16bit", "tp2,pp2,zbv,sp"),
    Case("gpt2-mini", "fp32", "tp2,pp2,dualpipev"),
    Case("llama2-mini", "16bit", "dp2,pp2,dualpipev,zero1,reduce-scatter,micro1"),
    Case("gpt2-mini", "fp32", "dp2,pp2,zbv,zero1,reduce-scatter,micro1"),
    Case("llama3-mini", "16bit", "cp2,pp2,dualpipev,zero1,reduce-scatter"),
    Case("mt-nlg-mini", "16bit", "pp2,zbv"),
]
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.rare) for case in RARE)]


@pytest.mark.parametrize("case", ALL, ids=operator.attrgetter("name"))
def test_a_v_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    found = disagreements(executed(case), executed(case.single))
    assert found == [], "\n".join(found)
