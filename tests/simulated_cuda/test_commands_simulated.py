"""Whole commands on simulated GPUs, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.job.events import memory_snapshot_path
from suite.machine.profile import Profile
from suite.machine.timing_tables import Subject
from suite.paths import ROOT
from suite.records import store
from suite.records.index import launches
from suite.report.terminal.machine_profile import best_rate
from tests.simulated_cuda.environment import simulated_environment
from tests.support.run_file import run_file

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1800)]

THIRD = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacad0002"
TFLOP_PER_SECOND, BYTES_PER_SECOND, LINK_BYTES_PER_SECOND = 700e12, 3000e9, 50e9


def run(*arguments: str, devices: int = 1, **settings: Any) -> subprocess.CompletedProcess[str]:
    more = settings.pop("variables", {})
    environment = simulated_environment(devices, **settings) | more
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)


def reproduced(results: Path, *arguments: str, devices: int = 1, **settings: Any) -> dict[str, Any]:
    """The report of a launch of 6 steps, once its exact figures agree. Its losses mean nothing: they fail."""
    command = ("suite", "reproduce", *arguments, "--device", "cuda", "--no-calibrate", "--json")
    steps = () if "--steps" in arguments else ("--steps", "6")
    done = run(*command, *steps, "--results", str(results), devices=devices, **settings)
    assert done.returncode == 1, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    failed = {row["quantity"] for row in reported["figures"] if row["verdict"] == "fail"}
    assert failed <= {"first_loss"}
    exact = [row for row in reported["figures"] if row["tolerance"] == 0]
    assert {row["quantity"] for row in exact} >= {"parameters", "model_flop", "hardware_flop", "optimizer_bytes"}
    assert all(row["left"] == row["right"] for row in exact)
    return reported


def test_a_compiled_launch_on_the_device_that_the_user_names_agrees_and_is_said_to_be_simulated(tmp_path: Path) -> None:
    reproduced(tmp_path, "gpt2-mini", "--compile", devices=4, variables={"CUDA_VISIBLE_DEVICES": THIRD})
    (launch,), bad = launches(tmp_path)
    assert bad == []
    assert launch.simulated
    (rank,) = store.read(Path(launch.path)).end.ranks
    assert rank.environment["gpu_uuid"] == THIRD.removeprefix("GPU-")


def test_the_example_of_the_readme_passes(tmp_path: Path) -> None:
    lines = (ROOT / "tests" / "simulated_cuda" / "README.md").read_text(encoding="utf-8").splitlines()
    (example,) = [line.split() for line in lines if line.startswith("    python -m tests.simulated_cuda")]
    done = subprocess.run(
        [sys.executable, *example[1:], "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "accepted: 1 checks ran, none failed"), done.stderr


@pytest.mark.long
def test_a_slice_is_compiled_counted_and_timed_in_the_device_s_stream(tmp_path: Path) -> None:
    """One of two tensor-parallel ranks of the last of three stages, whose other ranks do not exist."""
    stages = {"layers": 7, "pipeline_stages": 3, "tensor_parallel": 2}
    file = run_file(tmp_path / "small.toml", data_parallel=1, accumulation=4, **stages)
    arguments = ("reproduce", str(file), "--slice", "--stage", "last", "--device", "cuda", "--steps", "10", "--json")
    done = run("suite", *arguments, "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert {row["verdict"] for row in reported["figures"]} == {"pass", "shown"}
    (launch,), bad = launches(tmp_path)
    assert bad == []
    assert launch.compiled
    assert launch.ranks == 1
    (rank,) = store.read(Path(launch.path)).end.ranks
    assert {len(samples) for samples in rank.slice_times.seconds.values()} == {3}
    assert reported["slice_times"]["seconds"] == rank.slice_times.seconds
    assert all(sample > 0 for samples in rank.slice_times.seconds.values() for sample in samples)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2-mini", "--ranks 2 --layout dp2,zero1 --compile --steps 8 --trace TRACE"),
        ("opt-mini", "--compile"),
        ("mt-nlg-mini", "--compile --kernels triton"),
        ("gpt2-124m", "--ranks 1"),
        ("gpt2-1558m", "--ranks 1"),
        ("gpt2-1558m", "--ranks 1 --global-batch 64 --gemm-dtype fp8-current"),
    ],
)
def test_a_launch_agrees_with_its_prediction(name: str, options: str, tmp_path: Path) -> None:
    reproduced(tmp_path, name, *options.replace("TRACE", str(tmp_path / "trace.json")).split(), devices=2)
    written = [(tmp_path / "trace.json").exists(), Path(memory_snapshot_path(str(tmp_path / "trace.json"), 0)).exists()]
    assert written == ["TRACE" in options] * 2


@pytest.mark.long
def test_llama_s_layers_are_a_slice_of_one_gpu_and_have_a_share_of_its_peak(tmp_path: Path) -> None:
    arguments = ("reproduce", "llama3.1-8b", "--slice", "--layers", "2", "--device", "cuda", "--steps", "8", "--json")
    done = run("suite", *arguments, "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert {row["verdict"] for row in figures} == {"pass", "shown"}
    assert [row["term"] for row in figures if row["quantity"] == "mfu"] == ["layers alone, of the data sheet's peak"]
    job = json.loads(Path(json.loads(done.stdout)["record"]).read_text())["job"]
    assert (job["compiled"], job["layout"]["fused_attention"]) == (True, True)
    assert job["training_options"]["loss_chunks"] > 1


@pytest.mark.long
def test_calibration_finds_the_rates_of_the_clock(tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text(
        f"matmul {TFLOP_PER_SECOND / 1e12}\nmemory {BYTES_PER_SECOND / 1e9}\nhost_link {LINK_BYTES_PER_SECOND / 1e9}\n"
        "kernel * 2\n"
    )
    command = ("suite", "calibrate", "--device", "cuda", "--ranks", "2", "--json", "--results", str(tmp_path))
    done = run(*command, devices=2, times=times)
    assert done.returncode == 0, done.stderr
    profile = msgspec.convert(json.loads(done.stdout)["profile"], Profile, str_keys=True)

    def rate(operation: str, variant: str, dtype: str) -> float:
        subject = Subject(operation=operation, variant=variant, dtype=dtype)
        return max(best_rate(table).per_second for table in profile.tables if table.subject == subject)

    assert rate("product", "NT", "bf16") == pytest.approx(TFLOP_PER_SECOND, rel=0.05)
    link = profile.line(Subject(operation="host_to_device", variant="")).units_per_second
    assert link == pytest.approx(LINK_BYTES_PER_SECOND, rel=0.05)
    pageable = profile.line(Subject(operation="host_to_device", variant="pageable")).units_per_second
    assert pageable < 0.5 * link


@pytest.mark.rare
def test_the_ladder_climbs_every_rung(tmp_path: Path) -> None:
    """Rungs gain nothing here, where kernels compute nothing, and losses mean nothing: that they execute is judged."""
    options = ("--device", "cuda", "--no-calibrate", "--no-leave-one-out", "--json", "--results", str(tmp_path))
    done = run("suite", "ladder", "gpt2-mini", *options)
    assert done.returncode in (0, 1), done.stderr
    rungs = json.loads(done.stdout)["rungs"]
    assert len(rungs) > 20
    assert [rung for rung in rungs if rung["failed"]] == []


@pytest.mark.long
def test_every_kernel_is_launched_by_the_benchmark(tmp_path: Path) -> None:
    options = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1", f"--benchmark-storage={tmp_path}")
    done = run("benchmarks.kernels", *options, "-k", "[layer_norm- and bf16")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.long
def test_two_sets_of_launches_are_compared(tmp_path: Path) -> None:
    options = ("--device", "cuda", "--steps", "6", "--launches", "2", "--results", str(tmp_path))
    assert run("suite", "regress", "gpt2-mini", *options, "--accept").returncode in (0, 3)
    compared = run("suite", "regress", "gpt2-mini", *options)
    assert compared.returncode in (0, 1, 3), compared.stderr
    assert len(launches(tmp_path)[0]) == 4
