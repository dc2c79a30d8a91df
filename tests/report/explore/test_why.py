from __future__ import annotations

import pytest

from suite.metrics.figures import Quantity
from suite.report.explore.view import state_of_run, view
from suite.report.explore.why import FUNCTIONS, why


@pytest.mark.parametrize("quantity", FUNCTIONS)
def test_every_formula_has_its_derivation_and_its_numbers(quantity: Quantity) -> None:
    state = state_of_run("bloom-176b")
    derived = why(view(state, state.layout), quantity)
    assert all(name.startswith("suite.predict.") for name in derived.functions)
    assert len(derived.derivation) > 40
    assert derived.numbers
