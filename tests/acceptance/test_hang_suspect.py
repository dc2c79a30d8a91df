"""A hang names the GPU that is out of step with all others, and keeps what had finished before it."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance import gpu_watch, phases
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.context import BatteryPhase, _measured
from suite.acceptance.evidence import PhaseTiming
from suite.acceptance.gpu_evidence import GpuSample, HangReadings
from suite.acceptance.hang_suspect import hang_suspect
from suite.acceptance.judge.judge import battery_findings
from suite.job.events import Hung, Status
from suite.records.battery import CheckVerdict
from tests.support.batteries import NOTHING, exchange, planned_battery, probing, replays, soaked, surroundings
from tests.support.nvml import fake_library

WAITING, IDLE = (100.0, 240.0, 1980.0), (0.0, 90.0, 345.0)  # utilisation, watts, MHz


def samples(*gpus):
    """By number, three samples of each GPU: utilisation, watts and MHz; None: not read."""
    rest = dict.fromkeys(("celsius", "reasons", "pcie_generation", "pcie_width"))
    return {
        number: [GpuSample(second=s, utilisation=used, watts=watts, mhz=mhz, **rest) for s in (0.0, 1.0, 2.0)]
        for number, (used, watts, mhz) in enumerate(gpus)
    }


@pytest.mark.parametrize(
    ("gpus", "named", "words"),
    [
        ([WAITING] * 5 + [IDLE] + [WAITING] * 2, 5, "GPU 5 stands out: utilisation 0 %, others 100 %; power 90 W, oth"),
        ([IDLE] * 2 + [WAITING] + [IDLE] * 5, 2, "GPU 2 stands out: utilisation 100 %, others 0 %"),
        ([(100.0, w, 1980.0) for w in (238.0, 90.0, 243.0, 240.0)], 1, "GPU 1 stands out: power 90 W, others 238 to"),
        (
            [(100.0, None, mhz) for mhz in (1980.0, 1965.0, 1980.0, 345.0)],
            3,
            "GPU 3 stands out: SM clock 345 MHz, others",
        ),
        ([WAITING] * 8, None, "no GPU stands out: utilisation 100 %, power 240 W, SM clock 1980 MHz"),
        ([IDLE, IDLE, *[WAITING] * 6], None, "no GPU stands out: utilisation 0 to 100 %"),
        ([IDLE, WAITING], None, "no GPU stands out: utilisation 0 to 100 %"),
        ([(100.0, w, 1980.0) for w in (238.0, 215.0, 243.0, 240.0)], None, "no GPU stands out: "),
        ([(0.0, 240.0, 1980.0), (100.0, 90.0, 1980.0), *[WAITING] * 4], None, "no GPU stands out alone: GPU 0 by util"),
        ([WAITING, WAITING, (None, None, None)], 2, "GPU 2 stands out: it alone does not answer"),
        ([(100.0, w, 1980.0) for w in (300.0, 200.0, 250.0, 90.0)], None, "no GPU stands out: "),
    ],
    ids=[
        "idle",
        "busy",
        "power",
        "clock",
        "alike",
        "two",
        "of two",
        "a little",
        "quantities differ",
        "silent",
        "spread",
    ],
)
def test_a_gpu_stands_out_where_it_alone_differs_clearly(gpus, named, words):
    found = hang_suspect(samples(*gpus))
    assert (found.gpu, found.words[: len(words)]) == (named, words)


def test_nothing_read_names_nothing():
    assert hang_suspect({}) is None
    assert hang_suspect(samples(*[(None, None, None)] * 8)) is None


def hung_phase(status, at_fault):
    """A probe that hangs, as the launcher says while its ranks are still there."""

    def run(on_event):
        on_event(0, Hung(0.0))
        yield probing(status=status, message="no rank made progress", ranks_at_fault=at_fault)

    return BatteryPhase(name="probe", predicted_seconds=1.0, serves=phases.MEASURED_BY_PROBE, run=run)


def test_gpus_are_read_while_ranks_hang_and_the_rank_behind_the_one_out_of_step_is_at_fault(monkeypatch, tmp_path):
    fake = fake_library(monkeypatch)
    stands_still = {"utilisation": 0, "watts_drawn": 90, "mhz": 345}
    monkeypatch.setattr(fake, "_SCENE", {"gpus": 4, "faults": {"2": stands_still}})
    monkeypatch.setattr(gpu_watch, "SAMPLE_SECONDS", 0.01)
    battery = planned_battery(tmp_path, device="cuda", ranks=4)
    around = surroundings(device="cuda", ranks=4, gpus_with_ranks=[3, 2, 1, 0])  # CUDA may order them otherwise
    battery.evidence_of["environment"] = [around]
    battery.gpu_watch = gpu_watch.HealthWatch()
    for at_fault, ranks in (([], [1]), ([3], [3])):
        phase = hung_phase(Status.HANG, at_fault)
        probe, read, timing = _measured(phase, 100.0, 100.0, battery._readings_of(phase))
        assert isinstance(read, HangReadings)
        assert {gpu: len(of_gpu) for gpu, of_gpu in read.samples.items()} == dict.fromkeys((3, 2, 1, 0), 7)
        assert (probe.ranks_at_fault, timing.ranks_at_fault) == (ranks, ranks)
        assert probe.message.startswith("no rank made progress; GPU 2 stands out: utilisation 0 %, others 100 %")
        kept = PhaseEvidence(kind="battery", schema="8.4", id="i", phase="probe", evidence=[probe, read, timing])
        assert msgspec.json.decode(msgspec.json.encode(kept), type=PhaseEvidence) == kept
    phase = hung_phase(Status.OK, [])
    assert not any(isinstance(item, PhaseTiming) and item.message for item in _measured(phase, 9.0, 9.0, lambda: None))
    battery.gpu_watch.finished()
    found = [one for one in battery_findings([around, probe, timing], NOTHING, others=0.05) if one.check in (5, 17)]
    assert {(one.check, one.verdict, one.part) for one in found} == {
        (5, CheckVerdict.HANG, "rank 3 (GPU 0)"),
        (17, CheckVerdict.HANG, "rank 3 (GPU 0)"),
    }


PAIRS = [
    exchange(rank, peer, 5e9 if {rank, peer} == {1, 2} else 1e10)
    for rank in range(4)
    for peer in range(4)
    if rank != peer
]
ASKED = ["replays", "exchanges", "soaks"]


def hung_probe(finished, **parts):
    hang = {"status": Status.HANG, "message": "m", "asked": ASKED, "finished": finished}
    return battery_findings([surroundings(ranks=4), probing(**hang, **parts)], NOTHING, others=0.05)


def test_what_had_finished_before_a_hang_is_judged_and_the_rest_hangs():
    before = {"replays": replays(4)}
    sums = [exchange(rank, None, 1e10, operation="all-to-all") for rank in range(4)]
    cases = {
        "in a replay": (hung_probe([], **before), {14, 5, 6, 15}),
        "in a pair": (hung_probe(["replays"], **before, exchanges=PAIRS[:4]), {5, 6, 15}),
        "in an all-reduce": (
            hung_probe(["replays", "messages", "all-to-all"], **before, exchanges=[*PAIRS, *sums]),
            {6, 15},
        ),
        "in the soak": (hung_probe([*ASKED[:2], "messages", "all-to-all"], **before, exchanges=[*PAIRS, *sums]), {15}),
    }
    hung = {name: {one.check for one in found if one.verdict == "HANG"} for name, (found, _) in cases.items()}
    assert hung == {name: checks for name, (_, checks) in cases.items()}
    found = cases["in an all-reduce"][0]
    assert [one.verdict for one in found if one.check == 14] == ["PASS"]
    slow = [one for one in found if one.check == 5 and one.verdict == "WARN"]
    assert [one.part for one in slow] == ["link 1-2"]  # half as fast as the median pair
    assert all(one.verdict != "HANG" for one in found if one.check == 5)
    soaks = [soaked(rank, wrong=3) for rank in range(4)]
    ended = hung_probe([*ASKED, "messages", "all-to-all"], **before, exchanges=[*PAIRS, *sums], soaks=soaks)
    assert [one.verdict for one in ended if one.check == 15 and one.subject == "memory and products"] == ["FAIL"]
