"""Two real environments, launched in turn: each runs its own Python, and a launch that hangs ends with the time."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from suite.__main__ import main
from suite.paths import ROOT
from suite.records.index import launches as all_launches
from suite.records.store import read
from tests.support.run_file import run_file

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]
HANGS = "import os, time\nif 'RANK' in os.environ:\n    time.sleep(3600)\n"


# Every linear layer's forward pass waits for as long again as it took, and a half: no flop, message or byte changes
SLOW_LINEAR = """
import os
if 'RANK' in os.environ:
    import time
    import torch.nn.functional as functional
    def slow(*arguments, own=functional.linear, **named):
        began = time.perf_counter()
        found = own(*arguments, **named)
        until = time.perf_counter() + 1.5 * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return found
    functional.linear = slow
"""
# A step of some ten milliseconds, mostly linear layers
LINEAR = {"hidden": 256, "head_dim": 128, "ffn_hidden": 2048, "sequence": 64, "data_parallel": 1, "accumulation": 4}


@pytest.fixture
def environment(tmp_path):
    """A function that makes another environment with the packages of this one, and code that runs as it starts."""

    def made(name, startup):
        directory = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        (packages,) = directory.glob("lib/python3*/site-packages")
        (packages / "packages.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        (packages / "sitecustomize.py").write_text(startup)
        return str(directory / "bin" / "python")

    return made


@pytest.fixture
def old_environment(environment):
    """As `environment`, of the one that is compared with."""
    return partial(environment, "old")


def check(capsys, results, python, *options):
    arguments = ["--python", python, "--device", "cpu", "--ranks", "1", "--steps", "6", "--results", str(results)]
    code = main(["regress", "gpt2-mini", *arguments, *options, "--json"])
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    return code, comparison


def test_launches_of_both_run_their_own_python_and_records_say_which(old_environment, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/no/where")  # of this shell, and so not of the old environment
    seen = tmp_path / "seen"
    python = old_environment(
        "import os, sys\nif 'RANK' in os.environ:\n"
        f"    open({str(seen)!r}, 'a').write(f\"{{sys.prefix}} {{os.environ['TRITON_CACHE_DIR']}} "
        "{os.environ['PYTHONPATH']}\\n\")\n"
    )
    code, comparison = check(capsys, tmp_path / "results", python, "--launches", "1")
    assert code == 3  # two launches decide no time
    assert [one["executable"] for one in comparison["environments"]] == [python, sys.executable]
    assert "sitecustomize.py, which runs whenever Python starts: " in comparison["differences"][-1]
    launches = {launch.id: launch.software for launch in all_launches(tmp_path / "results")[0]}
    old, new = launches[comparison["before"][0]], launches[comparison["after"][0]]
    assert old["environment"].startswith("old ")
    assert old["environment"] != new["environment"]
    assert old["torch"] == new["torch"] == torch.__version__
    prefix, cache, path = seen.read_text().splitlines()[0].split()
    assert (prefix, Path(cache).parent.name) == (str(tmp_path / "old"), "old")
    assert "/no/where" not in path
    same = {one["quantity"]: one["change"] for one in comparison["findings"]}
    assert same["parameters"] == same["hardware_flop"] == "same"


def test_the_time_is_kept_while_a_launch_hangs_and_its_record_is_whole(old_environment, tmp_path, capsys):
    code, comparison = check(capsys, tmp_path / "results", old_environment(HANGS), "--until-decided", "0.1")
    assert code == 3
    assert comparison["findings"] == []
    (launch,) = all_launches(tmp_path / "results")[0]
    assert launch.finished - launch.started < 60  # it had 6 s, and as a hang it would be noticed after 120 s
    assert read(Path(launch.path)).end.message == "the launcher ended: OutOfTimeError"


@pytest.mark.rare  # forty launches, and a time that is judged
@pytest.mark.alone
def test_a_slow_operator_of_the_new_environment_is_a_regression(environment, tmp_path):
    new, old = environment("new", SLOW_LINEAR), environment("old", "")
    run = run_file(tmp_path / "linear.toml", **LINEAR, precision='"fp32"')
    options = ["--device", "cpu", "--no-compile", "--steps", "20", "--launches", "10", "--results", str(tmp_path / "r")]
    command = [new, "-m", "suite", "regress", str(run), "--python", old, *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (comparison,) = json.loads(done.stdout)["comparisons"]
    changes = {(one["quantity"], one["term"]): one for one in comparison["findings"]}
    assert (done.returncode, changes["step_seconds", None]["change"]) == (1, "regression")
    assert len(comparison["again"]) == 20  # it was launched in turn again
    counted = ("parameters", "hardware_flop", "weight_bytes", "optimizer_bytes")
    assert {changes[name, None]["change"] for name in counted} == {"same"}
