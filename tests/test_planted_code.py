"""Changes planted into the code of a clone are found by the command, with real launches of old and new code in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.rare
OFTEN = ("--launches", "10")  # they calibrate the machine too
SLEEP = (
    "suite/execute/step.py",
    "        own = loss.clone()\n",
    "        own = loss.clone()\n        __import__('time').sleep(1.0)\n",
)
BUCKET = ("suite/execute/parallel/parallelize.py", "layout.bucket_bytes / 2**20", "layout.bucket_bytes / 2**23")
FUSION = ("suite/execute/parallel/parallelize.py", "    if compiled:\n", "    if compiled and not chunks:\n")
MESSAGE = (
    "suite/execute/step.py",
    "        own = loss.clone()\n",
    "        own = loss.clone()\n        dist.all_reduce(loss.clone(), group=self._mesh.get_group(DATA))\n",
)
STATE = (
    "suite/execute/train.py",
    "storage_bytes(training.optimizer.state_tensors)",
    "storage_bytes([*training.optimizer.state_tensors, torch.zeros(1)])",
)


@pytest.fixture
def clone(tmp_path):
    """A function that plants a change as a commit and returns the command's exit code and judged findings."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)

    def planted(change, *arguments):
        name, old, new = change
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(old) == 1
        (tree / name).write_text(text.replace(old, new), encoding="utf-8")
        git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run([*git, "commit", "-qam", "planted"], check=True)
        command = [sys.executable, "-m", "suite", "regress", "gpt2-mini", "--baseline", "HEAD~1", "--json"]
        command += ["--results", str(tmp_path / "results"), "--device", "cpu", *arguments]
        done = subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True)
        assert done.returncode in (0, 1, 3), done.stderr
        (comparison,) = json.loads(done.stdout)["comparisons"]
        judged = [one for one in comparison["findings"] if one["change"] not in ("same", "shown")]
        return done.returncode, {(one["quantity"], one["operation"], one["rank"]): one for one in judged}

    return planted


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("change", "key", "why"),
    [
        (MESSAGE, ("messages", "all_reduce", None), "exact: +1"),
        (STATE, ("optimizer_bytes", None, None), "exact: +4"),
    ],
    ids=["message", "state"],
)
def test_one_launch_of_each_finds_one_more_message_and_4_more_bytes_of_state(change, key, why, clone):
    code, found = clone(change, "--launches", "1", "--ranks", "2", "--steps", "6")
    assert (code, found[key]["change"], found[key]["why"]) == (1, "regression", why)


@pytest.mark.timeout(1200)
def test_a_smaller_bucket_shows_as_more_messages(clone):
    code, found = clone(BUCKET, "--launches", "1", "--ranks", "2", "--steps", "6")
    assert code == 1
    assert found["messages", "all_reduce", None]["change"] == "regression"
    assert found["messages", "all_reduce", None]["after"] > found["messages", "all_reduce", None]["before"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("change", "options"), [(SLEEP, ()), (FUSION, ("--compile",))], ids=["sleep", "fusion"])
def test_a_sleep_in_the_step_and_a_lost_fusion_are_slower(change, options, clone):
    code, found = clone(change, *OFTEN, "--ranks", "1", "--steps", "12", *options)
    assert (code, found["step_seconds", None, None]["change"]) == (1, "regression")
