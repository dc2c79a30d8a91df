"""GPT-2's recorded runs on one simulated H100: one wait a step, no graph break, few launches, a host that keeps ahead.

Nothing here is a measurement of a GPU. Models have two of their layers, which all have the same graphs: whole ones are
counted by `python -m benchmarks.mfu_design`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.mfu_design.__main__ import on_one_gpu
from benchmarks.mfu_design.hopper import predicted_step
from benchmarks.mfu_design.launch_log import CountedStep, LaunchKind
from tests.simulated_cuda.environment import ROOT, simulated_environment

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

LAYERS = 2
RUNS = pytest.mark.parametrize("run", ["gpt2-124m", pytest.param("gpt2-1558m", marks=pytest.mark.long)])


@functools.cache
def counted(run: str, script: str, scratch: Path) -> CountedStep:
    environment = simulated_environment(1, log=scratch / f"{run}-{script}.log")
    command = [sys.executable, "-m", "benchmarks.mfu_design.worker", run, script, str(LAYERS), str(scratch)]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=800)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=CountedStep)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mfu")


@RUNS
def test_the_host_waits_once_a_step_for_the_loss_and_its_norm(run: str, scratch: Path) -> None:
    found = counted(run, "suite", scratch)
    assert found.step.waits == ["wait stream"]  # two fp32 numbers, read after the update
    assert found.step.launches_after_wait == 0


@RUNS
def test_blocks_and_loss_are_one_graph_each_without_a_break(run: str, scratch: Path) -> None:
    found = counted(run, "suite", scratch)
    assert (found.graphs, found.graph_breaks) == (2, 0)


@RUNS
def test_a_layer_s_launches_are_products_attention_and_compiled_kernels(run: str, scratch: Path) -> None:
    found = counted(run, "suite", scratch)
    passes = LAYERS * found.micro_batches
    chunks = sum(count for *_, count in found.step.products) - 12 * passes
    assert found.step.launches[LaunchKind.PRODUCT] == 12 * passes + chunks  # three for each of four matrices
    assert chunks % (3 * found.micro_batches) == 0
    assert found.step.launches[LaunchKind.ATTENTION] == 2 * passes  # forward and backward
    # the weights of a block are added up in its graph: eager additions are those of embedding, positions, last norm
    plain = counted(run, "plain", scratch)
    assert found.step.launches[LaunchKind.CAST] < plain.step.launches[LaunchKind.CAST] / 2


@RUNS
@pytest.mark.long  # seconds of this machine against predicted ones: not for every machine that tests a change
@pytest.mark.alone
def test_the_host_takes_less_than_a_tenth_of_the_predicted_step(run: str, scratch: Path) -> None:
    found = counted(run, "suite", scratch)
    predicted = predicted_step(on_one_gpu(run), found)
    assert found.host_seconds < predicted.seconds / 10, json.dumps(msgspec.to_builtins(found))


@RUNS
def test_a_step_moves_far_fewer_bytes_than_a_plain_script_s(run: str, scratch: Path) -> None:
    ours, plain = (counted(run, script, scratch) for script in ("suite", "plain"))
    moved = [one.compiled_bytes + one.operator_bytes for one in (ours, plain)]
    assert moved[0] < moved[1] / 2
