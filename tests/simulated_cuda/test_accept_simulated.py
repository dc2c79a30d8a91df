"""`accept` on eight simulated H100: accepted where they are alike; where one part is slow, rejected with its name.

Micro-measurements have the sizes and rates of an H100 and compute nothing. The probe computes: with small matrices and
messages, on devices that are SLOWER times slower, so that the host's own time does not count; what it measured is
multiplied by that. All clocks are the simulation's: no figure here says anything about a GPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec
import pytest

from suite.__main__ import main
from suite.acceptance import measurements, phases, presets
from suite.calibration.density import Density
from suite.machine import devices
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

pytestmark = [pytest.mark.ranks, pytest.mark.long]

RANKS = 8
# rates of a good H100, as tests/simulated_cuda/src/times.c has them: Tflop/s, and GB/s in one direction
RATES = {"matmul": 780.0, "memory": 3000.0, "host_link": 55.0, "peer": 370.0, "nvls": 470.0}
# of kernels: microseconds, and bytes of a thread, which adds 8 elements of 4 bytes (two reads, a write), or fills 8
KERNELS = ["kernel *CUDAFunctor_add* 2 96", "kernel *FillFunctor* 1 32"]
SLOWER = 1e6  # a product of 320 x 320 matrices then takes 84 ms
VALUES = 1 << 21  # bytes: all tensors of the small probe
LEAST = Density(
    ratio=64.0,
    coarse=64.0,
    sparse=1e6,
    unseen=1,
    point_seconds=0.001,
    rounds=1,
    memory_bytes=2_000_000_000,
    dtypes=("bf16",),
    compiled=(),
    step=64,
)
SMALL = {
    "exchanges": 2,
    "exchange_bytes": 16_384,
    "exchange_seconds": 0.5,
    "soak_seconds": 0.5,
    "soak_bytes": 1 << 16,
    "product_seconds": 11.0,  # from 10 s on they are judged
    "product_size": 320,
    "load_seconds": 0.5,
    "load_size": 64,
    "load_bytes": 16_384,
    "pulse_seconds": 0.2,
}


@dataclass
class Node:
    """A node of eight simulated GPUs.

    Attributes:
        slow: lines of the table of times: what differs from the rates.
        values: whether the probe's devices compute.
    """

    slow: list[str] = field(default_factory=list)
    values: bool = True

    def table(self, path, slower=1.0):
        timed = ("matmul", "peer", "nvls")  # by the probe; memory and host link would only keep it waiting
        rates = [f"{name} {rate / (slower if name in timed else 1.0):.9g}" for name, rate in RATES.items()]
        if slower == 1.0:
            rates += KERNELS
        path.write_text("\n".join([*rates, *self.slow]) + "\n", encoding="utf-8")
        return str(path)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The node; `accept` on it is short. Devices take their times from a table, whatever processors ranks share."""
    one = Node()
    monkeypatch.setattr(phases, "usable_cores", lambda: RANKS)
    quick = msgspec.structs.replace(
        presets.EFFORTS["quick"], densities={"cuda": LEAST}, limit_seconds=1200.0, replay_steps=1
    )
    monkeypatch.setitem(presets.EFFORTS, "quick", quick)
    job_of, probe, small = (
        measurements._probe_job,
        measurements.probe_result,
        small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT),
    )

    def small_job(*arguments, **parts):
        job = job_of(*arguments, **parts)
        asked = {name: value for name, value in SMALL.items() if getattr(job, name) or name == "soak_bytes"}
        return msgspec.structs.replace(job, architecture=small.architecture, recipe=small.recipe, **asked)

    def computing(*arguments, **parts):
        with monkeypatch.context() as within:
            within.setenv("SIMULATED_CUDA_VALUES", str(VALUES if one.values else 0))
            within.setenv("SIMULATED_CUDA_TIMES", one.table(tmp_path / "slower.txt", SLOWER))
            return in_its_time(probe(*arguments, **parts))

    monkeypatch.setattr(measurements, "_probe_job", small_job)
    monkeypatch.setattr(measurements, "probe_result", computing)
    return one


def in_its_time(result):
    """A probe's measurements on devices that are `SLOWER` times slower, as the devices of the other phases would."""
    replace = msgspec.structs.replace
    exchanges = [replace(item, bytes_per_second=item.bytes_per_second * SLOWER) for item in result.exchanges]
    soaks = [
        replace(
            item,
            product_flop_per_second=(item.product_flop_per_second or 0.0) * SLOWER,
            burst_flop_per_second=(item.burst_flop_per_second or 0.0) * SLOWER,
            undelayed_flop_per_second=(item.undelayed_flop_per_second or 0.0) * SLOWER,
            fp8_flop_per_second=(item.fp8_flop_per_second or 0.0) * SLOWER,
        )
        for item in result.soaks
    ]
    return replace(result, exchanges=exchanges, soaks=soaks)


@pytest.fixture
def accept(tmp_path, monkeypatch, capsys, node):
    """Runs `accept` of these checks on the node; exit code and findings by check and subject."""

    def run(checks, *options):
        monkeypatch.setenv("SIMULATED_CUDA_TIMES", node.table(tmp_path / "times.txt"))
        usual = ["--profile", "quick", "--others", "1", "--results", str(tmp_path / "results"), "--only", checks]
        code = main(["accept", "--device", "cuda", "--devices", str(RANKS), *usual, *options, "--json"])
        said = capsys.readouterr()
        assert said.out, said.err  # where it ends without a report, it says why
        report = json.loads(said.out)
        return code, {(found["check"], found["subject"]): found for found in report["findings"]}

    return run


def bad(findings):
    """Check and part of each finding that failed."""
    return {(check, found["part"]) for (check, _), found in findings.items() if found["verdict"] in ("FAIL", "INVALID")}


def test_eight_good_devices_are_accepted(accept):
    code, findings = accept("0,1,2,3,4,5,6,12,13,14,15,17")
    assert bad(findings) == set()
    assert code == 0
    passed = {check for (check, _), found in findings.items() if found["verdict"] == "PASS"}
    assert passed >= {0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15}


@pytest.mark.parametrize(
    ("line", "checks", "part"),
    [
        ("device 3 matmul 0.6", "1,2", "matrix rate of rank 3"),
        ("device 5 memory 0.5", "3", "memory bandwidth (rank 5"),
        ("link 2 5 0.5", "5", "link 2-5"),
    ],
    ids=["slow-device", "half-memory", "half-link"],
)
def test_one_slow_part_is_rejected_by_its_name(node, accept, line, checks, part):
    node.slow = [line]
    code, findings = accept(checks)
    assert code == 1
    assert {check for check, _ in bad(findings)} == {int(check) for check in checks.split(",")}
    assert all(part in named for _, named in bad(findings))


def test_a_device_that_is_throttled_is_rejected(accept, monkeypatch):
    import pynvml  # the stand-in of benchmarks/accept_selftest

    hot = {"faults": {"4": {"throttle": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown}}}
    monkeypatch.setattr(pynvml, "_SCENE", pynvml._SCENE | hot)
    code, findings = accept("12,15")
    assert code == 1
    ((check, part),) = bad(findings)
    assert check == 12
    assert "GPU 4" in part


def test_a_hang_in_an_all_reduce_names_the_gpu_out_of_step_and_keeps_the_pairs(accept, monkeypatch):
    """Device 5 has 28 messages with its 7 peers and 2 exchanges with all at once: the next collectives are sums."""
    import pynvml  # the stand-in of benchmarks/accept_selftest

    stands_still = {"faults": {"5": {"utilisation": 0, "watts_drawn": 90, "mhz": 345}}}
    monkeypatch.setattr(pynvml, "_SCENE", pynvml._SCENE | stands_still)
    monkeypatch.setitem(SMALL, "exchange_seconds", 0.0)
    monkeypatch.setenv("SIMULATED_CUDA_FAULTS", "hang@device=5,collective=32")
    code, findings = accept("5,6,17")
    assert code == 4
    hung = {check: found for (check, _), found in findings.items() if found["verdict"] == "HANG"}
    assert set(hung) == {6, 17}
    assert {found["action"] for found in hung.values()} == {"reset the GPU"}
    assert all("rank 5 (GPU 5 at" in found["part"] for found in hung.values())
    assert "GPU 5 stands out: utilisation 0 %, others 100 %; power 90 W, others 650 W" in hung[6]["evidence"]
    pairs = [found["verdict"] for (check, subject), found in findings.items() if check == 5 and "link" in subject]
    assert len(pairs) == RANKS * (RANKS - 1) // 2
    assert set(pairs) <= {"PASS", "WARN"}


def test_seven_of_eight_devices_are_rejected_and_nothing_is_launched(accept, monkeypatch):
    import pynvml

    monkeypatch.setenv("SIMULATED_CUDA_DEVICES", "7")
    monkeypatch.setattr(pynvml, "_SCENE", pynvml._SCENE | {"gpus": 7})
    devices._state.cache_clear()
    try:
        code, findings = accept("0,14")
    finally:
        devices._state.cache_clear()
    assert (code, bad(findings)) == (1, {(0, "GPUs: 7 of 8")})
    assert findings[14, ""]["verdict"] == "NOT RUN"


def test_an_uncorrectable_error_in_a_launch_is_rejected_by_its_gpu(accept, monkeypatch):
    """The driver breaks the device for its process, whose error NCCL's other ranks only hear of."""
    monkeypatch.setenv("SIMULATED_CUDA_FAULTS", "ecc@device=3,launch=500")
    code, findings = accept("7,12,13", "--miniatures", "gpt2-mini")
    assert code == 1
    (part,) = [part for check, part in bad(findings) if check == 13]
    assert part == "memory or board of rank 3 (GPU 3 at 0000:13:00.0)"


def test_devices_that_compute_nothing_are_rejected(node, accept):
    """All else is as usual: every call succeeds, and takes its time."""
    node.values = False
    code, findings = accept("15")
    assert code == 1
    parts = next(part for check, part in bad(findings) if check == 15)
    assert all(f"rank {rank}" in parts for rank in range(RANKS))


@pytest.mark.rare
@pytest.mark.timeout(5400)
def test_twenty_batteries_of_good_devices_are_not_rejected(accept, capsys):
    """Each compares itself with those before it. The machine must be idle: eight ranks then share its processors."""
    ended = []
    for number in range(1, 21):
        code, findings = accept("1,2,3,4,5,6,12,13,14,15")
        unusual = {(found["check"], found["subject"], found["verdict"]) for found in findings.values()}
        unusual = {one for one in unusual if one[2] not in ("PASS", "NOT RUN")}
        ended.append((code, bad(findings)))
        with capsys.disabled():
            print(f"battery {number} of 20: exit code {code}, {sorted(unusual) or 'all checks pass'}", flush=True)
    assert ended == [(0, set())] * 20
