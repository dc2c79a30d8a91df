"""One regression check: launches of every run, its baseline, verdicts, and the re-run in turn that confirms them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from suite.machine.environments import Environment
from suite.machine.fingerprint import node_identity
from suite.metrics.figures import Quantity
from suite.metrics.noise_floor import IDENTICAL_LAUNCHES
from suite.metrics.two_sample import difference
from suite.paths import ROOT
from suite.records.index import launches as all_launches
from suite.records.store import read
from suite.records.summary import LaunchSummary
from suite.regression.baselines import BEST, Baseline, baseline, checkout, old_commit, software_changes
from suite.regression.comparability import floor_of, seconds
from suite.regression.findings import RegressionFinding, record_findings, time_finding
from suite.regression.looks import enough_launches, least_of, look_price, look_sizes
from suite.regression.remedies import UNDECIDED, Remedy, remedy
from suite.regression.segments import segments
from suite.regression.turns import CheckedRun, OldSide, TimeOverError, Turns, launch_in_turn
from suite.regression.verdicts import LIMIT, ChangeVerdict, JudgedChange, Sets, judged
from suite.reproduce.other_code import OldCodeError
from suite.reproduce.reproduce import LaunchResult

HINT = "--accept launches it and makes these launches its baseline, --baseline COMMIT launches older code in turn"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run's outcome.

    Args:
        baseline: in words; empty where there is none.
        before, after: records of the baseline and of now; of a re-run in `again`.
        changed: what differs in software but this suite's version.
        floor: whose identical launches the band comes from, or why there is none.
        best: step seconds next to the best stretch of the history, where the baseline is another one; only shown.
        hint: how to make a baseline where there is none.
        looks: at the launches, of a check that went on until it was decided; 0 otherwise.
        remedy: of an undecided check: what would decide it.
        environments: of a check of two environments the old one and this one; `differences` between them.
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
    looks: int = 0
    remedy: Remedy | None = None
    environments: list[Environment] = []
    differences: list[str] = []


class OtherEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment that a check launches in turn with this one, how they differ, and how it is launched."""

    old: Environment
    new: Environment
    differences: list[str]
    side: OldSide


class _State(msgspec.Struct):
    """A run on its way through a check.

    Args:
        side: that is launched in turn for the baseline; None where that is recorded.
        turns: its launches for the comparison; `after` those of now.
        again: launches of the re-run, of old and new code.
        look: at which it was judged last.
    """

    run: CheckedRun
    before: Baseline | None
    turns: Turns
    after: list[LaunchSummary] = []
    again: list[LaunchSummary] = []
    sets: Sets | None = None
    verdict: JudgedChange | None = None
    floor: str = ""
    look: int = 0

    @property
    def is_decided(self) -> bool:
        return self.verdict is not None and self.verdict.change not in UNDECIDED


class RegressionCheck:
    """The launches of a check and what is known of them; every launch has its record below `results`.

    Args:
        launched: launches a plan once, by the code that runs here.
        old_launched: launches the plan of a run by the code in a working tree; the path of its record.
        say: takes a line on what happens, for people.
        limit: slow-down that has to be seen: see `suite.regression.verdicts.judged`.
        other: environment that is launched in turn in place of a baseline.
    """

    def __init__(
        self,
        runs: Sequence[CheckedRun],
        results: Path,
        launched: Callable[[CheckedRun], LaunchResult],
        old_launched: Callable[[Path, CheckedRun], str],
        say: Callable[[str], None],
        limit: float = LIMIT,
        other: OtherEnvironment | None = None,
    ) -> None:
        self._runs, self._results, self._launched, self._say = runs, results, launched, say
        self._old_launched, self._limit, self._other = old_launched, limit, other
        self._trees: dict[str, Path] = {}
        self._stack = ExitStack()
        self._time_over = False

    def compared(
        self, reference: str | None, *, launches: int, accepts: bool = False, until_decided: bool = False
    ) -> list[Comparison]:
        """Launch every run so often, and judge it next to its baseline.

        Where `reference` is a commit of which fewer launches are recorded, its code is launched in turn; another
        environment always is. A run without a baseline is named before anything is launched, and launched only where
        it `accepts`: then it becomes one. `until_decided` launches go on, and are judged at every look, until every
        run is decided or its launcher says that the time is over.

        Raises:
            LaunchFailedError: a launch did not end well.
            OldCodeError: the commit's code does not run.
            StoreFullError, InputError: a record cannot be written.
        """
        with self._stack:
            known = all_launches(self._results, recorded=False)[0]
            states = [self._begun(run, reference, launches, known) for run in self._runs]
            for state in states:
                if state.before is None and state.turns.side is None and not accepts:
                    self._say(f"{state.run.plan.name}: no baseline, so it is not launched: {HINT}")
            launched = [state for state in states if accepts or state.before or state.turns.side]
            if not accepts and not until_decided:
                self._foresee(launched, known, launches)
            if until_decided:
                self._until_decided(launched, launches)
            else:
                self._launch(launched, launches)
                self._judge(launched)
            return self._comparisons(states, launches)

    def _begun(self, run: CheckedRun, reference: str | None, launches: int, known: list[LaunchSummary]) -> _State:
        """A run with what it is compared with."""
        if self._other is not None:
            return _State(run, None, Turns(run=run, side=self._other.side))
        before, side = baseline(reference, run.setup, known, self._results), None
        of_commit = reference not in (None, BEST, *(launch.id for launch in known))
        if of_commit and reference and (before is None or len(before.launches) < launches):
            side = self._side_of(reference)
        return _State(run, before, Turns(run=run, side=side))

    def _side_of(self, commit: str) -> OldSide:
        short = commit[:12]
        return OldSide(words=f"commit {short}, launched in turn", name=short, launched=partial(self._by_commit, commit))

    def _by_commit(self, commit: str, run: CheckedRun) -> str:
        if commit not in self._trees:
            self._trees[commit] = self._stack.enter_context(checkout(commit, ROOT))
        return self._old_launched(self._trees[commit], run)

    def _foresee(self, states: Sequence[_State], known: list[LaunchSummary], launches: int) -> None:
        """Say before the launches where so many cannot show what has to be seen, and how many can."""
        node = node_identity()
        for state in states:
            floor, whose = floor_of(state.run.setup, node, known)
            name = state.run.plan.name
            if floor is None:
                if launches < IDENTICAL_LAUNCHES:
                    self._say(f"{name}: times will be uncalibrated: {whose}")
                continue
            before = None if state.before is None else len(state.before.launches)
            least = least_of(floor, before, family=len(states))
            now = least(launches)
            if now <= self._limit:
                continue
            enough = enough_launches(least, launches, self._limit)
            found = "no slow-down" if math.isinf(now) else f"no slow-down below {now:.0%}"
            words = f"--launches {enough} does" if enough else "a quieter machine is needed"
            self._say(f"{name}: {launches} launches show {found} here, asked for {self._limit:.0%}: {words}")

    def _until_decided(self, states: Sequence[_State], launches: int) -> None:
        """Launch and look until every run is decided, the time is over, or more launches would tell nothing new."""
        for look, size in enumerate(look_sizes(launches), start=1):
            open_ = [state for state in states if not state.is_decided]
            self._launch(open_, size)
            self._judge(states, look)
            waiting = [state for state in open_ if not state.is_decided]
            if not waiting or self._time_over:
                return
            if all(state.sets is not None and state.sets.no_rerun for state in waiting):
                return
            names = ", ".join(state.run.plan.name for state in waiting)
            self._say(f"{names}: not decided at look {look}, with {size} launches: on to the next")

    def _launch(self, states: Sequence[_State], launches: int) -> None:
        """Launch until there are so many of each side."""
        self._in_turn([state.turns for state in states], launches)
        for state in states:
            old, state.after = state.turns.summaries(self._results)
            if state.turns.side is not None:
                state.before = Baseline(launches=tuple(old), words=state.turns.side.words)

    def _in_turn(self, turns: Sequence[Turns], launches: int) -> None:
        if self._time_over:
            return
        try:
            launch_in_turn(turns, launches, self._launched, self._say)
        except TimeOverError:
            self._time_over = True
            self._say("the time is over: the launch that ran was ended and does not count")

    def _judge(self, states: Sequence[_State], look: int = 0) -> None:
        """Judge all runs that are not decided; 0 is the one look of a check that does not go on."""
        known = all_launches(self._results, recorded=False)[0]
        node = node_identity()
        settled = sum(state.is_decided for state in states)
        timed = []
        for state in states:
            if state.is_decided or (state.sets is not None and len(state.sets.after) == len(state.after)):
                continue
            floor, state.floor = floor_of(state.run.setup, node, known)
            earlier, now = (_values(side) for side in (state.before.launches if state.before else (), state.after))
            if earlier and now:
                state.sets, state.look = Sets(before=earlier, after=now, floor=floor), look
                timed.append(state)
        price = look_price(look) if look else 1
        verdicts = partial(_verdicts, timed, self._limit, price=price, settled=settled)
        self._confirm(timed, verdicts())
        for state, verdict in zip(timed, verdicts(), strict=True):
            state.verdict = verdict

    def _confirm(self, timed: Sequence[_State], verdicts: Sequence[JudgedChange]) -> None:
        """Launch old and new code in turn again where nothing else is missing to call a difference a change."""
        confirmed: list[tuple[_State, Turns]] = []
        for state, verdict in zip(timed, verdicts, strict=True):
            if verdict.to_confirm and state.before is not None and state.sets is not None:
                side, why = self._old_side(state)
                if side is None:
                    state.sets = msgspec.structs.replace(state.sets, no_rerun=why)
                else:
                    confirmed.append((state, Turns(run=state.run, side=side)))
        if not confirmed:
            return
        launches = max(len(state.after) for state, _ in confirmed)
        names = ", ".join(state.run.plan.name for state, _ in confirmed)
        self._say(f"{names}: a change to confirm: old and new code in turn, {launches} launches of each")
        refused = ""
        try:
            self._in_turn([turns for _, turns in confirmed], launches)
        except OldCodeError as error:
            refused = str(error)
        for state, turns in confirmed:
            assert state.sets is not None
            old, new = turns.summaries(self._results)
            state.again = [*state.again, *old, *new]
            rerun = (_values(old), _values(new)) if old and not refused else None
            why = "" if rerun else refused or "the time was over before a re-run in turn could confirm it"
            state.sets = msgspec.structs.replace(state.sets, rerun=rerun, no_rerun=why)

    def _old_side(self, state: _State) -> tuple[OldSide | None, str]:
        """Old side that a baseline ran, to be launched again next to the new code; or why it cannot be."""
        if self._other is not None:
            return self._other.side, ""
        assert state.before is not None
        commit, why = old_commit(state.before.launches, state.after, ROOT)
        return (None, why) if commit is None else (self._side_of(commit), "")

    def _comparisons(self, states: Sequence[_State], launches: int) -> list[Comparison]:
        known = all_launches(self._results, recorded=False)[0]
        return [
            msgspec.structs.replace(_comparison(state, known, self._other), remedy=self._remedy(state, launches))
            for state in states
        ]

    def _remedy(self, state: _State, first: int) -> Remedy | None:
        """Remedy of a run that was judged and is not decided."""
        if state.verdict is None or state.sets is None or state.is_decided:
            return None
        in_turn = state.turns.side is not None and state.before is not None
        launches = [*state.after, *(state.before.launches if in_turn and state.before else ())]
        return remedy(state.sets, state.verdict, in_turn=in_turn, launches=launches, first=first, limit=self._limit)


def _verdicts(timed: Sequence[_State], limit: float, *, price: int, settled: int) -> list[JudgedChange]:
    sets = [state.sets for state in timed if state.sets is not None]
    return judged(sets, limit, price=price, settled=settled)


def _values(launches: Sequence[LaunchSummary]) -> tuple[float, ...]:
    return tuple(value for value in map(seconds, launches) if value is not None)


def _comparison(state: _State, known: list[LaunchSummary], other: OtherEnvironment | None) -> Comparison:
    name, before, after = state.run.plan.name, state.before, state.after
    before_launches = [] if before is None else [*before.launches]
    findings: list[RegressionFinding] = []
    if before_launches and after:
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
        changed=software_changes(before_launches, after) if before_launches and after else "",
        floor=state.floor,
        findings=findings,
        best=_against_the_best(state, before_launches, known),
        hint=HINT,
        looks=state.look,
        environments=[] if other is None else [other.old, other.new],
        differences=[] if other is None else other.differences,
    )


def _suites(launches: Sequence[LaunchSummary]) -> str:
    return ", ".join(dict.fromkeys(launch.suite for launch in launches))


def _against_the_best(
    state: _State, before: list[LaunchSummary], known: list[LaunchSummary]
) -> RegressionFinding | None:
    new_ids = {launch.id for launch in [*state.after, *state.again]}
    earlier = segments(launch for launch in known if launch.id not in new_ids)
    history = next((segment for segment in earlier if segment.setup == state.run.setup), None)
    if history is None or not before or not state.after:
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
