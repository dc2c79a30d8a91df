"""Checks a launch of any model: a configuration of transformers or a module of the user's own becomes a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reference_runs.architecture import Activation, Architecture, Mask, Norm, Position, Residual
from reference_runs.catalog import miniatures, run_names
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import LearningRateDecay, Objective, Optimizer, Precision, Recipe
from suite.job.corpus import Corpus, tokenised_corpus
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, StepTrace, TraceJob
from suite.job.trace_layout import TraceLayout, trace_layout
from suite.job.training_job import warm_up_steps
from suite.machine.devices import cuda_gpu, resolved_device
from suite.machine.free_memory import free_bytes
from suite.machine.gpu import cublas_workspace_bytes
from suite.predict.simulation.step_memory import MULTIPLYING_THREADS
from suite.predict.traced_run.figures import traced_figures
from suite.reproduce.checked_options import checked_trace
from suite.reproduce.device_use import checked_compilation, checked_sharing
from suite.reproduce.plan import Plan, check_numbers
from suite.reproduce.request import Request
from suite.reproduce.traced import model_source, traced

SEQUENCE, MICRO_BATCH = 128, 2  # of a miniature, where nothing else is said
MOST_VOCABULARY = 1024  # token numbers of the corpus, of which a larger vocabulary uses the first
AXIS = "dp"
# options that say something of any model; `reproduce` has no other for one
KNOWN = frozenset(
    (
        *("name", "mini", "ranks", "layout", "device", "compiled", "share_devices", "global_batch", "sequence"),
        *("micro_batch", "steps", "launches", "seed", "corpus", "trace", "results", "may_calibrate", "every_figure"),
        *("force", "json"),
    )
)
LEARNING_RATE = 1e-3  # of PyTorch's AdamW, as all its settings


def is_model(request: Request) -> bool:
    """Whether a request names a configuration or a function."""
    return request.run.endswith(".json") or ".py:" in request.run


def model_plan(request: Request) -> tuple[Plan, StepTrace]:
    """The checked plan for a request, and the trace of its first rank.

    Raises:
        InputError: no such model, one that cannot be built or traced, an option that says nothing of it, a layout that
            splits tensors or layers, or more memory needed than is free.
        TraceError: a trace ended without an answer.
    """
    unknown = [name for name in Request.__struct_fields__ if name not in KNOWN]
    if given := request.given(*unknown):
        raise InputError("applies to runs alone", where=", ".join(given))
    source = _source(request)
    check_numbers(request, first=warm_up_steps(0))
    device, usual_ranks = resolved_device(request.device)
    words, layout = _layout(request, usual_ranks)
    shares, shared = checked_sharing(
        request.share_devices, device, ranks=layout.ranks, devices=resolved_device(device)[1]
    )
    compiled, eager = checked_compilation(request.compiled, device, layout)
    asked = TraceJob(
        source=source,
        ranks=layout.ranks,
        sharding=words.sharding,
        number_format=NumberFormat.BF16 if device == "cuda" else NumberFormat.FP32,
        optimizer=OptimizerKernel.ADAMW_FUSED,
        micro_batches=layout.accumulation or 1,
        micro_batch=layout.micro_batch,
        sequence=request.sequence or SEQUENCE,
        recompute=words.recompute,
        recompute_every=words.recompute_every,
        saves_products=words.saves_products,
        synchronises_once=words.synchronises_once,
        on_cpu=device == "cpu",
    )
    traces = _traces(asked)
    whole = traces[0]
    _check_inputs(request, whole, layout)
    if device == "cpu":
        _check_memory(traces, layout.ranks)
    asked = msgspec.structs.replace(asked, source=_kept(source, whole))
    plan = Plan(
        name=_name(source),
        architecture=_architecture(whole),
        recipe=_recipe(layout, asked, steps=request.steps),
        layout=layout,
        device=device,
        compiled=compiled,
        steps=request.steps,
        seed=request.seed,
        trace=request.trace
        and checked_trace(request.trace, ranks=layout.ranks, device=device, steps=request.steps, force=request.force),
        changes=(*shared, *eager),
        shares_devices=shares,
        model=asked,
        expected=tuple(
            traced_figures(
                traces,
                axis=AXIS,
                ranks=layout.ranks,
                shared=asked.sharding is not Sharding.REPLICATED,
                gloo=device == "cpu" or shares,
                workspaces=MULTIPLYING_THREADS * cublas_workspace_bytes(cuda_gpu()) if device == "cuda" else 0,
            )
        ),
    )
    return plan, whole


def _source(request: Request) -> ModelSource:
    source = model_source(request.run)
    if source.configuration:
        return msgspec.structs.replace(source, mini=request.mini)
    if request.mini:
        raise InputError("a module of your own is as large as it builds itself", where="--mini")
    return source


def _kept(source: ModelSource, trace: StepTrace) -> ModelSource:
    """The source as a record keeps it and ranks build it: with the hash of its file, and the miniature's values."""
    file = source.configuration or source.module.rpartition(":")[0]
    sha256 = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return msgspec.structs.replace(source, mini=False, values=trace.values, sha256=sha256, software=trace.software)


def _check_inputs(request: Request, trace: StepTrace, layout: Layout) -> None:
    if trace.own_inputs and layout.micro_batch > 1:
        raise InputError("the function brings its inputs, a micro-batch of its own", where="micro-batch")
    if not trace.own_inputs and trace.vocabulary is None:
        what = "no nn.Embedding says how many token numbers there are"
        raise InputError(what, allowed="a function that returns the module and its inputs", where=request.run)


def _layout(request: Request, usual_ranks: int) -> tuple[TraceLayout, Layout]:
    """The words of a layout, and the layout that a job has of them."""
    ranks = request.ranks or usual_ranks
    words = trace_layout(request.layout or f"dp{ranks},zero{3 if ranks > 1 else 0}")
    if words.saves_products:  # what it keeps passes by the hooks that count what autograd keeps
        raise InputError("is predicted, not launched", got="selective-op", where="--layout")
    if request.ranks not in (None, words.ranks):
        what = f"--layout {request.layout} is {words.ranks} ranks"
        raise InputError(what, got=f"--ranks {request.ranks}", where="--ranks")
    usual = 1 if ".py:" in request.run else MICRO_BATCH
    micro_batch = request.micro_batch or words.micro_batch or usual
    at_once = words.ranks * micro_batch
    batch = request.global_batch or at_once * (words.accumulation or 1)
    if batch % at_once or words.accumulation not in (None, batch // at_once):
        what = "global batch: no multiple of replicas * micro_batch"
        raise InputError(what, got=batch, allowed=f"multiples of {at_once}", where="--global-batch")
    layout = Layout(
        data_parallel=words.ranks,
        zero_stage=0 if words.sharding is Sharding.REPLICATED else 3,
        reshard_after_forward=words.sharding is not Sharding.KEPT,
        recomputation=Recomputation.FULL if words.recompute else Recomputation.NONE,
        micro_batch=micro_batch,
        accumulation=batch // at_once,
    )
    return words, layout


def _traces(asked: TraceJob) -> list[StepTrace]:
    """A trace for each rank, where each stores a part of its own; otherwise all are like the first."""
    ranks = 1 if asked.sharding is Sharding.REPLICATED else asked.ranks
    return traced([msgspec.structs.replace(asked, rank=rank) for rank in range(ranks)])


def _check_memory(traces: Sequence[StepTrace], ranks: int) -> None:
    needed = sum(trace.peak_bytes for trace in traces) * (ranks if len(traces) == 1 else 1)
    if needed > (free := free_bytes()):
        gib = 2**30
        what = f"{ranks} ranks need {needed / gib:,.1f} GiB, and {free / gib:,.1f} GiB are free"
        raise InputError(what, allowed="--mini, fewer --ranks, or a smaller --sequence")


def _name(source: ModelSource) -> str:
    """The name below which its records stand: model type, or file and function.

    Raises:
        InputError: a run has that name.
    """
    if source.configuration:
        kind = msgspec.json.decode(Path(source.configuration).read_bytes())["model_type"]
        return f"transformers-{kind}{'-mini' if source.mini else ''}"
    file, _, function = source.module.rpartition(":")
    name = f"{Path(file).stem}-{function}"
    if name in run_names() or name in miniatures():
        raise InputError("its records would stand below a run of that name", got=name, allowed="another file name")
    return name


def _architecture(trace: StepTrace) -> Architecture:
    """The facts of any model that a launch must know: layers, tokens, token numbers; widths are not known, and 1."""
    vocabulary = min(trace.vocabulary or 1, MOST_VOCABULARY)
    return Architecture(
        layers=max(1, trace.layers),
        hidden=1,
        heads=1,
        head_dim=1,
        kv_heads=1,
        ffn_hidden=1,
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary,
        sequence=trace.sequence,
        position=Position.LEARNED,
        norm=Norm.PRE_LAYER_NORM,
        norm_epsilon=1e-6,
        embedding_norm=False,
        activation=Activation.GELU,
        residual=Residual.SEQUENTIAL,
        mask=Mask.CAUSAL,
        biases=False,
        tied_embeddings=False,
    )


def _recipe(layout: Layout, asked: TraceJob, *, steps: int) -> Recipe:
    """AdamW as PyTorch has it, at a learning rate that stays; gradients are not clipped."""
    batch = layout.ranks * layout.micro_batch * asked.micro_batches
    return Recipe(
        objective=Objective.CAUSAL_LM,
        global_batch=batch,
        tokens=steps * batch * (asked.sequence or 1),
        precision=Precision.BF16 if asked.number_format is NumberFormat.BF16 else Precision.FP32,
        optimizer=Optimizer.ADAMW,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        learning_rate=LEARNING_RATE,
        minimum_learning_rate=LEARNING_RATE,
        decay_of_vectors=True,
        gradient_clip=1e9,
        learning_rate_decay=LearningRateDecay.LINEAR,
        warmup=batch,
        decay=steps * batch,
        init_std=0.02,
        residual_init_scaled=False,
        embedding_dropout=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def model_tokens(plan: Plan, trace: StepTrace, path: Path | None) -> Corpus:
    """The tokens that the launch trains on; none where the model brings its inputs."""
    if trace.own_inputs:
        return Corpus(
            source="inputs of its own", sha256="", text_bytes=0, files=0, vocabulary=0, tokens=0, tokens_file=""
        )
    least = plan.recipe.global_batch * plan.architecture.sequence + 1
    return tokenised_corpus(path, vocabulary=plan.architecture.vocabulary, least_tokens=least)
