"""Training that goes on from a checkpoint is the training that was not disturbed."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import re
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
from suite.job.checkpoints import (
    OF_JOB,
    PROGRESS,
    Checkpoints,
    Progress,
    checkpoint_path,
    complete,
    file_hashes,
    newest,
    newest_whole,
    progress_of,
    sealed,
)
from suite.job.corpus import Corpus
from suite.job.events import CheckpointStored, Started, Status, Step
from suite.metrics.comparison import Verdict
from suite.reproduce.checked_checkpoints import sole_use
from suite.reproduce.plan import corpus_for
from suite.reproduce.reproduce import reproduce
from suite.reproduce.resume import goes_on_from
from tests.support.launches import FP32_WITHOUT_DROPOUT, TEXT, exact_rows, patch_processes, small_plan

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
    if plan_with(disturbed, **layout).layout.flushes:
        assert [row.verdict for row in exact_rows(result.rows)] == [row.verdict for row in exact_rows(whole.rows)]
    else:  # four steps are left, without a rehearsal
        assert (result.rows, result.message) == (
            [],
            "all 12 steps are trained; too few were left to count and time one",
        )
    assert result.goodput is not None
    (restart,) = result.goodput.restarts
    assert restart.step == 8
    assert restart.after_step >= 9
    assert 0 < result.goodput.share < 1


def zeroed(path):
    """The middle half of a file becomes zeros, as a disk's lost sectors do."""
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 4)
        file.write(bytes(size // 2))


def test_another_layout_goes_on_with_the_same_numbers_from_the_last_checkpoint_that_is_whole(tmp_path):
    """Two shards of ZeRO-3 become one whole rank: its next losses are those of the training that went on as it was."""
    recipe = FP32_WITHOUT_DROPOUT
    first = plan_with(tmp_path, recipe=recipe, zero_stage=3)
    losses = run(first, tmp_path).losses
    last = newest(tmp_path / "checkpoints")
    zeroed(last / "__1_0.distcp")
    one = msgspec.structs.replace(first, layout=msgspec.structs.replace(first.layout, data_parallel=1, zero_stage=0))
    before = goes_on_from(one, corpus_for(one, TEXT))
    assert before.progress.step == 8
    assert before.damaged == [f"{last}/__1_0.distcp: a damaged checkpoint; got other content than was written"]
    result = run(one, tmp_path)
    assert result.status is Status.OK
    assert result.losses == pytest.approx(losses[8:], rel=1e-5)
    assert [step.step for step in result.steps] == [8, 9, 10, 11]  # to the step that was asked for, not beyond it
    assert result.goodput.steps == STEPS - 8
    assert (result.verdict, exact_rows(result.rows) != []) == (Verdict.PASS, True)
    after = newest_whole(tmp_path / "checkpoints")
    assert (after.progress.step, after.damaged) == (STEPS, [])


NO_MORE_ROOM = """
import resource
from torch.distributed.checkpoint.filesystem import FileSystemWriter
written, calls = FileSystemWriter.write_data, []
def until_full(self, plan, planner):
    calls.append(plan)
    if len(calls) == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return written(self, plan, planner)
FileSystemWriter.write_data = until_full
"""


def test_a_checkpoint_that_finds_no_room_says_so_and_leaves_the_one_before(tmp_path, monkeypatch):
    patch_processes(NO_MORE_ROOM, tmp_path, monkeypatch)
    result = run(plan_with(tmp_path, zero_stage=1), tmp_path)
    assert result.status is Status.CRASHED
    said = "NotStoredError: no checkpoint before step 8 in {}/checkpoints: File too large; "
    assert said.format(tmp_path) in result.message
    assert re.search(r"; 1\.\d\d MB needed, [\d,.]+ MB free; step-0000004 is kept$", result.message)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name != ".lock"] == ["step-0000004"]
    assert newest_whole(tmp_path / "checkpoints").progress.step == 4


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
    (place / "shard").write_bytes(b"tensors" * step)
    with_files = msgspec.structs.replace(progress, files=file_hashes([place / "shard"]))
    (place / PROGRESS).write_bytes(msgspec.json.encode(sealed(with_files)))
    return place


DAMAGES = {
    "a shard of another length": lambda place: (place / "shard").write_bytes(b"tensors"),
    "a shard with zeros": lambda place: zeroed(place / "shard"),
    "no shard": lambda place: (place / "shard").unlink(),
    "a shard that blocks": lambda place: ((place / "shard").unlink(), os.mkfifo(place / "shard")),
    "no progress": lambda place: (place / PROGRESS).unlink(),
    "an empty progress": lambda place: (place / PROGRESS).write_bytes(b""),
    "another number in progress": lambda place: (place / PROGRESS).write_bytes(
        (place / PROGRESS).read_bytes().replace(b'"samples_seen":8', b'"samples_seen":9')
    ),
    "a file elsewhere": lambda place: (place / PROGRESS).write_bytes(
        msgspec.json.encode(sealed(msgspec.structs.replace(progress_of(place), files={"../../shard": "0" * 64})))
    ),
}


def test_too_few_steps_to_count_are_trained_and_no_more(tmp_path):
    plan = plan_with(tmp_path, every=5, zero_stage=1)
    run(plan, tmp_path)
    result = run(plan, tmp_path)
    assert (result.status, result.rows) == (Status.OK, [])
    assert result.message == "all 12 steps are trained; too few were left to count and time one"
    assert [step.step for step in result.steps] == [10, 11]


def test_whatever_is_damaged_the_last_whole_checkpoint_is_taken(tmp_path):
    plan, wrong = plan_with(tmp_path), []
    for name, damage in DAMAGES.items():
        directory = tmp_path / name.replace(" ", "-")
        written(directory, plan, step=4)
        damage(written(directory, plan, step=8))
        found = newest_whole(directory / "checkpoints")
        if found.progress.step != 4 or len(found.damaged) != 1 or "step-0000008/" not in found.damaged[0]:
            wrong.append((name, found))
        shutil.rmtree(found.path)
        with pytest.raises(InputError, match="every checkpoint is damaged"):
            newest_whole(directory / "checkpoints")
    assert wrong == []


def test_a_checkpoint_of_a_version_without_hashes_is_read(tmp_path):
    place = written(tmp_path, plan_with(tmp_path), step=4)
    fields = msgspec.json.decode((place / PROGRESS).read_bytes())
    del fields["files"], fields["sha256"]
    (place / PROGRESS).write_bytes(msgspec.json.encode(fields))
    assert newest_whole(tmp_path / "checkpoints").path == place


def test_one_launch_removes_what_another_left_half_written(tmp_path):
    plan = plan_with(tmp_path)
    left, own = (tmp_path / "checkpoints" / f".step-000000{step}.partial" for step in (4, 8))
    left.mkdir(parents=True)
    with sole_use(plan.checkpoints, tmp_path):
        assert not left.exists()
        own.mkdir()
    assert complete(tmp_path / "checkpoints") == []
    assert not own.exists()


def test_other_trainings_are_refused(tmp_path):
    plan = plan_with(tmp_path, zero_stage=1)
    written(tmp_path, plan, step=4)
    assert goes_on_from(plan, corpus("text")).progress.step == 4
    for changes, words in CHANGES:
        changed = {
            key: msgspec.structs.replace(getattr(plan, key), **value) if isinstance(value, dict) else value
            for key, value in changes.items()
        }
        with pytest.raises(InputError, match=words):
            goes_on_from(msgspec.structs.replace(plan, **changed), corpus("text"))
    with pytest.raises(InputError, match="another corpus"):
        goes_on_from(plan, corpus("other text"))


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
