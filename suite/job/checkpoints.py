"""Checkpoints of a launch: where they lie, how far training was, and what a restart made of the events."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.regular_file import json_file, regular_file
from reference_runs.run import Architecture, Recipe
from suite.job.options import Averaging

KEPT = 2  # complete checkpoints of a run; older ones are removed
PROGRESS = "progress.json"
METADATA = ".metadata"  # of PyTorch's checkpoints
PARTIAL = ".partial"  # what a checkpoint's name ends in while it is written
_COMPLETE = re.compile(r"step-(\d{7,})")


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where a launch keeps its checkpoints.

    Args:
        directory: of this run's. Ranks that start go on with the newest complete one that lies there.
        every: steps from one to the next; None: none is stored.
        restarts: how often torchrun starts all ranks again after one of them ended.
        corpus: sha256 of the text that is trained on.
    """

    directory: str
    every: int | None = None
    restarts: int = 0
    corpus: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far training was at a checkpoint, and what was trained.

    Args:
        step: number of the next step.
        samples_seen, samples_trained: by all ranks; without and with those of skipped steps left out.
        loss_scale: of the next step; None where the precision needs none.
        good_steps: since the loss scale last changed.
        files: name of each other file of the checkpoint -> its sha256; empty: stored before they were kept.
        sha256: of all else that is here (see `sealed`); empty: likewise.
    """

    step: int
    samples_seen: int
    samples_trained: int
    loss_scale: float | None
    good_steps: int
    name: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    averaging: Averaging
    seed: int
    steps: int
    corpus: str
    files: dict[str, str] = {}
    sha256: str = ""


OF_JOB = ("name", "architecture", "recipe", "layout", "averaging", "seed", "steps")  # of what a checkpoint says


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Path of the complete checkpoint before `step`."""
    return Path(directory, f"step-{step:07}")


def newest(directory: str | Path) -> Path | None:
    """The newest complete checkpoint; None where there is none."""
    return max(complete(directory), key=step_of, default=None)


class Whole(NamedTuple):
    """A checkpoint whose files are as they were written, its progress, and a line for each newer, damaged one."""

    path: Path
    progress: Progress
    damaged: list[str]


def newest_whole(directory: str | Path) -> Whole | None:
    """The newest checkpoint that is not damaged; None where there is none at all.

    Raises:
        InputError: all are damaged.
    """
    damaged: list[str] = []
    for path in reversed(complete(directory)):
        try:
            progress = progress_of(path)
            check_files(path, progress.files)
        except InputError as error:
            damaged.append(str(error))
            continue
        return Whole(path, progress, damaged)
    if damaged:
        raise InputError("every checkpoint is damaged", got="; ".join(damaged), where=str(directory))
    return None


def complete(directory: str | Path) -> list[Path]:
    """All complete checkpoints, the oldest first.

    One is complete when its directory has its name: it is written below another one and renamed last.
    """
    place = Path(directory)
    found = place.iterdir() if place.is_dir() else ()
    return sorted((path for path in found if _COMPLETE.fullmatch(path.name)), key=step_of)


def remove_partial(directory: str | Path) -> None:
    """Remove what is left of checkpoints whose ranks were ended while they wrote."""
    for path in Path(directory).glob(f".step-*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def step_of(path: Path) -> int:
    """Number of the next step after a complete checkpoint."""
    return int(path.name.removeprefix("step-"))


def progress_of(checkpoint: Path) -> Progress:
    """How far training was at a complete checkpoint.

    Raises:
        InputError: its file is missing or damaged.
    """
    path = checkpoint / PROGRESS
    try:
        progress = json_file(path, Progress)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError("a damaged checkpoint", got=str(error), where=str(path)) from None
    if progress.sha256 and sealed(progress) != progress:
        raise InputError("a damaged checkpoint", got="other content than was written", where=str(path))
    return progress


def sealed(progress: Progress) -> Progress:
    """The same progress with the sha256 of all else that it says."""
    bare = msgspec.structs.replace(progress, sha256="")
    return msgspec.structs.replace(bare, sha256=hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest())


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Name of each file -> its sha256, or why it cannot be read; in parts, as many files at a time as processors."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(threads.map(lambda path: (path.name, _hash(path)), paths))


def _hash(path: Path) -> str:
    try:
        with regular_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return error.strerror or str(error)


def check_files(checkpoint: Path, files: Mapping[str, str]) -> None:
    """Check that the files of a checkpoint are as they were written.

    Raises:
        InputError: one is missing or differs.
    """
    found = file_hashes(checkpoint / name for name in files if Path(name).name == name)
    for name, wanted in files.items():
        if (got := found.get(name, "a name beyond its directory")) != wanted:
            what = "other content than was written" if len(got) == len(wanted) else got
            raise InputError("a damaged checkpoint", got=what, where=str(checkpoint / name))


def held_by_name(layout: Layout, averaging: Averaging) -> bool:
    """Whether tensors are stored by the names of whole parameters, so that other such layouts can load them.

    Those are layouts of data parallelism alone, with weights and states whole on each rank or in FSDP's shards.
    """
    alone = layout.ranks == layout.data_parallel and layout.shard_copies == 1
    return alone and averaging is Averaging.EXACT and (layout.zero_stage != 1 or layout.data_parallel == 1)


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """One restart of all ranks.

    Args:
        after_step: the last step that was done before, -1 before the first.
        step: with which training went on.
        seconds: from the last step that was done to the moment when training went on.
        why: what the ranks said of it.
    """

    after_step: int
    step: int
    seconds: float
    why: str

    @property
    def lost_steps(self) -> int:
        """Steps that were done again."""
        return self.after_step + 1 - self.step


class LaunchGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the time of a launch with checkpoints, from its first step to its last.

    Args:
        steps: that count; those that were done again count once.
        useful_seconds: of them.
        predicted_share: of the time that they would take with checkpoints and restarts as these were, and half an
            interval of steps lost with each restart.
        checkpoints: that were completed, with `checkpoint_bytes` each.
        stall_seconds: that training waited for one, the median.
        start_seconds: from the launch to the first step.
    """

    steps: int
    useful_seconds: float
    wall_seconds: float
    predicted_share: float
    checkpoints: int
    checkpoint_bytes: int
    stall_seconds: float
    start_seconds: float
    restarts: list[Restart] = []

    @property
    def share(self) -> float:
        """Useful seconds over all."""
        return self.useful_seconds / self.wall_seconds
