"""Launches from a process that is warm end as torchrun's own do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.machine.processes import LAUNCH_VARIABLE, environment_of, marked_processes
from suite.paths import ROOT
from tests.support.warm_ranks import OWN, TORCHRUN, warm

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: forks are Linux's here")]


def begun(log: Path, identity: str, *module: str, ranks: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {LAUNCH_VARIABLE: identity, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", TORCHRUN[0], "--standalone", f"--nproc-per-node={ranks}", "--monitor-interval=0.1"]
    command = warm([*command, f"--log-dir={log.parent}/logs", "-m", *module], environment)
    assert Path(command[3]).name == "warm_ranks.py"
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def test_ranks_are_marked_have_their_environment_and_end_with_their_launch(tmp_path: Path) -> None:
    process = begun(tmp_path / "log", "serves", "http.server", "--bind", "127.0.0.1", "0", ranks=2)
    deadline = time.monotonic() + 60
    while (tmp_path / "log").read_text().count("Serving HTTP") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    marked = set(marked_processes("serves"))
    assert len(marked) == 4  # the client, torchrun, two ranks
    here = {name for name in os.environ if name not in OWN}
    for pid in marked - {process.pid}:
        assert here <= {entry.partition(b"=")[0].decode() for entry in environment_of(pid)}
    process.kill()  # the client alone
    while set(marked_processes("serves")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.wait()
