"""An optimizer on the host: memory that it frees, and the seconds that it takes."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import accumulation, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Offload, parse_layout
from reference_runs.run import Workload
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_figures
from tests.support.layouts import machine_of

RUN = reference_run("gpt-neox-20b")
MACHINE = msgspec.structs.replace(machine_of(RUN), host_bytes_per_second=32e9)
RECIPE = msgspec.structs.replace(RUN.recipe, global_batch=64)


def workload(words: str) -> Workload:
    return Workload(RUN.architecture, RECIPE, parse_layout(words, base=RUN.layout))


def step(words: str, machine=MACHINE):
    found = run_prediction(workload(words), machine).step
    assert found is not None
    return found


def test_the_update_is_transfers_and_the_hosts_work_and_nothing_else_changes() -> None:
    """One rank sends 2 bytes of gradients down and 2 of weights up (fp16); 10 billion parameters take 2.57 s."""
    own, there = step("dp1,zero0,micro1"), step("dp1,zero0,micro1,offload-optimizer")
    parameters = rank_parameters(RUN.architecture, workload("dp1,zero0").layout, stage=0).all
    assert there.optimizer_seconds == pytest.approx(parameters * (4 / 32e9 + 2.57e-10))
    assert there._replace(optimizer_seconds=0.0) == own._replace(optimizer_seconds=0.0)


def test_the_ranks_of_a_node_share_its_processors_and_zero2_sends_gradients_each_micro_batch() -> None:
    alone = step("dp1,zero0,micro1,offload-optimizer").optimizer_seconds
    shared = step("dp8,zero1,micro1,offload-optimizer").optimizer_seconds  # an eighth each, eight at a time
    assert alone / 8 < shared < alone
    often = workload("dp8,zero2,micro1,offload-optimizer")
    assert accumulation(often.recipe, often.layout) == 8
    once = step("dp8,zero2,micro8,offload-optimizer").optimizer_seconds
    assert step("dp8,zero2,micro1,offload-optimizer").optimizer_seconds > once


def test_state_leaves_the_accelerator() -> None:
    here, there = (
        stage_memory(workload(words), stage=0, micro_batches=8)
        for words in ("dp8,zero1,micro1", "dp8,zero1,micro1,offload-optimizer")
    )
    assert there.master_weights == there.moments == 0
    assert there.peak < here.peak


def test_without_a_known_link_no_time_is_predicted() -> None:
    unknown = msgspec.structs.replace(MACHINE, host_bytes_per_second=None)
    offloaded = workload("dp1,zero0,micro1,offload-optimizer")
    assert offloaded.layout.offload is Offload.OPTIMIZER
    assert run_prediction(offloaded, unknown).step is None
    with pytest.raises(InputError, match="no time is predicted"):
        layout_figures(offloaded, unknown)
