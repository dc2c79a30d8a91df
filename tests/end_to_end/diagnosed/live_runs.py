"""Frameworks train the small model here, and `diagnose` names what was put into each run; `nox -s diagnosed` alone.

With RECORD=1 in the environment the files of the repository are written anew.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.end_to_end.diagnosed.recorded_runs import DIAGNOSED, RECORDED, RUNS, TABLE, named_causes, record

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
