"""Pictures of stored results: the newest of each kind, with all that was found in words."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suite.job.dry_run_job import Moment
from suite.ladder.judge import Gain, Interaction, Mark, PromiseCheck
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.result import DIRECTORY as LADDERS
from suite.ladder.result import LadderResult, RungResult
from suite.ladder.rung import Track
from suite.machine.fingerprint import Fingerprint
from suite.metrics.comparison import Verdict
from suite.report.html.stored_results import dry_runs, ladders
from suite.reproduce.dry_run.result import DIRECTORY as DRY_RUNS
from suite.reproduce.dry_run.result import DryRunResult
from tests.support.ladder_machine import of_track

CPU_WORDS = {"cpu": "AMD Something (family 25, model 1)", "cores": "2", "gpus": "none"}
GPU_WORDS = CPU_WORDS | {"gpus": "NVIDIA Something"}
RUNGS = of_track(Track.SPEED)


def _measured(seconds: float) -> RungMeasurement:
    return RungMeasurement(
        launches=1,
        tokens=100,
        step_seconds=seconds,
        spread_seconds=0.01,
        terms={"forward": seconds},
        peak_bytes=2**20,
        largest_peak_bytes=2**20,
        reserved_bytes=None,
        resident_bytes=None,
        model_flop_per_second=5e10,
        synchronisations=1,
        losses=[1.0],
        records=[],
    )


def _result(node: str, *, seconds: float = 1.0, device: str = "cpu", started: float = 0.0) -> LadderResult:
    base, batch, *others = RUNGS
    said = RungPrediction(peak_bytes=2.0**20, phase="backward", step_seconds=seconds, terms={})
    gain = Gain(predicted=0.005, measured=0.004, noise=0.001)
    words = GPU_WORDS if device == "cuda" else CPU_WORDS
    versions = {"torch": "2.13.0"}
    return LadderResult(
        run="gpt2-mini",
        device=device,
        rungs=[
            RungResult(rung=base, expected=said, measured=_measured(2 * seconds), share=1.0),
            RungResult(
                rung=batch,
                below=base.name,
                expected=said,
                measured=_measured(seconds),
                gain=gain,
                share=0.5,
                checks=(PromiseCheck(name="gain", mark=Mark.PASS, says="0.80 of the predicted"),),
            ),
            *(RungResult(rung=rung, not_run="not here") for rung in others),
        ],
        interactions=[Interaction(rung=batch.name, in_track=0.004, at_top=0.003, noise=0.001)],
        profile="made up",
        sample_seconds=0.0,
        started=started,
        whole=True,
        fingerprint=Fingerprint(node=node, device=device, hardware=words, software=versions),
        suite="1.2 (abc)",
    )


def _stored(directory: Path, *results: LadderResult | DryRunResult) -> None:
    directory.mkdir()
    for number, result in enumerate(results):
        (directory / f"{number}.json").write_bytes(msgspec.json.encode(result))


def test_results_of_two_nodes_and_of_two_devices_do_not_hide_each_other_and_an_older_one_of_the_same_is_hidden(
    tmp_path: Path,
) -> None:
    newest = _result("node1", started=86_400.0)
    gpu = _result("node1", device="cuda")
    before = msgspec.structs.replace(_result("node1"), fingerprint=None, suite="")
    _stored(tmp_path / LADDERS, _result("node1"), newest, _result("node2"), gpu, before)
    plots, bad = ladders(tmp_path)
    assert not bad
    assert len({plot.id for plot in plots}) == len(plots) == 4
    host, versions = "AMD Something (family 25, model 1), 2 cores", "torch 2.13.0, suite 1.2 (abc)"
    assert sorted(plot.title.removeprefix("gpt2-mini: the speed track; ") for plot in plots) == [
        f"{host}, node node1, {versions}, 1970-01-02 00:00 UTC",
        f"{host}, node node2, {versions}, 1970-01-01 00:00 UTC",
        f"NVIDIA Something ({host}), node node1, {versions}, 1970-01-01 00:00 UTC",
        "cpu of a machine that was not recorded, 1970-01-01 00:00 UTC",
    ]


def test_the_table_behind_a_picture_has_what_was_not_run_shares_rates_and_what_the_top_loses(tmp_path: Path) -> None:
    _stored(tmp_path / LADDERS, _result("node1"))
    ((plot,), _) = ladders(tmp_path)
    rows = [dict(zip(plot.columns, row, strict=True)) for row in plot.rows]
    assert [row["rung"] for row in rows] == [rung.name for rung in RUNGS]
    assert rows[1] == {
        "rung": "batch",
        "step ms": "1,000.0",
        "us a token": "10,000",
        "Gflop/s": "50.0",
        "peak MiB": "1.0",
        "predicted MiB": "1.0",
        "gain predicted, us a token": "5,000.0 faster",
        "gain measured, us a token": "4,000.0 faster",
        "of the baseline": "0.50",
        "gain at the top, us a token": "3,000.0 faster (noise 1,000.0)",
        "promises": "gain pass: 0.80 of the predicted",
    }
    assert {row["promises"] for row in rows[2:]} == {"NOT RUN: not here"}
    assert plot.traces[0]["y"] == ["speed-baseline", "batch"]


GIB = 2**30


def dry_result(
    *, layout: str = "dp2,zero1", started: float = 0.0, executed: int = 3, board: float = 80.0
) -> DryRunResult:
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


def test_the_picture_says_which_step_its_area_is_and_draws_the_whole_step_s_peak(tmp_path: Path) -> None:
    _stored(tmp_path / DRY_RUNS, dry_result())
    ((plot,), bad) = dry_runs(tmp_path)
    assert bad == []
    assert "384 ranks of 12 kinds: pass, 197 exact figures agree" in plot.says
    assert "holds 70 GiB at most in a whole step, in its backward pass; predicted: 71 GiB." in plot.says
    assert "a step of 3 micro-batches, which was executed; the whole has 8" in plot.says
    assert "That is 88% of the 80 GiB of a100-sxm-80gb." in plot.says
    areas = {trace["name"]: trace["y"] for trace in plot.traces if "stackgroup" in trace}
    assert areas == {"weights": [4.0, 4.0, 4.0], "message buffers": [0.0, 0.0, 0.0], "backward pass": [0.0, 60.0, 0.0]}
    lines = {trace["name"]: trace["y"] for trace in plot.traces if "stackgroup" not in trace}
    assert lines == {"peak of the whole step, 8 micro-batches": [70.0, 70.0], "memory of a100-sxm-80gb": [80.0, 80.0]}
    assert plot.rows[-1] == ["sum", "70.000", "64.000"]


def test_a_memory_far_above_the_rest_is_no_line(tmp_path: Path) -> None:
    _stored(tmp_path / DRY_RUNS, dry_result(board=800.0))
    ((plot,), _) = dry_runs(tmp_path)
    assert not any(trace["name"].startswith("memory") for trace in plot.traces)


def test_the_newest_result_of_each_layout_is_shown_and_a_damaged_one_named(tmp_path: Path) -> None:
    _stored(
        tmp_path / DRY_RUNS,
        dry_result(started=9.0, executed=8),
        dry_result(started=5.0),
        dry_result(layout="dp4,zero3", started=7.0),
    )
    (tmp_path / DRY_RUNS / "damaged.json").write_text("{")
    plots, (error,) = dry_runs(tmp_path)
    assert [plot.title.split(":")[0] for plot in plots] == ["gpt2-mini, dp2,zero1", "gpt2-mini, dp4,zero3"]
    assert "which was executed" not in plots[0].says
    assert "damaged.json" in str(error)


def test_without_results_there_is_no_picture(tmp_path: Path) -> None:
    assert dry_runs(tmp_path) == ladders(tmp_path) == ([], [])
