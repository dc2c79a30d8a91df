"""What a battery is asked for, and what changes while it runs: its evidence, its time, and the machine profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from suite.acceptance.battery_record import OpenedBattery
from suite.acceptance.evidence import Evidence, Health, Launched, Micro, Probing, Timed
from suite.acceptance.nvml import HealthWatch, joined
from suite.acceptance.past_batteries import History
from suite.acceptance.presets import Effort
from suite.job.events import Event, Status
from suite.machine.profile import Profile

BUDGET_FACTOR = 5.0
LEAST_BUDGET_SECONDS = 120.0  # of a phase: what the launcher itself waits for a rank's first step
COMPILE_SECONDS = 600.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request.

    Args:
        devices: that the node must have; None: not said.
        others: largest share of the processors that other processes may use.
        miniatures: that are launched; `timed` those whose step time is judged.
        resume: go on with the newest battery that did not end.
        device_named: by the operator; otherwise it is what was found.
    """

    profile: str
    effort: Effort
    device: str
    ranks: int
    results: Path
    fleet: Path | None
    selected: frozenset[int]
    miniatures: tuple[str, ...]
    timed: tuple[str, ...]
    devices: int | None
    others: float
    resume: bool
    device_named: bool = False


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to run, what it should take, and the checks that it serves.

    Args:
        run: gives evidence one by one as it comes, so that what ended well is kept where the rest does not end.
    """

    name: str
    predicted_seconds: float
    serves: frozenset[int]
    run: Callable[[Callable[[int, Event], None]], Iterable[Evidence]]


class OverBudgetError(Exception):
    """A phase makes progress, but takes longer than five times its prediction."""


class Battery:
    """What changes while a battery runs: its evidence, and the machine profile once there is one."""

    def __init__(self, settings: Settings, opened: OpenedBattery, known: History, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self.opened = opened
        self.known = known
        self.tell = tell
        self.start = time.monotonic()
        self.profile: Profile | None = None
        self.kept: dict[str, list[Evidence]] = {}
        self.watch: HealthWatch | None = None
        self.earlier_health: list[Health] = []  # of the interrupted battery, phase by phase
        self.notes: list[str] = []

    @property
    def seconds_left(self) -> float:
        return self.settings.effort.limit_seconds - (time.monotonic() - self.start)

    def note(self, words: str) -> None:
        """Tell it now and in the report."""
        self.tell(words)
        self.notes.append(words)

    def health(self, now: Health) -> Health:
        """What was read of GPUs until now, before an interruption too."""
        return joined([*self.earlier_health, now])

    def evidence(self) -> list[Evidence]:
        return [one for part in self.kept.values() for one in part]

    def run(self, phase: Phase, attempt: str = "") -> list[Evidence]:
        """Run a phase within its budget and keep its evidence; what an interrupted battery kept is taken over.

        Args:
            attempt: tells another one at the same phase from the first one.
        """
        name = f"{phase.name} {attempt}".rstrip()
        earlier = self.opened.kept(name)
        if earlier is not None:
            self.tell(f"{name}: from the interrupted battery")
            self.earlier_health += [one for one in earlier if isinstance(one, Health)]
            return [one for one in earlier if not isinstance(one, Health)]
        self.tell(f"{name}: about {phase.predicted_seconds:.0f} s")
        compiled = COMPILE_SECONDS if self.settings.device == "cuda" else 0.0
        budget = max(LEAST_BUDGET_SECONDS, BUDGET_FACTOR * phase.predicted_seconds) + compiled
        begun = time.monotonic()

        def within_budget(_rank: int, _event: Event) -> None:
            if time.monotonic() - begun > budget:
                raise OverBudgetError

        found: list[Evidence] = []
        outcome, message, stacks, at_fault = "ok", "", "", list[int]()
        try:
            for one in phase.run(within_budget):
                found.append(one)
        except OverBudgetError:
            outcome, message = "slow", "over budget"
        for one in found:
            if isinstance(one, Micro | Launched | Probing) and one.status is not Status.OK:
                outcome = "hang" if one.status is Status.HANG else "failed"
                message, stacks, at_fault = one.message, one.stacks, one.ranks_at_fault
                if one.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
        found.append(
            Timed(
                phase=phase.name,
                predicted_seconds=phase.predicted_seconds,
                budget_seconds=budget,
                seconds=time.monotonic() - begun,
                outcome=outcome,
                message=message,
                stacks=stacks,
                ranks_at_fault=at_fault,
            )
        )
        health = None if self.watch is None else self.watch.lap()
        self.opened.keep(name, [*found, health] if health and health.gpus else found)
        return found
