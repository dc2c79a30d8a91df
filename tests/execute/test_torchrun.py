"""Where a launch listens: on the job's address alone, torchrun's store and the ranks' connections too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from suite.execute.torchrun import listening_socket
from suite.launch.multi_host import torchrun
from suite.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: only Linux has all of 127.0.0.0/8")
ADDRESS, OTHER = "127.0.0.2", "127.0.0.1"
RANK = """
import json, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
sys.stdout.write(json.dumps(dist.get_world_size()) + "\\n")  # at once: both ranks write to the same pipe
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_socket_listens_on_one_address_alone() -> None:
    listening = listening_socket(ADDRESS, 0)
    assert listening is not None
    with listening:
        port = listening.getsockname()[1]
        socket.create_connection((ADDRESS, port), timeout=10).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((OTHER, port), timeout=10)
        with pytest.raises(OSError, match="in use"):
            listening_socket(ADDRESS, port)


@pytest.mark.parametrize("elsewhere", ["192.0.2.1", "localhost"])  # of nobody, by RFC 5737; and of everybody
def test_an_address_that_others_may_know_by_another_one_is_not_bound(elsewhere: str) -> None:
    assert listening_socket(elsewhere, 0) is None


@pytest.mark.ranks
def test_nothing_of_a_launch_listens_beyond_the_jobs_address(tmp_path: Path) -> None:
    (tmp_path / "rank_of_a_launch.py").write_text(RANK)
    command = torchrun(["rank_of_a_launch"], number=0, hosts=1, master=ADDRESS, directory=tmp_path, ranks=2, port=0)
    variables = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    variables["TMPDIR"] = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline()) for _ in range(2)] == [2, 2]
        everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = {
            each.pid: {one.laddr.ip for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN}
            for each in everything
        }
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert [path.name for path in (tmp_path / "temporary").iterdir() if "inductor" not in path.name] == []
    assert listening.pop(process.pid) == {ADDRESS}  # the store
    assert len(listening) == 2
    assert set().union(*listening.values()) <= {OTHER}  # the ranks' own: of the interface
