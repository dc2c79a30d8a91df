"""Pipelines whose stages have different numbers of layers: at the predicted cost, with the losses of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.layout import Schedule
from suite.job.events import Status
from suite.reproduce.plan import Plan
from tests.support.launches import FP32_WITHOUT_DROPOUT, exact_rows, failed_rows, launched, small_plan

LAYERS = 5


def of_five_layers(**layout: Any) -> Plan:
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT, layout={"zero_stage": 0} | layout)
    return msgspec.structs.replace(plan, architecture=msgspec.structs.replace(plan.architecture, layers=LAYERS))


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_chunks_that_do_not_divide_the_layers_and_layers_as_a_list_train_as_one_rank_does(tmp_path: Path) -> None:
    alone = launched(of_five_layers(), tmp_path).losses
    pipeline = {"pipeline_stages": 2, "schedule": Schedule.ONE_F_ONE_B}
    for dealt in ({"virtual_stages": 2}, {"virtual_stages": 2, "stage_layer_counts": (1, 1, 2, 1)}):
        result = launched(of_five_layers(**pipeline, **dealt), tmp_path)
        assert result.status is Status.OK, result.message
        assert failed_rows(result) == set()
        assert all(row.right == row.left for row in exact_rows(result.rows))
        assert result.losses == pytest.approx(alone, rel=1e-5)
