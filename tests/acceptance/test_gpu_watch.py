"""Parts of a watch are the whole, and an interruption loses none."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec

from suite.acceptance import gpu_watch, kernel_log
from suite.acceptance.context import BatteryPhase, RunningBattery
from suite.acceptance.gpu_evidence import EarlierXid, Health
from suite.acceptance.gpu_watch import HealthWatch, joined
from suite.acceptance.judge.gpu_health import gpu_findings
from suite.acceptance.past_batteries import History
from tests.support.nvml import fake_library, health_of


def test_the_watch_tells_uuids_and_addresses_in_the_librarys_order(monkeypatch):
    fake_library(monkeypatch)
    watch = HealthWatch()
    assert watch.gpus.uuids() == ["GPU-0", "GPU-1"]
    assert watch.addresses == ["0000:18:00.0", "0000:19:00.0"]
    watch.finished()


def test_an_interruption_forgets_no_xid_and_no_error_of_a_link(monkeypatch):
    then, now = health_of(monkeypatch), health_of(monkeypatch, replays=5)
    before_reboot = EarlierXid(gpu=1, pci="0000:19:00.0", xid=79)
    then = msgspec.structs.replace(then, earlier_xids=[before_reboot], why_no_xids="")
    now = msgspec.structs.replace(now, earlier_xids=[], why_no_xids="")
    whole = joined([then, now])
    assert whole.earlier_xids == [before_reboot]
    assert whole.gpus[1].before.nvlink_errors == {"replays": 0, "failed recoveries": 0}
    assert whole.gpus[1].after.nvlink_errors == {"replays": 5, "failed recoveries": 0}
    assert (whole.gpus[1].pci, whole.gpus[1].uuid) == ("0000:19:00.0", "GPU-1")


def test_parts_of_a_watch_together_are_the_whole(monkeypatch):
    fake_library(monkeypatch, uncorrected=3, xids=[79])
    monkeypatch.setattr(gpu_watch, "SAMPLE_SECONDS", 0.01)
    watch = HealthWatch()
    parts = []
    for _ in range(3):
        deadline = time.monotonic() + 10
        count = len(watch._samples[1])
        while len(watch._samples[1]) < count + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        parts.append(watch.since_last())
    whole = joined(parts).gpus[1]
    now = watch.finished().gpus[1]
    assert whole.before == now.before
    assert [part.gpus[1].after.uncorrected for part in parts] == [3, 3, 3]
    assert [part.gpus[1].before.uncorrected for part in parts] == [0, 3, 3]
    assert whole.samples == now.samples[: len(whole.samples)]
    assert len(whole.samples) >= 6
    assert whole.xids == [79]


def test_a_resumed_battery_compares_its_counters_with_those_before_the_interruption(monkeypatch):
    then, now = health_of(monkeypatch), health_of(monkeypatch)
    then = Health(gpus=[msgspec.structs.replace(gpu, xids=[79]) for gpu in then.gpus])
    lower = msgspec.structs.replace(then.gpus[1].before, uncorrected=-2)
    then.gpus[1] = msgspec.structs.replace(then.gpus[1], before=lower)
    opened = SimpleNamespace(kept=lambda _name: [then])
    battery = RunningBattery(None, opened, History(), lambda _line: None)
    assert battery.run(BatteryPhase(name="p", predicted_seconds=1.0, serves=frozenset(), run=lambda _event: [])) == []
    found = [
        finding
        for finding in gpu_findings(battery.health(now), loaded=(0, 1))
        if finding.check == 13 and finding.subject in ("GPU 0", "GPU 1")
    ]
    assert "2 uncorrectable ECC errors under load; XID 79" in found[1].evidence
    assert found[0].evidence == "XID 79 (GPU has fallen off the bus)"


def test_what_the_kernel_writes_under_load_is_told_from_what_it_wrote_before(monkeypatch):
    fake_library(monkeypatch)
    xid, port = "NVRM: Xid (PCI:0000:19:00): {}, pid=1", "pcieport 0000:00:01.0: AER: device recovery failed"
    lines = [f"4,1,1,-;{xid.format(31)}"]
    monkeypatch.setattr(kernel_log, "log_lines", lambda: (list(lines), ""))
    watch = HealthWatch()
    lines[:] = [f"4,2,2,-;{xid.format(79)}", f"4,3,3,-;{port}"]  # the oldest was overwritten
    parts = [watch.since_last(), watch.finished()]
    whole = joined(parts)
    assert ([one.xid for one in whole.earlier_xids], [one.xid for one in whole.load_xids]) == ([31], [79])
    assert [(one.device, one.under_load, one.times) for one in whole.log] == [("0000:00:01.0", True, 1)]
