"""A battery needs no privilege, no network beyond the loopback, and no checkout that it may write to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.acceptance.check_table import ENVIRONMENT, EXACT_FIGURES, REPLAYS
from suite.launch.network_namespaces import why_not
from suite.paths import ROOT
from suite.records.battery import CheckVerdict

PACKAGES = ("suite", "reference_runs", "kernels")
NO_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout in which nothing may be written, and the names of all that is in it."""
    where = tmp_path / "checkout"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, where / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", where)
    inside = sorted(where.rglob("*"))
    for path in (where, *inside):
        path.chmod(path.stat().st_mode & ~0o222)
    yield where, inside
    for path in (where, *inside):
        path.chmod(path.stat().st_mode | 0o200)


def without_privileges() -> tuple[str, ...]:
    """A prefix for the command that takes the superuser's privileges away; empty for any other user."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("NOT RUN: needs setpriv and unshare (util-linux) to give up the superuser's privileges")
    if (why := why_not()) is not None:
        pytest.skip(f"NOT RUN: {why}")
    return ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *NO_CAPABILITIES)


@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_a_battery_runs_without_privileges_network_or_a_writable_checkout(tmp_path, checkout):
    where, inside = checkout
    results = tmp_path / "results"
    arguments = ("accept", "--only", "0,7,14", "--miniatures", "gpt2-mini", "--others", "1", "--results", str(results))
    home = tmp_path / "home"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    prefix = without_privileges()
    touched = ("touch", str(where / "suite" / "written"))
    assert subprocess.run([*prefix, *touched], env=environment, capture_output=True, check=False).returncode != 0
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "suite", *arguments, "--json"],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    passed = {finding["check"] for finding in report["findings"] if finding["verdict"] == CheckVerdict.PASS}
    assert passed == {ENVIRONMENT, EXACT_FIGURES, REPLAYS}
    assert Path(report["record"]).is_relative_to(results)
    assert sorted(where.rglob("*")) == inside
    assert sorted(path.name for path in home.glob("*/*")) == ["llm-reference-runs"]  # the corpus's tokens


def refused(checkout: Path, *arguments: str, **environment: str) -> list[str]:
    """The lines on stderr of a battery that is refused as bad input."""
    command = [*without_privileges(), sys.executable, "-m", "suite", "accept", *arguments]
    done = subprocess.run(
        command, cwd=checkout, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    return done.stderr.splitlines()


def test_a_home_or_results_that_may_not_be_written_are_refused_in_one_line(tmp_path, checkout):
    where, _ = checkout
    (line,) = refused(where, "--only", "0", "--results", str(where / "results"))
    assert str(where / "results") in line
    *_, line = refused(where, "--only", "7", "--results", str(tmp_path / "results"), HOME=str(where), XDG_CACHE_HOME="")
    assert "cannot create the cache directory" in line
    assert "XDG_CACHE_HOME" in line
