"""How long the suite itself takes: commands from their start to their end, and predictions. No test judges a time.

    nox -s times                    # measures, stores, and compares with what was stored last on this machine
    nox -s times -- -k predictions

Stored by pytest-benchmark below results/times, a directory for each machine.
"""

from __future__ import annotations

import csv
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.published_tables import PUBLISHED
from reference_runs.run import ReferenceRun, Workload
from suite.paths import ROOT
from suite.predict.analytic.machine import Machine
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_figures

COMMANDS = ("runs", "show bloom-176b", "predict bloom-176b", "plan gpt-neox-20b --gpus 64", "validate", "formulas")
QUIETLY = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "check": True}
RUNS = ("bloom-176b", "mt-nlg-530b", "opt-175b", "gpt2-124m")


def machine_of(run: ReferenceRun) -> Machine:
    """The machine that the run was trained on."""
    found = run_machine(
        run.cluster, run.recipe.precision, run.recipe.product_format, ranks=run.layout.ranks, accelerator_name=None
    )
    assert found is not None
    assert found.machine is not None
    return found.machine


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, benchmark: BenchmarkFixture) -> None:
    """A command as a process, with its bytecode compiled before."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    words = [sys.executable, "-m", "suite", *command.split()]

    def run() -> None:
        done = subprocess.run(words, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, check=False)
        assert done.returncode in (0, 1)

    benchmark.pedantic(run, rounds=7, warmup_rounds=1)


@pytest.mark.parametrize("name", RUNS)
def test_predictions(name: str, benchmark: BenchmarkFixture) -> None:
    """All figures of a recorded run, in this process."""
    run = reference_run(name)
    machine = machine_of(run)
    benchmark.pedantic(run_prediction, args=(run.workload, machine), rounds=1000, warmup_rounds=5)


def test_layouts(benchmark: BenchmarkFixture) -> None:
    """100,000 layouts of BLOOM-176B at once: data, tensor and pipeline parallel sizes."""
    run = reference_run("bloom-176b")
    sizes = list(itertools.product((1, 2, 8, 64), (1, 2, 7, 8, 16), (1, 2, 5, 35, 70)))
    data, tensor, stages = numpy.array(1000 * sizes, dtype=float).T
    layouts: Layout = msgspec.structs.replace(
        run.layout, accumulation=None, data_parallel=data, tensor_parallel=tensor, pipeline_stages=stages
    )
    workload = Workload(run.architecture, run.recipe, layouts)
    benchmark.pedantic(layout_figures, args=(workload, machine_of(run)), rounds=5, warmup_rounds=1)


def test_validation_of_3000_rows(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """A table in which layouts, batches and models all differ, so that nothing can be looked up."""
    with open(PUBLISHED / "megatron_sc21_table1.csv", newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    table = tmp_path / "own.csv"
    with open(table, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*first])
        writer.writeheader()
        for place in range(3000):
            dp, tp, pp = 2 ** (place % 5), 2 ** (place // 5 % 4), 2 ** (place // 20 % 5)
            hidden = 1024 * (1 + place // 100)
            heads = hidden // 64
            shape = {"layers": 32, "hidden": hidden, "heads": heads, "kv_heads": heads, "ffn_hidden": 4 * hidden}
            axes = {"dp": dp, "tp": tp, "pp": pp, "gpus": dp * tp * pp}
            batch = {"global_batch": 64 * dp, "micro_batch": 1 + place % 2}
            writer.writerow(first | shape | axes | batch)
    words = [sys.executable, "-m", "suite", "validate", str(table)]
    benchmark.pedantic(subprocess.run, args=(words,), kwargs=QUIETLY, rounds=3)


def test_tables_of_recorded_launches(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """Tables that `report` makes of a copy of the project's own records, without the page."""
    results = shutil.copytree(ROOT / "results" / "recorded", tmp_path / "results")
    words = [sys.executable, "-m", "suite", "report", "--no-page", "--results", str(results)]
    benchmark.pedantic(subprocess.run, args=(words,), kwargs=QUIETLY, rounds=3)
