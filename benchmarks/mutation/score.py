"""The share of mutants that the tests find, its interval, and what the gate says of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.mutation.areas import wanted_score
from benchmarks.mutation.mutants import LineChange, Mutant
from benchmarks.mutation.trial import Trial, TrialOutcome

EQUIVALENT = Path(__file__).parent / "equivalent.toml"
FOUND = (TrialOutcome.ASSERTED, TrialOutcome.RAISED)
SAYS_NOTHING = (TrialOutcome.TIMED_OUT, TrialOutcome.BROKEN)
MOST_WITHOUT_WORD = 0.1  # share of mutants that may say nothing of the tests before the score says little
LEAST_ASSERTED = 0.5  # share of the found ones that an assertion found: an exception often comes by chance


class Tried(NamedTuple):
    """A mutant, what it changes, what became of it; `why` where it is known to be equivalent."""

    mutant: Mutant
    change: LineChange
    trial: Trial
    why: str = ""


class MutationScore(msgspec.Struct, frozen=True, kw_only=True):
    """Score of one area, or of all.

    Args:
        mutants: all that there are.
        tried: as many of them, drawn at random.
        equivalent: survivors that change nothing, with their reason in `equivalent.toml`; not counted.
        score: found / (found + survived), with its 95 % interval; None where nothing counts.
    """

    area: str
    wanted: float
    mutants: int
    tried: int
    asserted: int
    raised: int
    survived: int
    equivalent: int
    timed_out: int
    broken: int
    score: float | None
    low: float
    high: float


def scored(area: str, tried: Sequence[Tried], population: int) -> MutationScore:
    """The score of an area; Wilson's interval where only a sample was tried, and where all were no interval at all."""
    from scipy import stats

    counts = {outcome: sum(each.trial.outcome is outcome for each in tried) for outcome in TrialOutcome}
    equivalent = sum(bool(each.why) for each in tried if each.trial.outcome is TrialOutcome.SURVIVED)
    survived = counts[TrialOutcome.SURVIVED] - equivalent
    found = sum(counts[outcome] for outcome in FOUND)
    score = found / (found + survived) if found + survived else None
    low, high = 0.0, 1.0
    if score is not None:
        low, high = score, score
        if len(tried) < population:
            interval = stats.binomtest(found, found + survived).proportion_ci(0.95, method="wilson")
            low, high = float(interval.low), float(interval.high)
    return MutationScore(
        area=area,
        wanted=min((wanted_score(each.mutant.module) for each in tried), default=1.0),
        mutants=population,
        tried=len(tried),
        asserted=counts[TrialOutcome.ASSERTED],
        raised=counts[TrialOutcome.RAISED],
        survived=survived,
        equivalent=equivalent,
        timed_out=counts[TrialOutcome.TIMED_OUT],
        broken=counts[TrialOutcome.BROKEN],
        score=score,
        low=low,
        high=high,
    )


def problems(score: MutationScore) -> list[str]:
    """Why a score is none, whatever its height: nothing ran, or it was not the tests that found the mutants."""
    found = score.asserted + score.raised
    lines = []
    if not score.tried or score.score is None:
        lines.append("no mutant ran")
    if score.timed_out + score.broken > MOST_WITHOUT_WORD * score.tried:
        lines.append(f"{score.timed_out} timed out and {score.broken} broken of {score.tried}: at most 1 in 10 may")
    if found and score.asserted < LEAST_ASSERTED * found:
        lines.append(f"only {score.asserted} of {found} were found by an assertion: at least half must be")
    return [f"{score.area}: {line}" for line in lines]


class Equivalent(msgspec.Struct, frozen=True):
    """A mutant that changes nothing, and why."""

    module: str
    before: str
    after: str
    why: str


def equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Reasons by module, line before and line after."""
    entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []), list[Equivalent])
    return {(each.module, each.before, each.after): each.why for each in entries}


def unused(known: Mapping[tuple[str, str, str], str], tried: Iterable[Tried]) -> list[str]:
    """Known equivalents that a test found after all: they are none."""
    found = {
        (each.mutant.module, each.change.before, each.change.after) for each in tried if each.trial.outcome in FOUND
    }
    return [f"{module}: {before} -> {after}" for module, before, after in known if (module, before, after) in found]
