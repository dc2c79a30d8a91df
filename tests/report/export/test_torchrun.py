"""The suite's own command: nodes, and what is to be filled in before it runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from tests.support.run_file import run_file

RUN = reference_run("llama3.1-8b")


def job_of(name: str, layout: Layout, **architecture: int) -> ExportedJob:
    recipe = msgspec.structs.replace(RUN.recipe, global_batch=64)
    changed = msgspec.structs.replace(RUN.architecture, **architecture)
    return ExportedJob(name, Workload(changed, recipe, layout), 8, "pytorch", tokens=10**12)


@pytest.mark.parametrize(("replicas", "words"), [(4, "--ranks 4"), (16, "--engine slurm --nodes 2 --ranks-per-node 8")])
def test_several_nodes_are_in_the_command(replicas: int, words: str) -> None:
    job = job_of("llama3.1-8b", Layout(data_parallel=replicas, fused_attention=True))
    command = FORMATS["torchrun"].text(job)
    assert f" --mini {words} --layout " in command
    said = [remark for remark in FORMATS["torchrun"].remarks(job) if "nodes are started by Slurm" in remark]
    assert len(said) == (replicas > 8)


def test_a_vocabulary_beyond_the_usual_text_asks_for_another_text(tmp_path: Path) -> None:
    """A byte-pair encoding of Python's standard library ends with about 65,000 tokens, and Llama 3's has 128,256."""
    path = tmp_path / "mine.toml"
    run_file(path, vocabulary=128256, padded_vocabulary=128256)
    layout = Layout(data_parallel=2)
    large, small = (job_of(str(path), layout, vocabulary=vocabulary) for vocabulary in (128256, 32000))
    assert shlex.split(FORMATS["torchrun"].text(large))[-2:] == ["--corpus", "/path/to/text"]
    assert any("this vocabulary 128,256 tokens" in remark for remark in FORMATS["torchrun"].remarks(large))
    assert "--corpus" not in FORMATS["torchrun"].text(small)
    assert not any("--corpus" in remark for remark in FORMATS["torchrun"].remarks(small))
