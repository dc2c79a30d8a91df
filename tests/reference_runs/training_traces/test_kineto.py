"""Kineto's files are read in pieces as they are read whole; a damaged one is read up to there, or refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from reference_runs.training_traces import kineto
from reference_runs.training_traces.kineto import kineto_traces
from reference_runs.training_traces.trace import DeviceTrace
from tests.support.gpu_traces import GEMM, gpu_steps


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return gpu_steps(5, steps=2).write(tmp_path / "trace.json")


def seen(trace: DeviceTrace) -> tuple[int | None, list[tuple[str, int, int, int]]]:
    kernels = trace.kernels
    names = [trace.labels[label].name for label in kernels.labels]
    return trace.rank, list(zip(names, kernels.starts, kernels.ends, kernels.links, strict=True))


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_a_file_is_read_alike_in_pieces_of_any_size(
    whole: Path, monkeypatch: pytest.MonkeyPatch, separators: tuple[str, str]
) -> None:
    [trace] = kineto_traces(whole)
    events = json.loads(whole.read_text())["traceEvents"]
    assert len(trace.kernels) == sum(event["cat"] == "kernel" for event in events)
    assert len(trace.host) == sum(event["cat"] in ("user_annotation", "cpu_op") for event in events)
    assert trace.rank == 5
    nested = {"ph": "M", "name": "parts", "args": {"parts": [{"of": "}, {"}, {"of": 1}]}}
    whole.write_text(
        json.dumps({**json.loads(whole.read_text()), "traceEvents": [nested, *events]}, separators=separators)
    )
    for size in (7, 1000, 65_536):
        monkeypatch.setattr(kineto, "_CHUNK_BYTES", size if size > 7 else 997)
        assert seen(kineto_traces(whole)[0]) == seen(trace)


def test_a_kernel_is_linked_to_the_call_that_launched_it(whole: Path) -> None:
    [trace] = kineto_traces(whole)
    events = json.loads(whole.read_text())["traceEvents"]
    launched = {event["args"]["correlation"]: event["ts"] for event in events if event["name"] == "cudaLaunchKernel"}
    wanted = [int(launched[event["args"]["correlation"]] * 1000) for event in events if event["cat"] == "kernel"]
    assert list(trace.kernels.links) == wanted


def test_compressed_files_and_bare_lists_are_read(whole: Path, tmp_path: Path) -> None:
    packed, bare = tmp_path / "packed.json.gz", tmp_path / "bare_rank5.json"
    packed.write_bytes(gzip.compress(whole.read_bytes()))
    bare.write_text(json.dumps(json.loads(whole.read_text())["traceEvents"]))
    assert seen(kineto_traces(packed)[0]) == seen(kineto_traces(bare)[0]) == seen(kineto_traces(whole)[0])


@pytest.mark.parametrize("packs", [False, True])
def test_a_file_that_is_cut_off_is_read_up_to_there(whole: Path, packs: bool) -> None:
    [complete] = kineto_traces(whole)
    data = gzip.compress(whole.read_bytes()) if packs else whole.read_bytes()
    whole.write_bytes(data[: len(data) * 2 // 3])
    [trace] = kineto_traces(whole)
    assert trace.notes == ["the file is damaged or cut off: what comes before was read"]
    assert 0.3 * len(complete.kernels) < len(trace.kernels) < 0.9 * len(complete.kernels)


def test_old_traces_with_numbers_as_strings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    call = {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "ts": "90", "dur": 5, "args": {"correlation": "3"}}
    kernel = {
        "ph": "X",
        "cat": "Kernel",
        "name": GEMM,
        "ts": 100,
        "dur": 50,
        "args": {"correlation": "3", "device": "0"},
    }
    path.write_text(json.dumps({"traceEvents": [call, kernel]}))
    assert seen(kineto_traces(path)[0]) == (None, [(GEMM, 100_000, 150_000, 90_000)])


def test_names_that_are_not_utf_8_are_read(whole: Path) -> None:
    [trace] = kineto_traces(whole)
    whole.write_bytes(whole.read_bytes().replace(b"layer_norm", b"layer\xff\xfenorm"))
    assert len(kineto_traces(whole)[0].kernels) == len(trace.kernels)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"traceEvents": []}', "no kernel and no operator in it"),
        (b"", "no kernel and no operator in it"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": 7, "ts": [], "dur": {}}]}', "not a trace"),
        (b'{"traceEvents": 7}', "no kernel and no operator in it"),
    ],
)
def test_a_file_without_events_is_refused_in_a_line(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=says):
        kineto_traces(path)


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 22])
def test_what_comes_before_damage_in_the_middle_is_read(
    whole: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(kineto, "_MOST_HELD_BYTES", 1 << 14)
    monkeypatch.setattr(kineto, "_CHUNK_BYTES", chunk)
    [complete] = kineto_traces(whole)
    data = whole.read_bytes()
    middle = data.index(b'"ph"', len(data) // 2)
    whole.write_bytes(data[:middle] + b'"ph: ' + data[middle + 5 :])
    [trace] = kineto_traces(whole)
    assert trace.notes == ["the file is damaged or cut off: what comes before was read"]
    assert 0.4 * len(complete.kernels) < len(trace.kernels) < 0.6 * len(complete.kernels)
