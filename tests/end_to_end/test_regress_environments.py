"""Two real environments, launched in turn: each runs its own Python, and a launch that hangs ends with the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.__main__ import main
from suite.records.index import launches as all_launches
from suite.records.store import read

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]
HANGS = "import os, time\nif 'RANK' in os.environ:\n    time.sleep(3600)\n"


@pytest.fixture
def old_environment(tmp_path):
    """A function that makes another environment with the packages of this one, and code that runs as it starts."""

    def made(startup):
        directory = tmp_path / "old"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        (packages,) = directory.glob("lib/python3*/site-packages")
        (packages / "packages.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        (packages / "sitecustomize.py").write_text(startup)
        return str(directory / "bin" / "python")

    return made


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
