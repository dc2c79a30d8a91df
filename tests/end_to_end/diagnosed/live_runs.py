"""Frameworks train the small model here, and `diagnose` names what was put into each run; `nox -s diagnosed` alone.

With RECORD=1 in the environment the files of the repository are written anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from suite.__main__ import main
from tests.end_to_end.diagnosed.recorded_runs import DIAGNOSED, RECORDED, RUNS, TABLE, named_causes, record

MEGATRON_TIMERS = """
from megatron.core.timers import Timers
timers = Timers(2, "minmax")
timers._get_global_min_max_time = lambda *_: {"forward-backward": (600.39, 950.09), "optimizer": (34.5, 34.9)}
for number in range(1, 20):
    print(f" iteration {number:8d}/ 500 | elapsed time per iteration (ms): 1000.1 | global batch size: 64 |")
    print(timers.get_all_timers_string(["forward-backward", "optimizer"]))
"""
LEAST_FIRST = 9 / 12  # of the runs with a slow-down


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs of the table were recorded."""
    folder = RECORDED if "RECORD" in os.environ else tmp_path_factory.mktemp("runs")
    for name in RUNS:
        record(name, folder, tmp_path_factory.mktemp(name))
    return folder


def test_the_frameworks_are_those_of_the_table() -> None:
    assert {name: version(name).partition("+")[0] for name in TABLE.versions} == TABLE.versions


@pytest.mark.parametrize("name", DIAGNOSED)
def test_what_was_put_into_a_run_is_named_and_nothing_of_an_undisturbed_one(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, cause = named_causes(name, folder, capsys), RUNS[name].cause
    assert any(words.startswith(cause) for words in found) if cause else found == []


def test_most_causes_are_named_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {name: run.cause for name, run in RUNS.items() if run.cause}
    first = {name: named_causes(name, folder, capsys)[:1] for name in slow}
    named = sum(
        words[0].startswith(cause) for (_, cause), words in zip(slow.items(), first.values(), strict=True) if words
    )
    assert named / len(slow) >= LEAST_FIRST, first


def test_a_slow_rank_is_read_from_what_megatron_cores_own_timers_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    printed = subprocess.run([sys.executable, "-c", MEGATRON_TIMERS], capture_output=True, text=True, check=True)
    log.write_text(printed.stdout, encoding="utf-8")
    main(["diagnose", str(log), "--json"])
    first = json.loads(capsys.readouterr().out)["diagnosis"]["causes"][0]["words"]
    assert first.startswith("ranks differ: forward-backward takes 0.6 to 0.95 s")
