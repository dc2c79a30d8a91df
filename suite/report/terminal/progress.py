"""The progress line on stderr of commands that take their time; plain lines now and then where it is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from reference_runs.catalog import global_batch_at
from suite.job.events import Event, Phase, Step

if TYPE_CHECKING:
    from suite.calibration.plan import Calibration
    from suite.reproduce.plan import Plan

Listener = Callable[[int, Event], None]  # of a rank and what it reports
TRAINING_LINE_SECONDS = 5.0
CALIBRATION_LINE_SECONDS = 10.0
BAR_CELLS = 20


def _progress(messages: Console) -> Progress:
    """The current task, a bar, the amount done, what else it says, the time taken; nothing where stderr is no terminal.

    A task's field `says` is text after the amount.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_CELLS),
        MofNCompleteColumn(),
        TextColumn("{task.fields[says]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=messages, disable=not messages.is_terminal)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def training_progress(planned: Plan, messages: Console) -> Iterator[Listener]:
    """Show steps done, loss and tokens/s of a launch: a bar on a terminal, elsewhere a line every few seconds."""
    seen, last_line = 0, 0.0
    with _progress(messages) as progress:
        task = progress.add_task("starting", total=planned.steps, says="")

        def heard(rank: int, event: Event) -> None:
            nonlocal seen, last_line
            if rank != 0:
                return
            if isinstance(event, Phase):
                progress.update(task, description=event.name)
            if isinstance(event, Step):
                batch = global_batch_at(planned.recipe, seen)
                seen += batch
                rate = batch * planned.architecture.sequence / event.seconds
                text = f"loss {event.loss:.3f}, {rate:,.0f} tokens/s"
                if event.skipped:
                    text += f", skipped: overflow at loss scale {event.loss_scale:,.0f}"
                done = event.step + 1
                progress.update(task, description="training", says=text, completed=done)
                is_last = done == planned.steps
                if progress.disable and (event.skipped or is_last or event.time - last_line >= TRAINING_LINE_SECONDS):
                    _say(f"{done} of {planned.steps} steps, {text}")
                    last_line = event.time

        yield heard


@contextmanager
def calibration_progress(planned: Calibration, messages: Console) -> Iterator[Listener]:
    """Show the operation that is measured, and how many there are at most."""
    from suite.calibration.plan import REFERENCE_ROUNDS

    most = planned.rounds * (len(planned.planned) + REFERENCE_ROUNDS * len(planned.reference_steps))
    begun, last_line = 0, 0.0
    with _progress(messages) as progress:
        task = progress.add_task("starting", total=most, says="")

        def heard(rank: int, event: Event) -> None:
            nonlocal begun, last_line
            if rank != 0 or not isinstance(event, Phase):
                return
            begun += 1
            progress.update(task, description=event.name, advance=1)
            if progress.disable and event.time - last_line >= CALIBRATION_LINE_SECONDS:
                _say(f"calibrating, {begun} of at most {most}: {event.name}")
                last_line = event.time

        yield heard


@contextmanager
def states_progress(messages: Console) -> Iterator[Callable[[int, int], None]]:
    """Show how many states of a page are computed, and how many there are at most."""
    with _progress(messages) as progress:
        task = progress.add_task("computing states", total=None, says="")

        def computed(done: int, most: int) -> None:
            progress.update(task, completed=done, total=most)

        yield computed


@contextmanager
def seconds_reported(words: str, messages: Console, *, first: float = 3.0, then: float = 10.0) -> Iterator[None]:
    """Say now and then how long the block has taken, where nobody knows how long it takes: first after `first` s."""
    over, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = first
        while not over.wait(wait):
            with suppress(OSError, ValueError):  # nobody reads
                messages.print(f"[dim]{words}: {time.monotonic() - begun:.0f} s so far[/]", soft_wrap=True)
            wait = then

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
