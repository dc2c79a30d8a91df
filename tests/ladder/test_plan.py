"""Every rung that is to run is one that the suite executes, and does what its title says."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.layout import Offload
from suite.ladder import plan as planning
from suite.ladder.plan import not_executed, planned, refusals, target_of
from suite.ladder.rung import RUNGS, Rung, RungSetting, setting_of, stands_on
from suite.reproduce.plan import Plan
from tests.support.ladder_machine import CPU, NAMES, TEXTS, Machine, ladder_of, results_of

GPU = target_of("gpt2-mini", device="cuda", seed=1)


def plan_here(rung: Rung, *, gpus: int) -> Plan:
    target = msgspec.structs.replace(GPU, gpus=gpus)
    refused = refusals(target)
    below = stands_on(rung, [one for one in RUNGS if one.name not in refused])
    return planned(target, setting_of(rung.track, [*below, rung]), "", TEXTS)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_every_rung_that_applies_on_gpus_is_executed(gpus: int) -> None:
    applying = [rung for rung in RUNGS if rung.name not in refusals(msgspec.structs.replace(GPU, gpus=gpus))]
    assert {"fsdp-offload", "offload-activations", "pinned", "fused-kernels"} <= {rung.name for rung in applying}
    assert "cpp-operator" not in {rung.name for rung in applying}  # it has no kernel for GPUs
    assert [not_executed(plan_here(rung, gpus=gpus)) for rung in applying] == [""] * len(applying)
    layout = plan_here(NAMES["fsdp-offload"], gpus=gpus).layout  # sharded, whatever stands below
    assert (layout.fully_sharded, layout.offload, layout.data_parallel) == (True, Offload.STATE, gpus)


def test_a_rung_whose_setting_is_not_executed_is_not_run_with_the_reason_and_nothing_stands_on_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fsdp-offload` on one GPU would be, if it did not shard."""
    unsharded = msgspec.structs.replace(NAMES["in-place"], changes={"offloads_state": True})
    rungs = tuple(unsharded if rung.name == "in-place" else rung for rung in RUNGS)
    monkeypatch.setattr(planning, "rungs_on", lambda _device: rungs)
    reason = refusals(CPU)["in-place"]
    assert "this version does not execute that layout" in reason
    assert "offload state with zero0" in reason
    monkeypatch.setattr("suite.ladder.request.rungs_on", lambda _device: rungs)
    for module in ("request", "runner"):
        monkeypatch.setattr(f"suite.ladder.{module}.refusals", refusals)
    outcome = ladder_of(["in-place", "accumulate"])
    assert results_of(outcome)["in-place"].not_run == reason
    assert results_of(outcome)["accumulate"].below == "memory-baseline"
    assert machine.launched == ["memory/memory-baseline", "memory/accumulate"]


def test_fused_attention_with_dropout_is_not_executed_on_a_processor() -> None:
    """Its kernel has none there: a plan by hand is refused as a ladder's is."""
    recipe = msgspec.structs.replace(CPU.recipe, attention_dropout=0.1)
    dropping = msgspec.structs.replace(CPU, recipe=recipe)
    assert "fused attention drops nothing" in not_executed(
        planned(dropping, RungSetting(fused_attention=True), "", TEXTS)
    )
