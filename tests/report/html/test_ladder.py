"""Whose result a picture of the ladder shows: each machine's and each device's own, with all that was found."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suite.ladder.judge import Gain, Interaction, Mark, PromiseCheck
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.result import LadderResult, RungResult
from suite.ladder.rung import Track
from suite.machine.fingerprint import Fingerprint
from suite.report.html.ladder import DIRECTORY, ladders
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


def _stored(directory: Path, *results: LadderResult) -> None:
    (directory / DIRECTORY).mkdir()
    for number, result in enumerate(results):
        (directory / DIRECTORY / f"{number}.json").write_bytes(msgspec.json.encode(result))


def test_results_of_two_nodes_and_of_two_devices_do_not_hide_each_other_and_an_older_one_of_the_same_is_hidden(
    tmp_path: Path,
) -> None:
    newest = _result("node1", started=86_400.0)
    gpu = _result("node1", device="cuda")
    before = msgspec.structs.replace(_result("node1"), fingerprint=None, suite="")
    _stored(tmp_path, _result("node1"), newest, _result("node2"), gpu, before)
    plots, bad = ladders(tmp_path)
    assert not bad
    assert len({plot.id for plot in plots}) == len(plots) == 4
    titles = sorted(plot.title for plot in plots)
    assert titles == [
        "gpt2-mini: the speed track; AMD Something (family 25, model 1), 2 cores, node node1, torch 2.13.0, "
        "suite 1.2 (abc), 1970-01-02 00:00 UTC",
        "gpt2-mini: the speed track; AMD Something (family 25, model 1), 2 cores, node node2, torch 2.13.0, "
        "suite 1.2 (abc), 1970-01-01 00:00 UTC",
        "gpt2-mini: the speed track; NVIDIA Something (AMD Something (family 25, model 1), 2 cores), node node1, "
        "torch 2.13.0, suite 1.2 (abc), 1970-01-01 00:00 UTC",
        "gpt2-mini: the speed track; cpu of a machine that was not recorded, 1970-01-01 00:00 UTC",
    ]


def test_the_table_behind_a_picture_has_what_was_not_run_shares_rates_and_what_the_top_loses(tmp_path: Path) -> None:
    _stored(tmp_path, _result("node1"))
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
        "gain predicted, us a token": "+5,000.0",
        "gain measured, us a token": "+4,000.0",
        "of the baseline": "0.50",
        "top without it loses, us a token": "+3,000.0 (noise 1,000.0)",
        "promises": "gain pass: 0.80 of the predicted",
    }
    assert {row["promises"] for row in rows[2:]} == {"NOT RUN: not here"}
    assert plot.traces[0]["y"] == ["speed-baseline", "batch"]
