"""Parts run in bounded time, are kept at once, and are not done again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from suite.first_hour import run
from suite.first_hour.part import HourPart, PartKind
from suite.first_hour.result import MOST_ATTEMPTS, PartResult, PartStatus, path_of, stored
from suite.first_hour.run import Hour, remaining, result_of, run_hour
from suite.launch.interruption import ENDING, end_as_interrupted

PROGRAMS = {
    "works": 'print(\'{"verdict": "pass", "rungs": [], "failures": []}\')',
    "differs": 'print(\'{"verdict": "fail", "rungs": [], "failures": ["compile: no gain"]}\'); raise SystemExit(1)',
    "crashes": "raise RuntimeError('no such GPU')",
    "refuses": "import sys; sys.exit(4)",
    "lacks": "import sys; print('error: --optimizations: not possible here', file=sys.stderr); sys.exit(2)",
    "killed": "import os; print('so far', flush=True); os.kill(os.getpid(), 9)",
    "hangs": """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
pathlib.Path(__file__).with_suffix(".pid").write_text(str(child.pid))
time.sleep(300)
""",
}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "programs"
    directory.mkdir()
    for name, text in PROGRAMS.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setattr(run, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(run, "LEAST_SECONDS", 1.0)
    return directory


def part(program: str, **options: object) -> HourPart:
    usual = {"name": program, "kind": PartKind.LADDER, "shows": "", "arguments": (program,), "seconds": 30.0}
    return HourPart(**(usual | options))  # type: ignore[arg-type]


def hour(tmp_path: Path, *parts: HourPart, **options: object) -> Hour:
    return Hour(**({"parts": parts, "results": tmp_path / "results", "machine": {"gpus": "one"}} | options))  # type: ignore[arg-type]


def ran(what: Hour) -> list[PartResult]:
    ended: list[PartResult] = []
    (what.results / "first_hour").mkdir(parents=True, exist_ok=True)
    run_hour(what, lambda _part, _bound: None, lambda _part, result: ended.append(result))
    return ended


def test_what_is_done_on_this_machine_is_not_done_again(tmp_path: Path) -> None:
    one = hour(tmp_path, part("works"), part("differs"))
    assert [(result.part, result.status) for result in ran(one)] == [("works", "done"), ("differs", "done")]
    differing = stored(one.results, one.parts[1])
    assert differing is not None
    assert (differing.exit_code, differing.differences) == (1, ["compile: no gain"])
    assert differing.next_steps[0].endswith(f"first-hour --results {one.results} --again differs")
    assert ran(one) == []
    assert [r.part for r in ran(msgspec.structs.replace(one, again=frozenset(["works"])))] == ["works"]
    assert len(ran(msgspec.structs.replace(one, machine={"gpus": "another"}))) == 2
    assert [r.part for r in ran(hour(tmp_path, part("works", arguments=("works", "--more"))))] == ["works"]


def test_a_part_that_fails_stops_no_other_and_is_tried_again_after_all_others(tmp_path: Path) -> None:
    one = hour(tmp_path, part("crashes"), part("refuses"), part("works"))
    assert [result.status for result in ran(one)] == ["failed", "failed", "done"]
    assert result_of(one, one.parts[0]).says == "RuntimeError: no such GPU"  # type: ignore[union-attr]
    more = msgspec.structs.replace(one, parts=(*one.parts, part("differs")))
    assert [each.name for each in remaining(more)] == ["differs", "crashes", "refuses"]
    for _ in range(MOST_ATTEMPTS - 1):
        assert [result.part for result in ran(one)] == ["crashes", "refuses"]
    assert ran(one) == []


def test_a_refusal_that_is_foreseen_is_no_failure_and_says_why_in_a_line(tmp_path: Path) -> None:
    one = hour(tmp_path, part("lacks", may_be_refused=True))
    (result,) = ran(one)
    assert (result.status, result.says) == ("not run", "error: --optimizations: not possible here")
    assert result.has_ended
    assert result.differences == []
    assert [each.attempts for each in ran(one)] == [0]  # it is asked again: the package may be there by then
    assert [each.status for each in ran(hour(tmp_path, part("lacks")))] == ["failed"]


def test_a_part_that_is_killed_says_by_which_signal(tmp_path: Path) -> None:
    (result,) = ran(hour(tmp_path, part("killed")))
    assert (result.status, result.exit_code, result.says) == ("failed", -9, "killed by SIGKILL: so far")


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, programs: Path) -> None:
    began = time.monotonic()
    (result, after) = ran(hour(tmp_path, part("hangs", seconds=4.0), part("works")))
    assert (result.status, result.exit_code, after.status) == ("too long", None, "done")
    assert time.monotonic() - began < 20
    child = int((programs / "hangs.pid").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_no_part_begins_without_time_and_one_that_time_cuts_off_is_done_later(tmp_path: Path) -> None:
    one = hour(tmp_path, part("hangs", seconds=12.0), part("works", seconds=9000.0))
    soon = msgspec.structs.replace(one, deadline=time.monotonic() + 5)
    (result,) = ran(soon)
    assert (result.part, result.status) == ("hangs", "cut off")
    assert result.seconds < 20
    assert [each.name for each in remaining(one)] == ["works", "hangs"]


def test_a_killed_hour_goes_on_with_the_part_that_it_was_killed_in(tmp_path: Path) -> None:
    works = part("works")
    one = hour(tmp_path, works)
    ran(one)
    path = path_of(one.results, works)
    done = msgspec.json.decode(path.read_bytes(), type=PartResult)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(done, status=PartStatus.RUNNING)))
    assert [result.attempts for result in ran(one)] == [2]
    path.write_bytes(b'{"part": "wor')
    assert [result.attempts for result in ran(one)] == [1]


def test_ctrl_c_ends_the_part_keeps_it_as_interrupted_and_begins_no_other(tmp_path: Path, programs: Path) -> None:
    hangs = part("hangs")
    one = hour(tmp_path, hangs, part("works"))
    before = {kind: signal.getsignal(kind) for kind in ENDING}
    end_as_interrupted()
    try:
        threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            ran(one)
    finally:
        end_as_interrupted()  # forgets the signal
        for kind, handler in before.items():
            signal.signal(kind, handler)
    result = result_of(one, hangs)
    assert result is not None
    assert result.status is PartStatus.INTERRUPTED
    assert result_of(one, one.parts[1]) is None
    assert [each.name for each in remaining(one)] == ["works", "hangs"]


def test_a_part_without_its_packages_says_so_and_is_no_attempt(tmp_path: Path) -> None:
    lacks = part("works", modules=("pytest", "no_such_module"))
    (result,) = ran(hour(tmp_path, lacks))
    assert (result.status, result.attempts) == ("not run", 0)
    assert result.says.startswith("for want of no_such_module (this command): ")
    assert [each.status for each in ran(hour(tmp_path, part("works")))] == ["done"]
