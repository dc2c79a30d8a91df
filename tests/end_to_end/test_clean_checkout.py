"""No command makes a checkout modified: what it writes lies where git ignores it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from suite.paths import RESULTS, ROOT

# one process for all commands, whose ranks are forks; it calibrates a few points of everything: all take 90 s
RUN = """
import subprocess, sys
import pytest
from suite.__main__ import main
from suite.calibration import calibrate
from tests.support.profiles import SPARSE
from tests.support.warm_ranks import launch_warm_ranks
calibrate.DENSITIES = {"cpu": SPARSE}
launch_warm_ranks(pytest.MonkeyPatch())
for command in sys.argv[1:]:
    code = main(command.split())
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=True, text=True).stdout
    if code not in (0, 1, 3) or status:
        sys.exit(f"{command}: exit code {code}\\n{status}")
"""
COMMANDS = [
    "calibrate --device cpu --ranks 1",
    "runs",
    "show gpt2-124m",
    "predict bloom-176b",
    "validate",
    "formulas",
    *(["refit"] if find_spec("tomli_w") and find_spec("scipy") else []),
    "reproduce gpt2-mini --device cpu --ranks 1 --steps 6 --no-calibrate",
    "ladder gpt2-mini --device cpu --rungs memory-baseline --no-leave-one-out --no-calibrate",
    "accept --only 0 --device cpu",
    *(["regress gpt2-mini --device cpu --ranks 1 --steps 6 --launches 1 --accept"] if find_spec("ruptures") else []),
    "results merge results/recorded",  # the same records in both stores are no error
    "results list",
    "results check",
    "results show ID",
    "results diff ID ID",
    "results export --out results/launches.csv",
    "report",
    "results prune --older-than 0 --yes",
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the files of this checkout as they are now, committed."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        else:
            (tree / name).unlink(missing_ok=True)
    git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "as it is now"], check=True)
    return tree


def test_git_ignores_all_results_but_those_of_the_project() -> None:
    written = ["records/gpt2-mini/x.end.json", "machines/x.json", "acceptance/x.end.json", "ladder/x", "launches.csv"]
    recorded = ["recorded/records/x.json", "recorded_h100/x.json"]
    names = {str(RESULTS / name): name for name in (*written, *recorded)}
    git = ["git", "-C", str(ROOT), "check-ignore", *names]
    ignored = subprocess.run(git, capture_output=True, check=True, text=True).stdout.splitlines()
    assert [names[path] for path in ignored] == written


@pytest.mark.rare
@pytest.mark.ranks
@pytest.mark.timeout(900)
def test_every_command_leaves_git_status_clean_and_the_projects_own_results_as_they_were(clone: Path) -> None:
    begin = next((clone / "results" / "recorded" / "records" / "gpt2-mini").glob("*.begin.json"))
    identity = begin.name.removesuffix(".begin.json")
    commands = [command.replace("ID", identity) for command in COMMANDS]
    environment = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *commands], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (clone / "results").iterdir()}
    assert {"records", "machines", "acceptance", "ladder", "launches.csv"} <= written
