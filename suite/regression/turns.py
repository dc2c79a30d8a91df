"""Launches of old and new code, or of two environments, in turn: both share what the machine does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from suite.job.corpus import Corpus
from suite.job.events import Status
from suite.machine.fingerprint import hardware
from suite.records.index import launches as all_launches
from suite.records.record import policy
from suite.records.summary import LaunchSummary
from suite.regression.comparability import setup
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.reproduce import LaunchResult


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to check: its plan and corpus, and the arguments of `reproduce` with which other code plans the same."""

    plan: Plan
    corpus: Corpus
    arguments: tuple[str, ...]

    @property
    def setup(self) -> str:
        """The fingerprint of what is about to be launched here."""
        job = job_for(self.plan, self.corpus, "")
        return setup(self.plan.name, hardware(), policy(job), self.plan.steps, self.plan.seed)


class LaunchFailedError(Exception):
    """A launch did not end well."""

    def __init__(self, result: LaunchResult, by: str = "") -> None:
        super().__init__(f"{result.run}{by}: {result.status.value}: {result.message}; record {result.record}")
        self.result = result


class TimeOverError(Exception):
    """The time for launches is over: the one that ran was ended, and none begins."""


class OldSide(msgspec.Struct, frozen=True, kw_only=True):
    """A commit or another environment that is launched in turn with the code and environment that run here.

    Args:
        words: it as a baseline.
        name: it in a line on what happens.
        launched: launches a run once; the path of the record.
    """

    words: str
    name: str
    launched: Callable[[CheckedRun], str]


class Turns(msgspec.Struct, kw_only=True):
    """A run, launched by the old side, if there is one, and here; paths of the records so far."""

    run: CheckedRun
    side: OldSide | None
    old: list[str] = []
    new: list[str] = []

    def cut_to_pairs(self) -> None:
        """Leave out a last launch without its partner."""
        if self.side is not None:
            pairs = min(len(self.old), len(self.new))
            del self.old[pairs:], self.new[pairs:]

    def summaries(self, results: Path) -> tuple[list[LaunchSummary], list[LaunchSummary]]:
        """The launches of both sides."""
        by_id = {launch.id: launch for launch in all_launches(results, recorded=False)[0]}
        old, new = (
            [by_id[Path(path).name.removesuffix(".begin.json")] for path in paths] for paths in (self.old, self.new)
        )
        return old, new


def launch_in_turn(
    turns: Sequence[Turns], launches: int, launched: Callable[[CheckedRun], LaunchResult], say: Callable[[str], None]
) -> None:
    """Launch every run until each side has so many launches, in the order A B B A A B ..., all runs in turn.

    So what grows steadily, as a processor's warmth, lengthens both sides alike.

    Raises:
        LaunchFailedError: a launch of this code did not end well.
        TimeOverError: complete pairs are kept.
    """

    def launch_old(one: Turns, number: int) -> None:
        if one.side is not None:
            say(f"{one.run.plan.name}: launch {number} of {launches} by {one.side.name}")
            one.old.append(one.side.launched(one.run))

    def launch_new(one: Turns, number: int) -> None:
        say(f"{one.run.plan.name}: launch {number} of {launches}")
        result = launched(one.run)
        if result.status is not Status.OK:
            raise LaunchFailedError(result)
        one.new.append(result.record)

    try:
        for number in range(min((len(one.new) for one in turns), default=0) + 1, launches + 1):
            order = (launch_old, launch_new) if number % 2 else (launch_new, launch_old)
            for one in turns:
                if len(one.new) < number:
                    for launch in order:
                        launch(one, number)
    finally:
        for one in turns:
            one.cut_to_pairs()
