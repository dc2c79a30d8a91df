"""`diagnose` of traces: the slow-down that was put into a run is the first cause, and none is named of a run without.

Traces of the CPU are recorded here by PyTorch's profiler. Those of GPUs are synthetic, in the form that Kineto writes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from suite.__main__ import main
from tests.support.gpu_traces import gpu_steps

WIDTH = 256


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operators of several threads wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Samples(Dataset[torch.Tensor]):
    def __init__(self, seconds: float, rows: int) -> None:
        self.seconds, self.sample = seconds, torch.ones(rows, WIDTH)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.sample


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD + self.down(nn.functional.gelu(self.up(self.norm(x_TD))))


def recorded(  # each is a slow-down of its own
    path: Path,
    *,
    loading: float = 0.0,
    sleeping: float = 0.0,
    recomputes: bool = False,
    reentrant: bool = False,
    width: int = WIDTH,
    micro_batches: int = 1,
    samples: int = 8,
    rows: int = 256,
) -> Path:
    """A trace of 3 long steps of a model in one thread, with a slow-down or without: a busy machine adds little."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(width) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters())
    loader = iter(DataLoader(Samples(loading / samples, rows), batch_size=samples))

    def finished(recording: profile) -> None:
        recording.export_chrome_trace(str(path))

    order = schedule(wait=0, warmup=2, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=order, on_trace_ready=finished) as recording:
        for _ in range(5):
            batch = next(loader)
            for number in range(micro_batches):
                x_TD = batch.flatten(0, 1)[:, :width] if micro_batches == 1 else batch[0, number : number + 1, :width]
                x_TD = x_TD.requires_grad_()
                x_TD = checkpoint(model, x_TD, use_reentrant=reentrant) if recomputes else model(x_TD)
                x_TD.square().mean().backward()
            time.sleep(sleeping)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    return path


def found(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])["diagnosis"]


CPU_CAUSES = {
    "waiting for the input pipeline": {"loading": 0.5},
    "waiting for the host": {"sleeping": 0.5},
    "waiting for the host: Python": {"width": 16, "micro_batches": 32, "samples": 1},
    "recomputation": {"recomputes": True},
    "recomputation ": {"recomputes": True, "reentrant": True},
}


@pytest.mark.parametrize("cause", CPU_CAUSES)
def test_the_slow_down_of_a_recorded_run_is_the_first_cause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cause: str
) -> None:
    code, answer = found(capsys, recorded(tmp_path / "trace.json", **CPU_CAUSES[cause]))
    assert code == 3
    assert answer["causes"][0]["words"].startswith(cause.strip())
    assert answer["causes"][0]["is_seen"]
    assert sum(term["seconds"] for term in answer["measured"]) == pytest.approx(answer["pace"]["seconds"])


def test_of_an_undisturbed_recorded_run_no_cause_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, answer = found(capsys, recorded(tmp_path / "trace.json"))
    assert (answer["causes"], answer["pace"]["steps"]) == ([], 3)
    assert answer["measured"][0]["name"] == "matrix multiplications"


def test_a_sleeping_loader_takes_the_time_that_it_slept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, answer = found(capsys, recorded(tmp_path / "trace.json", loading=0.2, rows=8))
    seconds = {term["name"]: term["seconds"] for term in answer["measured"]}
    assert 0.2 <= seconds["waiting for the input pipeline"] < 0.4  # a busy machine sleeps longer


GPU_CAUSES = {
    "waiting for the input pipeline": {"loading": 30_000.0},
    "idle after the host waited for the device, 1 x a step": {"logging": 5000.0},
    "waiting for the host, which launches 99 kernels": {"launching": 400.0},
    "recomputation": {"recomputes": True},
    "exposed data-parallel all-reduce of group mesh_dp": {"message": 24_000.0},
    "memory-bound operators take longer": {"norm": 1200.0},
}


@pytest.mark.parametrize("cause", GPU_CAUSES)
def test_the_slow_down_of_a_synthetic_gpu_is_the_first_cause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cause: str
) -> None:
    _, answer = found(capsys, gpu_steps(**GPU_CAUSES[cause]).write(tmp_path / "trace.json"))
    assert answer["causes"][0]["words"].startswith(cause)
    assert sum(term["seconds"] for term in answer["measured"]) == pytest.approx(answer["pace"]["seconds"])


def test_two_slow_downs_at_once_are_both_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, answer = found(capsys, gpu_steps(launching=400.0, logging=30_000.0).write(tmp_path / "trace.json"))
    assert [cause["words"].partition(",")[0] for cause in answer["causes"]] == [
        "idle after the host waited for the device",
        "waiting for the host",
    ]


def test_the_rank_that_the_others_wait_for_is_named_with_what_it_takes_longer_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank in range(4):
        slow = {"late": 3000.0} if rank == 2 else {"others_late": 3000.0}
        gpu_steps(rank, **slow).write(tmp_path / f"trace{rank}.json")
    _, answer = found(capsys, tmp_path)
    cause = answer["causes"][0]
    assert cause["words"].startswith("rank 2 comes last to its collectives")
    assert "matrix multiplications: 0.003 s more than theirs" in cause["words"]
    assert cause["seconds"] == pytest.approx(0.003)


def test_of_undisturbed_gpus_no_cause_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [gpu_steps(rank).write(tmp_path / f"trace{rank}.json") for rank in range(2)]
    assert found(capsys, *files)[1]["causes"] == []


def test_each_measured_term_stands_beside_the_predicted_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = gpu_steps(logging=5000.0).write(tmp_path / "trace.json")
    run = ("--run", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "8", "--batch", "480", "--layout", "dp8,micro12")
    code, answer = found(capsys, trace, *run)
    assert (code, answer["outcome"]) == (1, "implausible")  # of a step that is 30 times as fast
    terms = answer["measured"]
    assert sum(term["predicted_seconds"] for term in terms) == pytest.approx(answer["predicted_seconds"])
    assert sum(term["seconds"] for term in terms) == pytest.approx(answer["pace"]["seconds"])


def test_a_term_that_exceeds_the_predicted_one_is_a_cause_of_a_slow_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = gpu_steps(layers=600, steps=2, logging=300_000.0).write(tmp_path / "trace.json")
    run = ("--run", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "8", "--batch", "480", "--layout", "dp8,micro12")
    code, answer = found(capsys, trace, *run)
    assert (code, answer["outcome"]) == (1, "slow")
    assert [cause["words"].partition(":")[0].partition(",")[0] for cause in answer["causes"]] == [
        "matrix multiplications and attention",
        "idle after the host waited for the device",
    ]


RANK = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.profiler import ProfilerActivity, profile, schedule

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
write = lambda recording: recording.export_chrome_trace(f"{folder}/traces/{rank}.json")
order = schedule(wait=0, warmup=2, active=3, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=order, on_trace_ready=write) as recording:
    for _ in range(5):
        loss = model(torch.ones(8, 64)).square().mean()
        time.sleep(0.3 * rank)
        loss.backward()
        recording.step()
with open(f"{folder}/recorders/rank_{rank}", "wb") as file:
    dump = _dump_fr_trace_json()
    file.write(dump if isinstance(dump, bytes) else dump.encode())
dist.destroy_process_group()
"""


def test_a_rank_that_sleeps_is_the_slow_one_of_recorded_traces_and_of_recorders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for folder in ("traces", "recorders"):
        (tmp_path / folder).mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "1000"}
    command = [sys.executable, "-c", RANK, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    _, answer = found(capsys, tmp_path / "traces")
    assert answer["causes"][0]["words"].startswith("rank 1 comes last to its collectives")
    assert 0.2 < answer["causes"][0]["seconds"] < 0.4
    assert main(["diagnose", str(tmp_path / "recorders"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["late_rank"] == 1


def entry(number: int, created: float, **changes: Any) -> dict[str, Any]:
    usual = {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "collective_seq_id": number}
    return {**usual, "retired": True, "time_created_ns": int(created * 1e9), "input_sizes": [(8, 4)], **changes}


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_the_late_rank_of_recorders_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pickled: bool, timed: bool
) -> None:
    for rank in range(3):
        late = 0.4 if rank == 1 else 0.0
        took = {"duration_ms": 500.0 - 1000 * late} if timed else {}
        entries = [entry(number, 1_800_000_000 + number + late, **took) for number in range(1, 6)]
        plain = {"version": "2.10", "entries": entries, "pg_config": {}}
        data = pickle.dumps(plain, protocol=2) if pickled else json.dumps(plain).encode()
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["late_rank"], answer["missing"]) == (1, [])
    assert answer["waited_seconds"] == pytest.approx(1.6)  # of numbers 2 to 5


def test_of_recorders_on_time_none_is_late_and_who_did_not_come_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank in range(2):
        entries = [entry(number, 1_800_000_000 + number) for number in range(1, 6 - rank)]
        entries[-1]["retired"] = rank == 1
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps({"entries": entries, "pg_config": {}}))
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["late_rank"], answer["missing"]) == (None, [1])


def test_a_pickle_that_names_anything_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    assert main(["diagnose", str(path)]) == 2
    assert "it names os.system" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"trace.json": b'{"schemaVersion": 1, "traceEvents": []}'}, "no kernel and no operator"),
        ({"trace.json.gz": b"\x1f\x8b\x08\x00"}, "no kernel and no operator"),
        ({"trace.sqlite": b"SQLite format 3\x00nothing"}, "not an export of Nsight Systems"),
        ({"a.log": b"iter 1: loss 4.0, time 5.00ms", "b.json": b'{"traceEvents": ['}, "files of several kinds"),
    ],
)
def test_bad_traces_end_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert main(["diagnose", *(str(tmp_path / name) for name in files)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_at_most_25_lines_are_printed_of_many_terms_causes_and_assumptions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = gpu_steps(layers=40, steps=2, logging=30_000.0, recomputes=True, loading=20_000.0, message=150_000.0)
    run = ("--run", "llama2-7b", "--on", "h100", "--gpus", "64", "--layout", "dp2,tp8,pp4,zero1,recompute-full")
    main(["diagnose", str(trace.write(tmp_path / "trace.json")), *run])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("cause") for line in lines) == 3
    assert sum(line.startswith("measured: ") for line in lines) == 7
    assert lines[-1].startswith(("assumed: ", "note: ", "    "))
    assert len(lines) <= 25


def test_a_folder_without_traces_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "no trace in the folder" in capsys.readouterr().err
