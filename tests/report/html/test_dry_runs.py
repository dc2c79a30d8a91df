"""Dry runs on the page: the newest of each layout, with what its picture shows in words."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suite.job.dry_run_job import Moment
from suite.metrics.comparison import Verdict
from suite.report.html.dry_runs import dry_runs
from suite.reproduce.dry_run.result import DIRECTORY, DryRunResult

GIB = 2**30


def result(*, layout: str = "dp2,zero1", started: float = 0.0, executed: int = 3, board: float = 80.0) -> DryRunResult:
    before = Moment("forward pass", {"weights": 4 * GIB})
    full = Moment("backward pass", {"weights": 4 * GIB, "backward pass": 60 * GIB})
    return DryRunResult(
        run="gpt2-mini",
        layout=layout,
        verdict=Verdict.PASS,
        ranks=384,
        kinds=12,
        exact_figures=197,
        micro_batches=8,
        executed=executed,
        rank=32,
        stage=1,
        peak=Moment("backward pass", full.bytes | {"message buffers": 6 * GIB}),
        predicted_peak=71.0 * GIB,
        history=[before, full, before],
        board=("a100-sxm-80gb", board * GIB),
        changes=(),
        started=started,
        suite="1.2 (abc)",
    )


def stored(results: Path, *kept: DryRunResult) -> None:
    (results / DIRECTORY).mkdir()
    for number, one in enumerate(kept):
        (results / DIRECTORY / f"{number}.json").write_bytes(msgspec.json.encode(one))


def test_the_picture_says_which_step_its_area_is_and_draws_the_whole_step_s_peak(tmp_path: Path) -> None:
    stored(tmp_path, result())
    ((plot,), bad) = dry_runs(tmp_path)
    assert bad == []
    assert "384 ranks of 12 kinds: pass, 197 exact figures agree" in plot.says
    assert "holds 70 GiB at most in a whole step, in its backward pass; predicted: 71 GiB." in plot.says
    assert "a step of 3 micro-batches, which was executed; the whole has 8" in plot.says
    assert "It fits a100-sxm-80gb: 88% of its 80 GiB." in plot.says
    areas = {trace["name"]: trace["y"] for trace in plot.traces if "stackgroup" in trace}
    assert areas == {"weights": [4.0, 4.0, 4.0], "message buffers": [0.0, 0.0, 0.0], "backward pass": [0.0, 60.0, 0.0]}
    lines = {trace["name"]: trace["y"] for trace in plot.traces if "stackgroup" not in trace}
    assert lines == {"peak of the whole step, 8 micro-batches": [70.0, 70.0], "memory of a100-sxm-80gb": [80.0, 80.0]}
    assert plot.rows[-1] == ["sum", "70.000", "64.000"]


def test_a_memory_far_above_the_rest_is_no_line(tmp_path: Path) -> None:
    stored(tmp_path, result(board=800.0))
    ((plot,), _) = dry_runs(tmp_path)
    assert not any(trace["name"].startswith("memory") for trace in plot.traces)


def test_the_newest_result_of_each_layout_is_shown_and_a_damaged_one_named(tmp_path: Path) -> None:
    stored(tmp_path, result(started=9.0, executed=8), result(started=5.0), result(layout="dp4,zero3", started=7.0))
    (tmp_path / DIRECTORY / "damaged.json").write_text("{")
    plots, (error,) = dry_runs(tmp_path)
    assert [plot.title.split(":")[0] for plot in plots] == ["gpt2-mini, dp2,zero1", "gpt2-mini, dp4,zero3"]
    assert "which was executed" not in plots[0].says
    assert "damaged.json" in str(error)


def test_without_results_there_is_no_picture(tmp_path: Path) -> None:
    assert dry_runs(tmp_path) == ([], [])
