"""One regression check: launches of every run, its baseline, verdicts, and the re-run in turn that confirms them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from suite.job.corpus import Corpus
from suite.job.events import Status
from suite.machine.fingerprint import hardware, node_identity
from suite.metrics.figures import Quantity
from suite.metrics.noise_floor import IDENTICAL_LAUNCHES, Floor, least_detectable
from suite.metrics.two_sample import difference
from suite.paths import ROOT
from suite.records.index import launches as all_launches
from suite.records.record import policy
from suite.records.store import read
from suite.records.summary import LaunchSummary
from suite.regression.baselines import (
    BEST,
    Baseline,
    OldCodeError,
    baseline,
    checkout,
    old_commit,
    old_launch,
    software_changes,
)
from suite.regression.comparability import floor_of, seconds, setup
from suite.regression.findings import RegressionFinding, record_findings, time_finding
from suite.regression.segments import segments
from suite.regression.verdicts import LIMIT, ChangeVerdict, JudgedChange, Sets, judged
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.reproduce import LaunchResult

MORE_LAUNCHES = (7, 10, 15, 20, 30)
HINT = "--accept launches it and makes these launches its baseline, --baseline COMMIT launches older code in turn"


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run to check: its plan and corpus, and the arguments of `reproduce` with which other code plans the same."""

    plan: Plan
    corpus: Corpus
    arguments: tuple[str, ...]

    @property
    def setup(self) -> str:
        """The fingerprint of what is about to be launched here."""
        job = job_for(self.plan, self.corpus, "")
        return setup(self.plan.name, hardware(), policy(job), self.plan.steps, self.plan.seed)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run's outcome.

    Args:
        baseline: in words; empty where there is none.
        before, after: records of the baseline and of now; of a re-run in `again`.
        changed: what differs in software but this suite's version.
        floor: whose identical launches the band comes from, or why there is none.
        best: step seconds next to the best stretch of the history, where the baseline is another one; only shown.
        hint: how to make a baseline where there is none.
    """

    run: str
    setup: str
    baseline: str
    baseline_suite: str
    suite: str
    before: list[str]
    after: list[str]
    again: list[str]
    changed: str
    floor: str
    findings: list[RegressionFinding]
    best: RegressionFinding | None
    hint: str = ""


class LaunchFailedError(Exception):
    """A launch of the new code did not end well."""

    def __init__(self, result: LaunchResult) -> None:
        super().__init__(f"{result.run}: {result.status.value}: {result.message}; record {result.record}")
        self.result = result


_OldNew = tuple[list[LaunchSummary], list[LaunchSummary]]  # of old code, of new code


class _State(msgspec.Struct):
    """A run on its way through a check.

    Args:
        old_commit: whose code is launched in turn for the baseline; None where that is recorded.
        again: launches of the re-run, of old and new code.
    """

    run: CheckedRun
    before: Baseline | None
    old_commit: str | None = None
    after: list[LaunchSummary] = []
    again: list[LaunchSummary] = []
    sets: Sets | None = None
    verdict: JudgedChange | None = None
    floor: str = ""


class RegressionCheck:
    """The launches of a check and what is known of them; every launch has its record below `results`.

    Args:
        launched: launches a plan once, by the code that runs here.
        say: takes a line on what happens, for people.
        limit: slow-down that has to be seen: see `suite.regression.verdicts.judged`.
    """

    def __init__(
        self,
        runs: Sequence[CheckedRun],
        results: Path,
        launched: Callable[[CheckedRun], LaunchResult],
        say: Callable[[str], None],
        limit: float = LIMIT,
    ) -> None:
        self._runs, self._results, self._launched, self._say = runs, results, launched, say
        self._limit = limit
        self._trees: dict[str, Path] = {}
        self._stack = ExitStack()

    def compared(self, reference: str | None, *, launches: int, accepts: bool = False) -> list[Comparison]:
        """Launch every run so often, and judge it next to its baseline.

        Where `reference` is a commit of which fewer launches are recorded, its code is launched in turn. A run without
        a baseline is named before anything is launched, and launched only where it `accepts`: then it becomes one.

        Raises:
            LaunchFailedError: a launch did not end well.
            OldCodeError: the commit's code does not run.
            StoreFullError, InputError: a record cannot be written.
        """
        with self._stack:
            known = all_launches(self._results)[0]
            of_commit = reference not in (None, BEST, *(launch.id for launch in known))
            states = [_State(run, baseline(reference, run.setup, known, self._results)) for run in self._runs]
            for state in states:
                if of_commit and (state.before is None or len(state.before.launches) < launches):
                    state.old_commit = reference
                elif state.before is None and not accepts:
                    self._say(f"{state.run.plan.name}: no baseline, so it is not launched: {HINT}")
            launched = [state for state in states if accepts or state.before or state.old_commit]
            if not accepts:
                self._foresee(launched, known, launches)
            pairs = self._in_turn([(state.run, state.old_commit) for state in launched], launches)
            for state, (old, new) in zip(launched, pairs, strict=True):
                state.after = new
                if state.old_commit is not None:
                    words = f"commit {state.old_commit[:12]}, launched in turn"
                    state.before = Baseline(launches=tuple(old), words=words)
            return self._judged(states, launches)

    def _foresee(self, states: Sequence[_State], known: list[LaunchSummary], launches: int) -> None:
        """Say before the launches where so many cannot show what has to be seen, and how many can."""
        node = node_identity()
        for state in states:
            floor, whose = floor_of(state.run.setup, node, known)
            name, baseline_launches = state.run.plan.name, 0 if state.before is None else len(state.before.launches)
            if floor is None:
                if launches < IDENTICAL_LAUNCHES:
                    self._say(f"{name}: times will be uncalibrated: {whose}")
                continue

            def least(count: int, floor: Floor = floor, before: int = baseline_launches) -> float:
                found = least_detectable(floor, before or count, count, family=len(states), rerun=count)
                return math.inf if found is None else found

            now = least(launches)
            if now <= self._limit:
                continue
            enough = next((count for count in MORE_LAUNCHES if count > launches and least(count) <= self._limit), None)
            found = "no slow-down" if math.isinf(now) else f"no slow-down below {now:.0%}"
            remedy = f"--launches {enough} does" if enough else "a quieter machine is needed"
            self._say(f"{name}: {launches} launches show {found} here, asked for {self._limit:.0%}: {remedy}")

    def _judged(self, states: Sequence[_State], launches: int) -> list[Comparison]:
        known = all_launches(self._results)[0]
        node = node_identity()
        for state in states:
            floor, state.floor = floor_of(state.run.setup, node, known)
            if (
                state.before is not None
                and (earlier := _values(state.before.launches))
                and (now := _values(state.after))
            ):
                state.sets = Sets(before=earlier, after=now, floor=floor)
        timed = [state for state in states if state.sets is not None]
        self._confirm(timed, launches)
        for state, verdict in zip(timed, self._verdicts(timed), strict=True):
            state.verdict = verdict
        return [_comparison(state, known) for state in states]

    def _confirm(self, timed: Sequence[_State], launches: int) -> None:
        """Launch old and new code in turn again where nothing else is missing to call a difference a change."""
        confirmed: list[tuple[_State, str]] = []
        for state, verdict in zip(timed, self._verdicts(timed), strict=True):
            if verdict.to_confirm and state.before is not None and state.sets is not None:
                commit, why = old_commit(state.before.launches, state.after, ROOT)
                if commit is None:
                    state.sets = msgspec.structs.replace(state.sets, no_rerun=why)
                else:
                    confirmed.append((state, commit))
        if not confirmed:
            return
        names = ", ".join(state.run.plan.name for state, _ in confirmed)
        self._say(f"{names}: a change to confirm: old and new code in turn, {launches} launches of each")
        refused = ""
        try:
            pairs = self._in_turn([(state.run, commit) for state, commit in confirmed], launches)
        except OldCodeError as error:
            pairs, refused = [([], [])] * len(confirmed), str(error)
        for (state, _), (old, new) in zip(confirmed, pairs, strict=True):
            assert state.sets is not None
            state.again = [*old, *new]
            rerun = None if refused else (_values(old), _values(new))
            state.sets = msgspec.structs.replace(state.sets, rerun=rerun, no_rerun=refused)

    def _verdicts(self, timed: Sequence[_State]) -> list[JudgedChange]:
        return judged([state.sets for state in timed if state.sets is not None], self._limit)

    def _in_turn(self, runs: Sequence[tuple[CheckedRun, str | None]], launches: int) -> list[_OldNew]:
        """Launch every run with the old code, where a commit is named, and with the new one, all runs in turn."""
        paths: list[tuple[list[str], list[str]]] = [([], []) for _ in runs]
        for number in range(1, launches + 1):
            for (run, commit), (old, new) in zip(runs, paths, strict=True):
                if commit is not None:
                    self._say(f"{run.plan.name}: launch {number} of {launches} by {commit[:12]}")
                    old.append(old_launch(self._tree(commit), [*run.arguments]))
                self._say(f"{run.plan.name}: launch {number} of {launches}")
                result = self._launched(run)
                if result.status is not Status.OK:
                    raise LaunchFailedError(result)
                new.append(result.record)
        by_id = {launch.id: launch for launch in all_launches(self._results)[0]}
        return [(_by_path(by_id, old), _by_path(by_id, new)) for old, new in paths]

    def _tree(self, commit: str) -> Path:
        if commit not in self._trees:
            self._trees[commit] = self._stack.enter_context(checkout(commit, ROOT))
        return self._trees[commit]


def _by_path(by_id: dict[str, LaunchSummary], paths: list[str]) -> list[LaunchSummary]:
    return [by_id[Path(path).name.removesuffix(".begin.json")] for path in paths]


def _values(launches: Sequence[LaunchSummary]) -> tuple[float, ...]:
    return tuple(value for value in map(seconds, launches) if value is not None)


def _comparison(state: _State, known: list[LaunchSummary]) -> Comparison:
    name, before, after = state.run.plan.name, state.before, state.after
    before_launches = [] if before is None else [*before.launches]
    findings: list[RegressionFinding] = []
    if before is not None:
        if state.sets is not None and state.verdict is not None:
            findings.append(
                time_finding(name, Quantity.STEP_SECONDS.value, "s", state.sets.before, state.sets.after, state.verdict)
            )
        sides = ([read(Path(launch.path)) for launch in side] for side in (before_launches, after))
        findings += record_findings(name, *sides)
    return Comparison(
        run=name,
        setup=state.run.setup,
        baseline=before.words if before else "",
        baseline_suite=_suites(before_launches),
        suite=_suites(after),
        before=[launch.id for launch in before_launches],
        after=[launch.id for launch in after],
        again=[launch.id for launch in state.again],
        changed=software_changes(before_launches, after) if before_launches else "",
        floor=state.floor,
        findings=findings,
        best=_against_the_best(state, before_launches, known),
        hint=HINT,
    )


def _suites(launches: Sequence[LaunchSummary]) -> str:
    return ", ".join(dict.fromkeys(launch.suite for launch in launches))


def _against_the_best(
    state: _State, before: list[LaunchSummary], known: list[LaunchSummary]
) -> RegressionFinding | None:
    new_ids = {launch.id for launch in [*state.after, *state.again]}
    earlier = segments(launch for launch in known if launch.id not in new_ids)
    history = next((segment for segment in earlier if segment.setup == state.run.setup), None)
    if history is None or not before:
        return None
    best = history.best_points
    if {point.id for point in best} == {launch.id for launch in before}:
        return None
    values, now = [point.seconds for point in best], _values(state.after)
    compared = difference(values, now)
    stretch = history.stretches[history.best]
    return RegressionFinding(
        run=state.run.plan.name,
        quantity=Quantity.STEP_SECONDS.value,
        unit="s",
        before=stretch.median,
        after=statistics.median(now),
        before_launches=len(values),
        after_launches=len(now),
        ratio=compared.ratio,
        interval=compared.interval,
        change=ChangeVerdict.SHOWN,
        why=f"the best stretch of the history, {', '.join(stretch.suites[:2])}",
    )
