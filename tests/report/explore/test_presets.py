from __future__ import annotations

import pytest

from reference_runs.catalog import run_names
from reference_runs.errors import InputError
from suite.report.explore.presets import RUNS, described_run, names, source_of, sources, tables


def test_every_recorded_run_and_every_published_row_is_a_preset() -> None:
    assert list(names(RUNS)) == run_names()
    rows = [name for source in sources() if source != RUNS for name in names(source)]
    assert len(rows) == sum(len(table.rows) for table in tables().values()) > 1000
    assert all(source_of(name) in tables() for name in rows)


def test_a_row_is_a_run_with_its_own_machine_and_what_was_measured() -> None:
    row = tables()["korthikanti2022_table5"].rows[0]
    run = described_run(f"korthikanti2022_table5:{row.line}")
    assert run.recorded_layout == row.layout
    assert run.cluster is not None
    assert run.cluster.accelerators_per_node == row.accelerators_per_node
    assert run.reported.step_seconds == row.step_seconds
    assert "Korthikanti" in run.facts["reported.step_seconds"].source


@pytest.mark.parametrize("name", ["nothing:3", "korthikanti2022_table5:1", "korthikanti2022_table5:"])
def test_a_row_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        described_run(name)
