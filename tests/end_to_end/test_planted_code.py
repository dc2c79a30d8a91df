"""Changes planted into the code of a clone are found by the command, with real launches of old and new code in turn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from suite.paths import ROOT

pytestmark = [pytest.mark.ranks, pytest.mark.rare]
OFTEN = ("--launches", "10")  # they calibrate the machine too
SLEEP = (
    "suite/execute/training/step.py",
    "        local_loss = loss.clone()\n",
    "        local_loss = loss.clone()\n        __import__('time').sleep(1.0)\n",
)
BUCKET = ("suite/execute/parallel/parallelize.py", "layout.bucket_bytes / 2**20", "layout.bucket_bytes / 2**23")
FUSION = ("suite/execute/optim/master_weights.py", "fused=update is Update.FUSED", "fused=False")
# The example run with a table of positions that are hardly read, so that its optimizer takes most of the step
MOSTLY_UPDATE = {
    **{"sequence": "8", "hidden": "512", "heads": "8", "kv_heads": "8", "ffn_hidden": "2048", "layers": "1"},
    **{"precision": '"fp32"', "global_batch": "1", "micro_batch": "1", "data_parallel": "1", "zero_stage": "0"},
    "accelerators": "1",
}
MORE_POSITIONS = 'extra_positions = { value = 40000, unit = "1", kind = "stated", source = "config" }\n'
MESSAGE = (
    "suite/execute/training/step.py",
    "        local_loss = loss.clone()\n",
    "        local_loss = loss.clone()\n        dist.all_reduce(loss.clone(), group=self._mesh.get_group(DATA))\n",
)
STATE = (
    "suite/execute/training/loop.py",
    "storage_bytes(training.optimizer.state_tensors)",
    "storage_bytes([*training.optimizer.state_tensors, torch.zeros(1)])",
)


@pytest.fixture
def clone(tmp_path):
    """A function that plants a change as a commit and returns the command's exit code and judged findings."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)

    def planted(change, *arguments, run="gpt2-mini"):
        name, old, new = change
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(old) == 1
        (tree / name).write_text(text.replace(old, new), encoding="utf-8")
        git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run([*git, "commit", "-qam", "planted"], check=True)
        command = [sys.executable, "-m", "suite", "regress", str(run), "--baseline", "HEAD~1", "--json"]
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
        (MESSAGE, ("messages", "all_reduce", None), "exact: 1 more"),
        (STATE, ("optimizer_bytes", None, None), "exact: 4 more"),
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
def test_a_sleep_in_the_step_is_slower(clone):
    code, found = clone(SLEEP, *OFTEN, "--ranks", "1", "--steps", "12")
    assert (code, found["step_seconds", None, None]["change"]) == (1, "regression")


@pytest.mark.timeout(3600)
def test_an_update_that_is_fused_no_more_is_slower(clone, tmp_path):
    text = (ROOT / "docs" / "example_run.toml").read_text(encoding="utf-8").split("[reported]")[0]
    for key, value in MOSTLY_UPDATE.items():
        text, found = re.subn(rf"^{key} = {{ value = [^,]+", f"{key} = {{ value = {value}", text, flags=re.MULTILINE)
        assert found == 1
    run = tmp_path / "mostly_update.toml"
    run.write_text(text.replace("\n[recipe]", f"{MORE_POSITIONS}\n[recipe]"), encoding="utf-8")
    code, judged = clone(FUSION, *OFTEN, "--ranks", "1", "--steps", "12", run=run)
    assert (code, judged["step_seconds", None, None]["change"]) == (1, "regression")
