"""A command's files are gone with it, and those of a killed one with the next command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suite.machine.scratch import OWNED, scratch_directory

OWNER = """
import sys
from pathlib import Path
from suite.machine.scratch import scratch_directory
with scratch_directory(Path(sys.argv[1]), kind="test-") as directory:
    Path(directory, "file").touch()
    print(directory, flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a scratch directory, until its standard input ends."""
    command = [sys.executable, "-c", OWNER, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_directory_is_gone_at_the_end_whatever_ended_it(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), scratch_directory(tmp_path) as directory:
        Path(directory).mkdir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_goes_with_the_next_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(tmp_path) as (killed, left), owner(tmp_path) as (_, of_another):
        killed.kill()
        killed.wait()
        kept = {of_another, tmp_path / "suite-without-owner", tmp_path / "suite-link", tmp_path / "other"}
        for name in ("suite-without-owner", "other"):
            (tmp_path / name).mkdir()
        (tmp_path / "other" / OWNED).touch()
        (tmp_path / "suite-link").symlink_to("other")
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            with scratch_directory(tmp_path):
                assert (left / "file").exists()  # of another user
        with scratch_directory(tmp_path) as own:
            assert {*tmp_path.iterdir()} == {*kept, Path(own)}
            with scratch_directory(tmp_path):
                assert Path(own).exists()  # of this process
