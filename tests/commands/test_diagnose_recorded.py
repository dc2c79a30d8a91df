"""`diagnose` of logs and traces that frameworks wrote on two cores: the slow-down that was put in is named."""

from __future__ import annotations

import pytest

from tests.end_to_end.diagnosed.recorded_runs import DIAGNOSED, RECORDED, RUNS, files_of, named_causes

MOST_BYTES = 150_000  # of a recorded file


@pytest.mark.parametrize("name", DIAGNOSED)
def test_what_was_put_into_a_run_is_named_and_nothing_of_an_undisturbed_one(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, found = RUNS[name], named_causes(name, RECORDED, capsys)
    if run.cause is None:
        assert found == []
    else:
        places = [place for place, words in enumerate(found) if words.startswith(run.cause)]
        assert places
        assert (places[0] == 0) is run.is_first


def test_each_recorded_file_is_of_a_run_and_small() -> None:
    files = {path for name in RUNS for path in files_of(name, RECORDED)}
    assert files == set(RECORDED.iterdir())
    assert all(len(files_of(name, RECORDED)) == (run.ranks if run.traced else 1) for name, run in RUNS.items())
    assert max(path.stat().st_size for path in files) < MOST_BYTES


def test_of_12_real_runs_with_a_slow_down_9_have_it_as_the_first_cause() -> None:
    slow = [run for run in RUNS.values() if run.cause]
    assert len(slow) >= 12
    assert sum(run.is_first for run in slow) / len(slow) >= 0.75
    assert len({run.framework for run in slow}) >= 3
    assert max(sum(run.framework == each.framework for run in slow) for each in slow) <= 5
