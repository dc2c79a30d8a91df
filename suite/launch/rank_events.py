"""The events of one rank as its file grows, over restarts."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from suite.job.calibration_job import Calibrated
from suite.job.checkpoints import Restart
from suite.job.events import CheckpointStored, Event, Failed, Finished, Phase, Resumed, Started, Step
from suite.job.probe_job import Probed
from suite.job.training_job import WARM_UP_STEPS

START_SECONDS = 120.0
COMPILE_SECONDS = 600.0
HANG_FACTOR = 10.0
HANG_LEAST_SECONDS = 20.0


class RankEvents:
    """The events of one rank as its file grows; of steps that were done again, the last ones."""

    def __init__(self, path: str, now: float, *, here: bool = True) -> None:
        self.path = Path(path)
        self.here = here
        self.events: list[Event] = []
        self.restarts: list[Restart] = []
        self.launched = time.time()
        self.began: float | None = None
        self.last_progress = now
        self._read = 0

    def new_events(self, now: float) -> list[Event]:
        """Events since the last call; a line that is still being written waits."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        fresh = [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]
        if fresh:
            self.last_progress = now
        for event in fresh:
            self._take(event)
        return fresh

    def _take(self, event: Event) -> None:
        """An event more; where training goes on after a restart, what the attempt before it left counts no more."""
        if isinstance(event, Resumed):
            before = _before_restart(self.events)
            if before or event.attempt > len(self.restarts):
                self.restarts.append(_restart(before, event, launched=self.launched))
                done = [e for e in before if not isinstance(e, Step) or e.step < event.step]
                kept = [e for e in done if isinstance(e, Step | CheckpointStored)]
                self.events = [*kept, *self.events[len(before) :]]
            self.began = self.began or event.time
        self.events.append(event)

    @property
    def pid(self) -> int | None:
        """Number of the rank's process on this machine; None where it has none here."""
        pids = [event.pid for event in self.events if isinstance(event, Started)]
        return pids[-1] if pids and self.here else None

    @property
    def finished(self) -> bool:
        ends = (event for event in reversed(self.events) if isinstance(event, Started | Finished | Calibrated | Probed))
        return not isinstance(next(ends, None), Started | None)

    @property
    def last_action(self) -> str:
        """The last thing that this rank said it did."""
        for event in reversed(self.events):
            if isinstance(event, Step):
                return f"step {event.step} done"
            if isinstance(event, Phase):
                return event.name
        return "started" if self.events else "not started"

    def patience_seconds(self, compiled: bool, *, restarts: bool = False) -> float:
        """How long this rank may stay silent: 10 times its longest step so far and at least 20 s; before its first
        step, and always where it may be started again, 120 s; with compilation 600 s more until the warm-up is over."""
        steps = [event.seconds for event in self.events if isinstance(event, Step)]
        least = START_SECONDS if restarts else HANG_LEAST_SECONDS
        usual = max(least, HANG_FACTOR * max(steps)) if steps else START_SECONDS
        return usual + COMPILE_SECONDS if compiled and len(steps) < WARM_UP_STEPS else usual


def _before_restart(events: list[Event]) -> list[Event]:
    """The events before the last start of a rank; none where it is the first."""
    starts = [number for number, event in enumerate(events) if isinstance(event, Started)]
    return events[: starts[-1]] if len(starts) > 1 else []


def _restart(before: list[Event], resumed: Resumed, *, launched: float) -> Restart:
    """The restart after these events of one rank; after none where all ended before it had said a word."""
    steps = [event for event in before if isinstance(event, Step)]
    started = (event.time for event in before if isinstance(event, Started))
    last = steps[-1].time if steps else next(started, launched)
    why = next((event.message for event in before if isinstance(event, Failed)), "ended without a word")
    number = steps[-1].step if steps else -1
    why = "; ".join([why, *resumed.damaged])
    return Restart(after_step=number, step=resumed.step, seconds=resumed.time - last, why=why)
