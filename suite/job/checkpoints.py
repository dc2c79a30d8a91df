"""Checkpoints of a launch: where they lie, how far training was, and what a restart made of the events."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.regular_file import json_file
from reference_runs.run import Architecture, Recipe
from suite.job.options import Averaging

KEPT = 2  # complete checkpoints of a run; older ones are removed
PROGRESS = "progress.json"
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


OF_JOB = ("name", "architecture", "recipe", "layout", "averaging", "seed", "steps")  # of what a checkpoint says


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Path of the complete checkpoint before `step`."""
    return Path(directory, f"step-{step:07}")


def newest(directory: str | Path) -> Path | None:
    """The newest complete checkpoint; None where there is none.

    One is complete when its directory has its name: it is written below another one and renamed last.
    """
    return max(complete(directory), key=_step_of, default=None)


def complete(directory: str | Path) -> list[Path]:
    """All complete checkpoints, the oldest first."""
    place = Path(directory)
    found = place.iterdir() if place.is_dir() else ()
    return sorted((path for path in found if _COMPLETE.fullmatch(path.name)), key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def progress_of(checkpoint: Path) -> Progress:
    """How far training was at a complete checkpoint.

    Raises:
        InputError: its file is missing or damaged.
    """
    path = checkpoint / PROGRESS
    try:
        return json_file(path, Progress)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError("a damaged checkpoint", got=str(error), where=str(path)) from None


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
