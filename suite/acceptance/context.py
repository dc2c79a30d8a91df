"""The request for a battery, and its state while it runs: evidence, time, and the machine profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from suite.acceptance.battery_record import BatteryRecord
from suite.acceptance.check_table import ALL_REDUCE, HOST_DEVICE, PEER, SPREAD, STRAGGLER
from suite.acceptance.evidence import (
    ENDED_BY_LIMIT,
    LEFT_OUT,
    NOT_BEGUN,
    OVER_THE_LIMIT,
    SLOW,
    Evidence,
    LaunchPurpose,
    Load,
    PhaseTiming,
    Surroundings,
)
from suite.acceptance.gpu_evidence import HangReadings, Health
from suite.acceptance.gpu_watch import HealthWatch, joined
from suite.acceptance.hang_suspect import HangSuspect, hang_suspect
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.launch_errors import hardware_errors, uncorrectable
from suite.acceptance.past_batteries import History
from suite.acceptance.presets import Effort
from suite.job.events import Event, Hung, Status
from suite.launch.interruption import OutOfTimeError, time_limit
from suite.machine.profile import Profile
from suite.records.battery import CheckFinding

BUDGET_FACTOR = 5.0
LEAST_BUDGET_SECONDS = 120.0  # of a phase: as long as the launcher waits for a rank's first step
COMPILE_SECONDS = 600.0
BEGINS = 0.5  # share of its predicted seconds that must be left for a phase to begin: predictions have a reserve


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request.

    Args:
        devices: that the node must have; None: not said.
        others: largest share of the processors that other processes may use.
        miniatures: that are launched; `timed` those whose step time is judged.
        resume: go on with the newest battery that did not end; `resume_if_any`: where there is one.
        device_named: whether the operator named the device.
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
    resume_if_any: bool = False
    device_named: bool = False


class BatteryPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, the time that it should take, and the checks that it serves.

    Args:
        run: yields evidence as it is measured, so that complete evidence is kept if the rest does not end.
    """

    name: str
    predicted_seconds: float
    serves: frozenset[int]
    run: Callable[[Callable[[int, Event], None]], Iterable[Evidence]]


class LaunchesPhase(BatteryPhase, frozen=True, kw_only=True):
    """Launches of one miniature; `compiled`: on a GPU, with torch.compile."""

    miniature: str
    purpose: LaunchPurpose
    launches: int
    compiled: bool


class OverBudgetError(OutOfTimeError):
    """A phase makes progress, but takes longer than five times its prediction."""


class RunningBattery:
    """The state of a battery: its evidence by phase, and the machine profile once it is measured.

    Args:
        progress: gets one line for each phase as it begins.
    """

    def __init__(
        self, settings: Settings, record: BatteryRecord, history: History, progress: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.record = record
        self.history = history
        self.progress = progress
        self.start = time.monotonic()
        self.profile: Profile | None = None
        self.evidence_of: dict[str, list[Evidence]] = {}
        self.gpu_watch: HealthWatch | None = None
        self.earlier_health: list[Health] = []  # of the interrupted battery, phase by phase
        self.notes: list[str] = []
        self.why_over = ""  # what decides the battery, or lets nothing more be executed: no further phase runs

    @property
    def seconds_left(self) -> float:
        return self._seconds_to_limit()

    def _seconds_to_limit(self) -> float:
        return self.settings.effort.limit_seconds - (time.monotonic() - self.start)

    def note(self, text: str) -> None:
        """Print a line now, and have it in the report."""
        self.progress(text)
        self.notes.append(text)

    def end(self, why: str) -> None:
        """Run no further phase."""
        if not self.why_over:
            self.why_over = why
            self.note(why)

    def health(self, now: Health) -> Health:
        """All readings of the GPUs, those before an interruption too."""
        return joined([*self.earlier_health, now])

    def evidence(self) -> list[Evidence]:
        """All evidence so far."""
        return [item for of_phase in self.evidence_of.values() for item in of_phase]

    def findings(
        self,
        health: Health,
        evidence: Sequence[Evidence] | None = None,
        looks_of: Mapping[str, Sequence[int]] | None = None,
    ) -> list[CheckFinding]:
        """Findings of the evidence so far, or of other evidence; `looks_of` single miniatures."""
        return battery_findings(
            [*(self.evidence() if evidence is None else evidence), health],
            self.history,
            others=self.settings.others,
            looks=self.settings.effort.looks,
            looks_of=looks_of,
            selected=self.settings.selected,
        )

    def run(self, phase: BatteryPhase, attempt: str = "") -> list[Evidence]:
        """Run a phase within its budget and store its evidence; or take what an interrupted battery stored of it.

        The battery's limit ends it, and no phase begins without half of its predicted time. What such a phase had
        measured is stored under another name: a resumed battery runs it anew.

        An uncorrectable error of a GPU decides the battery: nothing runs after it.

        Args:
            attempt: distinguishes a repetition of the phase.
        """
        name = f"{phase.name} {attempt}".rstrip()
        stored = self.record.kept(name)
        if stored is not None:
            self.progress(f"{name}: from the interrupted battery")
            self.earlier_health += [item for item in stored if isinstance(item, Health)]
            return [item for item in stored if not isinstance(item, Health)]
        if self.why_over:
            return []
        left = max(0.0, self._seconds_to_limit())
        if left < BEGINS * phase.predicted_seconds:
            self.progress(
                f"{name}: not begun: {left:.0f} s of the limit are left, {phase.predicted_seconds:.0f} needed"
            )
            return [self._over_the_limit(_timing(phase, NOT_BEGUN), phase)]
        self.progress(f"{name}: about {phase.predicted_seconds:.0f} s")
        compile_seconds = COMPILE_SECONDS if self.settings.device == "cuda" else 0.0
        budget = max(LEAST_BUDGET_SECONDS, BUDGET_FACTOR * phase.predicted_seconds) + compile_seconds
        *evidence, timing = _measured(phase, budget, left, self._readings_of(phase))
        if isinstance(timing, PhaseTiming) and timing.outcome in (SLOW, *OVER_THE_LIMIT):
            name = name if timing.outcome == SLOW else f"{name} {ENDED_BY_LIMIT}"
            timing = self._over_the_limit(timing, phase)
        evidence.append(timing)
        health = None if self.gpu_watch is None else self.gpu_watch.since_last()
        self.record.keep(name, [*evidence, health] if health and health.gpus else evidence)
        if errors := [*hardware_errors(evidence), *uncorrectable(health)]:
            self.end(f"ended at once: {errors[0]}")
        return evidence

    def _readings_of(self, phase: BatteryPhase) -> Callable[[], HangReadings | None]:
        """A function that reads the GPUs on which ranks run; None where the node has none."""

        def readings() -> HangReadings | None:
            around = next((item for item in self.evidence() if isinstance(item, Surroundings)), None)
            if self.gpu_watch is None or around is None or not around.gpus_with_ranks:
                return None
            samples = self.gpu_watch.while_hanging()
            return HangReadings(
                phase=phase.name, samples={gpu: samples[gpu] for gpu in around.gpus_with_ranks if gpu in samples}
            )

        return readings

    def run_if_time(self, phase: BatteryPhase, reserved_seconds: float) -> list[Evidence]:
        """Run a phase if it ends before the limit with so many seconds to spare; otherwise it is left out."""
        left = self.seconds_left - reserved_seconds
        if phase.predicted_seconds <= left or self.record.kept(phase.name) is not None:
            return self.run(phase)
        spared = f", but {reserved_seconds:.0f} s for what failed" if reserved_seconds else ""
        self.progress(f"{phase.name}: left out: {max(0.0, left):.0f} s are left{spared}")
        return [self._over_the_limit(_timing(phase, LEFT_OUT), phase)]

    def _over_the_limit(self, timing: PhaseTiming, phase: BatteryPhase) -> PhaseTiming:
        """The timing, with its checks, of a phase that its budget or the limit ended, or that had no time left."""
        settings = self.settings
        impossible = frozenset() if settings.device == "cuda" else frozenset({HOST_DEVICE})
        impossible |= frozenset() if settings.ranks > 1 else frozenset({SPREAD, PEER, ALL_REDUCE, STRAGGLER})
        budget, limit = f"{timing.budget_seconds:.0f} s at most", f"the limit of {settings.effort.limit_seconds:.0f} s"
        return msgspec.structs.replace(
            timing,
            message=budget if timing.outcome == SLOW else limit,
            checks=sorted((phase.serves & settings.selected) - impossible),
            subject=phase.miniature if isinstance(phase, LaunchesPhase) else "",
        )


def _timing(phase: BatteryPhase, outcome: str, *, budget: float = 0.0, seconds: float = 0.0) -> PhaseTiming:
    return PhaseTiming(
        phase=phase.name,
        predicted_seconds=phase.predicted_seconds,
        budget_seconds=budget,
        seconds=seconds,
        outcome=outcome,
    )


def _measured(
    phase: BatteryPhase, budget: float, left: float, at_hang: Callable[[], HangReadings | None]
) -> list[Evidence]:
    """The evidence of a phase, and last its timing.

    Args:
        left: seconds after which the battery's limit ends it.
        at_hang: reads the GPUs while a launch hangs; the one out of step is named beside the launcher's own finding.

    Raises:
        KeyboardInterrupt: the user interrupted a launch.
    """
    begun = time.monotonic()

    readings: list[HangReadings] = []

    def within_budget(_rank: int, event: Event) -> None:
        if isinstance(event, Hung) and (read := at_hang()) is not None:
            readings.append(read)
        elif time.monotonic() - begun > budget:
            raise OverBudgetError

    evidence: list[Evidence] = []
    unfinished: list[Evidence] = []
    outcome, message, stacks, at_fault = "ok", "", "", list[int]()
    try:
        with time_limit(left):
            for item in phase.run(within_budget):
                evidence.append(item)
    except OutOfTimeError as over:
        outcome = SLOW if isinstance(over, OverBudgetError) else ENDED_BY_LIMIT
        unfinished = over.measured
    suspect = hang_suspect(readings[-1].samples) if readings else None
    for number, item in enumerate(evidence):
        if isinstance(item, Load) and item.status is not Status.OK:
            if item.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            if item.status is Status.HANG and suspect is not None:
                item = evidence[number] = _with_suspect(item, suspect, [*readings[-1].samples])
            outcome = "hang" if item.status is Status.HANG else "failed"
            message, stacks, at_fault = item.message, item.stacks, item.ranks_at_fault
    timing = _timing(phase, outcome, budget=budget, seconds=time.monotonic() - begun)
    timing = msgspec.structs.replace(timing, message=message, stacks=stacks, ranks_at_fault=at_fault)
    return [*evidence, *unfinished, *readings, timing]


def _with_suspect(hung: Load, suspect: HangSuspect, gpus_with_ranks: Sequence[int]) -> Load:
    """The hang with the GPU that stands out; its rank is at fault where the launcher names none."""
    message = f"{hung.message}; {suspect.words}"
    at_fault = hung.ranks_at_fault
    if not at_fault and suspect.gpu is not None:
        at_fault = [gpus_with_ranks.index(suspect.gpu)]
    return msgspec.structs.replace(hung, message=message, ranks_at_fault=at_fault)
