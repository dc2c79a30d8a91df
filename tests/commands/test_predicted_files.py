"""Files that `predict` writes of a step: what another reader finds in them is what `predict` prints."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise

import pytest

from suite.__main__ import main
from suite.metrics.figures import StepTerm
from suite.predict.recorded_run.figures import OF_A_LAYER, PART_OF_PEAK
from tests.support.page_records import record
from tests.support.pipeline_times import pipelined_job
from tests.support.predicted_steps import (
    CASES,
    RECORD,
    TOLERANCE,
    nanoseconds,
    printed_terms,
    read_stages,
    read_trace,
    term_seconds,
)


@pytest.fixture
def answer(answered):
    """A function that runs `predict --json` of one run, and returns its object."""
    return partial(answered, "predict")


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_another_reader_of_a_timeline_finds_the_printed_terms(capsys, tmp_path, words):
    path = tmp_path / "step.json"
    assert main(["predict", *words.split(), "--timeline", str(path), "--json"]) in (0, 1)  # 1: too large for its memory
    entry = json.loads(capsys.readouterr().out)
    printed = printed_terms(entry)
    step = printed.pop(None)
    stages, names = read_stages(path)
    (slowest,) = [name for name in names.values() if name.endswith(": passes, slowest")]
    terms = term_seconds(stages[int(slowest.removeprefix("stage ").partition(":")[0])])
    assert {*terms} == {*printed}
    for term, seconds in printed.items():
        assert terms[term] == pytest.approx(seconds, abs=TOLERANCE, rel=0), term
    for stage, events in stages.items():
        ends = max(event["ts"] + event["dur"] for event in events)
        assert ends / 1e6 == pytest.approx(step, abs=TOLERANCE * len(term_seconds(events)), rel=0), stage
        assert min(event["ts"] for event in events) >= 0
        tracks = defaultdict(list)
        for event in events:
            if event["name"] not in ("step: pipeline", "step: update"):  # around the others
                tracks[event["tid"]].append((*nanoseconds(event), event["name"]))
        for tid, found in tracks.items():
            assert names[tid].startswith(f"stage {stage}: ")
            for before, after in pairwise(sorted(found)):
                assert after[0] >= before[1], (names[tid], before, after)


def test_every_stage_has_its_passes_in_the_order_of_its_schedule(answer, tmp_path):
    path = tmp_path / "step.json"
    answer("bloom-176b", "--batch", "128", "--timeline", str(path))
    stages, _ = read_stages(path)
    assert len(stages) == 12
    for stage in range(12):
        passes = [event for event in stages[stage] if "pass" in event["args"]]
        order = [("FB"[event["name"] == "step: backward"], event["args"]["micro_batch"]) for event in passes]
        ahead = min(12 - stage, 8)
        expected = [("F", number) for number in range(ahead)]
        for number in range(8):
            expected.append(("B", number))
            if ahead + number < 8:
                expected.append(("F", ahead + number))
        assert order == expected
        assert passes == sorted(passes, key=lambda event: event["ts"])


def test_waits_lie_where_the_schedule_has_them(answer, tmp_path):
    path = tmp_path / "step.json"
    answer("bloom-176b", "--timeline", str(path))
    stages, _ = read_stages(path)
    for stage in range(12):
        passes = [event for event in stages[stage] if "pass" in event["args"]]
        waits = [event for event in stages[stage] if event["name"] == "bubble"]
        begins, ends = passes[0]["ts"], passes[-1]["ts"] + passes[-1]["dur"]
        before = sum(event["dur"] for event in waits if event["ts"] < begins)
        after = sum(event["dur"] for event in waits if event["ts"] >= ends - 1e-3)
        # the first forward pass comes after those of all stages before, the last backward pass comes before theirs
        assert (before > 0) is (after > 0) is (stage > 0)
        if stage:
            assert before / after == pytest.approx(passes[0]["dur"] / passes[-1]["dur"], rel=0.05)


def test_slices_are_named_as_a_measured_trace_names_them(answer, tmp_path):
    path = tmp_path / "step.json"
    answer("llama3.1-405b", "--timeline", str(path), code=1)
    slices, _ = read_trace(path)
    found = {(event["cat"], event["name"]) for events in slices.values() for event in events}
    annotated = {name for category, name in found if category == "user_annotation"}
    phases = {f"step: {phase}" for phase in ("pipeline", "forward", "backward", "update")}
    assert annotated - phases == {"nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_reduce", "nccl:send"}
    assert phases < annotated
    assert {category for category, _ in found} == {"user_annotation", "kernel"}
    terms = {event["args"].get("measured as", "") for events in slices.values() for event in events} - {""}
    assert terms <= {term.value for term in StepTerm}


def test_a_measured_trace_stands_next_to_the_prediction_and_begins_with_it(answer, tmp_path):
    measured = tmp_path / "trace.json"
    common = {"pid": 77, "tid": 77, "cat": "user_annotation", "args": {}}
    events = [
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 5e9, "args": {"name": "python"}},
        {"ph": "X", "name": "before", "ts": 5e9, "dur": 10.0, **common},
        {"ph": "X", "name": "step: forward", "ts": 5e9 + 100, "dur": 2000.0, **common},
        {"ph": "X", "name": "gloo:all_reduce", "ts": 5e9 + 2100, "dur": 50.0, **common | {"pid": "Spans"}},
    ]
    measured.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    path = tmp_path / "step.json"
    answer("gpt2-124m", "--timeline", str(path), "--against", str(measured))
    slices, names = read_trace(path)
    (process,) = [process for (process, _), name in names.items() if name.startswith("measured: trace.json")]
    assert process not in (1, 77)
    assert [(event["name"], event["ts"]) for event in slices[process]] == [("step: forward", 0.0)]  # no time below 0
    others = [event["name"] for pid, found in slices.items() if pid not in (1, process) for event in found]
    assert others == ["gloo:all_reduce"]


BROKEN = {"dur": "x"}, {"dur": -1.0}, {"dur": True}, {"dur": None}, {"ts": "x"}, {"ts": None}, {"ph": "i", "ts": "x"}


def test_events_without_times_are_left_out_of_a_measured_trace(answer, tmp_path):
    measured, path = tmp_path / "trace.json", tmp_path / "step.json"
    event = {"ph": "X", "name": "broken", "cat": "kernel", "pid": 7, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {}}
    events = [event | {"name": "whole"}, *(event | broken for broken in BROKEN), 7]
    measured.write_text(json.dumps(events), encoding="utf-8")
    answer("gpt2-124m", "--timeline", str(path), "--against", str(measured))
    slices, _ = read_trace(path)
    assert [event["name"] for process, found in slices.items() if process != 1 for event in found] == ["whole"]
    assert "broken" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("run", ["gpt2-124m", "opt-175b"])
def test_a_record_of_another_run_is_named(capsys, tmp_path, run):
    words = ["predict", run, "--timeline", str(tmp_path / "step.json"), "--against", str(RECORD)]
    assert main(words) in (0, 1)
    line = "--against: the record is of gpt2-124m, the prediction of opt-175b"
    assert (line in capsys.readouterr().out) is (run == "opt-175b")


def test_a_predicted_timeline_is_no_measurement(capsys, answer, tmp_path):
    predicted, path = tmp_path / "predicted.json", tmp_path / "step.json"
    answer("gpt2-124m", "--timeline", str(predicted))
    assert main(["predict", "gpt2-124m", "--timeline", str(path), "--against", str(predicted)]) == 2
    assert "--against: a predicted timeline, not a measured trace; got " in capsys.readouterr().err
    assert not path.exists()


def test_the_terms_of_a_record_without_a_trace_stand_next_to_the_prediction(answer, tmp_path):
    path = tmp_path / "step.json"
    end = json.loads(RECORD.with_name(RECORD.name.replace("begin", "end")).read_text(encoding="utf-8"))
    seconds = [row for row in end["figures"] if row["quantity"] == "step_seconds" and row.get("rank") == 0]
    terms = {row["term"]: row["value"] for row in seconds}
    assert len(terms) == len(StepTerm)
    answer("gpt2-124m", "--timeline", str(path), "--against", str(RECORD))
    slices, names = read_trace(path)
    (process,) = [process for (process, _), name in names.items() if name == "measured: gpt2-124m"]
    found = {event["name"]: event["dur"] / 1e6 for event in slices[process]}
    expected = {term: seconds for term, seconds in terms.items() if seconds > 0}
    assert found == pytest.approx(expected, abs=TOLERANCE, rel=0)


def test_the_passes_of_a_recorded_pipeline_stand_next_to_the_prediction(answer, tmp_path):
    record(tmp_path, pipelined_job("pp2,1f1b"), 1)
    (begin,) = tmp_path.rglob("*.begin.json")
    end = begin.with_name(begin.name.replace("begin", "end"))
    entry = json.loads(end.read_text(encoding="utf-8"))
    passes = {rank: [["F", rank, 0, 10 * rank, 10 * rank + 7], ["B", rank, 0, 30, 50 - rank]] for rank in range(2)}
    for rank, times in passes.items():
        entry["ranks"][rank]["pipeline_times"] = {"medians": [], "step": 3, "passes": times, "between_seconds": 0.1}
    end.write_text(json.dumps(entry), encoding="utf-8")
    path = tmp_path / "step.json"
    answer("gpt2-124m", "--timeline", str(path), "--against", str(begin))
    slices, names = read_trace(path)
    (process,) = [process for (process, _), name in names.items() if name.startswith("measured: ")]
    tracks = {name: thread for (of, thread), name in names.items() if of == process and thread}
    assert list(tracks) == ["stage 0: passes", "stage 1: passes"]
    for thread, expected in zip(tracks.values(), passes.values(), strict=True):
        found = [
            ["FB"[event["name"] == "step: backward"], *(event["args"][key] for key in ("chunk", "micro_batch")), *times]
            for event in slices[process]
            if event["tid"] == thread
            for times in [(event["ts"], event["ts"] + event["dur"])]
        ]
        assert found == expected


REFUSED = {
    "gpt2-124m --timeline HERE/old.json": "--timeline: the file exists, and is not overwritten",
    "gpt2-124m --timeline HERE/none/new.json": "--timeline: cannot write: No such file or directory",
    "gpt2-124m --timeline HERE": "--timeline: not a trace's name",
    "gpt2-124m --timeline HERE/directory.json": "--timeline: cannot write: Is a directory",
    "gpt2-124m --timeline HERE/directory.json --force": "--timeline: cannot write: Is a directory",
    "gpt2-124m --timeline /proc/new.json": "--timeline: cannot write: ",
    "gpt2-124m --against latest": "--against: needs --timeline; got latest",
    "gpt2-124m bloom-176b --timeline HERE/new.json": "--timeline: takes one run",
    "bloom-mini --timeline HERE/new.json": "--timeline: no step of it is predicted",
    "gpt2-124m --timeline HERE/new.json --against HERE/old.json": "--against: the trace has no timed events",
    "gpt2-124m --timeline HERE/new.json --against HERE/none.json": "--against",
    "bloom-mini --timeline HERE/new.json --against HERE/old.json": "--against: the trace has no timed events",
    "bloom-176b --batch 1048576 --timeline HERE/new.json": "--timeline: a timeline would be too long",
    "bloom-176b --batch 1048576 --memory-snapshot HERE/new.pickle --chakra HERE/new": "--chakra: a timeline would be",
    "gpt2-124m --timeline HERE/new.json --chakra /proc/new": "--chakra: cannot write: ",
    f"{CASES['PipeDream']} --timeline HERE/new.json --chakra HERE/new": "--chakra: a schedule without flush",
    "gpt2-124m --force": "--force: needs --timeline, --memory-snapshot or --chakra",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_printed(capsys, tmp_path, words):
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    (tmp_path / "directory.json").mkdir()
    assert main(["predict", *words.replace("HERE", str(tmp_path)).split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith(f"error: {REFUSED[words]}")
    assert (tmp_path / "old.json").read_text(encoding="utf-8") == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory.json", "old.json"]


def test_force_overwrites_a_file(answer, tmp_path):
    path = tmp_path / "step.json"
    path.write_text("old", encoding="utf-8")
    answer("gpt2-124m", "--timeline", str(path), "--force")
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


SNAPSHOTS = {
    "1F1B, full recomputation": "bloom-176b --batch 384",
    "no pipeline": "gpt2-124m",
    "interleaved": "llama3.1-405b",
    "mixture": "deepseek-v3",
    **{name: f"{CASES[name]} --batch 384" for name in ("GPipe", "zero bubble")},
    **{name: CASES[name] for name in ("ZB-V", "DualPipeV", "PipeDream", "full recomputation, ZeRO-2")},
    "interleaved, eager gathers": "nemotron4-340b",
    "walked through": "llama2-7b --on h100-sxm --gpus 8 --stack transformers",
    "nanotron": "llama2-7b --on h100-sxm --gpus 8 --stack nanotron",
}


def replayed(snapshot):
    """Most bytes that live at a time, by category then, and bytes left by block: a reader of the events alone."""
    alive, most, parts = {}, 0, Counter()
    now = Counter()
    for event in snapshot["device_traces"][0]:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            for other, (length, _) in alive.items():
                assert not (other < address + size and address < other + length), "two blocks share a place"
            category = event["frames"][-2]["name"]
            alive[address] = size, category
            now[category] += size
            if sum(now.values()) > most:
                most, parts = sum(now.values()), Counter(now)
        elif event["action"] == "free_completed":
            length, category = alive.pop(address)
            assert length == size
            now[category] -= size
    return most, {name: size for name, size in parts.items() if size}, alive


@pytest.mark.parametrize("words", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_another_reader_of_a_snapshot_finds_the_predicted_peak_and_its_parts(capsys, tmp_path, words):
    path = tmp_path / "step.pickle"
    assert main(["predict", *words.split(), "--memory-snapshot", str(path), "--json"]) in (0, 1)
    rows = [row for row in json.loads(capsys.readouterr().out)["figures"] if row["quantity"] == "peak_bytes"]
    peaks = {row["stage"]: row["left"] for row in rows if row["term"] is None}
    fullest = max((stage for stage in peaks if stage is not None), key=peaks.__getitem__)
    expected = {
        row["term"]: row["left"] for row in rows if row["stage"] == fullest and row["convention"] == PART_OF_PEAK
    }
    snapshot = pickle.loads(path.read_bytes())
    most, parts, alive = replayed(snapshot)
    assert most == pytest.approx(peaks[None], abs=len(expected), rel=0)
    assert {*parts} == {*expected}
    for name, size in expected.items():
        assert parts[name] == pytest.approx(size, abs=16, rel=0), name
    blocks = {
        block["address"]: block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert blocks == {address: size for address, (size, _) in alive.items()}


def test_activations_of_a_snapshot_are_by_kind(capsys, tmp_path):
    path = tmp_path / "step.pickle"
    assert main(["predict", "gpt2-124m", "--memory-snapshot", str(path), "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["figures"] if row["convention"] == OF_A_LAYER]
    of_a_layer = {row["term"]: row["left"] for row in rows if row["left"]}
    made = Counter()
    for event in pickle.loads(path.read_bytes())["device_traces"][0]:
        if event["action"] == "alloc" and event["frames"][-2]["name"] == "activations":
            made[event["frames"][0]["name"]] += event["size"]
    assert {kind: made[kind] for kind in of_a_layer} == {kind: 12 * size for kind, size in of_a_layer.items()}


def test_pytorch_reads_and_draws_a_snapshot(capsys, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "step.pickle"
    assert main(["predict", "bloom-176b", "--batch", "64", "--memory-snapshot", str(path)]) == 0
    snapshot = pickle.loads(path.read_bytes())
    for page in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
        assert base64.b64encode(pickle.dumps(snapshot)[:3000]).decode() in page
    capsys.readouterr()
    for action, expected in (("stats", "Summary of segments"), ("trace", "entries")):
        shown = subprocess.run(
            [sys.executable, "-m", "torch.cuda._memory_viz", action, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in shown.stdout
