"""One regression check: launches of every run, its baseline, verdicts, and the re-run in turn that confirms them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from suite.job.corpus import Corpus
from suite.job.events import Status
from suite.machine.fingerprint import hardware, node_identity
from suite.metrics.two_sample import difference
from suite.paths import ROOT
from suite.records.index import launches as all_launches
from suite.records.record import Record, policy
from suite.records.store import read
from suite.records.summary import LaunchSummary
from suite.regression.baseline_checkout import OldCodeError, checkout, old_commit, old_launch, software_changes
from suite.regression.baselines import BEST, Baseline, baseline
from suite.regression.change_points import segments
from suite.regression.comparability import SECONDS, floor_of, seconds, setup
from suite.regression.findings import RegressionFinding, record_findings, time_finding
from suite.regression.verdicts import ChangeVerdict, JudgedChange, Sets, judged
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.reproduce import LaunchResult

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


class RegressionCheck:
    """The launches of a check and what is known of them; every launch has its record below `results`.

    Args:
        launched: launches a plan once, by the code that runs here.
        told: takes a line on what happens, for people.
    """

    def __init__(
        self,
        runs: Sequence[CheckedRun],
        results: Path,
        launched: Callable[[CheckedRun], LaunchResult],
        told: Callable[[str], None],
    ) -> None:
        self._runs, self._results, self._launched, self._told = runs, results, launched, told
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
            before = [baseline(reference, run.setup, known, self._results) for run in self._runs]
            old: list[str | None] = [None] * len(self._runs)
            if reference is not None and reference != BEST and not any(one.id == reference for one in known):
                for place, found in enumerate(before):
                    if found is None or len(found.launches) < launches:
                        old[place] = reference
            launched = [place for place in range(len(self._runs)) if accepts or before[place] or old[place]]
            for place in sorted({*range(len(self._runs))} - {*launched}):
                self._told(f"{self._runs[place].plan.name}: no baseline, so it is not launched: {HINT}")
            pairs = self._in_turn(launched, old, launches)
            after = [pairs[place][1] if place in pairs else [] for place in range(len(self._runs))]
            for place, commit in enumerate(old):
                if commit is not None:
                    before[place] = Baseline(
                        launches=tuple(pairs[place][0]), words=f"commit {commit[:12]}, launched in turn"
                    )
            known = all_launches(self._results)[0]
            return self._judged(before, after, known, launches)

    def _judged(
        self, before: list[Baseline | None], after: list[list[LaunchSummary]], known: list[LaunchSummary], launches: int
    ) -> list[Comparison]:
        floors = [floor_of(run.setup, node_identity(), known) for run in self._runs]
        sets: dict[int, Sets] = {}
        for place, found in enumerate(before):
            if found is not None and (own := _values(found.launches)) and (now := _values(after[place])):
                sets[place] = Sets(before=own, after=now, floor=floors[place][0])
        verdicts = dict(zip(sets, judged(list(sets.values())), strict=True))
        again: dict[int, tuple[list[LaunchSummary], list[LaunchSummary]]] = {}
        confirm: dict[int, str | None] = {}
        for place, verdict in verdicts.items():
            if verdict.to_confirm and (found := before[place]) is not None:
                commit, why = old_commit(found.launches, after[place][-1], ROOT)
                if commit is None:
                    sets[place] = msgspec.structs.replace(sets[place], no_rerun=why)
                else:
                    confirm[place] = commit
        if confirm:
            names = ", ".join(self._runs[place].plan.name for place in confirm)
            self._told(f"{names}: a change to confirm: old and new code in turn, {launches} launches of each")
            try:
                again = self._in_turn(list(confirm), [confirm.get(n) for n in range(len(self._runs))], launches)
            except OldCodeError as error:
                for place in confirm:
                    sets[place] = msgspec.structs.replace(sets[place], no_rerun=str(error))
            for place, (old, new) in again.items():
                sets[place] = msgspec.structs.replace(sets[place], rerun=(_values(old), _values(new)))
        verdicts = dict(zip(sets, judged(list(sets.values())), strict=True))
        return [
            _comparison(
                run, before[n], after[n], sets.get(n), verdicts.get(n), again.get(n, ([], [])), floors[n][1], known
            )
            for n, run in enumerate(self._runs)
        ]

    def _in_turn(
        self, places: Sequence[int], old: Sequence[str | None], launches: int
    ) -> dict[int, tuple[list[LaunchSummary], list[LaunchSummary]]]:
        """By place: launches of the old code, where a commit is named, and of the new one, all runs in turn."""
        paths: dict[int, tuple[list[str], list[str]]] = {place: ([], []) for place in places}
        for number in range(launches):
            for place in places:
                run, commit = self._runs[place], old[place]
                if commit is not None:
                    self._told(f"{run.plan.name}: launch {number + 1} of {launches} by {commit[:12]}")
                    paths[place][0].append(old_launch(self._tree(commit), [*run.arguments]))
                self._told(f"{run.plan.name}: launch {number + 1} of {launches}")
                result = self._launched(run)
                if result.status is not Status.OK:
                    raise LaunchFailedError(result)
                paths[place][1].append(result.record)
        by_id = {one.id: one for one in all_launches(self._results)[0]}
        return {place: (_by_path(by_id, a), _by_path(by_id, b)) for place, (a, b) in paths.items()}

    def _tree(self, commit: str) -> Path:
        if commit not in self._trees:
            self._trees[commit] = self._stack.enter_context(checkout(commit, ROOT))
        return self._trees[commit]


def _by_path(by_id: dict[str, LaunchSummary], paths: list[str]) -> list[LaunchSummary]:
    return [by_id[Path(path).name.removesuffix(".begin.json")] for path in paths]


def _values(launches: Sequence[LaunchSummary]) -> tuple[float, ...]:
    return tuple(value for value in map(seconds, launches) if value is not None)


def _comparison(
    run: CheckedRun,
    before: Baseline | None,
    after: list[LaunchSummary],
    sets: Sets | None,
    verdict: JudgedChange | None,
    again: tuple[list[LaunchSummary], list[LaunchSummary]],
    floor: str,
    known: list[LaunchSummary],
) -> Comparison:
    name, own = run.plan.name, [] if before is None else [*before.launches]
    findings: list[RegressionFinding] = []
    if before is not None:
        if sets is not None and verdict is not None:
            findings.append(time_finding(name, SECONDS, "s", sets.before, sets.after, verdict))
        findings += record_findings(name, _records(own), _records(after))
    return Comparison(
        run=name,
        setup=run.setup,
        baseline=before.words if before else "",
        baseline_suite=", ".join(dict.fromkeys(one.suite for one in own)),
        suite=after[-1].suite if after else "",
        before=[one.id for one in own],
        after=[one.id for one in after],
        again=[one.id for side in again for one in side],
        changed=software_changes(own, after) if own else "",
        floor=floor,
        findings=findings,
        best=_beside_the_best(name, run.setup, own, after, [*again[0], *again[1]], known),
        hint=HINT,
    )


def _records(launches: Sequence[LaunchSummary]) -> list[Record]:
    return [read(Path(one.path)) for one in launches]


def _beside_the_best(
    name: str,
    fingerprint: str,
    before: list[LaunchSummary],
    after: list[LaunchSummary],
    again: list[LaunchSummary],
    known: list[LaunchSummary],
) -> RegressionFinding | None:
    own = {one.id for one in [*after, *again]}
    found = [one for one in segments(one for one in known if one.id not in own) if one.setup == fingerprint]
    if not found or not before:
        return None
    best = found[0].best_points
    if {point.id for point in best} == {one.id for one in before}:
        return None
    values, now = [point.seconds for point in best], _values(after)
    compared = difference(values, now)
    stretch = found[0].stretches[found[0].best]
    return RegressionFinding(
        run=name,
        quantity=SECONDS,
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
