"""GPUs' counters are judged under a load that ended well; what that load itself finds is never lost."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from suite.acceptance.context import RunningBattery, Settings
from suite.acceptance.evidence import (
    Evidence,
    GpuHealth,
    GpuSample,
    GpuState,
    Health,
    LaunchPurpose,
    MiniatureLaunch,
    ProbeResult,
    SoakResult,
    Surroundings,
)
from suite.acceptance.findings import decision
from suite.acceptance.gpu_watch import joined
from suite.acceptance.judge.gpu_health import gpu_findings
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.past_batteries import History
from suite.acceptance.phases import probe_phase
from suite.acceptance.presets import EFFORTS
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, Decision

COUNTERS = frozenset({0, 12, 13})  # a soak is made for them


def health() -> Health:
    """One GPU without any fault."""
    state = GpuState(corrected=0, uncorrected=0, remapped_corrected=0, remapped_uncorrected=0)
    sample = GpuSample(second=0.0, mhz=1980.0, watts=650.0, celsius=61.0, reasons=[], pcie_generation=5, pcie_width=16)
    gpu = GpuHealth(
        index=0, model="m", driver="d", firmware="f", before=state, after=state, samples=[sample] * 4, xids=[]
    )
    return Health(gpus=[gpu])


def soak(status: Status = Status.OK, wrong: int = 0) -> ProbeResult:
    soaks = [SoakResult(rank=0, bytes=1, passes=2, wrong=wrong, first="x")] if status is Status.OK else []
    return ProbeResult(status=status, message="m", ranks_at_fault=[0], seconds=4.0, soaks=soaks)


def found(
    *load: Evidence, selected: frozenset[int] = COUNTERS, gpus_with_ranks: tuple[int, ...] = (0,)
) -> list[CheckFinding]:
    """All findings of a node with one GPU."""
    around = Surroundings(
        device="cuda",
        ranks=1,
        devices=1,
        devices_expected=None,
        others_share=0.0,
        competitors=[],
        gpus_with_ranks=list(gpus_with_ranks),
    )
    return battery_findings([around, *load, health()], History(), others=0.05, selected=selected)


def of_counters(findings: list[CheckFinding]) -> list[tuple[int, CheckVerdict]]:
    """Of GPUs: the kernel's log needs no load."""
    return [(one.check, one.verdict) for one in findings if one.check in (12, 13) and one.subject != "earlier XIDs"]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(Status.CRASHED, CheckVerdict.FAIL), (Status.HANG, CheckVerdict.HANG), (Status.OUT_OF_MEMORY, CheckVerdict.FAIL)],
)
def test_a_load_that_did_not_end_well_passes_no_counter_and_is_said_itself(status, verdict):
    findings = found(soak(status))
    assert of_counters(findings) == [(12, CheckVerdict.NOT_RUN), (13, CheckVerdict.NOT_RUN)]
    assert "no load ended well" in next(one.evidence for one in findings if one.check == 13)
    (failed,) = [one for one in findings if one.status is not Status.OK]
    assert (failed.check, failed.verdict, failed.status, failed.part) == (15, verdict, status, "rank 0 (GPU 0)")
    assert decision(findings) is Decision.EXECUTION_FAILED


def test_bit_errors_of_a_soak_that_is_not_selected_reject_the_node():
    good, bad = found(soak()), found(soak(wrong=1))
    assert of_counters(good) == of_counters(bad) == [(12, CheckVerdict.PASS), (13, CheckVerdict.PASS)]
    assert decision(good) is Decision.ACCEPTED
    assert [one.part for one in bad if one.check == 15] == ["rank 0 (GPU 0): memory or arithmetic"]
    assert decision(bad) is Decision.REJECTED
    assert {one.check for one in good} == COUNTERS


def test_one_load_that_ended_well_suffices_and_the_other_is_said_once():
    usual = {"run": "gpt2-mini", "purpose": LaunchPurpose.TIMES, "message": "m", "ranks_at_fault": [], "seconds": 1.0}
    launches = [
        MiniatureLaunch(**usual, record=status.value, status=status, exact=40) for status in (Status.OK, Status.CRASHED)
    ]
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
    settings = Settings(
        profile="accept",
        effort=EFFORTS["accept"],
        device=device,
        ranks=1,
        results=tmp_path,
        fleet=None,
        selected=COUNTERS,
        miniatures=(),
        timed=(),
        devices=None,
        others=0.05,
        resume=False,
    )
    phase = probe_phase(RunningBattery(settings, None, History(), print))
    assert serves == (phase and serves & phase.serves)


def test_where_ranks_ran_on_unknown_gpus_no_gpu_is_said_to_have_had_none():
    findings = found(soak(), gpus_with_ranks=())
    assert of_counters(findings) == [(12, CheckVerdict.NOT_RUN), (13, CheckVerdict.NOT_RUN)]
    words = (
        "not known on which GPUs ranks ran: their PCI addresses are none that the driver's library reports; "
        "no counter changed"
    )
    assert [one.evidence for one in findings if one.subject == "GPU 0" and one.check == 13] == [words]
    assert "no rank ran on it" in next(one.evidence for one in found() if one.check == 13)
