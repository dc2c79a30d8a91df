"""Two chunks a rank in the shape of a V, so that the first one has embedding and head: as one process computes them."""

from __future__ import annotations

import operator

import pytest
import torch

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
BIT_BY_BIT = [Case("llama2-mini", "fp32", layout) for layout in ("pp2,zero-bubble", "pp2,zbv", "pp2,dualpipev")]
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.rare) for case in RARE)]


@pytest.mark.parametrize("case", ALL, ids=operator.attrgetter("name"))
def test_a_v_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    found = disagreements(executed(case), executed(case.single))
    assert found == [], "\n".join(found)


@pytest.mark.rare
@pytest.mark.parametrize("case", BIT_BY_BIT, ids=operator.attrgetter("name"))
def test_gradients_are_those_of_one_process_to_the_last_bit(case: Case, executed: Executions) -> None:
    """Where no table is read twice: every pass adds to a gradient in the order of the micro-batches."""
    wanted = executed(case.single).gradients[0]
    found = {name: part for own in executed(case).gradients for name, (part, _) in own.items()}
    assert found.keys() == wanted.keys()
    assert [name for name, part in found.items() if not torch.equal(part, wanted[name][0])] == []
