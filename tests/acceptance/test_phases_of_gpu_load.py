"""GPUs' counters are judged under a load that ended well; what that load itself finds is never lost."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from suite.acceptance.evidence import Evidence
from suite.acceptance.findings import decision
from suite.acceptance.gpu_evidence import GpuHealth, GpuSample, GpuState, Health
from suite.acceptance.gpu_watch import joined
from suite.acceptance.judge.gpu_health import gpu_findings
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.phases import probe_phase
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, Decision
from tests.support.batteries import NOTHING, launched, planned_battery, probing, surroundings

COUNTERS = frozenset({0, 12, 13})  # a soak is made for them


def health() -> Health:
    """One GPU without any fault."""
    state = GpuState(corrected=0, uncorrected=0, remapped_corrected=0, remapped_uncorrected=0)
    sample = GpuSample(second=0.0, mhz=1980.0, watts=650.0, celsius=61.0, reasons=[], pcie_generation=5, pcie_width=16)
    gpu = GpuHealth(
        index=0, model="m", driver="d", firmware="f", before=state, after=state, samples=[sample] * 4, xids=[]
    )
    return Health(gpus=[gpu])


def found(*load: Evidence, selected: frozenset[int] = COUNTERS) -> list[CheckFinding]:
    """All findings of a node with one GPU."""
    around = surroundings(device="cuda", ranks=1, devices=1, gpus_with_ranks=[0])
    return battery_findings([around, *load, health()], NOTHING, others=0.05, selected=selected)


def of_counters(findings: list[CheckFinding]) -> list[tuple[int, CheckVerdict]]:
    """Subjects that GPUs' counters have; the kernel's log needs no load."""
    return [(one.check, one.verdict) for one in findings if one.check in (12, 13) and one.subject != "earlier XIDs"]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(Status.CRASHED, CheckVerdict.FAIL), (Status.HANG, CheckVerdict.HANG), (Status.OUT_OF_MEMORY, CheckVerdict.FAIL)],
)
def test_a_load_that_did_not_end_well_passes_no_counter_and_is_said_itself(status, verdict):
    findings = found(probing(status=status, message="m", ranks_at_fault=[0]))
    assert of_counters(findings) == [(12, CheckVerdict.NOT_RUN), (13, CheckVerdict.NOT_RUN)]
    assert "no load ended well" in next(one.evidence for one in findings if one.check == 13)
    (failed,) = [one for one in findings if one.status is not Status.OK]
    assert (failed.check, failed.verdict, failed.status, failed.part) == (15, verdict, status, "rank 0 (GPU 0)")
    assert decision(findings) is Decision.EXECUTION_FAILED


def test_one_load_that_ended_well_suffices_and_the_other_is_said_once():
    launches = [launched(run="gpt2-mini", status=status) for status in (Status.OK, Status.CRASHED)]
    findings = found(*launches, selected=frozenset({8, 12, 13}))
    assert of_counters(findings) == [(12, CheckVerdict.PASS), (13, CheckVerdict.PASS)]
    assert [(one.check, one.subject) for one in findings if one.status is not Status.OK] == [(7, "gpt2-mini")]
    asked = found(*launches, selected=frozenset({7, 8}))
    assert [one.check for one in asked if one.status is not Status.OK] == [7]


def part(before: GpuState, after: GpuState) -> Health:
    (gpu,) = health().gpus
    return Health(gpus=[msgspec.structs.replace(gpu, before=before, after=after)])


def test_errors_before_a_driver_was_loaded_anew_are_not_forgotten():
    clean = health().gpus[0].before
    worn, begun = (
        msgspec.structs.replace(clean, uncorrected=7, corrected=count, remap_pending=pending)
        for count, pending in ((45, True), (40, False))
    )
    then, now = part(begun, worn), part(clean, msgspec.structs.replace(clean, corrected=2))
    (whole,) = joined([then, now]).gpus
    assert (whole.after.corrected, whole.after.uncorrected, whole.after.remap_pending) == (47, 7, True)
    (_, errors, _) = gpu_findings(Health(gpus=[whole]), loaded=(0,))
    assert errors.verdict is CheckVerdict.FAIL
    assert "a row waits to be remapped; 7 corrected ECC errors under load" in errors.evidence
    (same,) = joined([then]).gpus
    assert (same.before, same.after) == (begun, worn)


def test_a_counter_is_added_up_over_the_readings_that_were_answered():
    states = [GpuState(uncorrected=count) for count in (1, 3, None, 0, 2)]
    parts = [part(first, second) for first, second in itertools.pairwise(states)]
    (whole,) = joined(parts).gpus
    assert (whole.before.uncorrected, whole.after.uncorrected) == (1, 1 + 2 + 2)
    assert joined(parts[:2]).gpus[0].after.uncorrected is None  # the last one did not answer


def test_processes_at_the_start_of_each_watch_count_and_those_between_its_laps_do_not():
    idle = health().gpus[0].before
    ours, others = (msgspec.structs.replace(idle, processes=[pid]) for pid in (11, 4711))
    (whole,) = joined([part(idle, ours), part(ours, idle), part(others, idle)]).gpus
    assert whole.before.processes == [4711]


@pytest.mark.parametrize(("device", "serves"), [("cpu", None), ("cuda", {15})])
def test_only_gpus_are_soaked_for_their_counters(tmp_path, device, serves):
    battery = planned_battery(tmp_path, device=device, ranks=1, profile="accept", selected=COUNTERS, timed=())
    phase = probe_phase(battery)
    assert serves == (phase and serves & phase.serves)
