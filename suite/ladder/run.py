"""One rung after the other: launched, predicted, judged, and measured again where its gain failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from suite.job.corpus import Corpus
from suite.job.events import Event, Status
from suite.job.options import Texts
from suite.ladder.judge import Check, Gain, Mark, cost, gain, gain_check, loss_check, peak_check, repeats_check
from suite.ladder.plan import Climber, excess, not_executed, planned, refusals
from suite.ladder.results import Expected, Measured, expected, measured
from suite.ladder.rungs import STEPS, Rung, Setting, Walk, rounding_of, seconds_unknown, setting_of, stands_on
from suite.machine.profile import Profile
from suite.reproduce.reproduce import Result, reproduce

# After which no gain that failed is begun to be measured again: nine launches took 122 s on 2 cores
CONFIRMING_SECONDS = 180.0
# In which a command ends with one launch of each rung: 15 minutes on 2 cores, less Python's start, the picture, and
# launches that take longer than their estimate
CLIMB_SECONDS = 870.0


class Height(msgspec.Struct, frozen=True, kw_only=True):
    """One rung, climbed or not.

    Args:
        not_run: why it does not apply here; failed: how its launch ended where not well.
        below: name of the rung that it is compared with; empty for a baseline.
        expected: of the setting as launched; of a broken rung, with the changes that are left out.
        share: its cost over the baseline's.
    """

    rung: Rung
    setting: Setting | None = None
    not_run: str = ""
    failed: str = ""
    below: str = ""
    expected: Expected | None = None
    measured: Measured | None = None
    gain: Gain | None = None
    share: float | None = None
    checks: tuple[Check, ...] = ()
    broken: bool = False


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be climbed, and where its records go.

    Args:
        chosen: names of the rungs that are wanted; what they stand on is climbed too.
        broken: names of rungs whose changes are left out of what is launched, of them and of those above; what is
            predicted of a broken rung, and of it alone, has its changes.
        twins: whether the top of each walk is launched without each of its rungs; not where one is broken.
        between_hosts: the profile with messages as they are between hosts; None: not measured.
        between_hosts_source: what it is, or why there is none.
        more_ranks: the profile with what more ranks take at once than `profile` has; None: not measured.
        more_ranks_source: what it is, or why there is none; empty where it was not asked for.
        traces: directory for a trace of each rung's first launch; None: no traces.
        began: when the command did, calibration and all, on the clock of `time.monotonic`; None: when the climb does.
    """

    climbing: Climber
    corpus: Corpus
    texts: Texts
    results: Path
    chosen: frozenset[str]
    broken: frozenset[str] = frozenset()
    repeat: int = 1
    twins: bool = True
    profile: Profile | None = None
    profile_source: str = ""
    between_hosts: Profile | None = None
    between_hosts_source: str = ""
    more_ranks: Profile | None = None
    more_ranks_source: str = ""
    sample_seconds: float = 0.0
    traces: Path | None = None
    began: float | None = None

    def profile_for(self, setting: Setting) -> tuple[Profile | None, str]:
        """The profile that predicts a setting, and what it is or why there is none."""
        if setting.hosts > 1 and self.profile is not None:
            return self.between_hosts, self.between_hosts_source
        if self.more_ranks_source and self.profile and setting.data_parallel > self.profile.conditions.ranks:
            return self.more_ranks, self.more_ranks_source
        return self.profile, self.profile_source


class Ascent:
    """A climb under way: what was launched of every rung, and what it says.

    Attributes:
        heights: by the names of rungs, in their order.
        seconds: that one launch of each rung took from start to end.
    """

    def __init__(self, errand: Errand, applicable: Sequence[Rung], on_event: Callable[[int, Event], None]) -> None:
        self.heights: dict[str, Height] = {}
        self.seconds: dict[str, float] = {}
        self._errand = errand
        self._applicable = applicable
        self._on_event = on_event
        self._results: dict[str, list[Result]] = {}
        self._refused = refusals(errand.climbing)

    def climb(self, rung: Rung) -> bool:
        """Launch a rung and judge it; whether that was interrupted."""
        errand = self._errand
        if rung.name in self._refused:
            self.heights[rung.name] = Height(rung=rung, not_run=self._refused[rung.name])
            return False
        setting = self._launched_setting(rung)
        plan = planned(errand.climbing, setting, "", errand.texts)
        reason = not_executed(plan) or excess(plan, errand.climbing.memory_bytes)
        if reason:
            self.heights[rung.name] = Height(rung=rung, setting=setting, not_run=reason)
            return False
        height = Height(rung=rung, setting=setting, broken=rung.name in errand.broken)
        results = self._launched(height, trace=trace_of(errand.traces, rung))
        bad = next((result for result in results if result.status is not Status.OK), None)
        if bad is None:
            self._results[rung.name] = results
            self.heights[rung.name] = self._judged(height)
        elif bad.status is not Status.INTERRUPTED:
            self.heights[rung.name] = msgspec.structs.replace(height, failed=ending(bad))
        return bad is not None and bad.status is Status.INTERRUPTED

    def confirm(self, on_height: Callable[[Height], None], *, until: float) -> bool:
        """Measure each time gain that failed again, beside the rung below; whether that was interrupted.

        One sight of a gain has both rungs in phases of the machine of their own. Now they are launched in turn, below,
        here, here, below, and what all launches say together is what counts. A gain that another one's launches make
        fail is measured again too; a rung that was broken on purpose is not. `on_height` sees every rung that changes.

        Args:
            until: when it has to end, on the clock of `time.monotonic`: what would take longer, by the seconds that the
                rungs' launches took, is not begun, and its check says so; of single launches it is inconclusive.
        """
        start, seen, late = time.monotonic(), set[str](), []
        while failed := [name for name, one in self.heights.items() if _gain_failed(one) and name not in seen]:
            here = self.heights[failed[0]]
            seen.add(failed[0])
            below = self.heights[here.below]
            turns = (below, here, here, below)
            now = time.monotonic()
            if now - start >= CONFIRMING_SECONDS or now + sum(self.seconds[one.rung.name] for one in turns) > until:
                late.append(failed[0])
                continue
            found: dict[str, list[Result]] = {here.rung.name: [], below.rung.name: []}
            for height in turns:
                (result,) = self._launched(height, launches=1)
                if result.status is Status.INTERRUPTED:
                    return True
                if result.status is not Status.OK:
                    words = f"measured again: {ending(result)}"
                    self.heights[height.rung.name] = msgspec.structs.replace(height, failed=words)
                    on_height(self.heights[height.rung.name])
                    break
                found[height.rung.name].append(result)
            else:
                for name, results in found.items():
                    self._results[name] += results
                self._judge_again(here.rung.walk, on_height)
        for name in late:
            if _gain_failed(self.heights[name]):
                self.heights[name] = self._unconfirmed(self.heights[name])
                on_height(self.heights[name])
        return False

    def _judge_again(self, walk: Walk, on_height: Callable[[Height], None]) -> None:
        for name, height in self.heights.items():
            if height.measured is not None and height.rung.walk is walk:
                self.heights[name] = self._judged(height)
                if self.heights[name] != height:
                    on_height(self.heights[name])

    def _unconfirmed(self, height: Height) -> Height:
        """With the words that a gain that failed was not seen again; of single launches it is not judged then."""
        once = any(len(self._results[name]) == 1 for name in (height.rung.name, height.below))
        mark = Mark.INCONCLUSIVE if once else Mark.FAIL
        checks = tuple(
            msgspec.structs.replace(check, mark=mark, says=f"{check.says}; no time was left to measure it again")
            if check.name == "gain"
            else check
            for check in height.checks
        )
        return msgspec.structs.replace(height, checks=checks)

    def _chain(self, rung: Rung) -> list[Rung]:
        return [*stands_on(rung, self._applicable), rung]

    def _setting(self, chain: Sequence[Rung]) -> Setting:
        return setting_of(chain[0].walk, chain, divisor=self._errand.climbing.divisor)

    def _launched_setting(self, rung: Rung) -> Setting:
        """Without the changes of all rungs that are broken, its own and those below."""
        return self._setting([one for one in self._chain(rung) if one.name not in self._errand.broken])

    def _promised_setting(self, rung: Rung) -> Setting:
        """As launched, with the rung's own changes, be it broken or not."""
        broken = self._errand.broken
        return self._setting([one for one in self._chain(rung) if one.name not in broken or one.name == rung.name])

    def _label(self, rung: Rung) -> str:
        broken = any(one.name in self._errand.broken for one in self._chain(rung))
        return f"{rung.walk}/{rung.name}" + (", broken" if broken else "")

    def _launched(self, height: Height, *, trace: Path | None = None, launches: int | None = None) -> list[Result]:
        assert height.setting is not None
        label = self._label(height.rung)
        start = time.monotonic()
        results = launched(self._errand, height.setting, label, self._on_event, trace=trace, launches=launches)
        self.seconds[height.rung.name] = (time.monotonic() - start) / len(results)
        return results

    def _judged(self, height: Height) -> Height:
        """What a rung's launches say, beside those of the rung below."""
        errand, rung, chain = self._errand, height.rung, self._chain(height.rung)
        assert height.setting is not None
        label = self._label(rung)
        found = measured(planned(errand.climbing, height.setting, label, errand.texts), self._results[rung.name])
        said = height.expected or _expected(errand, self._promised_setting(rung), label)
        gpu = errand.climbing.device == "cuda"
        rounding = rounding_of(height.setting.precision) if gpu else 0.0
        checks = [check for check in (peak_check(said, found), repeats_check(found, gpu=gpu)) if check is not None]
        height = msgspec.structs.replace(height, expected=said, measured=found, share=1.0 if rung.is_base else None)
        below = self.heights.get(chain[-2].name) if len(chain) > 1 else None
        if below is not None and below.measured is not None and below.expected is not None:
            under = below.expected
            if below.broken and below.setting is not None:
                under = _expected(errand, below.setting, self._label(below.rung))
            difference = gain(rung.walk, below=(under, below.measured), here=(said, found), gpu=gpu)
            checks.append(loss_check(rung, found, below.measured, rounding=rounding))
            unknown = said.seconds_unknown or under.seconds_unknown
            checks.append(gain_check(difference, gpu=gpu, broken=height.broken, unknown=unknown))
            height = msgspec.structs.replace(height, below=below.rung.name, gain=difference)
        base = self.heights.get(chain[0].name)
        if base is not None and base.measured is not None:
            share = cost(rung.walk, found) / cost(rung.walk, base.measured)
            height = msgspec.structs.replace(height, share=share)
        return msgspec.structs.replace(height, checks=tuple(checks))


def ending(result: Result) -> str:
    """How a launch ended, in words, and where its record is."""
    return f"{result.status.value}: {result.message}; record {result.record}"


def _gain_failed(height: Height) -> bool:
    return (
        height.rung.walk is Walk.SPEED
        and not height.broken
        and any(check.name == "gain" and check.mark is Mark.FAIL for check in height.checks)
    )


def launched(
    errand: Errand,
    setting: Setting,
    label: str,
    on_event: Callable[[int, Event], None],
    *,
    steps: int = STEPS,
    trace: Path | None = None,
    launches: int | None = None,
) -> list[Result]:
    """Launch a setting as often as the errand says, or `launches` times, up to the first that does not end well."""
    plan = planned(errand.climbing, setting, label, errand.texts, steps=steps, trace=trace)
    profile, source = errand.profile_for(setting)
    results: list[Result] = []
    for _ in range(errand.repeat if launches is None else launches):
        results.append(
            reproduce(
                plan,
                errand.corpus,
                errand.results,
                on_event,
                profile=profile,
                profile_source=source,
                sample_seconds=errand.sample_seconds,
            )
        )
        plan = msgspec.structs.replace(plan, trace=None)
        if results[-1].status is not Status.OK:
            break
    return results


def _expected(errand: Errand, setting: Setting, label: str) -> Expected:
    """Of a setting, by the profile that holds for it."""
    plan = planned(errand.climbing, setting, label, errand.texts)
    profile, source = errand.profile_for(setting)
    why = seconds_unknown(setting)
    if not why and profile is None:
        why = source
    if not why and profile is not None and plan.layout.ranks > profile.conditions.ranks:
        why = f"this machine is calibrated with {profile.conditions.ranks} ranks at once"
    return expected(plan, errand.corpus, profile, why_none=why, sample_seconds=errand.sample_seconds)


def trace_of(directory: Path | None, rung: Rung) -> Path | None:
    """The file for the trace of a rung."""
    return None if directory is None else directory / f"{rung.name}.json"
