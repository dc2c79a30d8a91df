"""Exported options are those of the software itself: torchrun's parser, and torchtitan's published schema."""

from __future__ import annotations

import ast
import math
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from suite.report.export.names import recorded_names

RUN = reference_run("llama3.1-8b")
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str}


def job_of(layout: Layout, stack: str = "megatron-core") -> ExportedJob:
    recipe = msgspec.structs.replace(RUN.recipe, global_batch=64)
    return ExportedJob("my run.toml", Workload(RUN.architecture, recipe, layout), 8, stack, tokens=10**12)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize(
    ("export", "zero", "program"),
    [
        ("megatron", 0, "$MEGATRON/pretrain_gpt.py"),
        ("slurm", 0, "$MEGATRON/pretrain_gpt.py"),
        ("nemo", 0, "FILE.py"),
        ("torchtitan", 3, "torchtitan.train"),
    ],
)
def test_torchrun_takes_the_line(export: str, zero: int, program: str, nodes: int) -> None:
    from torch.distributed.run import get_args_parser

    job = job_of(Layout(data_parallel=8 * nodes, zero_stage=zero, fused_attention=True))
    text = FORMATS[export].text(job).replace("\\\n", " ")
    (line,) = re.findall(r"torchrun (--.*)", text)
    asked = get_args_parser().parse_args(shlex.split(line))
    assert (asked.nnodes, asked.nproc_per_node) == (str(nodes), "8")
    assert asked.training_script == program
    if nodes == 1:
        assert asked.standalone
    else:
        assert asked.rdzv_backend == "c10d"
        assert re.fullmatch(r".*HEAD.*:29500", asked.rdzv_endpoint)


def schema(source: str) -> dict[str, dict[str, ast.expr]]:
    """Section -> key -> annotation, of torchtitan's JobConfig."""
    classes = {
        node.name: {
            part.target.id: part.annotation
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    return {section: classes[ast.unparse(kind)] for section, kind in classes["JobConfig"].items()}


def is_of(value: Any, annotation: ast.expr) -> bool:
    """Whether a value of TOML is of the annotated type."""
    if isinstance(annotation, ast.BinOp):
        return is_of(value, annotation.left) or is_of(value, annotation.right)
    if isinstance(annotation, ast.Constant):
        return value is annotation.value
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return value in ast.literal_eval(annotation.slice)
    if isinstance(annotation, ast.Subscript):
        return isinstance(value, list) and all(is_of(each, annotation.slice) for each in value)
    kind = TYPES[ast.unparse(annotation)]
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


LAYOUTS = {
    "sharded": Layout(data_parallel=8, zero_stage=3, fused_attention=True),
    "everything": Layout(
        **{"data_parallel": 2, "tensor_parallel": 2, "pipeline_stages": 2, "virtual_stages": 2, "zero_stage": 2},
        **{"schedule": Schedule.ZERO_BUBBLE, "recomputation": Recomputation.FULL},
        sequence_parallel=True,
        fused_attention=True,
    ),
}


@pytest.fixture(scope="module")
def torchtitan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Release of torchtitan, downloaded; nothing of it is installed."""
    place = tmp_path_factory.mktemp("torchtitan")
    (release,) = recorded_names()["torchtitan"]["releases"].values()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), release]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        yield wheel


@pytest.mark.rare
def test_torchtitan_reads_the_file(torchtitan: zipfile.ZipFile) -> None:
    """Keys, types and words are those of its JobConfig."""
    known = schema(torchtitan.read("torchtitan/config/job_config.py").decode())
    for name, layout in LAYOUTS.items():
        read = tomllib.loads(FORMATS["torchtitan"].text(job_of(layout)))
        wrong = [
            f"{name}: {section}.{key} = {value!r}"
            for section, values in read.items()
            for key, value in values.items()
            if not is_of(value, known[section][key])
        ]
        assert wrong == []


@pytest.mark.rare
@pytest.mark.parametrize("share", [0.5, 1, 1.3])
def test_torchtitans_own_schedule_falls_to_the_last_step(torchtitan: zipfile.ZipFile, share: float) -> None:
    """Torchtitan's function of the step, out of its module: after the peak no rate is higher than the one before."""
    module = ast.parse(torchtitan.read("torchtitan/components/lr_scheduler.py").decode())
    function = next(
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name == "linear_warmup_stable_decay"
    )
    defined: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([function], []), "lr_scheduler.py", "exec"), defined)  # of a release
    samples = 64_000
    job = job_of(LAYOUTS["sharded"])
    recipe = msgspec.structs.replace(job.workload.recipe, warmup=640, decay=round(share * samples))
    job = job._replace(workload=job.workload._replace(recipe=recipe), tokens=samples * RUN.architecture.sequence)
    read = tomllib.loads(FORMATS["torchtitan"].text(job))
    asked, steps = read["lr_scheduler"], read["training"]["steps"]
    decay = asked["total_steps"] - asked["warmup_steps"]
    rates = [
        defined[function.name](step, asked["warmup_steps"], 1, decay, asked["decay_type"], asked["min_lr_factor"])
        for step in range(steps)
    ]
    assert rates.index(max(rates)) == asked["warmup_steps"] - 1
    assert all(later <= earlier for earlier, later in pairwise(rates[asked["warmup_steps"] :]))
    if share <= 1:  # its last step is one before the minimum
        assert rates[-1] == pytest.approx(asked["min_lr_factor"], abs=2 / steps)
    else:
        assert rates[-1] > 2 * asked["min_lr_factor"]
