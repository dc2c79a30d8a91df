"""The picture of a schedule has every pass of every stage, where its time is."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.predict.simulation.pipeline_schedule import flop_durations, timed_passes
from suite.report.plots.schedule import draw_schedule
from tests.support.strategies import BLOOM

pytest.importorskip("matplotlib", reason="NOT RUN: pictures need matplotlib")
MICRO_BATCHES = 6


def workload(words: str) -> Workload:
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=MICRO_BATCHES)
    return Workload(BLOOM.architecture, recipe, parse_layout(f"{words},micro1", base=BLOOM.layout))


@pytest.mark.parametrize("words", ["pp3,gpipe", "pp3,1f1b", "pp2,1f1b,interleave2", "pp3,zero-bubble"])
def test_stages_compute_one_pass_at_a_time_and_all_of_a_step(words: str) -> None:
    planned = workload(words)
    durations = flop_durations(planned)
    stages = timed_passes(planned.layout, durations, micro_batches=MICRO_BATCHES)
    for done in stages:
        assert all(before.end <= after.start for before, after in itertools.pairwise(done))
    busy = sum(each.end - each.start for done in stages for each in done)
    assert busy == pytest.approx(MICRO_BATCHES * (sum(durations.forward) + sum(durations.backward)))


def test_the_picture_is_written_and_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    both = [("one", workload("pp3,1f1b")), ("other", workload("pp3,zero-bubble"))]
    draw_schedule(tmp_path / "one.png", both[:1])
    draw_schedule(tmp_path / "both.png", both)
    one, two = (tmp_path / name for name in ("one.png", "both.png"))
    assert two.read_bytes().startswith(b"\x89PNG")
    assert two.stat().st_size > one.stat().st_size > 5_000
    with pytest.raises(InputError, match="cannot draw"):
        draw_schedule(tmp_path / "nowhere" / "one.png", both)
