"""Memory on simulated GPUs: PyTorch's own caching allocator counts, and kernels that compute nothing take nothing.

The seven miniatures in their GPU size. A step has two micro-batches, so that gradients accumulate as in 48. Losses are
without meaning, and are not looked at. The simulated cuDNN has no workspace, and the
one that is predicted is assumed: of runs with its attention those are compared whose peak is at the loss.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy
import pytest

from reference_runs.catalog import miniatures, reference_run
from suite.job.corpus import Corpus
from suite.job.events import Event, Finished, Step, events_path
from suite.job.options import Optimization
from suite.job.training_job import Job
from suite.machine.half_precision import kernels_for
from suite.metrics.comparison import Row, Verdict, compare
from suite.metrics.figures import EXACT, Quantity
from suite.paths import ROOT
from suite.predict.executed_run.figures import expected_figures
from suite.reproduce.measured_figures import counted_figures
from suite.reproduce.plan import job_for, plan
from suite.reproduce.request import Request
from suite.reproduce.supported import without_triton_kernel
from tests.simulated_cuda.environment import simulated_environment

pytestmark = pytest.mark.ranks

PEAK, ACTIVATIONS = 0.02, 0.001  # largest relative differences
MICRO_BATCHES = 2
MESSAGE_BYTES = 1 << 14  # of stages that say which tensors they will send
CHOSEN = {("gpt2-mini", "dp1,fp8"), ("mt-nlg-mini", "dp1,fused"), ("opt-mini", "dp2,zero3")}
FUSED = ("codegeex-mini", "gpt-neox-mini", "gpt2-mini", "llama2-mini", "mt-nlg-mini", "opt-mini")


def has_kernels(run: str) -> bool:
    return not without_triton_kernel(reference_run(run).architecture)


CASES = [
    *((name, "dp1") for name in miniatures()),
    *((name, "dp1,fused") for name in FUSED),
    ("gpt2-mini", "dp1,compiled"),
    ("gpt2-mini", "dp1,fused,packed-gradients"),
    ("gpt2-mini", "dp1,fused,compiled,micro-batch-graph"),
    ("gpt2-mini", "dp1,fused,epilogues"),
    ("gpt2-mini", "dp1,fused,compiled,tuned-gemms"),
    ("bloom-mini", "dp2,zero1,epilogues,tuned-gemms"),
    ("gpt2-mini", "dp1,fp8"),
    ("gpt2-mini", "dp1,fp8,compiled"),
    ("llama2-mini", "dp1,fused,fp8,recompute-full"),
    *((name, "dp1,triton") for name, run in miniatures().items() if has_kernels(run)),
    ("gpt2-mini", "tp2,triton"),
    ("opt-mini", "dp1,recompute-selective"),
    *(
        ("gpt2-mini", layout)
        for layout in ("dp2,zero0", "dp2,zero1", "dp2,zero2", "dp2,zero1,reduce-scatter", "tp2", "tp2,sp", "pp2,1f1b")
    ),
    *(("opt-mini", layout) for layout in ("dp2,tp2", "pp2,1f1b,interleave3,zero0")),
    *(("opt-mini", layout) for layout in ("dp2,zero3", "dp4,zero3", "dp4,zero3,shard2", "dp8,zero3,fused")),
]


def job_of(name: str, words: str, directory: Path) -> Job:
    """A job of `MICRO_BATCHES` micro-batches a step.

    Args:
        words: those of --layout, "compiled", "triton" or "fp8", and optimizations.
    """
    known = tuple(Optimization(word) for word in words.split(",") if word in list(Optimization))
    layout = ",".join(word for word in words.split(",") if word not in ("compiled", "triton", "fp8", *known))
    planned = plan(
        Request(
            name=name,
            layout=layout,
            device="cuda",
            compiled="compiled" in words,
            kernels="triton" if "triton" in words else "torch",
            products="fp8-current" if "fp8" in words else None,
            steps=6,
            results=directory,
        )
    )
    samples = MICRO_BATCHES * planned.layout.data_parallel * planned.layout.micro_batch
    whole_from_the_start = dict.fromkeys(("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples"))
    planned = msgspec.structs.replace(
        planned,
        recipe=msgspec.structs.replace(planned.recipe, global_batch=samples, **whole_from_the_start),
        layout=msgspec.structs.replace(planned.layout, accumulation=None),
        training_options=msgspec.structs.replace(
            planned.training_options, optimizations=known or planned.training_options.optimizations
        ),
    )
    tokens = (samples * planned.steps + 1) * (planned.architecture.sequence + 1)
    numpy.zeros(tokens, dtype="<i4").tofile(directory / "tokens")
    corpus = Corpus(
        source="zeros",
        sha256="",
        text_bytes=0,
        files=0,
        vocabulary=planned.architecture.vocabulary,
        tokens=tokens,
        tokens_file=str(directory / "tokens"),
    )
    return msgspec.structs.replace(job_for(planned, corpus, str(directory)), threads=1)


def rows_of(job: Job, directory: Path) -> list[Row]:
    """Every predicted figure beside what the ranks counted."""
    (directory / "job.json").write_bytes(msgspec.json.encode(job))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = range(job.ranks)
    environment = simulated_environment(job.ranks, values=MESSAGE_BYTES if job.layout.pipeline_stages > 1 else 0) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "OMP_NUM_THREADS": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
    with (directory / "errors").open("w", encoding="utf-8") as errors:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "suite.execute", str(directory / "job.json")],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=ROOT,
                stderr=errors,
            )
            for rank in ranks
        ]
    try:  # the others wait for one that failed
        while None in (codes := [process.poll() for process in started]) and not any(codes):
            time.sleep(0.1)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert codes == [0 for _ in ranks], (directory / "errors").read_text(encoding="utf-8")[-3000:]
    finished: list[Finished] = []
    steps: list[list[Step]] = []
    for rank in ranks:
        lines = Path(events_path(str(directory), rank)).read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=Event) for line in lines]
        finished += [event for event in events if isinstance(event, Finished)]
        steps.append([event for event in events if isinstance(event, Step)])
    expected = expected_figures(job, kernels=kernels_for(job.recipe.precision, "cuda"), cores=2)
    counted = counted_figures(job, finished, steps)
    return compare(expected, counted, left_name="predicted", right_name="measured", judge=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "layout"), [case if case in CHOSEN else pytest.param(*case, marks=pytest.mark.long) for case in CASES]
)
def test_the_peak_of_pytorch_s_allocator_is_as_predicted_and_counts_are_equal(
    name: str, layout: str, tmp_path: Path
) -> None:
    job = job_of(name, layout, tmp_path)
    rows = rows_of(job, tmp_path)
    wrong = [row for row in rows if row.quantity in EXACT and row.verdict is Verdict.FAIL]
    assert wrong == []
    for quantity, most in ((Quantity.PEAK_BYTES, PEAK), (Quantity.ACTIVATION_BYTES, ACTIVATIONS)):
        pairs = [(row.left, row.right) for row in rows if row.quantity == quantity]
        assert len(pairs) == 1 + job.ranks  # the largest over ranks, and each
        for predicted, measured in pairs:
            assert predicted == pytest.approx(measured, rel=most)
