"""The command that `plan --export torchrun` prints trains the planned layout."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from suite.paths import ROOT

pytestmark = pytest.mark.ranks


def test_the_exported_command_trains_the_planned_layout(tmp_path: Path) -> None:
    asked = "plan gpt2-124m --on a100-sxm-40gb --gpus 4 --fix dp2,tp2,pp1,zero1,reduce-scatter,micro1 --export torchrun"
    plan = subprocess.run(
        [sys.executable, "-m", "suite", *asked.split()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    python, *command = shlex.split(plan.stdout)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *command, "--steps", "6", "--device", "cpu", "--results", str(tmp_path), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["run"], reported["status"], reported["verdict"]) == ("gpt2-mini", "ok", "pass")
    begun = json.loads(Path(reported["record"]).read_text())
    planned = command[command.index("--layout") + 1]
    layout = begun["job"]["layout"]
    assert (layout["data_parallel"], layout["tensor_parallel"], layout["zero_stage"]) == (2, 2, 1)
    assert planned.startswith("dp2,tp2,pp1,")
