"""The output of `refit`: means over tables as the page has them, and no uncertainty where there is none."""

from __future__ import annotations

import re

import pytest

from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.published_tables import load_tables
from suite.report.machine_model import fit_page, print_fit, print_left_out
from suite.report.terminal.tables import console


def test_means_over_the_tables_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_left_out(console(), fit_scores())
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("mean over the tables"))
    fitted, table, cluster, size = re.findall(r"\d+\.\d", line)
    words = f"fitted {fitted} %, size left out {size} %, table left out {table} %, cluster left out {cluster} %"
    assert f"Means over the tables: {words}." in fit_page(machine_model(), fit_scores(), load_tables())


def test_a_parameter_at_its_bound_has_no_uncertainty(capsys: pytest.CaptureFixture[str]) -> None:
    model = machine_model()
    print_fit(console(), model, {"a": [0.1, -0.2]})
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    free = {name: parameter for name, parameter in model.parameters.items() if parameter.fitted}
    bound = {name for name, parameter in free.items() if parameter.value in (parameter.least, parameter.most)}
    assert bound
    assert {name for name in free if "at its bound" in lines[name]} == bound
    assert all("0%" not in lines[name].split() for name in free)
