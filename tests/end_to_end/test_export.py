"""The command that `plan --export torchrun` prints trains the planned layout."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from suite.__main__ import main

pytestmark = pytest.mark.ranks


@pytest.mark.usefixtures("warm_ranks")
def test_the_exported_command_trains_the_planned_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "plan gpt2-124m --on a100-sxm-40gb --gpus 2 --fix dp2,tp1,pp1,zero1,reduce-scatter,micro1 --export torchrun"
    assert main(asked.split()) == 0
    python, dash_m, module, *command = shlex.split(capsys.readouterr().out)
    assert (python, dash_m, module) == ("python", "-m", "suite")
    code = main([*command, "--steps", "6", "--device", "cpu", "--results", str(tmp_path), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    reported = json.loads(out)
    assert (reported["run"], reported["status"], reported["verdict"]) == ("gpt2-mini", "ok", "pass")
    begun = json.loads(Path(reported["record"]).read_text())
    planned = command[command.index("--layout") + 1]
    layout = begun["job"]["layout"]
    assert (layout["data_parallel"], layout["tensor_parallel"], layout["zero_stage"]) == (2, 1, 1)
    assert planned.startswith("dp2,tp1,pp1,")
