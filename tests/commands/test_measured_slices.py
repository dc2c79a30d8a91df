"""`predict --from` as a user sees it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.run import Workload
from suite.job.slice import SlicePart
from suite.predict.analytic.measured_parts import PartSeconds, modelled_parts
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.slice_parts import sliced_parts
from suite.reproduce.plan import job_for
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import slice_plan
from tests.support.answers import whole
from tests.support.launches import CORPUS
from tests.support.slices import measured, ones, slice_job, stored, times_of

A100 = "NVIDIA A100-SXM4-80GB"


def bloom_parts() -> PartSeconds:
    run = reference_run("bloom-176b")
    known = run_machine(run.cluster, run.recipe.precision, ranks=384, accelerator_name=None, software=run.software)
    assert known is not None
    assert known.machine is not None
    return modelled_parts(run.workload, known.machine)


def slower(factor: float, results: Path, **changes: Any) -> str:
    """The record of a slice of BLOOM whose layers take so many times as long as modelled."""
    parts = bloom_parts()
    layer = parts.layers[0]
    samples = {
        SlicePart.LAYER_FORWARD: [factor * layer.forward * each for each in (0.99, 1.0, 1.0, 1.0, 1.01)],
        SlicePart.LAYER_BACKWARD: [factor * layer.backward] * 5,
        **{part: [] for part in (SlicePart.EMBEDDING_FORWARD, SlicePart.EMBEDDING_BACKWARD)},
    }
    job = msgspec.structs.replace(slice_job(reference_run("bloom-176b"), **changes), device="cuda")
    return str(stored(results, job, times_of(parts, samples=samples), gpus=f"{A100}, {A100}"))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("suite.commands.measured_slices.RESULTS", tmp_path)
    return slower(1.1, tmp_path)


@pytest.fixture
def modelled(answered):
    """BLOOM's step without a slice."""
    return whole(answered("predict", "bloom-176b"))["step_seconds"]


@pytest.mark.usefixtures("record")
def test_the_first_lines_say_what_was_measured_and_the_step_stands_next_to_the_published_one(
    monkeypatch, said, modelled
):
    monkeypatch.setenv("COLUMNS", "400")
    lines = said("predict", "bloom-176b", "--from", "latest").splitlines()[2:]  # after layout and other stack
    assert lines[1].startswith("measured on ")
    assert re.search(r"layer [0-9.]+ ms ± 0\.\d%, 10\.0 % slower than modelled \([0-9.]+ ms\)", lines[1])
    assert lines[2].startswith("modelled: embedding, messages, overheads: ")
    step = re.match(
        r"step from the slice: ([0-9.]+) s, ([0-9.]+) to ([0-9.]+) s, .* than published \(105.2 s\); "
        rf"modelled alone {modelled:.4g} s",
        lines[3],
    )
    assert step
    seconds, low, high = map(float, step.groups())
    assert low < seconds < high
    # nine tenths of BLOOM's step are layers
    assert modelled * 1.08 < seconds < modelled * 1.1


def test_the_prediction_follows_the_slice_in_every_figure(record, answered):
    entry = answered("predict", "bloom-176b", "--from", record)
    found = entry["from"]
    assert found["records"] == [record]
    first = {row["quantity"]: row["left"] for row in reversed(entry["figures"]) if not row["term"] and row["left"]}
    assert first["step_seconds"] == found["step_seconds"]
    assert first["training_seconds"] == pytest.approx(found["step_seconds"] * 366e9 / (2048 * 2048), rel=0.01)
    assert entry["step_seconds_uncertainty"] == pytest.approx(found["high_seconds"] / found["step_seconds"] - 1)
    terms = {row["term"]: row["left"] for row in entry["figures"] if row["quantity"] == "step_seconds" and row["term"]}
    assert sum(terms[name] for name in terms if not name.startswith(("at ", "predicted"))) == pytest.approx(
        found["step_seconds"]
    )
    assert terms["layer"] > 0.8 * found["step_seconds"]


def test_layers_of_the_whole_run_may_lie_in_another_layout_of_the_same_share(record, said):
    text = said("predict", "bloom-176b", "--from", record, "--layout", "dp16,tp4,pp6")
    assert "published 105.2 s on 384 a100-sxm-80gb" in " ".join(text.split())


def test_every_slice_that_is_planned_is_one_of_its_run(monkeypatch):
    """PaLM, gpt-oss, Qwen3-Next, Nemotron-H and LoRA have none, as parts of their recipes are not known.

    Products in other formats are those of a slice in 16 bits, and Muon's are of one with AdamW.
    """
    monkeypatch.setattr("suite.reproduce.slice_memory.free_bytes", lambda: 2**50)
    wrong = []
    without = {"palm-540b", "gpt-oss-120b", "qwen3-next-80b-a3b", "nemotron-h-56b", "mlperf-llama2-70b-lora"}
    for name in sorted({*run_names()} - without):
        planned = slice_plan(Request(name=f"{name}-slice", layers=1, device="cpu", results=Path("results")))
        run, of = reference_run(name), planned.slice
        recipe = msgspec.structs.replace(run.recipe, product_format=planned.recipe.product_format)
        workload = Workload(run.architecture, recipe, of.layout)
        taken = [measured(job_for(planned, CORPUS, "/none"), times_of(ones(1.0)))]
        layer = {part.name: part for part in sliced_parts(name, workload, taken)}["layer"]
        whole_sequences = planned.layout.context_parallel < of.layout.context_parallel
        seconds = pytest.approx(0.5 if whole_sequences else 1.0)
        if layer.scaled is not whole_sequences or layer.seconds.forward != seconds:
            wrong.append((name, layer))
        if recipe != run.recipe:
            with pytest.raises(InputError, match="--gemm-dtype none asks for it"):
                sliced_parts(name, workload._replace(recipe=run.recipe), taken)
    assert wrong == []


def test_what_another_device_measured_is_not_compared_with_what_was_published(tmp_path, monkeypatch, said, modelled):
    monkeypatch.setenv("COLUMNS", "400")
    path = stored(tmp_path, slice_job(reference_run("bloom-176b")), times_of(bloom_parts()), cpu="a processor")
    text = said("predict", "bloom-176b", "--from", str(path))
    assert "measured on a processor: layer " in text
    assert "published 105.2 s on 384 a100-sxm-80gb" in text
    assert "not predicted: mfu, hfu, energy: the slice was measured on a processor, no a100-sxm-80gb" in text
    assert "MFU  " not in text
    (step,) = (line for line in text.splitlines() if line.startswith("step time"))
    assert step.split()[:4] == ["step", "time", f"{modelled:.4g}", "s"]
    assert "105.2" not in step


REFUSED = [
    ("gpt2-124m", "not a slice of this run; got a slice of bloom-176b, not gpt2-124m"),
    ("bloom-176b --layout dp16,tp2,pp12", "tensor_parallel 4, not 2 as in dp16,tp2,pp12"),
    ("bloom-176b --choices", "--from: is of one layout"),
    ("bloom-176b gpt2-124m", "--from: is of one run"),
    ("bloom-mini", "--from: is for recorded runs and run files; got --from with the miniature bloom-mini"),
    ("llama3.1-405b --layout dp1,offload", "--from: no step time of the run is predicted"),
]


def test_what_does_not_go_with_a_slice_is_refused_in_a_line(record, not_refused):
    assert not_refused("predict", REFUSED, f"--from {record}") == []


def test_records_of_no_slice_and_of_none_that_ended_are_refused(tmp_path, refused):
    whole = next(iter(Path("results/recorded/records/bloom-mini").glob("*.begin.json")))
    assert "no slice: a record of a whole launch; got bloom-mini" in refused(
        "predict", "bloom-176b", "--from", str(whole)
    )
    failed = stored(tmp_path, slice_job(reference_run("bloom-176b")), None)
    assert "a slice that measured nothing; got oom" in refused("predict", "bloom-176b", "--from", str(failed))
    assert "no such record" in refused("predict", "bloom-176b", "--from", "nonsense")
