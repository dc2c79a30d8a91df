"""Devices, memory, order, times and faults of the stand-ins, as PyTorch sees them. Each case is a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

UUID = "a0a1a2a3-a4a5-a6a7-a8a9-aaabacad{:02x}{:02x}"  # slice + 1, device
GIB = 2**30


# The code runs in a fork of a process that has imported torch, which takes 1.9 s of a processor (an Intel Xeon,
# 2026-11-26), and no more: the stand-ins read their variables when CUDA is first used. A fork ends without Python's
# finalisation: a thread of autograd that asks for Python's lock meanwhile is ended by Python 3.11, and with it, now and
# then, the process ("terminate called without an active exception").
SERVER = """
import ctypes, json, os, sys, time, torch, traceback
for line in sys.stdin:
    environment, code, *paths = json.loads(line)
    if not os.fork():
        os.environ.clear()
        os.environ.update(environment)
        for number, path in enumerate(paths, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        status = 0
        try:
            exec(code, {"json": json, "time": time, "torch": torch})
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL("libcuda.so.1").sim_log_flush()
        os._exit(status)
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=simulated_environment(1),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        SERVERS.append(process)
        yield
        SERVERS.remove(process)
        process.communicate(timeout=60)


ALONE = "import json, time, torch\n"
ENDING = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
SERVERS: list[subprocess.Popen[str]] = []


def ended(code: str, devices: int = 1, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A process that runs `code` after importing torch, with these simulated devices."""
    more = settings.pop("variables", {})
    environment = simulated_environment(devices, **settings) | more
    if "values" in settings:  # read when torch is imported
        command = [sys.executable, "-c", ALONE + textwrap.dedent(code) + ENDING]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    (server,) = SERVERS
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place, name) for name in ("out", "err")]
        server.stdin.write(json.dumps([environment, textwrap.dedent(code), *map(str, paths)]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, err = (path.read_text(encoding="utf-8") for path in paths)
    return subprocess.CompletedProcess([], status, out, err)


def printed(code: str, devices: int = 1, **settings: Any) -> Any:
    """The last line that it prints, decoded."""
    done = ended(code, devices, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("", []),
        ("1,9,2", [1]),  # what follows an unknown number is not visible
        (f"GPU-{UUID.format(0, 3)}", [3]),
        (f"GPU-{UUID.format(0, 3)},GPU-{UUID.format(0, 1)}", [3, 1]),
        (f"MIG-{UUID.format(2, 2)}", [2]),
    ],
)
def test_visible_devices_are_named_by_number_uuid_and_slice(visible: str | None, devices: list[int]) -> None:
    code = """
        count = torch.cuda.device_count()
        print(json.dumps([[p.pci_bus_id - 16, p.name, p.total_memory, str(p.uuid)]
                          for p in map(torch.cuda.get_device_properties, range(count))]))
    """
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    mig = {"mig": "2:7"} if visible and visible.startswith("MIG") else {}
    seen = printed(code, 4, variables=variables, **mig)
    assert [number for number, *_ in seen] == devices
    assert all(name.endswith(" (simulated)") for _, name, *_ in seen)
    if mig:
        assert seen[0][2] < 12 * GIB
        assert seen[0][3] == UUID.format(2, 2)


def test_memory_runs_out_at_the_capacity_and_comes_back() -> None:
    code = """
        held = [torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(3)]
        try:
            torch.empty(2**30, dtype=torch.uint8, device="cuda")
            refused = False
        except torch.OutOfMemoryError:
            refused = True
        held.clear()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        print(json.dumps([refused, free, total, torch.empty(3 * 2**30, dtype=torch.uint8, device="cuda").numel()]))
    """
    refused, free, total, again = printed(code, memory=4 * GIB)
    assert refused
    assert (total, again) == (4 * GIB, 3 * GIB)
    assert 3 * GIB < free < 4 * GIB  # less the context


def test_processes_that_share_a_device_count_together(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        inner = "import torch; print(torch.cuda.mem_get_info()[0])"
        print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True, check=True).stdout, end='')
    """
    alone = printed(code, memory=8 * GIB)
    shared = printed(code, memory=8 * GIB, state=tmp_path / "state")
    assert alone - shared > GIB


def test_a_copy_arrives_when_it_ends_and_the_host_goes_on(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("host_link 0.001\n")  # 1 MB: 1 s
    code = """
        source = torch.ones(2**18, device="cuda")
        source.copy_(torch.full((2**18,), 7.0))
        torch.cuda.synchronize()
        target = torch.zeros(2**18, pin_memory=True)
        begun = time.monotonic()
        target.copy_(source, non_blocking=True)
        returned, early = time.monotonic() - begun, target[0].item()
        torch.cuda.current_stream().synchronize()
        print(json.dumps([returned, early, time.monotonic() - begun, target[0].item()]))
    """
    returned, early, whole, late = printed(code, times=tmp_path / "times")
    assert (early, late) == (0.0, 7.0)  # whoever reads without waiting reads what was there before
    assert returned < 1 <= whole


def test_pageable_memory_makes_the_host_wait(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
        source = torch.ones(1000, device="cuda")
        torch.zeros(1000).copy_(source, non_blocking=True)
        torch.zeros(1000, pin_memory=True).copy_(source, non_blocking=True)
        print(0)
    """
    printed(code, log=log)
    copies = re.findall(r"copy device=0 bytes=4000 (.*)", log.read_text())
    assert copies == ["to_host pageable host waits", "to_host pinned"]


def test_events_tell_the_time_of_the_table_and_streams_wait_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("memory 100\nmatmul 1\ndevice 1 memory 0.5\n")
    code = """
        def seconds(number):
            torch.cuda.set_device(number)
            from_, to = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            other = torch.cuda.Stream()
            data = torch.empty(5 * 10**8, dtype=torch.uint8, device="cuda")
            for _ in range(100):            # 1 s of work, in which the host launches what is timed
                data.clone()
            from_.record()
            data.clone()                    # 1 GB at 100 GB/s
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                data.clone()
                to.record()
            to.synchronize()
            return from_.elapsed_time(to) / 1e3
        a = torch.empty(5000, 5000, device="cuda")
        torch.cuda.synchronize()
        begun = time.monotonic()
        for _ in range(10):
            a @ a                           # 250 Gflop at 1 Tflop/s
        launched = time.monotonic() - begun
        torch.cuda.synchronize()
        print(json.dumps([seconds(0), seconds(1), launched, time.monotonic() - begun]))
    """
    one, half, launched, whole = printed(code, 2, times=tmp_path / "times")
    assert one == pytest.approx(0.02, rel=0.02)
    assert half == pytest.approx(0.04, rel=0.02)
    assert launched < 2.5 <= whole  # the host does not wait for what it launches


def test_an_event_that_another_stream_waits_for_orders_their_work(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("host_link 0.001\n")
    code = """
        def read(waits):
            side = torch.cuda.Stream()
            source = torch.full((2**18,), 3.0).pin_memory()
            middle, target = torch.zeros(2**18, device="cuda"), torch.zeros(2**18).pin_memory()
            torch.cuda.synchronize()
            middle.copy_(source, non_blocking=True)  # 1 s
            if waits:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                first = torch.zeros(1).pin_memory()
                first.copy_(middle[:1], non_blocking=True)
            side.synchronize()
            return first.item()
        print(json.dumps([read(waits=False), read(waits=True)]))
    """
    assert printed(code, times=tmp_path / "times") == [0.0, 3.0]


def test_a_graph_replays_its_copies_and_launches(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
        source, target = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(source)
        source.copy_(torch.full((4,), 5.0))
        graph.replay()
        print(json.dumps(target.cpu().tolist()))
    """
    assert printed(code, log=log) == [5.0] * 4
    assert "graph device=0 operations=1" in log.read_text()


@pytest.mark.parametrize("launch", ["x.cpu()", "torch.cuda.synchronize()", "torch.cuda.Event().record(); x.tolist()"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("illegal_access", "an illegal memory access was encountered"),
        ("ecc", "uncorrectable ECC error encountered"),
        ("lost", "unknown error"),
    ],
)
def test_an_error_of_a_kernel_appears_at_the_next_synchronisation(fault: str, words: str, launch: str) -> None:
    code = f"""
        x = torch.empty(10, device="cuda")
        for _ in range(3):
            x.add_(1)
        print("launched", flush=True)
        {launch}
    """
    done = ended(code, faults=f"{fault}@device=0,launch=3")
    assert done.returncode != 0
    assert done.stdout == "launched\n"
    assert words in done.stderr


def test_impossible_launches_are_refused() -> None:
    code = """
        import ctypes
        driver = ctypes.CDLL("libcuda.so.1")
        grid = lambda *sizes: driver.cuLaunchKernel(b"name", *map(ctypes.c_uint, sizes), 0, None, None, None)
        sizes = [(1, 65535, 1, 1024, 1, 1), (1, 65536, 1, 32, 1, 1), (1, 1, 1, 1025, 1, 1), (0, 1, 1, 1, 1, 1)]
        print(json.dumps([grid(*size) for size in sizes]))
    """
    assert printed("torch.cuda.init()\n" + textwrap.dedent(code)) == [0, 9, 9, 9]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"model": "H900"}, "SIMULATED_CUDA_MODEL: unknown: H900"),
        ({"faults": "fire@device=0,launch=1"}, "SIMULATED_CUDA_FAULTS: not a fault: fire@device=0,launch=1"),
        ({"times": "/nowhere"}, "SIMULATED_CUDA_TIMES: cannot read /nowhere"),
    ],
)
def test_settings_that_mean_nothing_end_the_process(setting: dict[str, str], words: str) -> None:
    done = ended("torch.empty(1, device='cuda').add_(1)", **setting)
    assert done.returncode == 2
    assert words in done.stderr


def test_values_are_those_of_the_host_and_memory_is_that_of_a_gpu() -> None:
    code = """
        torch.manual_seed(3)
        weights, x = torch.randn(32, 32), torch.randn(16, 32)
        def loss(device):
            own = weights.to(device).clone().requires_grad_()
            hidden = torch.nn.functional.layer_norm(x.to(device) @ own, (32,)).view(4, 4, 32).transpose(1, 2)
            value = torch.cat([hidden.softmax(-1).log(), hidden[:, :1]], 1).cumsum(0).square().mean()
            value.backward()
            return value.item(), own.grad.cpu()
        (a, of_a), (b, of_b) = loss("cuda"), loss("cpu")
        print(json.dumps([a, b, (of_a - of_b).abs().max().item(), torch.cuda.max_memory_allocated()]))
    """
    a, b, difference, peak = printed(code, values=2**20)
    assert a == pytest.approx(b, rel=1e-6)
    assert difference < 1e-7
    assert peak > 2 * 32 * 2**20  # the two workspaces of cuBLAS
