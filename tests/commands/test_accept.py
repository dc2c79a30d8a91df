"""`accept` as it is typed: arguments, output for people and machines, exit codes, and the record that is left."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from suite.__main__ import main
from suite.acceptance import battery_record, context, measurements, starts
from suite.acceptance import phases as planned_phases
from suite.acceptance.battery import BatteryReport
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.evidence import (
    Exchange,
    MicroMeasurements,
    MiniatureLaunch,
    PhaseTiming,
    ProbeResult,
    ReplayHashes,
)
from suite.acceptance.findings import decision
from suite.acceptance.presets import EFFORTS
from suite.commands import accept as accept_module
from suite.commands import exit_codes
from suite.job.events import Status
from suite.machine import profile
from suite.machine.cpu_contention import Competitor
from suite.machine.fingerprint import Fingerprint, fingerprint
from suite.machine.host_state import HostState
from suite.records import store
from suite.records.battery import (
    BatteryEnd,
    CheckFinding,
    CheckVerdict,
    Decision,
    PastBattery,
    RecoveryAction,
    read_half,
)
from suite.report.terminal.acceptance import _SUMMARY_CHARACTERS, comparison, print_verdict, summary
from tests.support.profiles import profile as machine

QUICK = EFFORTS["quick"].miniatures


UNEQUAL = {"unequal": ["messages: 6 measured, 5 predicted"]}
HANG = {"status": Status.HANG, "ranks_at_fault": [1], "message": "rank 1 fell back", "stacks": "rank 0:\nFile train.py"}
OTHER = ([Competitor(pid=7, name="other", cores=1.0)], 0.5)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A machine on which nobody else computes, that is not virtual, and that is set to nothing unusual."""
    monkeypatch.setattr(planned_phases, "competitors", lambda: ([], 0.0))
    monkeypatch.setattr(planned_phases, "host_state", lambda *_arguments: HostState())
    monkeypatch.setattr(battery_record, "is_virtual_machine", lambda: False)


def ended(name, purpose, **changes):
    usual = {"status": Status.OK, "message": "", "ranks_at_fault": [], "exact": 40}
    return MiniatureLaunch(run=name, purpose=purpose, record="r", seconds=1.0, **(usual | changes))


@pytest.fixture
def launches(monkeypatch):
    """Launches that end at once, as `answers` says by miniature; the names of those that were asked for."""
    asked: list[str] = []
    answers: dict[str, dict[str, object]] = {}

    def launched(name, purpose, **_options):
        asked.append(name)
        return ended(name, purpose, **answers.get(name, {}))

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    return asked, answers


@pytest.fixture
def accept(capsys, tmp_path):
    """A function that runs a battery: its exit code and its one JSON object."""

    def run(*arguments):
        code = main(["accept", *arguments, "--results", str(tmp_path), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def printed(capsys, tmp_path):
    """The same for people: the exit code, and what is on stdout and on stderr."""

    def run(*arguments):
        code = main(["accept", *arguments, "--results", str(tmp_path)])
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    return run


@pytest.fixture
def kept(tmp_path):
    """A function that reads what a battery stored in the one file of this name."""

    def read(name, kind=PhaseEvidence):
        (path,) = (tmp_path / "acceptance").glob(name)
        return read_half(path, kind)

    return read


def only(report, **fields):
    """The one finding with these fields."""
    (found,) = [each for each in report["findings"] if all(each[name] == value for name, value in fields.items())]
    return found


def test_a_clean_node_is_accepted_with_a_record_that_says_the_same(tmp_path, accept, printed, launches, kept):
    code, report = accept("--only", "0,7")
    assert (code, report["decision"], report["exit_code"]) == (exit_codes.PASS, "accepted", 0)
    assert launches[0] == list(QUICK)
    closed = kept("*.end.json", BatteryEnd)
    assert report["record"] == str(next((tmp_path / "acceptance").glob("*.end.json")))
    assert closed.decision == "accepted"
    assert [f.check for f in closed.findings] == [f["check"] for f in report["findings"]]
    assert list((tmp_path / "acceptance").glob(".*")) == []
    out = printed("--only", "0,7", "--all")[1]
    assert "exact figures" in out
    assert "40 figures equal" in out
    assert out.splitlines()[-1].startswith("quick: accepted (")


def test_an_unequal_figure_leaves_the_node_open_after_it_was_launched_again(tmp_path, printed, launches, kept):
    """The verdict comes first, with part and evidence; JUnit and summary say what the record says."""
    asked, answers = launches
    answers["glm-mini"] = UNEQUAL
    file = tmp_path / "a.xml"
    code, out, _ = printed("--only", "0,7,12", "--junit", str(file))
    lines = out.splitlines()
    assert (code, asked) == (exit_codes.INCONCLUSIVE, [*QUICK, "glm-mini"])
    assert lines[0] == "not decidable: software: another amount of work than predicted"
    assert lines[1] == "FAIL  check 7, exact figures, glm-mini"
    assert lines[2].strip() == "expected: arithmetic"
    assert "messages: 6 measured, 5 predicted" in lines[3]
    assert lines[-2] == (
        "next   exact figures: software: another amount of work than predicted: install the versions that predictions "
        "are of"
    )
    again = f"accept --only 0,7,12 --junit {file} --force --results {tmp_path}"
    assert lines[-1].startswith("then   ")
    assert "drain" not in lines[-1]
    assert sorted(lines[-1].partition("accept")[2].split()) == sorted(again.removeprefix("accept").split())
    closed = kept("*.end.json", BatteryEnd)
    (bad,) = [each for each in closed.findings if each.verdict is CheckVerdict.FAIL]
    assert (closed.decision, bad.subject) == ("not decidable", "glm-mini")
    assert "confirmed by a re-run" in bad.evidence
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("failures") == "1" == str(len(suite.findall("testcase/failure")))
    assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    code, out, _ = printed("--only", "0,7,12", "--summary")
    assert (code, out.count("\n")) == (exit_codes.INCONCLUSIVE, 1)
    assert len(out) <= _SUMMARY_CHARACTERS + 1
    assert out.startswith(
        "quick: not decidable: exact figures FAIL: software: another amount of work than predicted, "
        "next: fix the setting"
    )


def test_a_hang_lets_the_rest_of_the_battery_run_and_is_exit_code_4(accept, launches, kept):
    asked, answers = launches
    answers["glm-mini"] = HANG
    code, report = accept("--only", "7,17")
    assert (code, report["decision"]) == (exit_codes.EXECUTION_FAILED, "execution failed")
    hung = [(f["check"], f["part"]) for f in report["findings"] if f["verdict"] == "HANG"]
    assert hung == [(7, "rank 1"), (17, "rank 1")]
    assert asked == list(QUICK)
    assert "File train.py" in kept("*.glm-mini_exact.phase.json").evidence[0].stacks


def test_a_hang_in_the_micro_measurements_names_its_rank_and_keeps_its_stacks(accept, monkeypatch):
    hung = MicroMeasurements(seconds=1.0, **HANG)
    monkeypatch.setattr(measurements, "micro_measurements", lambda *_arguments: (hung, None))
    code, report = accept("--only", "1,17")
    assert code == exit_codes.EXECUTION_FAILED
    found = only(report, check=17, verdict="HANG")
    assert (found["part"], found["evidence"]) == ("rank 1", "rank 1 fell back; stacks of rank 0 in the record")


@pytest.mark.parametrize(
    ("before", "device", "gone", "code"),
    [
        ("NVIDIA H200, NVIDIA H200", [], "the PCI bus has no GPU", 1),
        ("NVIDIA H200, NVIDIA H200", [], "", 3),  # a container or an image may hide them
        ("NVIDIA H200, NVIDIA H200", ["--device", "cpu"], "the PCI bus has no GPU", 0),
        ("NVIDIA H100 80GB HBM3 (simulated)", [], "the PCI bus has no GPU", 0),
        ("none", [], "", 0),
    ],
)
def test_a_node_that_lost_its_gpus_is_rejected_on_evidence_about_the_node(
    tmp_path, accept, launches, monkeypatch, before, device, gone, code
):
    monkeypatch.setattr("suite.machine.lost_gpus._why_gone", lambda *_: gone)
    own = battery_record.opening("", "quick", {}, 0.0)
    if own.hardware["gpus"] != "none":
        pytest.skip("NOT RUN: this machine has GPUs")
    with monkeypatch.context() as then:
        earlier = msgspec.structs.replace(own, id="20000101T000000Z", hardware=own.hardware | {"gpus": before})
        then.setattr(battery_record, "opening", lambda *_arguments: earlier)
        battery_record.BatteryRecord(tmp_path, profile="quick", options={}).close(Decision.ACCEPTED, [], {})
    ended, report = accept("--only", "0,7", *device)
    found = only(report, subject="devices")
    assert (ended, found["verdict"]) == (code, {0: "PASS", 1: "FAIL", 3: "INVALID"}[code])
    assert found["part"] == (f"GPUs: none in place of {before}" if code else "")
    assert gone in found["evidence"] or not code
    assert bool(launches[0]) == (code != 1)  # where it rejects, nothing is launched


def test_a_competing_process_is_named_and_the_verdict_left_open(accept, monkeypatch):
    monkeypatch.setattr(planned_phases, "competitors", lambda: OTHER)
    code, report = accept("--only", "0")
    assert code == exit_codes.INCONCLUSIVE
    assert "environment INVALID: other processes: other (pid 7) 100% of a core" in report["summary"]
    assert report["summary"].count("INVALID") == 2  # the part, and the count
    assert accept("--only", "0", "--others", "0.6")[0] == exit_codes.PASS


def test_where_nothing_ran_the_exit_code_is_3(accept):
    code, report = accept("--only", "4")
    assert (code, {f["verdict"] for f in report["findings"]}) == (exit_codes.INCONCLUSIVE, {"NOT RUN"})


def test_an_interrupted_battery_goes_on_where_it_was(tmp_path, accept, printed, launches):
    asked, answers = launches
    answers["glm-mini"] = {"status": Status.INTERRUPTED}
    arguments = ["--only", "0,7"]
    code, _, err = printed(*arguments)
    assert (code, asked) == (exit_codes.INTERRUPTED, ["bloom-mini", "glm-mini"])
    assert "accept --resume goes on" in err
    answers.clear()
    code, _, err = printed(*arguments, "--devices", "2", "--resume")
    assert (code, "--resume: nothing to resume" in err) == (exit_codes.BAD_INPUT, True)
    other = accept(*arguments, "--devices", "2", "--resume-if-any")[1]
    assert other["notes"] == ["nothing to resume: a new battery"]
    asked.clear()
    code, report = accept(*arguments, "--resume")
    assert (code, asked) == (exit_codes.PASS, list(QUICK[1:]))
    assert report["notes"] == [f"resumed {report['id']}"]
    records = sorted((tmp_path / "acceptance").iterdir())
    assert printed(*arguments, "--resume")[0] == exit_codes.BAD_INPUT
    assert sorted((tmp_path / "acceptance").iterdir()) == records


def test_in_an_environment_that_is_invalid_at_once_it_can_stop_before_it_measures(
    accept, printed, launches, monkeypatch
):
    asked, _ = launches
    monkeypatch.setattr(planned_phases, "competitors", lambda: OTHER)
    arguments = ["--only", "0,7"]
    code, report = accept(*arguments, "--stop-if-invalid")
    assert (code, asked) == (exit_codes.INCONCLUSIVE, [])
    assert {f["verdict"] for f in report["findings"] if f["check"] == 7} == {"NOT RUN"}
    assert report["notes"] == ["stopped before anything was measured: the environment is invalid"]
    code, _, err = printed(*arguments)
    assert (code, asked) == (exit_codes.INCONCLUSIVE, list(QUICK))
    assert "environment INVALID: other processes: other (pid 7) 100% of a core" in err
    assert "--stop-if-invalid would end here" in err
    monkeypatch.setattr(planned_phases, "competitors", lambda: ([], 0.0))
    assert printed(*arguments, "--stop-if-invalid")[0] == exit_codes.PASS


@pytest.mark.parametrize("stale", [True, False])
def test_a_resumed_battery_uses_no_machine_profile_of_another_machine(tmp_path, printed, launches, monkeypatch, stale):
    _, answers = launches
    measured = []
    here = fingerprint("cpu")
    of_there = Fingerprint(node="other", device="cpu", hardware=here.hardware, software=here.software)
    path = tmp_path / "profile.json"

    def micro(*_arguments):
        measured.append(len(measured))
        path.write_bytes(profile.encode(machine(fingerprint=of_there if stale else here)))
        own = MicroMeasurements(
            status=Status.OK, message="", seconds=1.0, matrix=[1.0], copy=[1.0], triad=[1.0], profile=str(path)
        )
        return own, machine()

    monkeypatch.setattr(measurements, "micro_measurements", micro)
    answers["gpt2-mini"] = {"status": Status.INTERRUPTED}
    arguments = ["--only", "3,8", "--miniatures", "gpt2-mini"]
    assert printed(*arguments)[0] == exit_codes.INTERRUPTED
    answers.clear()
    code, _, err = printed(*arguments, "--resume")
    assert code == exit_codes.INCONCLUSIVE
    assert ("not used: " in err and "a machine profile of another machine" in err) == stale
    assert len(measured) == 1 + stale


def test_values_of_accepted_batteries_are_the_past_of_the_next_one(accept, monkeypatch):
    speed = [1.0]

    def probed(*_arguments, **_options):
        exchanges = [
            Exchange(rank=rank, peer=peer, bytes_per_second=speed[0] * 1e9, wrong=0, first="")
            for rank in (0, 1)
            for peer in (1 - rank, None)
        ]
        return ProbeResult(status=Status.OK, message="", ranks_at_fault=[], seconds=1.0, exchanges=exchanges)

    monkeypatch.setattr(measurements, "probe_result", probed)
    codes, seen = [], []
    for speed[0] in (1.0, 1.01, 0.99, 0.9):
        code, report = accept("--only", "0,5")
        codes.append(code)
        link = only(report, subject="link 0-1")
        seen.append((link["verdict"], link["source"]))
    assert codes == [0, 0, 0, exit_codes.FAIL]
    assert seen[0] == ("NOT RUN", "")
    assert seen[1] == ("PASS", "median of 1 accepted battery of this node, spread unknown")
    assert seen[3] == ("FAIL", "median of 3 accepted batteries of this node, spread 1.0%")
    code, report = accept("--only", "0,5", "--ranks", "1")
    assert (code, only(report, subject="link 0-1")["verdict"]) == (exit_codes.PASS, "NOT RUN")  # of other ranks


def test_a_rejected_node_is_told_since_when(accept, printed, launches):
    good = accept("--only", "0,7")[1]
    launches[1]["glm-mini"] = UNEQUAL
    first = accept("--only", "0,7")[1]
    assert re.search(rf"good until \d{{4}}-\d\d-\d\d \d\d:\d\d UTC \(battery {good['id']}\)", first["summary"])
    assert "bad since" not in first["summary"]
    second = accept("--only", "0,7")[1]
    bad = only(second, verdict="FAIL")
    assert (bad["good_until"]["battery"], bad["bad_since"]["battery"]) == (good["id"], first["id"])
    assert len(second["summary"]) <= _SUMMARY_CHARACTERS
    out = printed("--only", "0,7")[1]
    assert "1 differ: messages" in out
    assert f"(battery {first['id']})\n" in out


def test_since_when_gives_way_to_the_parts_where_the_line_is_full():
    past = PastBattery(battery="B" * 40, finished=0.0)
    fail = {"check": 7, "subject": "x", "verdict": CheckVerdict.FAIL, "good_until": past}
    bad = [CheckFinding(part=f"part {number} " + "p" * 80, **fail) for number in range(3)]
    usual = {"id": "i", "profile": "quick", "decision": Decision.REJECTED, "notes": [], "seconds": 1.0, "record": "r"}
    one, three = (summary(BatteryReport(findings=bad[:count], **usual)) for count in (1, 3))
    assert f"good until 1970-01-01 00:00 UTC (battery {'B' * 40})" in one
    assert three.count("good until") == 0
    assert "part 2" in three
    assert max(len(one), len(three)) <= _SUMMARY_CHARACTERS


def short_form(*findings, again="", **console):
    """Lines of the short form of a battery with these findings."""
    out = Console(file=io.StringIO(), **{"width": 150, **console})
    usual = {"id": "i", "profile": "quick", "notes": ["n" * 500] * 9, "seconds": 1.0, "record": "r"}
    print_verdict(out, BatteryReport(findings=list(findings), decision=decision(findings), **usual), again)
    return out.file.getvalue().splitlines()


def found(verdict, check=1, part="", **rest):
    return CheckFinding(check=check, subject="x", verdict=verdict, part=part, evidence="e" * 500, **rest)


def test_the_short_form_has_at_most_15_lines_however_many_findings_there_are():
    rate = {"measured": 9e10, "expected": 1e11, "ratio": 0.9, "warn": 0.95, "fail": 0.8, "source": "s" * 500}
    wrong = []
    for verdict in (CheckVerdict.FAIL, CheckVerdict.WARN, CheckVerdict.PASS, CheckVerdict.INVALID):
        findings = [found(verdict, check, f"part {check}", unit="flop/s", **rate) for check in range(18)]
        lines = [line for line in short_form(*findings, found(CheckVerdict.WARN)) if line.strip("ens. ;")]
        said = any("90 Gflop/s, 10.0 % slower than expected (100 Gflop/s" in line for line in lines)
        if len(lines) > 15 or not said:
            wrong.append((verdict, lines))
    assert wrong == []


def test_what_to_do_next_is_a_line_a_part_with_its_command_and_ends_on_one_page():
    def bad(number, verdict=CheckVerdict.FAIL):
        to_do = {
            "action": RecoveryAction.RESET_GPU,
            "to_do": "reset it",
            "command": f"nvidia-smi --gpu-reset -i {number}",
        }
        return found(verdict, 13, f"GPU {number}", **to_do)

    noted = found(CheckVerdict.WARN, 13, "GPU 9", action=RecoveryAction.NONE, to_do="nothing")
    twice = msgspec.structs.replace(bad(0), check=17, evidence="of another check")
    lines = short_form(bad(0), bad(0), bad(1), twice, noted, again="refruns accept")
    assert lines[-3:] == [
        *(f"next   hardware errors: GPU {n}: reset it: nvidia-smi --gpu-reset -i {n}" for n in (0, 1)),
        "then   drain the node until this passes: refruns accept",
    ]
    many = short_form(*map(bad, range(16)), again="refruns accept")
    assert len(many) <= 23  # with the prompt, a terminal's 24
    assert many[-2:] == ["10 more", "then   drain the node until this passes: refruns accept"]
    accepted = short_form(bad(3, CheckVerdict.WARN), noted, again="refruns accept")
    assert accepted[-1] == "later  hardware errors: GPU 3: reset it: nvidia-smi --gpu-reset -i 3"
    repeat = found(CheckVerdict.WARN, action=RecoveryAction.REPEAT, to_do="again")
    assert not any(line.startswith("later") for line in short_form(repeat, found(CheckVerdict.PASS)))


def test_an_open_answer_of_the_short_profile_asks_for_the_long_one():
    def again(verdict, **changes):
        asked = msgspec.structs.replace(accept_module.AcceptOptions(), **changes)
        return accept_module._again(asked, [found(verdict)]).partition(" accept")[2]

    assert again(CheckVerdict.FAIL) == ""
    assert again(CheckVerdict.INCONCLUSIVE) == " --profile accept"
    assert again(CheckVerdict.INCONCLUSIVE, minutes=3.0) == " --minutes 3.0"
    asked = {"only": "step time", "devices": 8, "resume": True, "all_findings": True}
    assert again(CheckVerdict.FAIL, **asked) == " --only 'step time' --devices 8 --all"


def test_a_terminal_folds_between_words_and_a_file_has_whole_lines():
    source = " ".join(["median of accepted batteries"] * 8)
    rate = {"measured": 9e10, "expected": 1e11, "ratio": 0.9, "fail": 0.95, "unit": "flop/s", "source": source}
    bad = msgspec.structs.replace(found(CheckVerdict.FAIL, part="rank 1", **rate), evidence="one by one " * 30)
    usual = short_form(bad)
    at_terminal = short_form(bad, width=80, force_terminal=True, color_system=None)
    lines = [line for line in usual if "nnnn" not in line]
    assert lines[0].startswith("rejected: rank 1")
    assert lines[1] == "FAIL  check 1, matrix rate, x"
    assert [line.strip() for line in lines[2:4]] == [comparison(bad), bad.evidence.strip()]
    assert not any(line.endswith("...") for line in usual)
    folded = [line for line in at_terminal if "nnnn" not in line]
    assert max(map(len, folded)) <= 80
    assert " ".join(" ".join(folded).split()) == " ".join(" ".join(lines).split())


def test_a_threshold_is_printed_with_its_bad_side():
    table = {
        "0.600; fails below 0.7": {"check": 15, "ratio": 0.6, "warn": 0.7, "fail": 0.7},
        "0.120; fails above 0.1": {"check": 9, "ratio": 0.12, "warn": 0.05, "fail": 0.1},
        "1.300; fails above 1.1": {"check": 10, "ratio": 1.3, "warn": 1.05, "fail": 1.1},
        "0.900; warns below 0.965": {"check": 15, "ratio": 0.9, "warn": 0.965},
        "10.0 % slower than expected (the others); fails at 7.0 % slower": {
            **{"check": 2, "ratio": 0.9, "warn": 0.97, "fail": 0.93, "source": "the others"}
        },
        "9, 10.0 % slower than expected (10); fails at 20.0 % slower": {
            **{"measured": 9, "expected": 10, "ratio": 0.9, "warn": 0.95, "fail": 0.8}
        },
        "11, 10.0 % slower than expected (10); fails at 25.0 % slower": {
            **{"check": 8, "measured": 11, "expected": 10, "ratio": 1.1, "warn": 1.05, "fail": 1.25}
        },
        "1.1 of the speed before, 10.0 % faster than expected (1); fails at 7.0 % slower": {
            **{"check": 8, "measured": 1.1, "expected": 1.0, "ratio": 1.1, "warn": 0.97, "fail": 0.93},
            "unit": "of the speed before",
        },
        "0.37, expected 0; fails above 0.05": {"check": 0, "measured": 0.37, "expected": 0.0, "fail": 0.05},
    }
    assert [comparison(found(CheckVerdict.FAIL, **limits)) for limits in table.values()] == list(table)


def test_an_invalid_environment_is_explained_and_the_times_it_made_invalid_are_counted():
    busy = found(CheckVerdict.INVALID, 0, "other processes: busyloop")
    lines = short_form(busy, found(CheckVerdict.INVALID, 8, "links"), found(CheckVerdict.PASS, 7))
    assert lines[0] == "not decidable: other processes: busyloop"
    assert not any("links" in line for line in lines)
    assert any("1 PASS, 2 INVALID" in line for line in lines)


REFUSED = [
    ("--profile fast", "unknown profile; got 'fast'"),
    ("--only 99", "unknown check; got '99'"),
    ("--only 7 --skip 7", "no check is left"),
    ("--miniatures bloom", "unknown miniature; got 'bloom'"),
    ("--others 2", "share of the processors; got 2.0"),
    ("--devices 0", "devices; got 0"),
    ("--minutes 0", "minutes; got 0.0"),
    ("--resume", "nothing to resume"),
    ("--ranks 999", "ranks; got 999"),
    ("--fleet /nonexistent", "the fleet is no directory"),
    ("--junit /nonexistent/a.xml", "cannot write: No such file or directory"),
    ("--junit /proc", "cannot write: Is a directory"),
    ("--junit /proc/a.xml", "cannot write"),
]


def test_a_bad_argument_is_one_line_and_exit_code_2(not_refused):
    assert not_refused("accept", REFUSED, "--results RESULTS") == []
    assert not_refused("accept", [("--results /proc/nowhere", "cannot write to the results directory")]) == []


@pytest.mark.usefixtures("launches")
def test_a_disk_that_fills_up_is_said_and_leaves_the_node_open(tmp_path, accept, kept, monkeypatch):
    write = store.write_new

    def full(path, data):
        if path.name.endswith(".phase.json"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(store, "write_new", full)
    code, report = accept("--only", "0,7")
    assert code == exit_codes.INCONCLUSIVE
    assert "cannot write a phase: No space left on device" in report["findings"][0]["evidence"]
    assert sorted(path.suffixes[0] for path in (tmp_path / "acceptance").iterdir()) == [".begin", ".end"]
    assert kept("*.end.json", BatteryEnd).decision is Decision.UNDECIDED


@pytest.mark.usefixtures("launches")
def test_a_verdict_is_written_where_a_file_system_has_no_links(tmp_path, accept, monkeypatch):
    def no_links(*_arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert accept("--only", "0,7")[0] == exit_codes.PASS
    assert len(list((tmp_path / "acceptance").glob("*.end.json"))) == 1
    assert list((tmp_path / "acceptance").glob(".*")) == []


@pytest.mark.usefixtures("launches")
def test_a_report_is_printed_where_its_junit_file_cannot_be_written_any_more(tmp_path, accept, monkeypatch):
    file = tmp_path / "a.xml"
    monkeypatch.setattr(accept_module, "junit", lambda _report: file.mkdir() or "")
    code, report = accept("--only", "0,7", "--junit", str(file))
    assert (code, report["decision"]) == (exit_codes.PASS, "accepted")


@pytest.fixture
def slow_launches(monkeypatch):
    """Launches that the guard ends where their numbers are in the set; the others end at once."""
    monkeypatch.setattr(context, "LEAST_BUDGET_SECONDS", 0.0)
    at_once = starts.STATED["cpu"]._replace(launch=1e-9, step=0.0, tokenising=0.0)
    monkeypatch.setitem(starts.STATED, "cpu", at_once)
    slow: set[int] = set()
    made: list[str] = []

    def launched(name, purpose, *, on_event, **_options):
        made.append(name)
        if len(made) in slow:
            on_event(0, None)
            raise AssertionError("the guard did not end it")
        return ended(name, purpose, others_share=0.9)

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    return slow, made


def leave(seconds, monkeypatch):
    """Let a battery believe that so many seconds are left."""
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: seconds))


@pytest.mark.parametrize(
    ("numbers", "left", "code", "verdict", "words"),
    [
        ({1, 2}, 900.0, exit_codes.INCONCLUSIVE, "FAIL", "confirmed by a re-run"),
        ({1}, 900.0, exit_codes.PASS, "WARN", "failed once, not in two more"),
        ({1, 3}, 900.0, exit_codes.INCONCLUSIVE, "FAIL", "confirmed by a re-run, not in another"),
        ({1}, -1.0, exit_codes.INCONCLUSIVE, "INCONCLUSIVE", "no time was left for a re-run"),
    ],
)
def test_a_phase_over_its_budget_is_slow_where_it_is_so_twice(
    accept, monkeypatch, slow_launches, numbers, left, code, verdict, words
):
    slow, made = slow_launches
    slow |= numbers
    leave(left, monkeypatch)
    exit_code, report = accept("--only", "7,17", "--miniatures", "glm-mini")
    assert made == ["glm-mini"] * (1 if left < 0 else 2 if 2 in numbers else 3)
    (found,) = [f for f in report["findings"] if f["check"] == 17 and f["subject"] != "phases"]
    assert (exit_code, found["verdict"]) == (code, verdict)
    assert found["subject"] == "glm-mini exact"
    assert "still making progress" in found["evidence"]
    assert words in found["evidence"]
    measured = "PASS" if 3 in numbers or (2 not in numbers and left > 0) else "INCONCLUSIVE"
    assert only(report, check=7)["verdict"] == measured


def test_what_a_slow_phase_leaves_unmeasured_is_no_acceptance_where_the_guard_is_not_asked_for(
    accept, monkeypatch, slow_launches
):
    slow_launches[0].add(1)
    leave(-1.0, monkeypatch)
    code, report = accept("--only", "7,12", "--miniatures", "glm-mini")
    assert (code, report["decision"]) == (exit_codes.INCONCLUSIVE, "not decidable")
    figures = only(report, check=7)
    assert (figures["verdict"], figures["part"]) == ("INCONCLUSIVE", "time limit")
    assert figures["evidence"].startswith("glm-mini exact slow after ")


def test_a_slow_phase_whose_re_run_hangs_is_a_hang_and_not_confirmed(accept, monkeypatch, slow_launches):
    slow, made = slow_launches
    slow |= {1}
    first = measurements.miniature_launch

    def hangs_again(name, purpose, **options):
        return msgspec.structs.replace(first(name, purpose, **options), **HANG)

    monkeypatch.setattr(measurements, "miniature_launch", hangs_again)
    code, report = accept("--only", "7,17", "--miniatures", "glm-mini")
    assert made == ["glm-mini"] * 2
    assert (code, report["decision"]) == (exit_codes.EXECUTION_FAILED, "execution failed")
    found = [(f["check"], f["verdict"]) for f in report["findings"] if f["subject"].startswith("glm-mini")]
    assert found == [(7, "INCONCLUSIVE"), (7, "HANG"), (17, "INCONCLUSIVE"), (17, "HANG")]


def test_what_ended_well_in_a_slow_phase_is_kept_and_says_who_else_computed(accept, kept, slow_launches):
    slow, made = slow_launches
    slow |= {3, 6}
    code, report = accept("--only", "0,11,17", "--miniatures", "glm-mini")
    assert made == ["glm-mini"] * 3  # in an invalid environment a slow phase is not judged, nor run again
    assert (code, only(report, subject="other processes")["verdict"]) == (exit_codes.INCONCLUSIVE, "INVALID")
    evidence = kept("*.glm-mini_times.phase.json").evidence
    assert [one.outcome if isinstance(one, PhaseTiming) else one.status for one in evidence] == ["ok", "ok", "slow"]


@pytest.mark.parametrize(("again", "code", "verdict"), [(1.3, exit_codes.FAIL, "FAIL"), (1.0, exit_codes.PASS, "WARN")])
def test_a_re_run_that_does_not_fit_has_fewer_launches(accept, monkeypatch, again, code, verdict):
    made = []

    def launched(name, purpose, **_options):
        made.append(purpose)
        more = len(made) / 1000
        times = {"step_seconds": 1.0 + more, "compute_seconds": [1.0, (1.3 if len(made) <= 5 else again) + more]}
        return ended(name, purpose, **times)

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    leave(3.5, monkeypatch)
    exit_code, report = accept("--only", "11", "--miniatures", "gpt2-mini")
    assert made == ["times"] * (5 + 3 + (0 if verdict == "FAIL" else 3))
    assert (exit_code, report["findings"][0]["verdict"]) == (code, verdict)


def test_replays_reach_the_vote_as_the_ranks_reported_them(accept, monkeypatch):
    def probed(*_arguments, replays, exchanges, soak, **_options):
        assert (replays, exchanges, soak) == (True, False, False)
        hashes = [
            ReplayHashes(
                rank=rank, replay=n, step=0, loss="a", gradients="b", parameters="x" if (rank, n) == (1, 2) else "c"
            )
            for rank in (0, 1)
            for n in range(3)
        ]
        return ProbeResult(status=Status.OK, message="", ranks_at_fault=[], seconds=1.0, replays=hashes)

    monkeypatch.setattr(measurements, "probe_result", probed)
    code, report = accept("--only", "14")
    assert code == exit_codes.FAIL
    assert report["findings"][0]["part"] == "rank 1: arithmetic or memory"
