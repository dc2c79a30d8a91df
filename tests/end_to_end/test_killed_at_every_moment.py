"""Whenever a rank is killed: records are whole, the last checkpoint loads, and training ends as if undisturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.job.checkpoints import newest, progress_of
from suite.paths import ROOT
from tests.support.launches import TEXT
from tests.support.run_file import run_file

pytestmark = [pytest.mark.ranks, pytest.mark.rare, pytest.mark.timeout(900)]
STEPS, EVERY = 12, 3
KILLERS = Path(__file__).parent / "killed_ranks"
RUN, LOOP = "suite.execute.__main__", "suite.execute.training.loop"
STEP, CHECKPOINT = "suite.execute.training.step", "suite.execute.training.checkpoint"
WRITER = "torch.distributed.checkpoint.filesystem"
MOMENTS = {
    "start-up": "1 start - before 1",
    "before it joins": "1 torch.distributed.distributed_c10d init_process_group before 1",
    "building the model": "1 suite.execute.parallel.parallelize parallelize before 1",
    "model built": "1 suite.execute.parallel.parallelize parallelize after 1",
    "first collective": "1 torch.distributed.distributed_c10d broadcast_object_list before 1",
    "first forward": f"1 {STEP} Steps.forward_and_backward before 1",
    "first update": f"1 {STEP} Steps.update before 1",
    "first step done": f"1 {STEP} Steps.update after 1",
    "a counted step": f"0 {STEP} Steps.forward_and_backward after 4",
    "before a copy": f"1 {STEP} Steps.random_state before 3",
    "copied": f"1 {CHECKPOINT} async_save after 2",
    "before it writes": f"1 {WRITER} FileSystemWriter.write_data before 2",
    "written": f"1 {WRITER} FileSystemWriter.write_data after 2",
    "before the metadata": f"0 {WRITER} FileSystemWriter.finish before 2",
    "metadata not renamed": f"0 {WRITER} FileSystem.rename before 2",
    "metadata renamed": f"0 {WRITER} FileSystemWriter.finish after 2",
    "progress not renamed": f"0 {CHECKPOINT} whole_file before 2",
    "not named complete": f"0 {CHECKPOINT} checkpoint_path before 2",
    "before old ones go": f"0 {CHECKPOINT} complete before 3",
    "last step": f"1 {STEP} Steps.update after {STEPS}",
    "counting after it": f"0 {LOOP} model_flop before 1",
    "the record's end": "launcher suite.records.store Opened.close before 1",
}


def reproduced(directory, *options, moment="", code=0):
    """One `reproduce` in a directory of its own; `code`: the exit code that it must have."""
    command = [sys.executable, "-m", "suite", "reproduce", str(run_file(directory / "tiny.toml"))]
    command += ["--device", "cpu", "--steps", str(STEPS), "--corpus", str(TEXT)]
    command += ["--results", str(directory / "results")]
    paths = (
        os.pathsep.join([str(KILLERS), os.environ.get("PYTHONPATH", "")]) if moment else os.environ.get("PYTHONPATH")
    )
    environment = os.environ | {"SUITE_MOMENT": moment, "XDG_CACHE_HOME": str(directory / "cache")}
    environment |= {"PYTHONPATH": paths} if paths else {}
    ended = subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert ended.returncode == code, f"{ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


def last_checkpoint(directory):
    """The tensors of the run's last checkpoint, as they were written; a launch before may have left an empty one."""
    (run,) = (run for run in (directory / "results" / "checkpoints" / "tiny").iterdir() if newest(run))
    assert not list(run.glob("*.partial"))
    path = newest(run)
    assert progress_of(path).step == STEPS
    return {part.name: part.read_bytes() for part in sorted(path.glob("*.distcp"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    reproduced(directory, "--checkpoint-every", str(EVERY))
    return last_checkpoint(directory)


@pytest.mark.parametrize("number", range(len(MOMENTS)), ids=list(MOMENTS))
def test_goes_on_as_if_undisturbed(number, undisturbed, tmp_path):
    moment, every = list(MOMENTS.values())[number], ("--checkpoint-every", str(EVERY))
    if number % 2 == 0:  # torchrun starts the ranks again
        assert "restart: step" in reproduced(tmp_path, *every, "--max-restarts", "1", moment=moment)
    else:  # the user goes on
        of_launcher = moment.startswith("launcher")
        said = reproduced(tmp_path, *every, moment=moment, code=-9 if of_launcher else 4)
        has_checkpoint = any((tmp_path / "results" / "checkpoints" / "tiny").glob("*/step-*"))
        if of_launcher:
            assert not said.count("Traceback")
        elif has_checkpoint:
            reproduced(tmp_path, *every, "--resume", "latest")
        else:
            assert "no checkpoint" in reproduced(tmp_path, *every, "--resume", "latest", code=2)
            reproduced(tmp_path, *every)
    assert last_checkpoint(tmp_path) == undisturbed
    checked = [sys.executable, "-m", "suite", "results", "check", "--results", str(tmp_path / "results")]
    assert subprocess.run(checked, cwd=ROOT, capture_output=True, check=False).returncode == 0
