"""Stored kernel benchmarks (pytest-benchmark's files) as launches: one stored run is one launch of every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.metrics.noise_floor import noise_floor
from suite.regression.findings import Finding, time_finding
from suite.regression.verdicts import Sets, judged

OURS = ("kernel", "plain")  # forms of ours; the others are PyTorch's and Liger-Kernel's
SOFTWARE = ("python_version", "torch", "triton", "cuda", "nccl")  # in the machine's facts; the rest is hardware
NO_RERUN = "no re-run in turn: store runs of old and new code in turn (A B A B ...), whose second half confirms"


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `nox -s bench`.

    Args:
        number: before the first underscore of the file's name.
        hardware: the machine's facts but versions of software.
        seconds: of kernel and case, the median of its rounds: rounds are no replicates, as they share a process.
    """

    path: str
    number: str
    time: str
    commit: str
    modified: bool
    hardware: dict[str, str]
    software: dict[str, str]
    seconds: dict[str, float]


class _Commit(msgspec.Struct):
    id: str = ""
    dirty: bool = False


class _Stats(msgspec.Struct):
    median: float


class _Extra(msgspec.Struct):
    form: str = "kernel"


class _Benchmark(msgspec.Struct):
    name: str
    stats: _Stats
    extra_info: _Extra


class _File(msgspec.Struct):
    machine_info: dict[str, object]
    commit_info: _Commit
    datetime: str
    benchmarks: list[_Benchmark]


def stored_runs(storage: Path) -> tuple[list[StoredRun], list[InputError]]:
    """All runs below the storage, oldest first, and why other files are left out."""
    good: list[StoredRun] = []
    bad: list[InputError] = []
    for path in sorted(storage.rglob("*.json")):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged benchmark: {error}", where=str(path)))
            continue
        facts = {name: str(value) for name, value in file.machine_info.items()}
        good.append(
            StoredRun(
                path=str(path),
                number=path.name.partition("_")[0],
                time=file.datetime,
                commit=file.commit_info.id,
                modified=file.commit_info.dirty,
                hardware={name: text for name, text in facts.items() if name not in SOFTWARE},
                software={name: text for name, text in facts.items() if name in SOFTWARE},
                seconds={
                    one.name.partition("[")[2].rstrip("]") or one.name: one.stats.median
                    for one in file.benchmarks
                    if one.extra_info.form in OURS and one.stats.median > 0
                },
            )
        )
    return sorted(good, key=lambda run: run.time), bad


def compared_sides(runs: Sequence[StoredRun], reference: str | None) -> tuple[list[StoredRun], list[StoredRun]]:
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
        others = [run for run in others if _code(run) in {_code(one) for one in named}]
    elif others:
        others = [run for run in others if _code(run) == _code(others[-1])]
    return others, now


def _code(run: StoredRun) -> tuple[str, str]:
    """What identical runs share; a modified checkout is identical with nothing, so each file is its own."""
    return run.commit, run.path if run.modified else ""


def kernel_findings(
    before: Sequence[StoredRun], after: Sequence[StoredRun], runs: Sequence[StoredRun]
) -> list[Finding]:
    """Every kernel and case of ours that both sides have, judged as one family.

    Where the sides were stored in turn (A B A B ...), the first half of each is the comparison and the second half its
    re-run. Otherwise a change stays inconclusive. With 7 stored runs a side the family may have 85 members: select.
    """
    shared = [name for name in before[0].seconds if all(name in run.seconds for run in [*before, *after])]
    turns = _in_turn(before, after)
    half = min(len(before), len(after)) // 2
    family = []
    for name in shared:
        left, right = (tuple(run.seconds[name] for run in side) for side in (before, after))
        floor = noise_floor(_groups(name, runs, after[-1]))
        if turns:
            again = left[half:], right[half:]
            family.append(Sets(before=left[:half], after=right[:half], floor=floor, rerun=again))
        else:
            family.append(Sets(before=left, after=right, floor=floor, no_rerun=NO_RERUN))
    return [
        time_finding("kernels", name, "s", sets.before, sets.after, verdict)
        for name, sets, verdict in zip(shared, family, judged(family), strict=True)
    ]


def _in_turn(before: Sequence[StoredRun], after: Sequence[StoredRun]) -> bool:
    """Whether they were stored alternately, at least two of each."""
    sides = [side for _, side in sorted([*((run.time, 0) for run in before), *((run.time, 1) for run in after)])]
    return len(sides) >= 4 and all(one != other for one, other in pairwise(sides))


def _groups(name: str, runs: Sequence[StoredRun], like: StoredRun) -> list[list[float]]:
    groups: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        if run.hardware == like.hardware and not run.modified and name in run.seconds:
            groups.setdefault((run.commit, tuple(sorted(run.software.items()))), []).append(run.seconds[name])
    return list(groups.values())


def changed_software(before: Sequence[StoredRun], after: Sequence[StoredRun]) -> str:
    """What differs in software, in words; empty where nothing does."""
    left, right = before[-1].software, after[-1].software
    return ", ".join(
        f"{name} {left.get(name, '-')} -> {right.get(name, '-')}"
        for name in SOFTWARE
        if left.get(name) != right.get(name)
    )
