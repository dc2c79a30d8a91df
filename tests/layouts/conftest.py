from __future__ import annotations

import pytest

from tests.layouts.execution import Executions


@pytest.fixture(scope="session")
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executions:
    """Executes the cases of all selected tests, those of one mesh in one launch."""
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [call.params["case"] for call in asked if call is not None and "case" in call.params]
    return Executions(cases, tmp_path_factory.mktemp("layouts"))
