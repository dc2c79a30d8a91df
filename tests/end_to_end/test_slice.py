"""Slices executed: the shapes of one rank of many, counted as predicted, with a time for each part."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, parse_layout
from reference_runs.miniature import miniature
from suite.__main__ import main
from suite.job.slice import SlicePart
from suite.metrics.comparison import Verdict
from suite.records.query import record_path
from suite.records.store import read
from suite.reproduce.reproduce import LaunchResult, reproduce
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import slice_of, slice_tokens
from tests.support.launches import exact_rows
from tests.support.run_file import run_file

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]
LAYERS = {SlicePart.SHARED_FORWARD, SlicePart.LAYER_FORWARD, SlicePart.LAYER_BACKWARD, SlicePart.UPDATE}
SMALLEST = 4096  # bytes of blocks that are not predicted: a loss, a norm, a seed
HEAD = {SlicePart.HEAD_FORWARD, SlicePart.HEAD_BACKWARD}


@pytest.mark.always
def test_a_slice_of_a_run_file_is_counted_recorded_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of three stages on two tensor-parallel ranks: two layers and the head, in one process."""
    stages = {"layers": 7, "pipeline_stages": 3, "tensor_parallel": 2}  # 2, 3 and 2 layers: a table counts as one
    file = run_file(tmp_path / "small.toml", data_parallel=1, accumulation=4, **stages)
    arguments = [str(file), "--slice", "--stage", "last", "--steps", "500", "--minutes", "0.001"]
    arguments += ["--results", str(tmp_path)]
    assert main(["reproduce", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "exact figures agree: parameters, flop, state bytes, payload bytes, messages" in out
    assert "2 layers, head of the last stage of small, tensor-parallel share 1/2" in err
    assert "stopped after 6 of 500 repetitions: 0.001 minutes are over" in out
    record = read(record_path(tmp_path, "latest"))
    assert record.end is not None
    assert record.begin.run == "small-slice"
    (rank,) = record.end.ranks
    times = rank.slice_times
    assert times is not None
    assert set(times.seconds) == LAYERS | HEAD
    assert {len(samples) for samples in times.seconds.values()} == {1}
    assert main(["results", "show", "latest", "--results", str(tmp_path)]) == 0
    shown, _ = capsys.readouterr()
    assert "layer backward" in shown
    assert "verdict: pass" in shown
    assert main(["results", "check", "--results", str(tmp_path)]) == 0
    assert main(["results", "list", "--results", str(tmp_path), "--json"]) == 0
    capsys.readouterr()


def sliced(
    tmp_path: Path, name: str, layout: str, *, stage: str, layers: int, short: bool = True, ranks: int = 1
) -> LaunchResult:
    """A slice of a miniature's shapes, 12 layers deep, in a layout of many ranks; on so many processes."""
    small = miniature(reference_run(name), "cpu", ranks=1, steps=8)
    run = msgspec.structs.replace(
        reference_run(name),
        architecture=msgspec.structs.replace(small.architecture, layers=12),
        recipe=small.recipe,
        recorded_layout=parse_layout(layout, base=Layout()),
    )
    sequence = small.architecture.sequence // 2 if short else None
    asked = Request(
        name=f"{name}-slice",
        stage=stage,
        layers=layers,
        sequence=sequence,
        ranks=ranks,
        device="cpu",
        steps=8,
        results=tmp_path,
    )
    planned = slice_of(run, asked)
    return reproduce(planned, slice_tokens(planned), tmp_path, lambda _rank, _event: None)


@pytest.mark.parametrize(
    ("name", "layout", "stage", "layers"),
    [
        pytest.param("grok-1", "dp1,tp2,pp3,ep2,sp,zero1,micro1", "last", 2, id="experts, sequence parallelism"),
        pytest.param("bloom-176b", "dp2,tp2,pp3,zero1,recompute-full,micro2", "first", 2, marks=pytest.mark.rare),
        pytest.param("llama2-70b", "dp2,tp4,pp3,zero1,sp,fused,micro2", "last", 2, marks=pytest.mark.rare),
        pytest.param("deepseek-v3", "dp2,pp3,ep4,zero1,fused,micro2", "middle", 2, marks=pytest.mark.rare),
        pytest.param("opt-175b", "dp2,tp2,zero3,recompute-full,micro2", "only", 3, marks=pytest.mark.rare),
        pytest.param("llama3.1-8b", "dp2,cp2,zero1,micro1", "only", 2, marks=pytest.mark.rare),
        pytest.param("qwen3-30b-a3b", "dp2,zero1,micro1,recompute-selective", "only", 2, marks=pytest.mark.rare),
        pytest.param("gpt-neox-20b", "dp2,tp2,pp4,zero1,recompute-full,micro2", "middle", 3, marks=pytest.mark.rare),
    ],
)
def test_a_slice_counts_what_a_rank_of_the_layout_is_predicted_to(
    name: str, layout: str, stage: str, layers: int, tmp_path: Path
) -> None:
    result = sliced(tmp_path, name, layout, stage=stage, layers=layers)
    assert result.message == ""
    assert result.verdict is Verdict.PASS
    (kept,) = [row for row in result.rows if row.quantity == "activation_bytes"]
    assert kept.left == kept.right
    (peak,) = [row for row in result.rows if row.quantity == "peak_bytes"]
    if "fused" not in layout:  # what a CPU's kernel holds in passing is not predicted
        assert peak.tolerance is not None
        assert peak.left == pytest.approx(peak.right, abs=SMALLEST)
    assert {"parameters", "model_flop", "hardware_flop"} <= {row.quantity for row in exact_rows(result.rows)}


@pytest.mark.parametrize(
    ("name", "layout", "stage", "ranks"),
    [
        pytest.param("bloom-176b", "dp2,tp2,pp3,zero1,micro2", "last", 2, id="tensor parallelism"),
        pytest.param("grok-1", "dp1,tp2,pp3,ep2,sp,zero1,micro1", "last", 4, marks=pytest.mark.rare),
        pytest.param("deepseek-v3", "dp2,pp3,ep2,zero1,micro2", "last", 2, marks=pytest.mark.rare),
        pytest.param("llama3.1-8b", "dp2,cp2,zero1,micro1", "only", 2, marks=pytest.mark.rare),
        pytest.param("llama2-70b", "dp2,tp4,pp3,zero1,sp,fused,micro2", "last", 4, marks=pytest.mark.rare),
        pytest.param("opt-175b", "dp2,tp2,pp3,recompute-full,micro2", "middle", 2, marks=pytest.mark.rare),
    ],
)
def test_processes_that_share_the_layers_of_a_stage_exchange_messages(
    name: str, layout: str, stage: str, ranks: int, tmp_path: Path
) -> None:
    """Then every figure of each is as predicted, and the loss is one of a whole model.

    Logits are normal, with the variance s^2 = h d^2 of a head with deviation d on h normed states. So the first loss is
    ln V + s^2 / 2, to 5 s / sqrt(n) over n tokens. Alone, a process has a part of the vocabulary, and its share of a
    mean over ranks that are not there.
    """
    result = sliced(tmp_path, name, layout, stage=stage, layers=2, ranks=ranks)
    assert (result.message, result.verdict) == ("", Verdict.PASS)
    kept = [row for row in result.rows if row.quantity == "activation_bytes"]
    assert [(row.left, row.rank) for row in kept] == [(row.right, row.rank) for row in kept] != []
    exact = {row.rank for row in exact_rows(result.rows) if row.quantity == "payload_bytes"}
    assert exact == {None, *range(ranks)}
    record = read(Path(result.record))
    assert record.begin.job.slice is not None
    assert len(record.begin.job.slice.group) == ranks
    assert record.end is not None
    assert len(record.end.ranks) == ranks
    losses = [[step.loss for step in rank.steps] for rank in record.end.ranks]
    assert all(own == losses[0] for own in losses)
    if stage == "middle":
        assert set(losses[0]) == {0.0}
    else:
        job = record.begin.job
        variance = job.architecture.hidden * job.recipe.init_std**2
        tokens = job.layout.micro_batch * job.architecture.sequence * job.layout.expert_parallel
        expected = math.log(job.architecture.padded_vocabulary) + variance / 2
        assert losses[0][0] == pytest.approx(expected, abs=5 * math.sqrt(variance / tokens))


@pytest.mark.rare
def test_a_slice_of_blank_infilling_needs_its_windows(tmp_path: Path) -> None:
    layout = "dp2,tp2,pp2,zero1,recompute-full,micro1"
    assert sliced(tmp_path, "glm-130b", layout, stage="last", layers=1, short=False).verdict is Verdict.PASS
