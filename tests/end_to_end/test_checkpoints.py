"""Training that goes on from a checkpoint is the training that was not disturbed."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.layout import Schedule
from reference_runs.run import Precision
from suite.execute.training.checkpoint import MetadataUnpickler
from suite.job.checkpoints import OF_JOB, PROGRESS, Checkpoints, Progress, checkpoint_path, newest, progress_of
from suite.job.corpus import Corpus
from suite.job.events import CheckpointStored, Started, Status, Step
from suite.reproduce.checked_checkpoints import sole_use
from suite.reproduce.plan import corpus_for
from suite.reproduce.reproduce import reproduce
from suite.reproduce.resume import goes_on_from
from tests.support.launches import FP32_WITHOUT_DROPOUT, TEXT, exact_rows, small_plan

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]
STEPS, EVERY = 12, 4


def plan_with(directory, *, recipe=None, restarts=0, every=EVERY, **layout):
    plan = small_plan(ranks=2, recipe=recipe, layout=layout)
    checkpoints = Checkpoints(directory=str(directory / "checkpoints"), every=every, restarts=restarts)
    return msgspec.structs.replace(plan, steps=STEPS, checkpoints=checkpoints)


def run(plan, directory, *, kill_after: int | None = None, rank: int = 1):
    """The plan executed; `rank` is killed once step `kill_after` is done and the checkpoint before it complete."""
    pids: dict[int, int] = {}
    killed = done = stored = False

    def heard(number: int, event: Any) -> None:
        nonlocal killed, done, stored
        if isinstance(event, Started):
            pids[number] = event.pid
        if kill_after is None or number != rank:
            return
        done |= isinstance(event, Step) and event.step == kill_after
        stored |= isinstance(event, CheckpointStored) and event.step == kill_after - kill_after % EVERY
        if done and stored and not killed:
            killed = True
            os.kill(pids[rank], signal.SIGKILL)

    result = reproduce(plan, corpus_for(plan, TEXT), directory, heard)
    assert killed == (kill_after is not None), result.message
    return result


def stored(directory):
    """The bytes of all tensors of the newest checkpoint, as they were written."""
    path = newest(directory / "checkpoints")
    assert path is not None
    assert progress_of(path).step == STEPS
    return {part.name: part.read_bytes() for part in sorted(path.glob("*.distcp"))}


BF16, FP32 = {"precision": Precision.BF16}, {"precision": Precision.FP32}
STAGES = {"data_parallel": 1, "pipeline_stages": 2, "zero_stage": 0}
DREAM, SYNC = Schedule.PIPEDREAM, Schedule.PIPEDREAM_VERTICAL_SYNC
USUAL = "fp16 with dropout, zero1"
LAYOUTS = {
    USUAL: ({}, {"zero_stage": 1}),
    "bf16 pipeline": (BF16, STAGES),
    "fp32 tensor parallel": (FP32, {"data_parallel": 1, "tensor_parallel": 3, "zero_stage": 0}),
    "bf16 fully sharded": (BF16, {"zero_stage": 3}),
    "four ranks": ({}, {"data_parallel": 4, "zero_stage": 0}),
    "bf16 pipedream, four stages": (BF16, STAGES | {"schedule": DREAM, "pipeline_stages": 4}),
    "vertical sync": (BF16, STAGES | {"schedule": SYNC, "pipeline_stages": 4}),
    "two versions, two replicas": (BF16, STAGES | {"schedule": Schedule.PIPEDREAM_2BW, "data_parallel": 2}),
    "vertical sync, two replicas and one": (BF16, STAGES | {"schedule": SYNC, "stage_replicas": (2, 1)}),
}


@pytest.mark.parametrize(
    "name", [USUAL, *(pytest.param(name, marks=pytest.mark.rare) for name in LAYOUTS if name != USUAL)]
)
@pytest.mark.always
def test_restart_is_bit_for_bit(name, tmp_path):
    recipe, layout = LAYOUTS[name]
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    whole = run(plan_with(undisturbed, recipe=recipe, **layout), undisturbed)
    result = run(plan_with(disturbed, recipe=recipe, restarts=1, **layout), disturbed, kill_after=9)
    assert (whole.status, result.status) == (Status.OK, Status.OK), (whole.message, result.message)
    assert result.losses == whole.losses
    assert len(whole.losses) == STEPS
    assert stored(disturbed) == stored(undisturbed)
    assert [row.verdict for row in exact_rows(result.rows)] == [row.verdict for row in exact_rows(whole.rows)]
    assert result.goodput is not None
    (restart,) = result.goodput.restarts
    assert restart.step == 8
    assert restart.after_step >= 9
    assert 0 < result.goodput.share < 1


def test_another_layout_goes_on_with_the_same_numbers(tmp_path):
    """Two shards of ZeRO-3 become one whole rank: its next losses are those of the training that went on as it was."""
    recipe = FP32_WITHOUT_DROPOUT
    first = plan_with(tmp_path, recipe=recipe, zero_stage=3)
    losses = run(first, tmp_path).losses
    shutil.rmtree(newest(tmp_path / "checkpoints"))  # as if it had ended before the last one
    one = msgspec.structs.replace(first, layout=msgspec.structs.replace(first.layout, data_parallel=1, zero_stage=0))
    before = goes_on_from(one, corpus_for(one, TEXT))
    assert before is not None
    assert before.step == 8
    result = run(one, tmp_path)
    assert result.status is Status.OK
    assert result.losses == pytest.approx(losses[8:], rel=1e-5)
    assert result.steps[0].step == 8
    assert result.goodput.steps == STEPS - 8


CHANGES = (
    ({"seed": 4}, "another seed; got 4, allowed: 3"),
    ({"recipe": {"learning_rate": 1.0}}, "another recipe; got learning_rate 1.0, allowed: "),
    ({"layout": {"data_parallel": 1, "pipeline_stages": 2}}, "can be loaded by no other one"),
)


def corpus(sha256):
    return Corpus(source="", sha256=sha256, text_bytes=0, files=0, vocabulary=0, tokens=0, tokens_file="")


def written(directory, plan, *, step):
    """A complete checkpoint of the plan as far as its progress goes."""
    place = checkpoint_path(directory / "checkpoints", step)
    place.mkdir(parents=True)
    of_plan = {name: getattr(plan, name) for name in OF_JOB}
    progress = Progress(
        step=step, samples_seen=8, samples_trained=8, loss_scale=None, good_steps=0, corpus="text", **of_plan
    )
    (place / PROGRESS).write_bytes(msgspec.json.encode(progress))


def test_other_trainings_or_none_that_is_left_are_refused(tmp_path):
    plan = plan_with(tmp_path, zero_stage=1)
    written(tmp_path, plan, step=4)
    assert goes_on_from(plan, corpus("text")).step == 4
    for changes, words in CHANGES:
        changed = {
            key: msgspec.structs.replace(getattr(plan, key), **value) if isinstance(value, dict) else value
            for key, value in changes.items()
        }
        with pytest.raises(InputError, match=words):
            goes_on_from(msgspec.structs.replace(plan, **changed), corpus("text"))
    with pytest.raises(InputError, match="another corpus"):
        goes_on_from(plan, corpus("other text"))
    written(tmp_path, plan, step=STEPS)
    with pytest.raises(InputError, match="no step is left; got 12 of 12 done"):
        goes_on_from(plan, corpus("text"))


def test_one_launch_at_a_time(tmp_path):
    plan = plan_with(tmp_path)
    with (
        sole_use(plan.checkpoints, tmp_path),
        pytest.raises(InputError, match="another launch uses these checkpoints"),
        sole_use(plan.checkpoints, tmp_path),
    ):
        pass


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def refuses(_file, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    plan = plan_with(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuses)
    with sole_use(plan.checkpoints, tmp_path), sole_use(plan.checkpoints, tmp_path):
        assert Path(plan.checkpoints.directory).is_dir()


def test_metadata_runs_no_code():
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.system in the metadata of a checkpoint"):
        MetadataUnpickler(io.BytesIO(pickle.dumps(os.system))).load()
