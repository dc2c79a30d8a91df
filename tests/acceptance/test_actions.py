"""Next steps: every bad finding has one action, and each row of the table answers a finding of the judges."""

from __future__ import annotations

import itertools

import msgspec

from suite.acceptance.actions import ACTION_ROWS, action_row, with_action
from suite.acceptance.battery import _no_room
from suite.acceptance.check_table import CHECKS
from suite.acceptance.gpu_evidence import EarlierXid, Health
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.log_events import log_events
from suite.acceptance.node_state import Disk, HostCounter, HostReading, LogSubject, NicPort
from suite.job.events import Status
from suite.machine.host_state import HostState
from suite.records.battery import NOT_PASSED, CheckFinding, CheckVerdict, RecoveryAction
from tests.support.batteries import exchange, history_of, launched, micro, probing, replays, soaked, surroundings, times
from tests.support.nvml import health_of

CUDA = surroundings(device="cuda", gpus_with_ranks=[0, 1])
A = RecoveryAction


def bad_ones(evidence, check=None, subject="", history=None):
    """The bad findings of a battery with this evidence; of one check and subject, where they are named."""
    found = battery_findings(evidence, history or history_of(), others=0.05)
    bad = [one for one in found if one.verdict in (*NOT_PASSED, CheckVerdict.WARN)]
    bad = [one for one in bad if check in (None, one.check) and one.subject.startswith(subject)]
    assert bad, (evidence, check, subject)
    return bad


def launch_that_ended(status, message=""):
    return bad_ones([surroundings(), launched(status=status, message=message)], 7)


def says(check, verdict="FAIL", subject="", part="", evidence=""):
    return [CheckFinding(check=check, subject=subject, verdict=CheckVerdict(verdict), part=part, evidence=evidence)]


def late(term):
    return times(2.0, term=term, predicted_terms={"forward": 0.5, "backward": 0.5, term: 0.1})


def actions_on_a_cpu():
    """Findings of a node without GPUs; the action and a word of what to do."""
    slow = history_of(past={"1:slowest rank, 0 shapes timed": [2e11] * 4, "3:copy": [4e10] * 4}, spread=0.001)
    wrong = {"wrong": 3, "first": "at 5"}
    return [
        (A.FIX_SETTING, "import a package", launch_that_ended(Status.CRASHED, "No module named 'triton'")),
        (A.FIX_SETTING, "limit", launch_that_ended(Status.CRASHED, "OSError: [Errno 24] Too many open files")),
        (A.FIX_SETTING, "room", [_no_room(OSError(28, "No space left on device"))]),
        (A.FREE_NODE, "memory", launch_that_ended(Status.OUT_OF_MEMORY)),
        (A.REPEAT, "drain", launch_that_ended(Status.HANG)),
        (A.REPEAT, "drain", launch_that_ended(Status.CRASHED)),
        (A.FREE_NODE, "wait", bad_ones([surroundings(others_share=0.5)], 0)),
        (A.FREE_NODE, "wait", bad_ones([surroundings(host=HostState(siblings_share=0.5))], 0)),
        (A.FIX_SETTING, "record", bad_ones([surroundings(fleet_problems=["a"])], 0)),
        (A.FIX_SETTING, "host", bad_ones([surroundings(host=HostState(huge_pages="never"))], 0)),
        (A.FIX_SETTING, "deterministic", bad_ones([probing(replays=replays(wrong=lambda *_: True))], 14)),
        (A.REPEAT, "environment first", bad_ones([surroundings(others_share=0.5), micro()], 1)),
        (A.REPEAT, "more time", says(5, "INCONCLUSIVE", part="time limit")),
        (A.REPEAT, "launches more", says(8, "INCONCLUSIVE")),
        (A.RETURN, "memory", bad_ones([probing(replays=replays(3, wrong=lambda rank, *_: rank == 1))], 14)),
        (A.RETURN, "memory", bad_ones([probing(soaks=[soaked(**wrong)])], 15)),
        (A.RETURN, "memory", bad_ones([micro(wrong_products=["2 of 3"])], 1)),
        (A.RETURN, "on their way", bad_ones([probing(exchanges=[exchange(0, 1, 1e9, **wrong)])], 5, "messages")),
        (A.FIX_SETTING, "versions", bad_ones([launched(unequal=["flop"])], 7)),
        (A.FIX_SETTING, "software", bad_ones([launched(losses=[8.0] * 40)], 16)),
        (A.FIX_SETTING, "daemons", bad_ones(late("launch and host overhead"), 8)),
        (A.RESEAT, "channel", bad_ones([surroundings(), micro()], 3, "copy", slow)),
        (A.FIX_SETTING, "cooling", bad_ones([surroundings(), micro()], 1, history=slow)),
        (A.RESEAT, "cable and module", node_with(nics=[NicPort(name="mlx5_0", port=1, state="DOWN")])),
        (A.RETURN, "memory module", node_with(counters=[UNCORRECTED])),
        (A.RETURN, "disk", node_with(disks=[Disk(name="nvme0", state="dead")])),
        (A.REBOOT_NODE, "NVSwitches", node_with("SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30")),
        (A.RESEAT, "PCIe", node_with("pcieport 0000:00:01.0: AER: device recovery failed")),
        (A.REPEAT, "comes back", says(3, "WARN")),
    ]


UNCORRECTED = HostCounter(subject=LogSubject.MEMORY, device="mc0", what="uncorrected errors", fatal=True, value=1)


def node_with(*lines, **reading):
    """Bad findings of a node without GPUs, with these lines in the kernel's log."""
    log = log_events(lines, earlier=())
    return bad_ones([Health(gpus=[], why_no_xids="", log=log, host_after=HostReading(**reading))], 13)


def actions_on_gpus(monkeypatch):
    """The same of a node with two GPUs, the second with a fault."""

    healthy = health_of(monkeypatch)
    first, second = healthy.gpus

    def faulty(check, samples=None, before=None, after=None, **gpu):
        if samples:
            gpu["samples"] = [msgspec.structs.replace(sample, **samples) for sample in second.samples]
        states = {"before": before or {}, "after": after or before or {}}
        gpu |= {when: msgspec.structs.replace(getattr(second, when), **state) for when, state in states.items()}
        health = msgspec.structs.replace(healthy, gpus=[first, msgspec.structs.replace(second, **gpu)])
        found = bad_ones([CUDA, micro(), health], check)
        return [one for one in found if "firmware" in gpu or "GPU 1" in one.part]

    def with_xids(*xids):
        earlier = [EarlierXid(gpu=1, pci="0000:1b:00.0", xid=xid) for xid in xids]
        health = msgspec.structs.replace(healthy, earlier_xids=earlier, why_no_xids="")
        return bad_ones([CUDA, micro(), health], 13)

    gb10 = surroundings(device="cuda", gpus="NVIDIA GB10")  # without a floor of GEMMs
    ecc = "CUDA error: uncorrectable ECC error encountered"
    return [
        (A.RESET_GPU, "return", launch_that_ended(Status.CRASHED, ecc)),
        (A.RESET_GPU, "return", bad_ones([CUDA, launched(status=Status.CRASHED, message=ecc)], 13)),
        (A.RESET_GPU, "return", launch_that_ended(Status.HANG, "rank 3 was silent; GPU 5 stands out: 90 W")),
        (A.REBOOT_NODE, "XID 79", bad_ones([surroundings(device="cuda", devices=7, devices_expected=8)], 0)),
        (A.REBOOT_NODE, "XID 79", bad_ones([surroundings(gpus_before="8 x H100")], 0)),
        (A.FIX_SETTING, "timer", bad_ones([surroundings(gpus="NVIDIA H200"), micro(matrix=[1e16, 1e16])], 1)),
        (A.FREE_NODE, "wait", faulty(0, before={"processes": [4711]})),
        (A.RESEAT, "PCIe", faulty(0, samples={"pcie_width": 8})),
        (A.FIX_SETTING, "fabricmanager", faulty(0, before={"fabric": "in progress"})),
        (A.FIX_SETTING, "ECC", faulty(0, before={"ecc": False})),
        (A.FIX_SETTING, "MIG", faulty(0, before={"mig": True})),
        (A.FIX_SETTING, "power limit", faulty(0, before={"watts_limit": 400.0, "watts_default": 700.0})),
        (A.FIX_SETTING, "clocks", faulty(0, samples={"memory_mhz": 1000.0})),
        (A.FIX_SETTING, "firmware", faulty(0, firmware="1.0")),
        (A.RETURN, "repaired", faulty(13, after={"remap_failed": True})),
        (A.RETURN, "repaired", faulty(13, after={"sram_threshold_exceeded": True})),
        (A.RESET_GPU, "row", faulty(13, after={"remap_pending": True})),
        (A.RESET_GPU, "row", faulty(13, after={"uncorrected": 1})),
        (A.REBOOT_NODE, "XID", faulty(13, xids=[79])),
        (A.RESET_GPU, "return", faulty(13, xids=[48])),
        (A.NONE, "program", faulty(13, xids=[13])),
        (A.RESET_GPU, "return", with_xids(13, 119)),
        (A.NONE, "program", with_xids(13, 31)),
        (A.NONE, "watch", faulty(13, before={"lifetime_uncorrected": 5})),
        (A.NONE, "watch", faulty(13, after={"corrected": 9})),
        (A.RESEAT, "NVLink", faulty(13, before={"nvlinks": [True] * 17 + [False]})),
        (A.RESEAT, "power supplies", faulty(12, samples={"reasons": ["power brake"]})),
        (A.RESEAT, "fans", faulty(12, samples={"reasons": ["hardware thermal slowdown"]})),
        (A.RETURN, "GPU", bad_ones([CUDA, probing(replays=replays(3, wrong=lambda rank, *_: rank == 1))], 14)),
        (A.NONE, "fleet references", bad_ones([gb10, micro(host_device={"host to device": 2e10})], 1, "slowest")),
        (A.FIX_SETTING, "driver", says(6, "WARN", part="all-reduce, nvls: fabric manager, multicast, or driver")),
        (A.RESEAT, "cable", says(5, subject="link 0-1", part="link 0-1 (GPU 0, GPU 1)")),
        (A.RESEAT, "cable", says(4, subject="host to device", part="host link, host to device")),
        (A.RESEAT, "cable", bad_ones(late("exposed communication"), 8)),
        (A.RESET_GPU, "return", says(1, subject="slowest rank", part="matrix rate of rank 1 (GPU 1)")),
        (A.REPEAT, "comes back", says(5, "WARN", subject="link 0-1", part="link 0-1 (GPU 0, GPU 1)")),
    ]


def test_each_row_of_the_table_answers_a_finding_as_the_judges_make_it(monkeypatch):
    cases = [(False, *case) for case in actions_on_a_cpu()] + [(True, *case) for case in actions_on_gpus(monkeypatch)]
    answers = [
        (on_gpu, action, word, [action_row(one, on_gpu=on_gpu) for one in bad]) for on_gpu, action, word, bad in cases
    ]
    wrong = [
        (action, word, rows)
        for _, action, word, rows in answers
        if not rows or any(row.action is not action or word not in row.words for row in rows)
    ]
    assert wrong == []
    answered = {row for *_, rows in answers for row in rows}
    assert [row for row in ACTION_ROWS if row not in answered] == []


def test_whatever_did_not_pass_has_an_action_and_nothing_else_has_one():
    for check, verdict, status, on_gpu in itertools.product(range(len(CHECKS)), CheckVerdict, Status, (False, True)):
        finding = CheckFinding(check=check, subject="x", verdict=verdict, status=status)
        action = with_action(finding, on_gpu=on_gpu).action
        is_bad = verdict in (*NOT_PASSED, CheckVerdict.WARN)
        assert (action is None) != is_bad, (check, verdict, status, on_gpu)


def test_a_command_is_that_of_the_part_and_of_the_kind_of_node():
    commands = {
        ("GPU 5", True): "nvidia-smi --gpu-reset -i 5",
        ("matrix rate of rank 1 (GPU 3 at 0000:1b:00.0)", True): "nvidia-smi --gpu-reset -i 3",
        ("", True): "nvidia-smi --gpu-reset",
        ("matrix rate of rank 1", False): "",
    }
    found = {(part, on_gpu): with_action(says(1, part=part)[0], on_gpu=on_gpu).command for part, on_gpu in commands}
    assert found == commands


def test_an_action_that_a_judge_chose_stays_with_the_words_of_its_own():
    (slow,) = says(1, part="matrix rate of rank 1 (GPU 1)")
    for action in RecoveryAction:
        chosen = msgspec.structs.replace(slow, action=action)
        assert with_action(chosen, on_gpu=True).action is action
        assert action_row(chosen, on_gpu=True).action is action
    reboot = with_action(msgspec.structs.replace(slow, action=A.REBOOT_NODE), on_gpu=True)
    assert (reboot.to_do, reboot.command) == ("reboot the node, and run accept again", "dmesg --level=err,warn")
    own = msgspec.structs.replace(slow, to_do="turn it", command="turn")
    assert (with_action(own, on_gpu=True).to_do, with_action(own, on_gpu=True).command) == ("turn it", "turn")
