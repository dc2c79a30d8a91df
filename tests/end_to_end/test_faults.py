"""A launch that goes wrong ends within a bound, says what happened and to whom, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import string
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from suite.launch.interruption import ENDING
from suite.launch.rank_events import HANG_LEAST_SECONDS
from suite.machine.processes import LAUNCH_VARIABLE
from suite.machine.scratch import scratch_directory
from suite.paths import ROOT
from tests.support.record_halves import stored_records
from tests.support.run_file import run_file

START_SECONDS = 180.0  # imports of torch on a busy machine
END_SECONDS = 45.0
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(sys.platform != "linux", reason="finds ranks in /proc, which Linux has"),
]

ENDLESS = 5_000
USUAL = (signal.SIGINT, signal.SIGTERM)
EARLIER = {"20200101T000000Z__0__0.begin.json": b"earlier", "20200101T000000Z__0__0.end.json": b"its end"}


class Launch:
    """One `reproduce` as a user starts it, with everything it writes below one directory."""

    def __init__(self, directory, *, results=None, steps=ENDLESS, filled=False, options=(), **changes):
        self.results = results or directory / "results"
        self.records = self.results / "records" / "tiny"
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self.records.mkdir(parents=True)
        for name, data in EARLIER.items():
            (self.records / name).write_bytes(data)
        if filled:
            fill(self.results / "filler")
        letters = random.Random(1)
        words = ["".join(letters.choices(string.ascii_lowercase, k=6)) for _ in range(2000)]
        corpus = directory / "corpus.txt"
        corpus.write_text(" ".join(words), encoding="utf-8")
        command = [sys.executable, "-m", "suite", "reproduce", str(run_file(directory / "tiny.toml", **changes))]
        command += ["--device", "cpu", "--steps", str(steps), "--corpus", str(corpus), "--results", str(self.results)]
        self.err = directory / "stderr"
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env=os.environ | {"XDG_CACHE_HOME": str(directory / "cache"), "TMPDIR": str(self.scratch)},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def events(self, rank):
        """Events that a rank has reported so far."""
        data = b"".join(path.read_bytes() for path in self.scratch.glob(f"suite-*/rank{rank}.jsonl"))
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def rank_pids(self):
        """Process numbers of both ranks, once both train beyond the warm-up."""

        def training():
            assert self.process.poll() is None, self.err.read_text()
            return all(any(e["type"] == "step" and e["step"] >= 5 for e in self.events(rank)) for rank in (0, 1))

        wait(training, START_SECONDS, self)
        return [self.events(rank)[0]["pid"] for rank in (0, 1)]

    def exit_code(self, seconds):
        """The exit code, which must come within `seconds`."""
        self.out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def record(self):
        """The record that this launch made, beside the earlier one."""
        (record,), _ = stored_records(self.results, "tiny")
        assert record.begin.launcher.pid == self.process.pid
        return record

    def assert_nothing_left(self, *, reserves=0, scratch=0):
        """No process, no temporary file, and what was recorded earlier as it was."""
        assert self.processes() == []
        assert len([path for path in self.records.iterdir() if path.name.startswith(".")]) == reserves
        assert {name: (self.records / name).read_bytes() for name in EARLIER} == EARLIER
        assert len(list(self.scratch.glob("suite-*"))) == scratch

    def processes(self):
        """Living processes that this launch started: they carry the mark and its scratch directory."""
        mark, place = f"{LAUNCH_VARIABLE}=".encode(), f"TMPDIR={self.scratch}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if place in variables and any(variable.startswith(mark) for variable in variables):
                found.append(int(path.parent.name))
        return found


def wait(condition, seconds, launch):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {launch.err.read_text()}"
        time.sleep(0.05)


@pytest.fixture
def launches(tmp_path):
    """A function that starts a launch; whatever is left of it is killed at the end."""
    started = []

    def start(**options):
        launch = Launch(tmp_path, **options)
        started.append(launch)
        return launch

    yield start
    for launch in started:
        for pid in [*launch.processes(), launch.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launch.process.communicate()


@pytest.mark.always
def test_a_killed_rank_ends_the_launch_as_crashed_and_is_named_with_its_signal(launches):
    launch = launches()
    os.kill(launch.rank_pids()[1], signal.SIGKILL)
    assert launch.exit_code(END_SECONDS) == 4
    record = launch.record()
    assert (record.status, record.end.ranks_at_fault) == ("crashed", [1])
    assert record.end.message == "rank 1 killed by SIGKILL"
    assert "tiny: crashed: rank 1 killed by SIGKILL" in launch.out
    assert record.path in launch.out
    assert [len(rank.steps) >= 5 for rank in record.end.ranks] == [True, True]
    launch.assert_nothing_left()


@pytest.mark.rare
@pytest.mark.parametrize(("kind", "status"), [(signal.SIGKILL, "crashed"), (signal.SIGSTOP, "hang")])
@pytest.mark.parametrize(
    "options",
    [
        ("--layout", "dp2,pp2,pipedream"),
        ("--layout", "replicas2-1,pipedream-vertical-sync"),
        ("--layout", "dp2,zero0", "--synchronisation", "ssp:3"),
        ("--layout", "dp2,zero0", "--synchronisation", "asp"),
    ],
    ids=" ".join,
)
def test_a_stage_without_flush_or_a_worker_that_is_killed_or_stopped_ends_the_launch(options, kind, status, launches):
    """Also of workers that wait for nobody: each has a shard of the parameters."""
    launch = launches(options=options)
    os.kill(launch.rank_pids()[1], kind)
    assert launch.exit_code(END_SECONDS if kind is signal.SIGKILL else 600) == 4
    record = launch.record()
    assert (record.status, record.end.ranks_at_fault) == (status, [1])
    launch.assert_nothing_left()


@pytest.mark.always
def test_a_stopped_rank_ends_the_launch_as_a_hang_and_is_named_with_the_stacks_of_the_other(launches):
    launch = launches()
    os.kill(launch.rank_pids()[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert launch.exit_code(600) == 4
    seconds = time.monotonic() - stopped
    record = launch.record()
    longest = max(step.seconds for rank in record.end.ranks for step in rank.steps)
    assert HANG_LEAST_SECONDS - 1 <= seconds <= max(HANG_LEAST_SECONDS, 10 * longest) + END_SECONDS
    assert (record.status, record.end.ranks_at_fault) == ("hang", [1])
    assert record.end.message.startswith("rank 1 stopped (process state T); rank 0: step ")
    stacks = record.end.log_tail[record.end.log_tail.index("rank 0:\n") :]
    assert "most recent call first" in stacks
    assert "suite/execute/training/loop.py" in stacks
    assert stacks.endswith("rank 1:\nno answer")
    collectives = record.end.log_tail[record.end.log_tail.index("collectives:\n") :].splitlines()
    assert re.match(r"rank 0: for [\d.]+ s in number \d+ of \w+: \w+", collectives[1])
    assert collectives[2] == "rank 1: no answer"
    launch.assert_nothing_left()


# tests/launch/test_interruption.py has every signal end a command; a launch is ended by the terminal's and by `kill`'s
@pytest.mark.parametrize(
    "kind", [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.rare) for kind in ENDING]
)
def test_an_interrupted_launch_was_running_ends_at_once_and_says_so(kind, launches):
    """An impatient user, who presses Ctrl-C twenty times, does not spoil the end."""
    launch = launches()
    launch.rank_pids()
    assert launch.record().status == "running"
    for _ in range(20 if kind is signal.SIGINT else 1):
        launch.process.send_signal(kind)
        time.sleep(0.01)
    assert launch.exit_code(END_SECONDS) == 128 + kind
    record = launch.record()
    assert (record.status, record.end.message) == ("interrupted", "interrupted by the user")
    assert record.end.ranks_at_fault == []
    launch.assert_nothing_left()


def test_an_interrupt_before_the_first_step_is_one_too(launches):
    launch = launches()
    wait(lambda: list(launch.scratch.glob("suite-*/torchrun.log")), START_SECONDS, launch)
    launch.process.send_signal(signal.SIGINT)
    assert launch.exit_code(END_SECONDS) == 130
    assert launch.record().status == "interrupted"
    launch.assert_nothing_left()


@pytest.mark.always
def test_a_loss_that_is_not_finite_ends_the_launch_as_nan_and_names_the_ranks(launches):
    launch = launches(learning_rate=1e30)
    assert launch.exit_code(START_SECONDS + END_SECONDS) == 4
    record = launch.record()
    assert (record.status, record.end.ranks_at_fault) == ("nan", [0, 1])
    assert record.end.message.startswith("ranks 0, 1: NotFiniteError: loss is nan at step ")
    assert "tiny: nan: ranks 0, 1: NotFiniteError" in launch.out
    launch.assert_nothing_left()


@pytest.fixture
def disk(tmp_path):
    """A file system of 8 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(directory)], capture_output=True)
    if done.returncode:
        pytest.skip(f"needs permission to mount a small tmpfs: {done.stderr.decode().strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(path):
    """Take all the room that is left on the file system of `path`."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@pytest.mark.always
def test_a_disk_that_is_full_from_the_start_is_one_line_and_no_record(launches, disk):
    launch = launches(results=disk / "results", filled=True)
    assert launch.exit_code(START_SECONDS) == 4
    lines = launch.err.read_text().splitlines()
    assert lines[-1] == f"cannot write a record: No space left on device: {launch.records}"
    assert len(lines) <= 2
    assert "Traceback" not in "".join(lines)
    assert {path.name for path in launch.records.iterdir()} == set(EARLIER)
    launch.assert_nothing_left()


def test_a_disk_that_fills_up_during_the_run_still_takes_the_end(launches, disk):
    launch = launches(results=disk / "results")
    pids = launch.rank_pids()
    fill(disk / "filler")
    os.kill(pids[0], signal.SIGKILL)
    assert launch.exit_code(END_SECONDS) == 4
    record = launch.record()
    assert (record.status, record.end.ranks_at_fault) == ("crashed", [0])
    launch.assert_nothing_left()


def test_a_killed_launcher_leaves_no_orphan_and_a_record_that_reads_as_crashed(launches):
    """The file that kept room for the end and the scratch directory stay, the latter until the next command."""
    launch = launches()
    launch.rank_pids()
    launch.process.kill()
    assert launch.exit_code(END_SECONDS) == -signal.SIGKILL
    wait(lambda: launch.processes() == [], 5, launch)
    record = launch.record()
    assert (record.status, record.end) == ("crashed", None)
    launch.assert_nothing_left(reserves=1, scratch=1)
    with scratch_directory(launch.scratch):
        launch.assert_nothing_left(reserves=1, scratch=1)  # the new one
    launch.assert_nothing_left(reserves=1)
