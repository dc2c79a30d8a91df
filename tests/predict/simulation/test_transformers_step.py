"""Peaks of transformers' and of scripts' modules, executed on tensors without memory, against the walk through them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
from reference_runs.stack import Modules, stack
from suite.execute.trace.step import trace
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, TraceJob
from suite.job.trace_layout import trace_layout
from suite.machine.half_precision import Kernels
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_peak, least_layout_peak
from suite.predict.simulation import transformers_step
from suite.predict.simulation.deepspeed_step import deepspeed_peaks
from suite.predict.simulation.memory_blocks import Category
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
    "llama of eager attention": LLAMA | {"attn_implementation": "eager"},
}
# name of a script's function, the model of which it has the shape, and what differs
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "gpt": ("gpt2", {}),
    "gpt_without_biases": ("gpt2", {"biases": False}),
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

WITH_KERNELS_OF_GPUS = (
    ("micro1", "bf16-pure"),
    ("recompute-full,micro4,accumulate2", "bf16"),
    ("dp8,micro1,accumulate2", "bf16"),
    ("dp8,micro4,recompute-full", "bf16-pure"),
    ("dp8,zero3,micro1", "bf16"),
    ("dp8,zero3,recompute-full,micro4,accumulate2", "bf16"),
    ("dp8,zero3,micro1,accumulate2,no-sync", "bf16"),
    ("dp64,zero3,recompute-full,micro4", "bf16"),
    ("dp64,zero3,noreshard,micro1", "bf16"),
    ("dp64,zero3,micro4", "bf16-pure"),
)


def job(source: Path | str, words: str, number_format: str, *, on_cpu: bool = True) -> TraceJob:
    """The job of a configuration, or of a function of `script_models`."""
    layout = trace_layout(words)
    script = f"{Path(__file__).with_name('script_models.py')}:{source}"
    return TraceJob(
        source=ModelSource(module=script) if isinstance(source, str) else ModelSource(configuration=str(source)),
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
        on_cpu=on_cpu,
    )


def workload(of: TraceJob, configuration: Path, **shape: object) -> Workload:
    values = json.loads(configuration.read_text(encoding="utf-8"))
    architecture = imported(configuration, sequence=SEQUENCE).architecture
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
        fused_attention=values.get("attn_implementation") != "eager",
    )
    shape |= {"padded_vocabulary": architecture.vocabulary}
    return Workload(msgspec.structs.replace(architecture, **shape), recipe, layout)


def walked(of: TraceJob, workload: Workload) -> int:
    """Peak of the walk without the workspaces of cuBLAS, which traces do not have."""
    kernels, modules = Kernels(cuda=not of.on_cpu), Modules.SCRIPTS if of.source.module else Modules.TRANSFORMERS
    step = EagerStep(kernels, modules, of.recompute_every, of.synchronises_once)
    assert not_described(workload, modules) == []
    peaks = transformers_peaks(workload, step).values()
    return max(sum(parts.values()) - parts.get(Category.WORKSPACES, 0) for parts in peaks)


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process of its own for all traces, which change what autocast does in it and import transformers once."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def errors(
    process: ProcessPoolExecutor, model: str, layouts: Iterable[tuple[str, str]], folder: Path, *, on_cpu: bool = True
) -> dict[str, float]:
    """Relative error of the walk's peak in each layout, of a model of transformers or of a script."""
    like, shape = SCRIPTS.get(model, (model, {}))
    configuration = folder / "config.json"
    configuration.write_text(json.dumps(MODELS[like]), encoding="utf-8")
    jobs = [job(model if model in SCRIPTS else configuration, *layout, on_cpu=on_cpu) for layout in layouts]
    found = zip(layouts, jobs, process.map(trace, jobs), strict=True)
    return {
        " ".join(layout): walked(of, workload(of, configuration, **shape)) / traced.peak_bytes - 1
        for layout, of, traced in found
    }


@pytest.mark.ranks
@pytest.mark.parametrize("number", range(len(MODELS) + len(SCRIPTS)), ids=[*MODELS, *SCRIPTS])
def test_the_walk_has_the_peak_of_transformers_own_modules(
    process: ProcessPoolExecutor, number: int, tmp_path: Path
) -> None:
    model = [*MODELS, *SCRIPTS][number]
    other = LAYOUTS[2 * number + 1] if model == "mixtral" else WIDE[number % len(WIDE)]
    found = errors(process, model, (LAYOUTS[2 * number % len(LAYOUTS)], other), tmp_path)
    found |= errors(process, model, WITH_KERNELS_OF_GPUS[4 + number % 2 : 5 + number % 2], tmp_path, on_cpu=False)
    assert {layout: error for layout, error in found.items() if abs(error) > MOST} == {}


@pytest.mark.ranks
@pytest.mark.rare
@pytest.mark.parametrize("model", [*MODELS, *SCRIPTS])
def test_the_walk_has_the_peak_of_transformers_own_modules_in_every_layout(
    process: ProcessPoolExecutor, model: str, tmp_path: Path
) -> None:
    mixtral = model == "mixtral"
    found = errors(process, model, LAYOUTS if mixtral else LAYOUTS + WIDE, tmp_path)
    layouts = [each for each in WITH_KERNELS_OF_GPUS if not mixtral or "zero3" in each[0] or each[1] != "bf16"]
    found |= errors(process, model, layouts, tmp_path, on_cpu=False)
    print(model, {layout: f"{error:+.2%}" for layout, error in found.items()})
    assert {layout: error for layout, error in found.items() if abs(error) > MOST} == {}


FSDP2_OF_TWO = "dp8,zero3,recompute-full,micro2,fused"


def of_llama(words: str, **recipe: object) -> Workload:
    run = reference_run("llama2-7b")
    changed = msgspec.structs.replace(run.recipe, **{"precision": Precision.BF16, "global_batch": 16} | recipe)
    return Workload(run.architecture, changed, parse_layout(words, base=Layout()))


@pytest.mark.parametrize("stack_name", ["transformers", "pytorch"])
def test_predictions_with_the_stack_have_the_walks_peak(stack_name: str) -> None:
    of = of_llama(FSDP2_OF_TWO)
    cluster = reference_run("llama2-7b").cluster
    found = run_machine(
        cluster, Precision.BF16, ranks=8, accelerator_name="h100-sxm", stack_name=stack_name, stages=False
    )
    assert found is not None
    machine = found.machine
    assert machine is not None
    peaks = transformers_peaks(of, EagerStep(machine.kernels, machine.stack.keeping.modules))
    peak = max(sum(parts.values()) for parts in peaks.values())
    assert layout_peak(of, machine) == run_prediction(of, machine).memory[0].peak == peak
    assert least_layout_peak(of, machine) == peak


@pytest.mark.parametrize(
    ("words", "got"), [("tp2,fused", "tensors or layers split over ranks"), ("dp2,zero1,fused", "ZeRO-1")]
)
def test_steps_that_are_not_described_are_refused_by_what_they_have(words: str, got: str) -> None:
    execution = Execution(Kernels(cuda=True), stack("transformers").switches.keeping)
    with pytest.raises(InputError, match=f"not among the steps of transformers whose memory is known.*{got}"):
        walked_memory(of_llama(words), stage=0, execution=execution)


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("words", ["fused", "recompute-full,fused", "dp8,fused", "dp8,zero3,fused", FSDP2_OF_TWO])
def test_deep_models_are_on_the_line_through_two_shallow_ones(
    words: str, accumulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = parse_layout(words, base=Layout())
    of = of_llama(words, global_batch=layout.ranks * layout.micro_batch * accumulated)
    step = EagerStep(Kernels(cuda=True), Modules.SCRIPTS)
    lines = transformers_peaks.__wrapped__(of, step)
    monkeypatch.setattr(transformers_step, "SHALLOW", of.architecture.layers)
    walked = transformers_peaks.__wrapped__(of, step)
    for phase, parts in walked.items():
        assert lines[phase] == pytest.approx(parts, rel=1e-6, abs=2**16)  # blocks are rounded up to 512 bytes


def test_buckets_that_end_within_layers_are_on_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    of = of_llama("dp8,zero2,recompute-full,micro4,fused", global_batch=32)
    peaks = deepspeed_peaks(of, Kernels(cuda=True))
    transformers_peaks.cache_clear()
    monkeypatch.setattr(transformers_step, "SHALLOW", of.architecture.layers)
    assert deepspeed_peaks(of, Kernels(cuda=True)) == peaks
