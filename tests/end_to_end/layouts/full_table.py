"""Every miniature in every layout of the table: about an hour on 2 cores, so only the session `layouts` names it."""

from __future__ import annotations

import pytest

from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case, table

pytestmark = pytest.mark.ranks


@pytest.mark.timeout(3600)  # the first case of a mesh waits for all of its launch
@pytest.mark.parametrize("case", table(), ids=lambda case: case.name)
def test_a_layout_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    single = executed(case.single) if case.is_compared else None
    assert disagreements(executed(case), single) == []
