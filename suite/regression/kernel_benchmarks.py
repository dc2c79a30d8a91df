"""Stored kernel benchmarks (pytest-benchmark's files) as launches: one stored run is one launch of every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from reference_runs.errors import InputError
from suite.metrics.noise_floor import noise_floor
from suite.records.kernel_runs import SOFTWARE, KernelRun
from suite.regression.findings import RegressionFinding, time_finding
from suite.regression.verdicts import LIMIT, Sets, judged

NO_RERUN = "no re-run in turn: store runs of old and new code in turn (A B A B ...), whose second half confirms"


def compared_sides(runs: Sequence[KernelRun], reference: str | None) -> tuple[list[KernelRun], list[KernelRun]]:
    """Baseline and now: the newest run with those of its commit, and those of the commit before it on that hardware.

    `reference` names the baseline instead: the number of a stored run, or a commit. No baseline: an empty list.

    Raises:
        InputError: nothing of that name is stored for the newest run's hardware.
    """
    if not runs:
        return [], []
    here = [run for run in runs if run.hardware == runs[-1].hardware]
    now = [run for run in here if _code(run) == _code(runs[-1])]
    others = [run for run in here if _code(run) != _code(runs[-1])]
    if reference is not None:
        named = [run for run in others if run.number == reference or run.commit.startswith(reference)]
        if not named:
            allowed = (
                ", ".join(dict.fromkeys(f"{run.number} ({run.commit[:12]})" for run in others)) or "none is stored"
            )
            raise InputError("unknown baseline", got=repr(reference), allowed=allowed, where="--baseline")
        named_codes = {_code(run) for run in named}
        others = [run for run in others if _code(run) in named_codes]
    elif others:
        others = [run for run in others if _code(run) == _code(others[-1])]
    return others, now


def _code(run: KernelRun) -> tuple[str, str]:
    """Code that identical runs share; a modified checkout is identical with nothing, so each file is its own."""
    return run.commit, run.path if run.modified else ""


def kernel_findings(
    before: Sequence[KernelRun], after: Sequence[KernelRun], runs: Sequence[KernelRun], limit: float = LIMIT
) -> list[RegressionFinding]:
    """Every kernel and case of ours that both sides have, judged as one family.

    Where the sides were stored in turn (A B A B ...), the first half of each is the comparison and the second half its
    re-run. Otherwise a change stays inconclusive. With 7 stored runs a side the family may have 85 members: select.
    """
    names = dict.fromkeys(name for run in before for name in run.seconds)
    shared = [name for name in names if all(name in run.seconds for run in [*before, *after])]
    turns = _in_turn(before, after)
    half = min(len(before), len(after)) // 2
    family = []
    for name in shared:
        left, right = (tuple(run.seconds[name] for run in side) for side in (before, after))
        floor = noise_floor(_groups(name, runs, after[0]))
        if turns:
            again = left[half:], right[half:]
            family.append(Sets(before=left[:half], after=right[:half], floor=floor, rerun=again))
        else:
            family.append(Sets(before=left, after=right, floor=floor, no_rerun=NO_RERUN))
    return [
        time_finding("kernels", name, "s", sets.before, sets.after, verdict)
        for name, sets, verdict in zip(shared, family, judged(family, limit), strict=True)
    ]


def _in_turn(before: Sequence[KernelRun], after: Sequence[KernelRun]) -> bool:
    """Whether they were stored alternately, at least two of each."""
    all_runs = [*((run.time, "before") for run in before), *((run.time, "after") for run in after)]
    sides = [side for _, side in sorted(all_runs)]
    return len(sides) >= 4 and all(side != following for side, following in pairwise(sides))


def _groups(name: str, runs: Sequence[KernelRun], like: KernelRun) -> list[list[float]]:
    groups: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        if run.hardware == like.hardware and not run.modified and name in run.seconds:
            groups.setdefault((run.commit, tuple(sorted(run.software.items()))), []).append(run.seconds[name])
    return list(groups.values())


def changed_software(before: Sequence[KernelRun], after: Sequence[KernelRun]) -> str:
    """Differences in software, in words; empty where nothing does."""
    left, right = before[-1].software, after[-1].software
    return ", ".join(
        f"{name} {left.get(name, '-')} -> {right.get(name, '-')}"
        for name in SOFTWARE
        if left.get(name) != right.get(name)
    )
