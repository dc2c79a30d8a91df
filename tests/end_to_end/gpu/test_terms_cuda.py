"""Terms and traces on CUDA devices: they add up, kernels are found, and snapshots lie beside the traces."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.metrics.figures import StepTerm
from suite.paths import ROOT

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: needs a CUDA device"),
]


@pytest.mark.timeout(960)
@pytest.mark.parametrize("compiled", ["--compile", "--no-compile"])
def test_terms_on_cuda_are_all_of_a_step_and_the_trace_has_its_kernels(compiled: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "suite", "reproduce", "gpt2-mini", "--device", "cuda", "--ranks", "1", compiled]
    done = subprocess.run(
        [*command, "--steps", "10", "--trace", str(trace), "--results", str(tmp_path / "results"), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["figures"] if row["quantity"] == "step_seconds"]
    (step,) = [row["right"] for row in rows if row["term"] is None]
    reported = {row["term"]: row["right"] for row in rows if row["term"] is not None and row["rank"] is None}
    assert list(reported) == [term.value for term in StepTerm]
    assert sum(reported.values()) == pytest.approx(step, rel=9 * 1.2e-16, abs=0)  # a sum of 9 doubles
    assert min(seconds for term, seconds in reported.items() if term != "unexplained") >= 0
    assert reported["backward"] > reported["forward"] > 0
    assert reported["optimizer"] > 0
    assert (reported["exposed communication"], reported["bubble"]) == (0, 0)  # one rank sends nothing
    assert abs(reported["unexplained"]) < 0.1 * step  # phases lie side by side in the stream
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    snapshot = pickle.loads(Path(f"{trace}.memory.pickle").read_bytes())
    assert any(snapshot["device_traces"])
