"""The old code's launches: a checkout of its commit next to this one, started in turn with the new code's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from suite.records.summary import LaunchSummary
from suite.regression.baselines import full_commit
from suite.regression.comparability import commit_of, is_modified


class OldCodeError(Exception):
    """The old code cannot be checked out or does not run here."""


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
    """What differs in software but this suite's own version, as "torch 2.12.0 -> 2.13.0, ..."."""
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
    with tempfile.TemporaryDirectory(prefix="suite-old-", ignore_cleanup_errors=True) as directory:
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


def old_launch(tree: Path, arguments: Sequence[str]) -> str:
    """One launch of `reproduce ARGUMENTS` by the code in `tree`: the path of its record.

    Raises:
        OldCodeError: it did not end well; the text is its last line.
    """
    command = [sys.executable, "-m", "suite", "reproduce", *arguments, "--no-calibrate", "--json"]
    done = subprocess.run(command, cwd=tree, capture_output=True, errors="replace", check=False)
    try:
        result = msgspec.json.decode((done.stdout.splitlines() or [""])[0], type=_ReportedLaunch)
    except msgspec.MsgspecError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OldCodeError(f"the old code does not run (exit code {done.returncode}): {last}") from None
    if result.status != "ok":
        raise OldCodeError(f"the old code's launch ended as {result.status}: {result.message}")
    return result.record


class _ReportedLaunch(msgspec.Struct):
    status: str
    record: str
    message: str = ""
