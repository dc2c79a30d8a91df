"""Peaks of transformers' own modules, executed on tensors without memory, against the walk through their layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.hugging_face.families import imported
from reference_runs.layout import Layout, Recomputation, parse_layout
from reference_runs.run import Precision, Workload
from suite.execute.trace.step import trace
from suite.job.options import Update
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, TraceJob
from suite.job.trace_layout import trace_layout
from suite.machine.half_precision import Kernels
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_peak, least_layout_peak
from suite.predict.simulation.transformers_step import EagerStep, not_described, transformers_peaks
from suite.predict.simulation.walked_memory import Execution, walked_memory

SEQUENCE, DROPOUT = 128, 0.1
# small tensors and the state of a CPU's random generator: up to 0.2 % of these models, 0.4 % of Mixtral
MOST = 0.005
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 8,
    "n_positions": 256,
    "vocab_size": 1000,
    "resid_pdrop": DROPOUT,
    "embd_pdrop": DROPOUT,
    "attn_pdrop": 0.0,  # with dropout a CPU's attention stores its scores, a GPU's does not
}
GATED = {"head_dim": 32, "tie_word_embeddings": True}
MODELS = {
    "llama": LLAMA,
    "qwen3": LLAMA | GATED | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "gemma": LLAMA
    | GATED
    | {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], "num_key_value_heads": 1}
    | dict.fromkeys(("hidden_act", "hidden_activation"), "gelu_pytorch_tanh"),
    "mixtral": LLAMA
    | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": None}
    | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": GPT2,
}
LAYOUTS = (
    ("micro2", "bf16-pure"),
    ("dp4,zero3,micro2", "bf16"),
    ("dp4,zero3,noreshard,micro2,accumulate3", "bf16"),
    ("dp4,zero3,micro2,accumulate3,no-sync", "bf16"),
    ("dp4,zero3,recompute-full,micro4", "bf16"),
    ("dp4,zero3,selective-layer2,micro2,accumulate2", "bf16-pure"),
    ("recompute-full,micro4", "bf16-pure"),
    ("dp4,micro2,accumulate2", "bf16-pure"),
    ("dp4,micro2,accumulate3,sync,recompute-full", "bf16-pure"),
    ("dp4,zero3,noreshard,no-sync,micro2,accumulate2", "bf16-pure"),
)
WIDE = (  # transformers cannot multiply a mixture's experts in fp32, nor under autocast, on tensors without memory
    ("micro2", "bf16"),
    ("dp4,micro2,accumulate3", "bf16"),
    ("recompute-full,micro4", "bf16"),
    ("dp4,selective-layer2,micro2", "bf16"),
    ("micro2", "fp32"),
    ("dp4,zero3,micro2,accumulate2", "fp32"),
)


def job(configuration: Path, words: str, number_format: str) -> TraceJob:
    layout = trace_layout(words)
    return TraceJob(
        source=ModelSource(configuration=str(configuration)),
        ranks=layout.ranks,
        sharding=layout.sharding,
        recompute=layout.recompute,
        recompute_every=layout.recompute_every,
        synchronises_once=layout.synchronises_once,
        micro_batches=layout.accumulation or 1,
        micro_batch=layout.micro_batch or 1,
        sequence=SEQUENCE,
        number_format=NumberFormat(number_format),
        optimizer=OptimizerKernel.ADAMW_FUSED,
        on_cpu=True,
    )


def workload(of: TraceJob) -> Workload:
    architecture = imported(Path(of.source.configuration), sequence=SEQUENCE).architecture
    dropout = DROPOUT if architecture.biases else 0.0
    recipe = msgspec.structs.replace(
        reference_run("gpt2-124m").recipe,
        precision=Precision(of.number_format),
        global_batch=of.ranks * of.micro_batch * of.micro_batches,
        attention_dropout=0.0,
        hidden_dropout=dropout,
        embedding_dropout=dropout,
    )
    layout = Layout(
        micro_batch=of.micro_batch,
        data_parallel=of.ranks,
        zero_stage=0 if of.sharding is Sharding.REPLICATED else 3,
        reshard_after_forward=of.sharding is not Sharding.KEPT,
        recomputation=Recomputation.FULL if of.recompute else Recomputation.NONE,
        fused_attention=True,
    )
    return Workload(msgspec.structs.replace(architecture, padded_vocabulary=architecture.vocabulary), recipe, layout)


def walked(of: TraceJob) -> int:
    """Peak of the walk, with a CPU's kernels, which these traces have."""
    kernels = Kernels(cuda=False)
    step = EagerStep(kernels, recompute_every=of.recompute_every, synchronises_once=of.synchronises_once)
    assert not_described(workload(of)) == []
    return max(sum(parts.values()) for parts in transformers_peaks(workload(of), step).values())


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process of its own for all traces, which change what autocast does in it and import transformers once."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def errors(
    process: ProcessPoolExecutor, model: str, layouts: tuple[tuple[str, str], ...], folder: Path
) -> dict[str, float]:
    """Relative error of the walk's peak in each layout."""
    configuration = folder / "config.json"
    configuration.write_text(json.dumps(MODELS[model]), encoding="utf-8")
    jobs = [job(configuration, *layout) for layout in layouts]
    found = zip(layouts, jobs, process.map(trace, jobs), strict=True)
    return {" ".join(layout): walked(of) / traced.peak_bytes - 1 for layout, of, traced in found}


@pytest.mark.ranks
@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_the_walk_has_the_peak_of_transformers_own_modules(
    process: ProcessPoolExecutor, number: int, tmp_path: Path
) -> None:
    model = list(MODELS)[number]
    other = LAYOUTS[2 * number + 1] if model == "mixtral" else WIDE[number]
    found = errors(process, model, (LAYOUTS[2 * number], other), tmp_path)
    assert {layout: error for layout, error in found.items() if abs(error) > MOST} == {}


@pytest.mark.ranks
@pytest.mark.rare
@pytest.mark.parametrize("model", MODELS)
def test_the_walk_has_the_peak_of_transformers_own_modules_in_every_layout(
    process: ProcessPoolExecutor, model: str, tmp_path: Path
) -> None:
    found = errors(process, model, LAYOUTS if model == "mixtral" else LAYOUTS + WIDE, tmp_path)
    print(model, {layout: f"{error:+.2%}" for layout, error in found.items()})
    assert {layout: error for layout, error in found.items() if abs(error) > MOST} == {}


def test_an_optimizer_over_lists_of_tensors_holds_square_roots_at_the_update(tmp_path: Path) -> None:
    configuration = tmp_path / "config.json"
    configuration.write_text(json.dumps(LLAMA), encoding="utf-8")
    of = workload(job(configuration, "micro1", "fp32"))
    fused, lists = (
        transformers_peaks(of, EagerStep(Kernels(), update=update))["update"]
        for update in (Update.FUSED, Update.FOREACH)
    )
    assert lists["update"] == fused["optimizer state"] // 2


FSDP2_OF_TWO = "dp8,zero3,recompute-full,micro2,fused"


def of_llama(words: str, **recipe: object) -> Workload:
    run = reference_run("llama2-7b")
    changed = msgspec.structs.replace(run.recipe, **{"precision": Precision.BF16, "global_batch": 16} | recipe)
    return Workload(run.architecture, changed, parse_layout(words, base=Layout()))


def test_predictions_with_the_stack_have_the_walks_peak() -> None:
    of = of_llama(FSDP2_OF_TWO)
    cluster = reference_run("llama2-7b").cluster
    found = run_machine(
        cluster, Precision.BF16, ranks=8, accelerator_name="h100-sxm", stack_name="transformers", stages=False
    )
    assert found is not None
    machine = found.machine
    assert machine is not None
    peaks = transformers_peaks(of, EagerStep(machine.kernels))
    peak = max(sum(parts.values()) for parts in peaks.values())
    assert layout_peak(of, machine) == run_prediction(of, machine).memory[0].peak == peak
    assert 0.97 * peak < least_layout_peak(of, machine) <= peak


@pytest.mark.parametrize(
    ("words", "got"),
    [("tp2,fused", "tensors or layers split over ranks"), ("dp2,zero2,fused", "ZeRO-2"), ("dp2", "attention that is")],
)
def test_steps_that_are_not_described_are_refused_by_what_they_have(words: str, got: str) -> None:
    with pytest.raises(InputError, match=f"not among the steps of transformers' modules.*{got}"):
        walked_memory(of_llama(words), stage=0, execution=Execution(Kernels(cuda=True), False, transformers=True))
