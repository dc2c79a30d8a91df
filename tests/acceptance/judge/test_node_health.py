"""A fault of the node beside its GPUs is found with its part; nothing that is not readable passes."""

from __future__ import annotations

import msgspec

from suite.acceptance.gpu_evidence import GpuHealth, GpuState, Health
from suite.acceptance.judge.node_health import node_findings
from suite.acceptance.log_events import log_events
from suite.acceptance.node_state import Disk, HostCounter, HostReading, LogSubject, NicPort
from tests.acceptance.test_log_events import LINES

GPU = GpuHealth(
    index=3,
    model="m",
    driver="d",
    firmware="f",
    before=GpuState(),
    after=GpuState(),
    samples=[],
    xids=[],
    pci="0000:18:00.0",
)
MEMORY = HostCounter(
    subject=LogSubject.MEMORY, device="mc0 A1", what="corrected errors of memory", fatal=False, value=2
)
LOST = HostCounter(subject=LogSubject.MEMORY, device="mc0 A1", what="uncorrected errors of memory", fatal=True, value=0)
PCIE = HostCounter(subject=LogSubject.PCIE, device="0000:18:00.0", what="corrected errors", fatal=False, value=7)
FATAL = HostCounter(subject=LogSubject.PCIE, device="0000:18:00.0", what="fatal errors", fatal=True, value=1)
NICS = [
    NicPort(
        name=f"mlx5_{number}",
        port=1,
        kind="MT4129",
        pci=f"0000:{0x41 + number:02x}:00.0",
        state="ACTIVE",
        physical="LinkUp",
        gbits=400.0,
        pcie_gigatransfers=32.0,
        pcie_width=16,
        firmware="28.1",
        counters={"symbol errors": 3, "times the link went down": 1},
    )
    for number in range(4)
]
DISKS = [
    Disk(name=f"nvme{number}", model="M", state="live", celsius=45.0, most_celsius=85.0, alarm=False, pcie_width=4)
    for number in range(3)
]
GOOD = HostReading(counters=[MEMORY, LOST, PCIE, FATAL], nics=NICS, disks=DISKS, memory_counted=True)


def changed(items, number=1, **changes):
    return [msgspec.structs.replace(item, **changes) if at == number else item for at, item in enumerate(items)]


def found(after=GOOD, before=GOOD, **health):
    usual = {"gpus": [GPU], "why_no_xids": "", "host_before": before, "host_after": after}
    return node_findings(Health(**(usual | health)))


def nic(*, before=NICS, number=1, nics=NICS, **changes):
    after = changed(nics, number, **changes)
    reading = msgspec.structs.replace
    return [one for one in found(reading(GOOD, nics=after), reading(GOOD, nics=before)) if "network" in one.subject]


def bad(findings):
    return [(one.verdict, one.part, one.evidence) for one in findings if one.verdict not in ("PASS", "NOT RUN")]


def test_a_good_node_passes_each_part_and_says_what_is_not_readable():
    assert {one.subject: (str(one.verdict), one.evidence) for one in found()} == {
        "kernel log": (
            "PASS", "no errors of NVSwitches, PCIe, memory, network cards or disks since the machine started"
        ),
        "host memory": ("PASS", "no counter changed, 2 errors since the machine started"),
        "PCIe errors": ("PASS", "no counter changed, 8 errors since the machine started"),
        "network cards": (
            "PASS", "4 active: MT4129 at 400 Gbit/s; links went down 4 times since the driver was loaded"
        ),
        "NVMe disks": ("PASS", "3 live; not read: wear, media errors (the latter two need root: nvme smart-log)"),
    }  # fmt: skip
    assert node_findings(Health(gpus=[GPU])) == node_findings(None) == []  # of records before 8.4
    nothing = found(HostReading(), HostReading())
    assert {one.subject for one in nothing if one.verdict == "NOT RUN"} == {
        "host memory", "PCIe errors", "network cards", "NVMe disks"
    }  # fmt: skip


def test_each_line_of_the_log_names_its_device_and_rejects_where_it_is_fatal_under_load():
    wrong = {}
    for line, (subject, device, _, fatal) in LINES.items():
        for earlier in (True, False):
            log = log_events([line], earlier=[line] if earlier else [])
            (one,) = (one for one in found(log=log) if one.subject.startswith("kernel log"))
            rejects = fatal and (not earlier or subject is LogSubject.SWITCH)
            name = "GPU 3 at 0000:18:00.0" if device == "0000:18:00.0" else device
            when = "since the machine started" if earlier else "under load"
            if (one.verdict, one.part) != ("FAIL" if rejects else "WARN", f"{subject.value}: {name}") or not (
                one.evidence.startswith(f"{name}: ") and one.evidence.endswith(when) and one.action
            ):
                wrong[line, earlier] = one
    assert wrong == {}


def test_a_log_that_cannot_be_read_is_said_once():
    why = "the kernel's log cannot be read: Operation not permitted"
    assert [one for one in found(why_no_xids=why) if "log" in one.subject] == []  # the finding of earlier XIDs says so
    (one,) = (one for one in found(gpus=[], why_no_xids=why) if "log" in one.subject)
    assert (one.verdict, one.evidence) == ("NOT RUN", why)


def test_counters_count_by_their_growth_and_lost_memory_always():
    def counted(*counters):
        after = msgspec.structs.replace(GOOD, counters=list(counters))
        return bad(found(after))

    more = msgspec.structs.replace
    assert counted(more(MEMORY, value=5), LOST, PCIE) == [
        ("WARN", "host memory: mc0 A1", "mc0 A1: 3 corrected errors of memory under load")
    ]
    assert counted(MEMORY, more(LOST, value=1), PCIE)[0][0] == "FAIL"
    assert counted(MEMORY, LOST, more(PCIE, value=8)) == [
        ("WARN", "PCIe errors: GPU 3 at 0000:18:00.0", "GPU 3 at 0000:18:00.0: 1 corrected errors under load")
    ]
    assert counted(MEMORY, LOST, more(PCIE, value=8), more(FATAL, value=2))[0][:2] == (
        "FAIL", "PCIe errors: GPU 3 at 0000:18:00.0"
    )  # fmt: skip
    earlier = msgspec.structs.replace(GOOD, counters=[more(LOST, value=1), PCIE, FATAL])
    assert bad(found(earlier, earlier)) == [
        ("FAIL", "host memory: mc0 A1", "mc0 A1: 1 uncorrected errors of memory since the machine started")
    ]
    restarted = msgspec.structs.replace(GOOD, counters=[more(MEMORY, value=1), LOST, PCIE])
    assert "1 corrected" in bad(found(restarted))[0][2]


def test_a_network_card_is_held_to_itself_and_to_its_siblings():
    down = {"state": "DOWN", "physical": "Disabled"}
    two_ports = changed(NICS, 2, pci="0000:42:00.1")  # the second function of the first card
    cases = {
        "went down": (nic(**down), "FAIL", "down (Disabled), and active before the load"),
        "down before": (nic(before=changed(NICS, **down), **down), "FAIL", "active on 3 of 3 others of its kind"),
        "one of a card's two ports": (
            nic(before=changed(two_ports, **down), nics=two_ports, **down), "WARN", "active on 3 of 3 others",
        ),
        "few siblings": (nic(before=changed(NICS[:3], **down), nics=NICS[:3], **down), "WARN", "on 2 of 2 others"),
        "slower": (nic(gbits=200.0), "FAIL", "200 Gbit/s, 400 on 3 of 3 others of its kind"),
        "narrow": (nic(pcie_width=8), "FAIL", "8 PCIe lanes, 16 on 3 of 3 others of its kind"),
        "slow link": (nic(pcie_gigatransfers=8.0), "FAIL", "8 GT/s of PCIe, 32 on 3 of 3"),
        "flapped": (nic(counters={"times the link went down": 2}), "FAIL", "the link went down 1 times under load"),
        "errors": (nic(counters={"symbol errors": 9}), "WARN", "6 symbol errors under load"),
        "firmware": (nic(firmware="28.0"), "WARN", "firmware 28.0, 28.1 on most others of its kind"),
    }  # fmt: skip
    wrong = {}
    for name, (findings, verdict, words) in cases.items():
        (one,) = (one for one in findings if one.verdict != "PASS")
        if (
            (one.verdict, one.part) != (verdict, "mlx5_1 at 0000:42:00.0")
            or words not in one.evidence
            or not one.action
        ):
            wrong[name] = one
    assert wrong == {}
    others = msgspec.structs.replace(GOOD, nics=NICS[1:])
    assert bad(found(others)) == [("FAIL", "mlx5_0 at 0000:41:00.0", "gone under load")]
    unused = [msgspec.structs.replace(NICS[0], name=f"vf_{number}", kind="VF", state="DOWN") for number in range(8)]
    with_unused = msgspec.structs.replace(GOOD, nics=[*NICS, *unused])
    assert bad(found(with_unused, with_unused)) == []
    assert any("8 not used" in one.evidence for one in found(with_unused, with_unused))
    all_down = msgspec.structs.replace(GOOD, nics=unused)
    assert bad(found(all_down, all_down)) == [("WARN", "network cards", "none of 8 ports is active")]
    other_kind = changed(NICS, kind="MT4125", gbits=100.0)
    assert bad(found(msgspec.structs.replace(GOOD, nics=other_kind))) == []


def test_a_disk_is_judged_by_what_it_reports_without_root():
    def disk(**changes):
        return bad(found(msgspec.structs.replace(GOOD, disks=changed(DISKS, **changes))))

    assert disk(state="dead") == [
        ("FAIL", "disk nvme1", "nvme1: dead; not read: wear, media errors (the latter two need root: nvme smart-log)")
    ]
    assert disk(state="resetting")[0][0] == "WARN"
    assert "nvme1: critical temperature, 86 C" in disk(celsius=86.0)[0][2]
    assert "critical temperature" in disk(alarm=True)[0][2]
    assert "nvme1: 2 PCIe lanes, 4 of others of its model" in disk(pcie_width=2)[0][2]
    assert disk(pcie_width=2, model="other") == []
