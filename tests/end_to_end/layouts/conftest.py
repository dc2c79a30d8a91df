from __future__ import annotations

import pytest

from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case


@pytest.fixture(scope="module")
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executions:
    """Executes the cases of a file's selected tests, those of one mesh in one launch.

    Files are shared out to processes, which would execute the others' cases too.
    """
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    asked = [call.params.get("case") for call in calls if call is not None]
    cases = [case for case in asked if isinstance(case, Case)]  # tests of other things have cases too
    return Executions(cases, tmp_path_factory.mktemp("layouts"))
