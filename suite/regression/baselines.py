"""Launches that a run is compared with: accepted, of a record, a commit or the best stretch; old code in turn."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_file
from suite.job.events import Status
from suite.machine.scratch import scratch_directory
from suite.records.store import writable, write_new
from suite.records.summary import LaunchSummary
from suite.regression.accepted_spread import AcceptedSpread
from suite.regression.comparability import commit_of, identical_groups, is_modified, seconds, setup_of
from suite.regression.segments import segments
from suite.reproduce.other_code import OldCodeError

BEST = "best"
SCHEMA = "1.1"  # 1.1: spread and least_detectable


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of a baseline: which launches became the baseline, when, which they replaced, and how far they spread.

    Args:
        spread, least_detectable: as of `suite.regression.accepted_spread.AcceptedSpread`.
    """

    schema: str
    accepted: float
    run: str
    setup: str
    launches: list[str]
    suite: str
    median_seconds: float | None
    replaced: list[str]
    spread: float | None = None
    least_detectable: float | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Launches to compare with, oldest first, and in words where they come from."""

    launches: tuple[LaunchSummary, ...]
    words: str

    @property
    def median(self) -> float | None:
        """Seconds of their median step."""
        times = [value for value in map(seconds, self.launches) if value is not None]
        return statistics.median(times) if times else None


def resolved(reference: str | None, launches: Sequence[LaunchSummary], results: Path, repository: Path) -> str | None:
    """The reference, once it is known to mean something: as it is, or the full hash of a commit.

    Raises:
        InputError: it is no record's id, no commit of the repository, and not "best".
    """
    if reference is None:
        return None
    identity = Path(reference).name.removesuffix(".json").removesuffix(".begin").removesuffix(".end")
    if reference == BEST or identity in {launch.id for launch in launches}:
        return identity
    commit = full_commit(reference, repository)
    if commit is None:
        allowed = f"the id of a record below {results}, a commit of this repository, or best"
        raise InputError("unknown baseline", got=repr(reference), allowed=allowed, where="--baseline")
    return commit


def full_commit(reference: str, repository: Path) -> str | None:
    """The full hash of a commit; None where the repository has none of that name, or is none."""
    command = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", "--end-of-options"]
    try:
        done = subprocess.run([*command, f"{reference}^{{commit}}"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def baseline(reference: str | None, setup: str, launches: Sequence[LaunchSummary], results: Path) -> Baseline | None:
    """The launches of a setup that `reference` (see `resolved`) names; None where there are none.

    A record stands for all launches identical with it, a commit for those of its unmodified checkout; None is what was
    accepted last.
    """
    of_setup = [launch for launch in launches if setup_of(launch) == setup and launch.status == Status.OK.value]
    if reference is None:
        acceptances = [acceptance for acceptance in accepted(results)[0] if acceptance.setup == setup]
        kept = [launch for launch in of_setup if acceptances and launch.id in acceptances[-1].launches]
        words = f"accepted {time.strftime('%Y-%m-%d', time.gmtime(acceptances[-1].accepted))}" if acceptances else ""
    elif reference == BEST:
        best = {point.id for history in segments(of_setup) for point in history.best_points}
        kept, words = [launch for launch in of_setup if launch.id in best], "best stretch of the history"
    elif reference in {launch.id for launch in launches}:
        alone = [launch for launch in of_setup if launch.id == reference]
        groups = identical_groups(of_setup)
        kept = next((group for group in groups if reference in {launch.id for launch in group}), alone)
        words = f"record {reference}"
    else:
        kept = [
            launch
            for launch in of_setup
            if (commit := commit_of(launch)) and reference.startswith(commit) and not is_modified(launch)
        ]
        words = f"commit {reference[:12]}"
    return Baseline(launches=tuple(kept), words=words) if kept else None


def accepted(results: Path) -> tuple[list[Accepted], list[InputError]]:
    """All acceptances below the results directory, oldest first, and why others are left out.

    The project's own results have none for a user: they are of another machine.
    """
    good: list[Accepted] = []
    bad: list[InputError] = []
    for path in sorted((results / "baselines").glob("*/*.json")):
        try:
            acceptance = json_file(path, Accepted)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged baseline: {error}", where=str(path)))
            continue
        if acceptance.schema.partition(".")[0] != SCHEMA.partition(".")[0]:
            bad.append(
                InputError("unknown schema version", got=repr(acceptance.schema), allowed="1.x", where=str(path))
            )
            continue
        good.append(acceptance)
    return sorted(good, key=lambda acceptance: acceptance.accepted), bad


def accept(
    results: Path, setup: str, now: Sequence[LaunchSummary], before: Baseline | None, found: AcceptedSpread
) -> Path:
    """Make launches the baseline of their setup; an earlier one stays on disk. The path of what was written.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room.
    """
    one, *_ = now  # all are of one run and one version
    directory = writable(results / "baselines" / one.run, results)
    moment = time.time()
    acceptance = Accepted(
        schema=SCHEMA,
        accepted=moment,
        run=one.run,
        setup=setup,
        launches=[launch.id for launch in now],
        suite=one.suite,
        median_seconds=found.median_seconds,
        replaced=[launch.id for launch in before.launches] if before else [],
        spread=found.spread,
        least_detectable=found.least_detectable,
    )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    path = directory / f"{stamp}__{setup}__{secrets.token_hex(4)}.json"
    write_new(path, msgspec.json.format(msgspec.json.encode(acceptance), indent=1) + b"\n")
    return path


def old_commit(
    before: Sequence[LaunchSummary], now: Sequence[LaunchSummary], repository: Path
) -> tuple[str | None, str]:
    """The commit that a baseline ran, or why it cannot be launched again next to the new code.

    A re-run of the new code alone proves nothing: whatever slowed the machine down since the baseline is in it too.
    So there has to be one commit, all of it, in this repository, and the same software below it.
    """
    commits = {commit_of(launch) for launch in before}
    if len(commits) > 1:
        return None, "the baseline is of several commits: no re-run in turn"
    (commit,) = commits
    if not commit or any(is_modified(launch) for launch in before):
        return None, "the baseline's code is of no commit alone: no re-run in turn"
    if differing := software_changes(before, now):
        return None, f"the baseline ran other software ({differing}): no re-run in turn"
    full = full_commit(commit, repository)
    return full, "" if full else f"commit {commit} is not in this repository: no re-run in turn"


def software_changes(before: Sequence[LaunchSummary], now: Sequence[LaunchSummary]) -> str:
    """Differences in software but for this suite's own version, as "torch 2.12.0 -> 2.13.0, ..."."""
    sides = [[{k: v for k, v in launch.software.items() if k != "suite"} for launch in side] for side in (before, now)]
    names = sorted({name for side in sides for facts in side for name in facts})
    out = []
    for name in names:
        left, right = (sorted({facts.get(name, "unknown") for facts in side}) for side in sides)
        if left != right:
            out.append(f"{name} {' or '.join(left)} -> {' or '.join(right)}")
    return ", ".join(out)


@contextlib.contextmanager
def checkout(commit: str, repository: Path) -> Iterator[Path]:
    """A working tree of the commit, gone afterwards.

    Raises:
        OldCodeError: git cannot make it.
    """
    with scratch_directory(kind="old-") as directory:
        tree = Path(directory) / "tree"
        git = ["git", "-C", str(repository), "worktree"]
        done = subprocess.run(
            [*git, "add", "--detach", "--force", str(tree), commit], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise OldCodeError(f"git cannot check out {commit[:12]}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True, check=False)
            subprocess.run([*git, "prune"], capture_output=True, check=False)
