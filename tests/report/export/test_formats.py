"""Exports have exactly the layout: sizes multiply to the ranks, what is read back is the layout, names are recorded."""

from __future__ import annotations

import ast
import json
import math
import shlex
import tomllib
from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import check_layout, reference_run
from reference_runs.layout import Layout, Recomputation, Schedule, StageAssignment
from reference_runs.placement import chunk_layers
from reference_runs.run import Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from suite.report.export.names import target_software

RUN = reference_run("llama3.1-8b")
NODE = 8
SIZES = st.sampled_from([1, 2, 4])
FULL = (Recomputation.NONE, Recomputation.FULL)


def job_of(layout: Layout, micro_batches: int, stack: str = "megatron-core") -> ExportedJob:
    batch = layout.replicas * layout.micro_batch * micro_batches
    recipe = msgspec.structs.replace(RUN.recipe, global_batch=batch)
    return ExportedJob("llama3.1-8b", Workload(RUN.architecture, recipe, layout), NODE, stack, tokens=10**12)


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    zero: tuple[tuple[int, bool], ...],
    recomputations: tuple[Recomputation, ...] = FULL,
    schedules: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B,),
    pipelined: bool = True,
    several: tuple[str, ...] = ("dp", "tp", "cp"),
    sequence_parallel: tuple[bool, ...] = (False, True),
) -> ExportedJob:
    stage, scatters = draw(st.sampled_from(zero))
    axes = {axis: draw(SIZES) if axis in several else 1 for axis in ("dp", "tp", "cp")}
    stages = draw(st.sampled_from([1, 2, 4, 8])) if pipelined else 1
    schedule = draw(st.sampled_from(schedules)) if stages > 1 else Schedule.ONE_F_ONE_B
    virtual = 1
    if stages > 1 and schedule is not Schedule.GPIPE:
        virtual = draw(st.sampled_from([2, 3] if schedule is Schedule.ZERO_BUBBLE else [1, 2, 3]))
    kind = draw(st.sampled_from(recomputations))
    sp = draw(st.sampled_from(sequence_parallel)) and axes["tp"] > 1
    layout = Layout(
        data_parallel=axes["dp"],
        tensor_parallel=axes["tp"],
        context_parallel=axes["cp"],
        pipeline_stages=stages,
        virtual_stages=virtual,
        schedule=schedule,
        micro_batch=draw(SIZES),
        zero_stage=stage,
        reduce_scatter=scatters,
        sequence_parallel=sp,
        recomputation=kind,
        fused_attention=True,
        stage_assignment=draw(st.sampled_from(StageAssignment)) if stages > 1 else StageAssignment.LAYERS,
    )
    job = job_of(layout, stages * draw(st.integers(1, 3)))
    check_layout(job.workload, "drawn")
    return job


def check_counts(job: ExportedJob, read: dict[str, int]) -> None:
    """Axes read back are the layout's; with nodes, micro-batch and accumulation they make ranks and batch."""
    layout = job.workload.layout
    assert read["tp"] * read["pp"] * read["cp"] * read["dp"] == layout.ranks
    assert (read["tp"], read["pp"], read["cp"]) == (
        layout.tensor_parallel,
        layout.pipeline_stages,
        layout.context_parallel,
    )
    assert read["dp"] == layout.replicas
    assert (read["micro"], read["batch"]) == (layout.micro_batch, job.workload.recipe.global_batch)


def check_names(export: str, names: Counter[str]) -> None:
    """Every exported name is recorded with its release, and stands once."""
    assert set(names) <= set(target_software(export).places)
    assert set(names.values()) == {1}


def array(text: str, name: str) -> dict[str, list[str]]:
    """Flags of a bash array with their values."""
    words = shlex.split(text.partition(f"{name}=(\n")[2].partition("\n)\n")[0])
    starts = [number for number, word in enumerate(words) if word.startswith("--")]
    ends = [*starts[1:], len(words)]
    flags = {words[start]: words[start + 1 : end] for start, end in zip(starts, ends, strict=True)}
    assert len(flags) == len(starts)
    return flags


def option(text: str, name: str) -> str:
    words = text.replace("\\\n", " ").split()
    return words[words.index(name) + 1]


def read_chunks(layout: str | None, layers: int, stages: int) -> list[range]:
    """The layers of each chunk, as Megatron-Core reads a layout: the first has the embedding, the last the loss."""
    if layout is None:
        counts = [layers // stages] * stages
    else:
        parts = layout.split("|")
        assert (parts[0][0], parts[-1][-1]) == ("E", "L")
        counts = [part.count("t") for part in parts]
        assert sum(map(len, parts)) == layers + 2
    ends = list(accumulate(counts, initial=0))
    return [range(start, end) for start, end in pairwise(ends)]


MEGATRON_JOBS = jobs(zero=((0, False), (1, True)), recomputations=(*FULL, Recomputation.SELECTIVE))


@given(job=MEGATRON_JOBS, interpreter=st.sampled_from(["megatron", "slurm"]))
def test_megatrons_flags_are_the_layout(job: ExportedJob, interpreter: str) -> None:
    layout, architecture = job.workload.layout, job.workload.architecture
    text = FORMATS[interpreter].text(job)
    flags = array(text, "LAYOUT")
    check_names("megatron", Counter(list(flags)))
    counts = {
        axis: int(flags[f"--{name}-size"][0])
        for axis, name in (
            ("tp", "tensor-model-parallel"),
            ("pp", "pipeline-model-parallel"),
            ("cp", "context-parallel"),
            ("micro", "micro-batch"),
            ("batch", "global-batch"),
        )
    }
    ranks = int(option(text, "--nproc-per-node")) * int(option(text, "--nnodes"))
    check_counts(job, {**counts, "dp": ranks // (counts["tp"] * counts["pp"] * counts["cp"])})
    placed = flags.get("--pipeline-model-parallel-layout", [None])[0]
    assert read_chunks(placed, architecture.layers, counts["pp"]) == chunk_layers(architecture.layers, layout)
    assert ("--sequence-parallel" in flags) == layout.sequence_parallel
    assert ("--use-distributed-optimizer" in flags) == (layout.zero_stage == 1)
    kind = flags.get("--recompute-granularity", ["none"])[0]
    assert kind == layout.recomputation.value
    assert flags["--attention-backend"] == ["fused"]
    assert ("--bf16" in flags, "--fp16" in flags) == (True, False)
    padding = int(flags["--make-vocab-size-divisible-by"][0]) * counts["tp"]
    assert -(-int(flags["--vocab-size"][0]) // padding) * padding == architecture.padded_vocabulary
    for flag, field in (
        ("--num-layers", "layers"),
        ("--hidden-size", "hidden"),
        ("--ffn-hidden-size", "ffn_hidden"),
        ("--num-attention-heads", "heads"),
        ("--num-query-groups", "kv_heads"),
        ("--kv-channels", "head_dim"),
        ("--seq-length", "sequence"),
    ):
        assert int(flags[flag][0]) == getattr(architecture, field)


@given(job=MEGATRON_JOBS)
def test_nemos_arguments_are_the_layout(job: ExportedJob) -> None:
    layout = job.workload.layout
    text = FORMATS["nemo"].text(job)
    calls: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and node.keywords:
            name = ast.unparse(node.func).rpartition(".")[2].replace("Llama31Config", "GPTConfig")
            constants = [key for key in node.keywords if isinstance(key.value, ast.Constant)]
            calls[name] = {key.arg or "": ast.literal_eval(key.value) for key in constants}
            known = target_software("nemo").places
            if name not in ("pretrain", "MegatronOptimizerModule"):
                assert {f"{name}.{key.arg}" for key in node.keywords} <= set(known)
    strategy, data = calls["MegatronStrategy"], calls["MockDataModule"]
    tp, pp = strategy["tensor_model_parallel_size"], strategy["pipeline_model_parallel_size"]
    cp = strategy["context_parallel_size"]
    ranks = calls["Trainer"]["devices"] * calls["Trainer"]["num_nodes"]
    read = {"tp": tp, "pp": pp, "cp": cp, "dp": ranks // (tp * pp * cp)}
    check_counts(job, read | {"micro": data["micro_batch_size"], "batch": data["global_batch_size"]})
    placed = strategy.get("pipeline_model_parallel_layout")
    layers = calls["GPTConfig"]["num_layers"]
    assert read_chunks(placed, layers, pp) == chunk_layers(job.workload.architecture.layers, layout)
    assert strategy.get("virtual_pipeline_model_parallel_size", 1) == layout.virtual_stages
    assert strategy["sequence_parallel"] == layout.sequence_parallel
    assert calls["OptimizerConfig"]["use_distributed_optimizer"] == (layout.zero_stage == 1)
    assert calls["GPTConfig"].get("recompute_granularity", "none") == layout.recomputation.value
    assert calls["MegatronMixedPrecision"]["precision"] == "bf16-mixed"


@given(
    job=jobs(
        zero=((2, False), (3, False)),
        schedules=(Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE),
        sequence_parallel=(True,),
    ),
    shards=st.booleans(),
)
def test_torchtitans_keys_are_the_layout(job: ExportedJob, shards: bool) -> None:
    if shards and job.workload.layout.data_parallel == 4:
        halved = 2 * job.workload.layout.context_parallel
        layout = msgspec.structs.replace(job.workload.layout, shard_ranks=halved)
        job = job._replace(workload=job.workload._replace(layout=layout))
    layout, architecture = job.workload.layout, job.workload.architecture
    text = FORMATS["torchtitan"].text(job)
    read = tomllib.loads(text)
    check_names("torchtitan", Counter(f"{section}.{key}" for section, values in read.items() for key in values))
    axes, training = read["parallelism"], read["training"]
    copies, sharded = axes["data_parallel_replicate_degree"], axes["data_parallel_shard_degree"]
    piped = axes["pipeline_parallel_degree"] > 1
    counts = {
        "tp": axes["tensor_parallel_degree"],
        "pp": axes["pipeline_parallel_degree"],
        "cp": axes["context_parallel_degree"],
        "dp": copies * sharded,
        "micro": axes["pipeline_parallel_microbatch_size"] if piped else training["local_batch_size"],
        "batch": training["global_batch_size"],
    }
    check_counts(job, counts)
    assert copies == layout.shard_copies
    assert sharded * counts["cp"] == layout.sharding_ranks
    assert (axes["fsdp_reshard_after_forward"] == "always") == (layout.zero_stage == 3)
    assert training["global_batch_size"] % (training["local_batch_size"] * counts["dp"]) == 0
    assert read["activation_checkpoint"]["mode"] == layout.recomputation.value
    assert (read["model"], training["seq_len"]) == ({"name": "llama3", "flavor": "8B"}, architecture.sequence)
    if piped:
        parts = axes["module_fqns_per_model_part"]
        assert (parts[0][0], parts[-1][-2:]) == ("tok_embeddings", ["norm", "output"])
        layers = [[int(name[7:]) for name in part if name.startswith("layers.")] for part in parts]
        assert layers == [list(each) for each in chunk_layers(architecture.layers, layout)]
        words = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "1f1b", "InterleavedZeroBubble": "zero-bubble"}
        assert words[axes["pipeline_parallel_schedule"]] == layout.schedule.value
        assert axes["pipeline_parallel_schedule"].startswith("Interleaved") == (layout.virtual_stages > 1)


@given(
    job=jobs(
        zero=((0, False), (1, False), (1, True), (2, False), (3, False)),
        pipelined=False,
        several=("dp", "tp"),
        sequence_parallel=(False,),
    )
)
def test_deepspeeds_keys_are_the_layout(job: ExportedJob) -> None:
    layout = job.workload.layout
    read = json.loads(FORMATS["deepspeed"].text(job))
    check_names("deepspeed", Counter(keys(read)))
    tensor = read.get("tensor_parallel", {"autotp_size": 1})["autotp_size"]
    micro, batch = read["train_micro_batch_size_per_gpu"], read["train_batch_size"]
    replicas = batch // (micro * read["gradient_accumulation_steps"])
    check_counts(job, {"tp": tensor, "pp": 1, "cp": 1, "dp": replicas, "micro": micro, "batch": batch})
    zero = read["zero_optimization"]
    assert (zero["stage"], zero.get("reduce_scatter", False)) == (layout.zero_stage, layout.reduce_scatter)
    assert ("activation_checkpointing" in read) == (layout.recomputation is Recomputation.FULL)
    assert read["bf16"] == {"enabled": True}


def keys(section: dict[str, Any], within: str = "") -> list[str]:
    found = []
    for key, value in section.items():
        found += keys(value, f"{within}{key}.") if isinstance(value, dict) else [within + key]
    return found


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ("megatron-core", 'srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "$HEAD:'),
        ("pytorch", "-m torchtitan.train --job.config_file"),
        ("llama-3", "-m torchtitan.train --job.config_file"),
        ("megatron-deepspeed", '"$SCRIPT" --deepspeed --deepspeed_config'),
    ],
)
def test_slurms_nodes_start_the_software_of_the_plan(stack: str, line: str) -> None:
    job = job_of(Layout(data_parallel=16, zero_stage=0, fused_attention=True), 2, stack)
    text = FORMATS["slurm"].text(job)
    directives = dict(
        words[8:].split("=") for words in text.splitlines() if words.startswith("#SBATCH --") and "=" in words
    )
    assert (directives["--nodes"], directives["--gpus-per-node"], directives["--ntasks-per-node"]) == ("2", "8", "1")
    assert math.prod(int(directives[f"--{each}"]) for each in ("nodes", "gpus-per-node")) == job.workload.layout.ranks
    assert line in text
    assert text.count("srun ") == 1
    if stack in ("pytorch", "llama-3"):
        assert FORMATS["torchtitan"].text(job) in text
    if stack == "megatron-deepspeed":
        assert FORMATS["deepspeed"].text(job) in text
