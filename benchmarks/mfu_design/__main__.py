"""Counts of one training step of GPT-2 on simulated devices, and its predicted time on an H100.

Nothing here is measured on a GPU: launches, graph breaks and waits are counted, the host's time is this machine's, and
the device's time is a prediction.

    python -m tests.simulated_cuda -- python -m benchmarks.mfu_design gpt2-124m gpt2-1558m
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.mfu_design.hopper import PredictedStep, predicted_step
from benchmarks.mfu_design.launch_log import CountedStep, words
from reference_runs.catalog import reference_run
from reference_runs.layout import parse_layout
from reference_runs.run import Workload

TARGETS = {"gpt2-124m": 0.50, "gpt2-1558m": 0.58}  # share of the dense peak that a step is designed for
SCRIPTS = {"suite": "the suite", "plain-compiled": "plain script, torch.compile", "plain": "plain script"}
HEADER = (
    "| run | script | launches | compiled | graph breaks | host waits | host s | device s | host / device | bound by | "
    "mfu | mfu with products at |"
)


def main() -> int:
    """Count, predict, and print a table: 0; 2 where no device is simulated."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mfu_design", description=__doc__)
    parser.add_argument("runs", nargs="*", default=list(TARGETS), metavar="run", help="GPT-2 runs as recorded")
    parser.add_argument("--scripts", default=",".join(SCRIPTS), help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the run records")
    asked = parser.parse_args()
    if "SIMULATED_CUDA_DEVICES" not in os.environ:
        print(
            "no simulated device here: python -m tests.simulated_cuda -- python -m benchmarks.mfu_design",
            file=sys.stderr,
        )
        return 2
    print(HEADER)
    print("|---" * HEADER.count("| ") + "|")
    details = []
    for run in asked.runs:
        for script in asked.scripts.split(","):
            counted = counted_by_worker(run, script, asked.layers)
            if counted is None:
                print(f"| {run} | {SCRIPTS[script]} | out of memory |" + " |" * 9, flush=True)
                continue
            predicted = predicted_step(on_one_gpu(run), counted)
            print(row(run, SCRIPTS[script], counted, predicted), flush=True)
            details.append(detail(run, SCRIPTS[script], counted, predicted))
    print(*details, sep="\n")
    return 0


def on_one_gpu(run: str) -> Workload:
    """The recorded run in one GPU's layout."""
    architecture, recipe, layout = reference_run(run).workload
    return Workload(architecture, recipe, parse_layout("dp1", base=layout))


def counted_by_worker(run: str, script: str, layers: int) -> CountedStep | None:
    """What a process of its own counts; None where the step does not fit into the device."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"SIMULATED_CUDA_LOG": str(Path(scratch, "log"))}
        command = [sys.executable, "-m", "benchmarks.mfu_design.worker", run, script, str(layers), scratch]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=CountedStep | None)


def row(run: str, script: str, counted: CountedStep, predicted: PredictedStep) -> str:
    """One line of the table."""
    of_all = "" if counted.layers == reference_run(run).architecture.layers else f", {counted.layers} layers"
    cells = (
        f"{run}{of_all}",
        script,
        f"{counted.step.kernels:,}",
        f"{counted.step.launches.get('compiled (Triton)', 0):,}",
        counted.graph_breaks,
        len(counted.step.waits),
        f"{counted.host_seconds:.3f}",
        f"{predicted.seconds:.3f}",
        f"{counted.host_seconds / predicted.seconds:.1%}",
        f"{predicted.binding} {predicted.terms[predicted.binding] / predicted.seconds:.0%}",
        f"{predicted.mfu:.1%}",
        ", ".join(f"{rate} Tflop/s: {mfu:.1%}" for rate, mfu in predicted.mfu_at_rate.items()),
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def detail(run: str, script: str, counted: CountedStep, predicted: PredictedStep) -> str:
    """Launches by kind, and the terms of the predicted step."""
    terms = ", ".join(
        f"{name} {1e3 * seconds / counted.micro_batches:.1f} ms" for name, seconds in predicted.terms.items()
    )
    moved = (counted.compiled_bytes + counted.operator_bytes) / counted.micro_batches
    return (
        f"{run}, {script}: {counted.micro_batches} micro-batches, {counted.graphs} graphs; {words(counted.step)}\n"
        f"  a micro-batch: {terms}; operators move {moved / 1e9:.1f} GB; waits: {'; '.join(counted.step.waits)}"
    )


if __name__ == "__main__":
    sys.exit(main())
