"""One rung after the other: launched, predicted, judged, and measured again where its gain failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from suite.job.events import Event, Status
from suite.ladder.judge import Mark, cost, gain, gain_check, loss_check, peak_check, repeats_check
from suite.ladder.measurement import measured
from suite.ladder.plan import not_executed, refusals, why_too_large
from suite.ladder.request import LadderRun, ending, launched, predicted, trace_of
from suite.ladder.result import RungResult
from suite.ladder.rung import Rung, RungSetting, Track, rounding_of, setting_of, stands_on
from suite.reproduce.reproduce import LaunchResult

# No failed gain is measured again after this time: nine launches took 122 s on 2 cores
CONFIRMING_SECONDS = 180.0


class Runner:
    """Launches rung after rung, and keeps what each gave.

    Attributes:
        results: by the names of rungs, in their order.
        seconds: that one launch of each rung took from start to end.
    """

    def __init__(
        self, ladder_run: LadderRun, applicable: Sequence[Rung], on_event: Callable[[int, Event], None]
    ) -> None:
        self.results: dict[str, RungResult] = {}
        self.seconds: dict[str, float] = {}
        self._ladder_run = ladder_run
        self._applicable = applicable
        self._on_event = on_event
        self._launches: dict[str, list[LaunchResult]] = {}
        self._refused = refusals(ladder_run.target)

    def run(self, rung: Rung) -> bool:
        """Launch a rung and judge it; whether that was interrupted."""
        ladder_run = self._ladder_run
        if rung.name in self._refused:
            self.results[rung.name] = RungResult(rung=rung, not_run=self._refused[rung.name])
            return False
        setting = self._launched_setting(rung)
        plan = ladder_run.plan(setting)
        reason = not_executed(plan) or why_too_large(plan, ladder_run.target.memory_bytes)
        if reason:
            self.results[rung.name] = RungResult(rung=rung, setting=setting, not_run=reason)
            return False
        rung_result = RungResult(rung=rung, setting=setting, ablated=rung.name in ladder_run.ablated)
        results = self._launched(rung_result, trace=trace_of(ladder_run.traces, rung))
        bad = next((result for result in results if result.status is not Status.OK), None)
        if bad is None:
            self._launches[rung.name] = results
            self.results[rung.name] = self._judged(rung_result)
        elif bad.status is not Status.INTERRUPTED:
            self.results[rung.name] = msgspec.structs.replace(rung_result, failed=ending(bad))
        return bad is not None and bad.status is Status.INTERRUPTED

    def confirm(self, on_rung: Callable[[RungResult], None], *, until: float) -> bool:
        """Measure each time gain that failed again, in turn with the rung below; whether that was interrupted.

        A shared machine may become slower between two launches, so both rungs are launched alternately: below, here,
        here, below. All launches count. A gain that fails only after these launches is measured again too; that of an
        ablated rung is not. `on_rung` sees every rung that changes.

        Args:
            until: when it has to end, on the clock of `time.monotonic`: what would take longer, by the seconds that the
                rungs' launches took, is not begun, and its check says so; of single launches it is inconclusive.
        """
        start, seen, late = time.monotonic(), set[str](), []
        while failed := [
            name for name, rung_result in self.results.items() if _gain_failed(rung_result) and name not in seen
        ]:
            here = self.results[failed[0]]
            seen.add(failed[0])
            below = self.results[here.below]
            turns = (below, here, here, below)
            now = time.monotonic()
            if now - start >= CONFIRMING_SECONDS or now + sum(self.seconds[other.rung.name] for other in turns) > until:
                late.append(failed[0])
                continue
            again: dict[str, list[LaunchResult]] = {here.rung.name: [], below.rung.name: []}
            for rung_result in turns:
                (result,) = self._launched(rung_result, launches=1)
                if result.status is Status.INTERRUPTED:
                    return True
                if result.status is not Status.OK:
                    words = f"measured again: {ending(result)}"
                    self.results[rung_result.rung.name] = msgspec.structs.replace(rung_result, failed=words)
                    on_rung(self.results[rung_result.rung.name])
                    break
                again[rung_result.rung.name].append(result)
            else:
                for name, results in again.items():
                    self._launches[name] += results
                self._judge_again(here.rung.track, on_rung)
        for name in late:
            if _gain_failed(self.results[name]):
                self.results[name] = self._unconfirmed(self.results[name])
                on_rung(self.results[name])
        return False

    def _judge_again(self, track: Track, on_rung: Callable[[RungResult], None]) -> None:
        for name, rung_result in self.results.items():
            if rung_result.measured is not None and rung_result.rung.track is track:
                self.results[name] = self._judged(rung_result)
                if self.results[name] != rung_result:
                    on_rung(self.results[name])

    def _unconfirmed(self, rung_result: RungResult) -> RungResult:
        """The result with the words that a failed gain was not seen again; of single launches it is not judged."""
        once = any(len(self._launches[name]) == 1 for name in (rung_result.rung.name, rung_result.below))
        mark = Mark.INCONCLUSIVE if once else Mark.FAIL
        checks = tuple(
            msgspec.structs.replace(check, mark=mark, says=f"{check.says}; no time was left to measure it again")
            if check.name == "gain"
            else check
            for check in rung_result.checks
        )
        return msgspec.structs.replace(rung_result, checks=checks)

    def _chain(self, rung: Rung) -> list[Rung]:
        return [*stands_on(rung, self._applicable), rung]

    def _setting(self, chain: Sequence[Rung]) -> RungSetting:
        return setting_of(chain[0].track, chain, divisor=self._ladder_run.target.divisor)

    def _launched_setting(self, rung: Rung) -> RungSetting:
        """The rung's setting without the changes of ablated rungs, its own and those below."""
        return self._setting([other for other in self._chain(rung) if other.name not in self._ladder_run.ablated])

    def _promised_setting(self, rung: Rung) -> RungSetting:
        """As launched, with the rung's own changes, be it ablated or not."""
        others = self._ladder_run.ablated - {rung.name}
        return self._setting([below for below in self._chain(rung) if below.name not in others])

    def _label(self, rung: Rung) -> str:
        ablated = any(other.name in self._ladder_run.ablated for other in self._chain(rung))
        return f"{rung.track}/{rung.name}" + (", ablated" if ablated else "")

    def _launched(
        self, rung_result: RungResult, *, trace: Path | None = None, launches: int | None = None
    ) -> list[LaunchResult]:
        assert rung_result.setting is not None
        label = self._label(rung_result.rung)
        start = time.monotonic()
        results = launched(self._ladder_run, rung_result.setting, label, self._on_event, trace=trace, launches=launches)
        self.seconds[rung_result.rung.name] = (time.monotonic() - start) / len(results)
        return results

    def _judged(self, rung_result: RungResult) -> RungResult:
        """The rung's launches judged, compared with those of the rung below."""
        ladder_run, rung, chain = self._ladder_run, rung_result.rung, self._chain(rung_result.rung)
        assert rung_result.setting is not None
        label = self._label(rung)
        measurement = measured(ladder_run.plan(rung_result.setting, label), self._launches[rung.name])
        prediction = rung_result.expected or predicted(ladder_run, self._promised_setting(rung), label)
        gpu = ladder_run.target.device == "cuda"
        rounding = rounding_of(rung_result.setting.precision) if gpu else 0.0
        checks = [
            check
            for check in (peak_check(prediction, measurement), repeats_check(measurement, gpu=gpu))
            if check is not None
        ]
        rung_result = msgspec.structs.replace(
            rung_result, expected=prediction, measured=measurement, share=1.0 if rung.is_base else None
        )
        below = self.results.get(chain[-2].name) if len(chain) > 1 else None
        if below is not None and below.measured is not None and below.expected is not None:
            under = below.expected
            if below.ablated and below.setting is not None:
                under = predicted(ladder_run, below.setting, self._label(below.rung))
            difference = gain(rung.track, below=(under, below.measured), here=(prediction, measurement), gpu=gpu)
            checks.append(loss_check(rung, measurement, below.measured, rounding=rounding))
            unknown = prediction.seconds_unknown or under.seconds_unknown
            checks.append(gain_check(difference, gpu=gpu, ablated=rung_result.ablated, unknown=unknown))
            rung_result = msgspec.structs.replace(rung_result, below=below.rung.name, gain=difference)
        base = self.results.get(chain[0].name)
        if base is not None and base.measured is not None:
            share = cost(rung.track, measurement) / cost(rung.track, base.measured)
            rung_result = msgspec.structs.replace(rung_result, share=share)
        return msgspec.structs.replace(rung_result, checks=tuple(checks))


def _gain_failed(rung_result: RungResult) -> bool:
    return (
        rung_result.rung.track is Track.SPEED
        and not rung_result.ablated
        and any(check.name == "gain" and check.mark is Mark.FAIL for check in rung_result.checks)
    )
