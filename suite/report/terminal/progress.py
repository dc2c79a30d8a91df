"""The progress line of commands that take their time."""

from __future__ import annotations

import sys

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from reference_runs.catalog import global_batch_at
from suite.job.events import Event, Phase, Step
from suite.report.terminal.tables import console
from suite.reproduce.plan import Plan


def progress_line(*, quiet: bool) -> Progress:
    """What is under way, a bar, how much of it is done, and the time it took; nothing where it is `quiet`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console(stderr=True), disable=quiet)


class TrainingProgress:
    """The progress line: step, loss, tokens/s; a plain line every few seconds where stderr is no terminal."""

    def __init__(self, planned: Plan, *, quiet: bool) -> None:
        self._recipe = planned.recipe
        self._sequence = planned.architecture.sequence
        self._seen = 0
        self._steps = planned.steps
        self._quiet = quiet
        self._last_line = 0.0
        self._progress = progress_line(quiet=quiet)
        self._task: TaskID | None = None

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=self._steps)
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, rank: int, event: Event) -> None:
        if rank != 0 or self._task is None:
            return
        if isinstance(event, Phase):
            self._progress.update(self._task, description=event.name)
        if isinstance(event, Step):
            batch = global_batch_at(self._recipe, self._seen)
            self._seen += batch
            text = f"step {event.step} loss {event.loss:.3f} {batch * self._sequence / event.seconds:,.0f} tokens/s"
            if event.skipped:
                text += f", skipped: overflow at loss scale {event.loss_scale:,.0f}"
            self._progress.update(self._task, description=text, completed=event.step + 1)
            due = event.skipped or event.time - self._last_line >= 5 or event.step + 1 == self._steps
            if self._quiet and due:
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
                self._last_line = event.time
