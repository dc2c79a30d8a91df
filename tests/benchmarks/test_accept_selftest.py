"""The self-test counts clean batteries, and does not pass where something did not run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.accept_selftest import __main__ as selftest
from benchmarks.accept_selftest import child
from benchmarks.accept_selftest.__main__ import Answer
from suite.commands import exit_codes
from suite.paths import ROOT


@pytest.fixture
def run(monkeypatch, capsys):
    """A function: exit code, lines and the last line of a self-test whose batteries answer with these codes in turn."""

    def answered(*options, codes=(0,), problems=(), why_not=None):
        asked: list[list[str]] = []
        decisions = {0: "accepted", 1: "rejected", 3: "not decidable"}

        def accept(arguments, _environment, _prefix):
            code = codes[min(len(asked), len(codes) - 1)]
            asked.append(arguments)
            return Answer(code, json.dumps({"decision": decisions[code], "summary": f"line {code}"}), "", 1.0)

        monkeypatch.setattr(selftest, "_accept", accept)
        monkeypatch.setattr(selftest, "_baseline", lambda *_arguments, **_options: why_not)
        monkeypatch.setattr(selftest, "_injected", lambda *_arguments: (list(problems), Answer(0, "", "", 1.0)))
        monkeypatch.setattr(sys, "argv", ["selftest", *options])
        code = selftest.main()
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()[-1], asked

    return answered


def test_clean_batteries_share_one_results_directory_and_must_all_be_accepted(run):
    code, lines, last, asked = run("--clean", "3", "--only", "none")
    assert code == exit_codes.PASS
    assert [line.split()[:5] for line in lines] == [["clean", str(n), "of", "3", "accepted"] for n in (1, 2, 3)]
    assert "seconds" in lines[0]
    assert len({own[own.index("--results") + 1] for own in asked}) == 1
    assert all("--others" not in own and "--only" not in own for own in asked)
    assert last == "3 of 3 clean batteries accepted; 1 s each, 1 s at most, 0 of 0 injections caught, 0 not run"
    for bad in (exit_codes.FAIL, exit_codes.INCONCLUSIVE):
        code, lines, last, _ = run("--clean", "2", "--only", "nan", codes=(0, bad))
        assert code == exit_codes.FAIL
        assert f"why line {bad}" in lines[1]
        assert last.startswith(
            f"1 of 2 clean batteries accepted, 1 {'rejected' if bad == 1 else 'not decidable'}; 1 s each"
        )


def test_as_many_clean_batteries_may_be_left_open_as_are_allowed_and_none_may_be_rejected(run, tmp_path):
    arguments = ("--clean", "2", "--only", "none", "--open", "1", "--keep", str(tmp_path / "kept"))
    code, _, _, asked = run(*arguments, codes=(0, exit_codes.INCONCLUSIVE))
    assert code == exit_codes.PASS
    assert [own[own.index("--results") + 1] for own in asked] == [str(tmp_path / "kept")] * 2
    assert run(*arguments, codes=(exit_codes.INCONCLUSIVE,))[0] == exit_codes.FAIL
    assert run(*arguments, codes=(0, exit_codes.FAIL))[0] == exit_codes.FAIL
    quick = [selftest.CleanBattery("accepted", seconds) for seconds in (200.0, 309.0)]
    assert selftest._clean_is_good(quick, allowed_open=0)
    assert not selftest._clean_is_good([*quick, selftest.CleanBattery("accepted", 311.0)], allowed_open=0)


def test_what_did_not_run_is_no_pass_unless_it_is_allowed(run):
    needy = "no accepted battery"
    code, lines, last, _ = run("--only", "nan,crash", why_not=needy)
    assert code == exit_codes.INCONCLUSIVE
    assert last == f"0 of 0 injections caught, 2 not run (2: {needy})"
    assert [line.split()[1:3] for line in lines] == [["NOT", "RUN"]] * 2
    assert run("--only", "nan", "--allow-not-run", why_not=needy)[0] == exit_codes.INCONCLUSIVE  # nothing ran at all
    assert run("--clean", "1", "--only", "nan", why_not=needy)[0] == exit_codes.INCONCLUSIVE
    assert run("--clean", "1", "--only", "nan", "--allow-not-run", why_not=needy)[0] == exit_codes.PASS
    assert run("--only", "nan")[0] == exit_codes.PASS
    assert run("--only", "nan", problems=["exit code 0, not 4"])[0] == exit_codes.FAIL


def test_a_bad_argument_is_refused(run):
    for arguments in (["--only", "bit-rot"], ["--clean", "-1"]):
        with pytest.raises(SystemExit) as ended:
            run(*arguments)
        assert ended.value.code == exit_codes.BAD_INPUT


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("begun", flush=True)
time.sleep(600)
"""


def test_a_battery_that_does_not_end_when_it_is_asked_to_is_killed_with_its_children(monkeypatch):
    monkeypatch.setattr(child, "ASKED_SECONDS", 0.2)
    command = [sys.executable, "-S", "-c", STUBBORN]
    with child.child(command, os.environ, out=subprocess.PIPE, err=subprocess.DEVNULL) as started:
        assert started.stdout.readline() == b"begun\n"
        children = psutil.Process(started.pid).children()
        assert len(children) == 1
    assert started.returncode == -signal.SIGKILL
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in children)


def test_the_battery_of_a_self_test_that_is_asked_to_end_ends_too(tmp_path):
    """The self-test itself waits for that."""
    words = ["--clean", "1", "--only", "none", "--keep", str(tmp_path / "kept")]
    own = subprocess.Popen([sys.executable, "-m", "benchmarks.accept_selftest", *words], cwd=ROOT)
    try:
        while not list(tmp_path.glob("kept/acceptance/*.begin.json")):
            assert own.poll() is None
            time.sleep(0.05)
        below = psutil.Process(own.pid).children(recursive=True)
        assert any("accept" in process.cmdline() for process in below)
        own.send_signal(signal.SIGTERM)
        assert own.wait(timeout=child.ASKED_SECONDS + child.GONE_SECONDS + 60) == exit_codes.INTERRUPTED
        assert not [process for process in below if process.is_running()]
    finally:
        own.kill()
        own.wait()
