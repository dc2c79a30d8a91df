"""Counts of stages between the first and the last, from three of them that are executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

import msgspec

from suite.job.dry_run_job import Moment, StepCounts
from suite.reproduce.dry_run.rank_classes import RankClass

FEWEST = 5  # alike stages of which three stand for the others


class StageLine(NamedTuple):
    """Alike stages of a pipeline, of which the first, one between and the last are executed."""

    first: RankClass
    middle: RankClass
    last: RankClass
    others: tuple[RankClass, ...]


def stage_lines(classes: Sequence[RankClass]) -> list[StageLine]:
    """Stages that differ in the micro-batches in flight alone, with one class of ranks each."""
    lines = []
    ordered = sorted(classes, key=lambda each: (each.alike, each.stage))
    for _, group in groupby(ordered, key=lambda each: each.alike):
        alike = tuple(group)
        if len({each.stage for each in alike}) == len(alike) >= FEWEST:
            chosen = alike[0], alike[-2], alike[-1]  # the last ones have few micro-batches in flight
            lines.append(StageLine(*chosen, tuple(each for each in alike if each not in chosen)))
    return lines


def others_on_line(line: StageLine, steps: Mapping[int, StepCounts]) -> dict[int, StepCounts] | None:
    """Rank -> what each of the others counts; None where the three that were executed are on no line.

    A stage has a micro-batch less in flight than the one before it. So every part of the fullest moment of each phase
    is a + b s in stage s. All other counts are equal.

    Args:
        steps: rank -> whole steps, of the three.
    """
    first, middle, last = (steps[each.rank] for each in (line.first, line.middle, line.last))
    if not _apart_from_memory(first) == _apart_from_memory(middle) == _apart_from_memory(last):
        return None
    if _fullest(line, line.middle, first, last) != {moment.phase: _held(moment) for moment in middle.fullest}:
        return None
    found = {}
    for each in line.others:
        if (fullest := _fullest(line, each, first, last)) is None:
            return None
        moments = [Moment(phase, held) for phase, held in fullest.items()]
        place = first.counts.coordinates | {"pp": each.stage}
        peak = max(moment.total for moment in moments)
        counts = msgspec.structs.replace(first.counts, coordinates=place, peak_bytes=peak)
        found[each.rank] = msgspec.structs.replace(first, counts=counts, fullest=moments)
    return found


def _apart_from_memory(step: StepCounts) -> StepCounts:
    counts = msgspec.structs.replace(step.counts, coordinates={}, peak_bytes=0, time=0.0)
    return msgspec.structs.replace(step, counts=counts, fullest=[], history=[])


def _fullest(line: StageLine, each: RankClass, first: StepCounts, last: StepCounts) -> dict[str, dict[str, int]] | None:
    """Phase -> what its fullest moment holds in a stage on the line; None where that are no whole bytes."""
    share = Fraction(each.stage - line.first.stage, line.last.stage - line.first.stage)
    ends = [{moment.phase: _held(moment) for moment in step.fullest} for step in (first, last)]
    fullest: dict[str, dict[str, int]] = {}
    for phase in dict.fromkeys((*ends[0], *ends[1])):
        before, after = (end.get(phase, {}) for end in ends)
        fullest[phase] = {}
        for name in dict.fromkeys((*before, *after)):
            size = before.get(name, 0) + share * (after.get(name, 0) - before.get(name, 0))
            if size.denominator > 1:
                return None
            if size:
                fullest[phase][name] = int(size)
    return fullest


def _held(moment: Moment) -> dict[str, int]:
    return {name: size for name, size in moment.bytes.items() if size}
