"""A slice that is asked for, checked: what one accelerator of a recorded run computes becomes a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from reference_runs.catalog import check_layout, reference_run, run_names
from reference_runs.errors import InputError, Mistakes
from reference_runs.incomplete import check_whole
from reference_runs.layout import Layout, Offload, layout_text, parse_layout
from reference_runs.named_runs import meant_run
from reference_runs.placement import coordinates, head_stage, stage_chunk_layers
from reference_runs.run import Architecture, Moments, Optimizer, ProductFormat, ReferenceRun, Workload
from suite.job.corpus import Corpus
from suite.job.options import KernelChoice
from suite.job.slice import SUFFIX, Slice, SliceStage
from suite.job.training_job import warm_up_steps
from suite.launch.interruption import check_minutes
from suite.machine.devices import cuda_device_list, resolved_device
from suite.machine.half_precision import kernels_for
from suite.paths import cache_directory, whole_file
from suite.predict.analytic.memory import optimizer_shards
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.optimizations import PlannedLaunch
from suite.reproduce.device_use import checked_compilation, checked_kernels, checked_optimizations
from suite.reproduce.plan import Plan, check_numbers
from suite.reproduce.recorded_recipe import in_whole_batches, with_loss_scale
from suite.reproduce.request import Request
from suite.reproduce.slice_memory import check_memory
from suite.reproduce.supported import (
    check_executable,
    check_executable_layout,
    check_fused_attention,
    check_grouped_queries,
    check_kernels,
    check_products,
)

DRAWN = "drawn evenly from the vocabulary"  # the source of a slice's tokens


def asks_for_slice(request: Request) -> bool:
    """Whether a slice is meant: by the option, or by the name's ending."""
    return request.slice or request.run.endswith(SUFFIX)


def slice_plan(request: Request) -> Plan:
    """The checked plan of a slice: nothing is allocated before what it needs is known to fit.

    Raises:
        InputError: unknown run, a stage or layers that are not there, an option that a slice has not, what this version
            does not execute, or more memory needed than there is.
    """
    _refuse_others(request)
    check_numbers(request, first=warm_up_steps(0))
    return slice_of(_run(request), request)


def slice_of(run: ReferenceRun, request: Request) -> Plan:
    """The checked plan of a slice of `run`, see `slice_plan`."""
    device, _ = resolved_device(request.device)
    recorded = run.recorded_layout or Layout()
    layout = recorded if request.layout is None else parse_layout(request.layout, base=recorded)
    if request.layout is not None:
        check_layout(Workload(run.architecture, run.recipe, layout), "--layout")
    stage, layers = _stage(request.stage, layout), request.layers
    most = _most_layers(run.architecture, layout, stage)
    if layers is not None and not 1 <= layers <= most:
        what = f"layers of the {stage.value} stage"
        raise InputError(what, got=layers, allowed=f"1 to {most}", where="--layers")
    shape = _Shape(
        stage,
        layers or most,
        _at_most(request.sequence, run.architecture.sequence, "--sequence"),
        _at_most(request.micro_batch, None, "--micro-batch") or layout.micro_batch,
    )
    workload = _workload(run, layout, shape)
    compiled, eager = checked_compilation(request.compiled, device, workload.layout)
    kernels = checked_kernels(request.kernels, device)
    _check_executable(run, workload, device, kernels)
    launch = PlannedLaunch(workload, device, compiled, kernels, kernels_for(workload.recipe.precision, device).gpu)
    optimizations, plain = checked_optimizations(request.optimizations, launch)
    sharing = _sharing(workload.layout, shape.number)
    group = _group(request.ranks, sharing, workload.layout, device)
    changes = tuple(_changes(run, layout, workload, shape, most, exchanges=bool(group)))
    check_minutes(request.minutes, "--minutes")
    checked = Plan(
        name=f"{run.name}{SUFFIX}",
        architecture=workload.architecture,
        recipe=workload.recipe,
        layout=workload.layout,
        device=device,
        compiled=compiled,
        steps=request.steps,
        seed=request.seed,
        kernels=kernels,
        training_options=device_options(
            workload, device, compiled=compiled, kernels=kernels, optimizations=optimizations
        ),
        changes=(*changes, *eager, *plain),
        slice=Slice(
            run=run.name,
            layout=layout,
            stage=stage,
            layers=shape.layers,
            sequence=run.architecture.sequence,
            micro_batch=layout.micro_batch,
            rank=sharing[0],
            minutes=request.minutes,
            group=group,
        ),
    )
    check_memory(checked)
    return checked


class _Shape(NamedTuple):
    """The part of a run that is executed."""

    stage: SliceStage
    layers: int
    sequence: int
    micro_batch: int

    @property
    def number(self) -> int:
        """Number of the slice's stage in its own layout."""
        return 0 if self.stage.has_embedding else 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each stage of that layout: the fewest in which there is such a stage."""
        before, after = () if self.stage.has_embedding else (1,), () if self.stage.has_head else (1,)
        return (*before, self.layers, *after)


def _refuse_others(request: Request) -> None:
    """Refuse the options of a whole run."""
    refused = ("mini", "global_batch", "optimizer", "gradient_compression", "exact_steps", "renewal", "share_devices")
    if names := request.given(*refused, "synchronisation", "slow_rank", "products", "corpus", "trace"):
        what = "a slice takes one accelerator's place, or those that share its layers, on tokens that are drawn"
        allowed = (
            "--stage, --layers, --sequence, --micro-batch, --minutes, --ranks, --layout, --device, --compile, "
            "--kernels, --optimizations, --steps, --seed"
        )
        raise InputError(what, got=", ".join(names), allowed=allowed, where="reproduce")


def _run(request: Request) -> ReferenceRun:
    """The run that a slice is of, whole but for its layout."""
    name = request.run.removesuffix(SUFFIX)
    if not name.endswith(".toml") and name not in run_names():
        allowed = f"a recorded run with {SUFFIX} (see `runs`), or a run file with --slice"
        raise InputError("unknown run", got=repr(name), meant=meant_run(name, run_names()), allowed=allowed)
    run = reference_run(name)
    check_whole(run, needs_layout=False)
    return run


def _stage(asked: str | None, layout: Layout) -> SliceStage:
    """The stage that is asked for, by its kind or number; by default one in the middle where there is one.

    Raises:
        InputError: the layout has no such stage.
    """
    kinds = _kinds(layout)
    if asked is None:
        return SliceStage.MIDDLE if SliceStage.MIDDLE in kinds else kinds[0]
    by_word = {str(number): kind for number, kind in enumerate(kinds)} | {kind.value: kind for kind in kinds}
    if kinds[0] is SliceStage.ONLY:
        by_word |= dict.fromkeys((SliceStage.FIRST.value, SliceStage.LAST.value), SliceStage.ONLY)
    if asked not in by_word:
        allowed = f"0 to {len(kinds) - 1}, {', '.join(dict.fromkeys(kind.value for kind in kinds))}"
        raise InputError(f"no such stage of {layout_text(layout)}", got=repr(asked), allowed=allowed, where="--stage")
    return by_word[asked]


def _kinds(layout: Layout) -> list[SliceStage]:
    """The kind of each pipeline stage: the first one of a V has embedding and head, as an only one has."""
    ends = {
        (True, True): SliceStage.ONLY,
        (True, False): SliceStage.FIRST,
        (False, True): SliceStage.LAST,
        (False, False): SliceStage.MIDDLE,
    }
    return [ends[number == 0, number == head_stage(layout)] for number in range(layout.pipeline_stages)]


def _most_layers(architecture: Architecture, layout: Layout, stage: SliceStage) -> int:
    """Ordinary layers of the fullest stage of a kind: those that all layers but a few are like."""
    few, layers = range(architecture.dense_layers), architecture.layers
    of_kind = [
        sum(layer not in few for chunk in stage_chunk_layers(layers, layout, stage=number) for layer in chunk)
        for number, kind in enumerate(_kinds(layout))
        if kind is stage
    ]
    return max(1, *of_kind)


def _at_most(asked: int | None, most: int | None, option: str) -> int:
    """The number that is asked for, by default `most`; 0 where there is neither."""
    if asked is None:
        return most or 0
    if asked < 1 or (most is not None and asked > most):
        allowed = "1 or more" if most is None else f"1 to {most}, the recorded one"
        raise InputError("out of range", got=asked, allowed=allowed, where=option)
    return asked


def _workload(run: ReferenceRun, layout: Layout, shape: _Shape) -> Workload:
    """The workload of the slice's process, in a layout whose every rank has the recorded accelerator's share.

    A step has one micro-batch. State of the optimizer is this rank's shard, as recorded. Left out is what other
    accelerators are needed for: averages over data parallelism, other stages, weights and gradients in shards; and what
    this version does not execute, which `_changes` names.
    """
    architecture = msgspec.structs.replace(
        run.architecture,
        layers=sum(shape.counts),
        sequence=shape.sequence,
        sliding_window=run.architecture.sliding_window and min(run.architecture.sliding_window, shape.sequence),
        dense_layers=0,
        top_query_layer=False,
    )
    shares_state = layout.zero_stage >= 1 and layout.sharding_ranks == layout.state_ranks > 1
    contexts = 1 if layout.fused_attention else layout.context_parallel
    local = msgspec.structs.replace(
        layout,
        micro_batch=shape.micro_batch,
        data_parallel=layout.data_parallel * layout.context_parallel // contexts if shares_state else 1,
        context_parallel=contexts,
        pipeline_stages=len(shape.counts),
        stage_layer_counts=shape.counts,
        virtual_stages=1,
        schedule=Layout().schedule,
        zero_stage=1 if shares_state else 0,
        shard_ranks=None,
        reduce_scatter=False,
        accumulation=None,
        recomputation=layout.executed_recomputation,
        recomputed_modules=(),
        checkpoint_layers=min(layout.checkpoint_layers, shape.layers),
        partitioned_checkpoints=False,
        scatter_gather=False,
        offload=Offload.NONE,
    )
    products = run.recipe.product_format
    if architecture.experts is not None or local.tensor_parallel > 1 or products is not ProductFormat.FP8_CURRENT:
        products = ProductFormat.NONE
    recipe = msgspec.structs.replace(
        with_loss_scale(in_whole_batches(run.recipe)),
        global_batch=local.replicas * shape.micro_batch,
        product_format=products,
        moments=Moments.FP32,
    )
    if recipe.orthogonalises:
        recipe = msgspec.structs.replace(recipe, optimizer=Optimizer.ADAMW)
    return Workload(architecture, recipe, local)


def _changes(
    run: ReferenceRun, layout: Layout, workload: Workload, shape: _Shape, most: int, *, exchanges: bool
) -> Iterator[str]:
    """How the slice differs from what the recorded accelerator computes, in words."""
    whole, (_, recipe, local) = run.architecture, workload
    for differs, words in (
        (run.recorded_layout is None and layout == Layout(), "no layout is recorded: whole layers on one accelerator"),
        (shape.layers != most, f"{shape.layers} of {most} layers of the {shape.stage.value} stage"),
        (shape.sequence != whole.sequence, f"sequence {shape.sequence}, recorded {whole.sequence}"),
        (shape.micro_batch != layout.micro_batch, f"micro-batch {shape.micro_batch}, recorded {layout.micro_batch}"),
        (
            local.context_parallel != layout.context_parallel,
            f"whole sequences, which {layout.context_parallel} accelerators (cp) share: fused attention of parts of a "
            "sequence is not executed on a GPU",
        ),
        (whole.dense_layers > 0, f"without the first {whole.dense_layers} layers, which have no experts"),
        (whole.top_query_layer, "the top-query layer is an ordinary one"),
        (
            recipe.product_format is not run.recipe.product_format,
            f"products in {recipe.precision.value}, recorded {run.recipe.product_format.value}",
        ),
        (run.recipe.moments is not recipe.moments, f"moments in fp32, recorded {run.recipe.moments.value}"),
        (run.recipe.orthogonalises, "AdamW in place of Muon, which is not executed"),
        (layout.zero_stage >= 2, "weights are whole, not gathered for each pass"),
        (
            optimizer_shards(layout) > optimizer_shards(local),
            f"state of the optimizer is whole, which {optimizer_shards(layout)} accelerators share by ZeRO",
        ),
        (layout.offload is not Offload.NONE, "state stays on the accelerator"),
        (
            layout.recomputation is not local.recomputation,
            f"{', '.join(layout.recomputed_modules)} of each layer are not computed again",
        ),
        (
            layout.partitioned_checkpoints and layout.tensor_parallel > 1,
            "the inputs of recomputed groups are kept whole, not a tensor-parallel rank's share",
        ),
        (
            layout.expert_parallel > 1 and not exchanges,
            f"experts compute as many rows for each of {layout.expert_parallel} ranks (ep) as this one sends there",
        ),
    ):
        if differs:
            yield words


def _check_executable(run: ReferenceRun, workload: Workload, device: str, kernels: KernelChoice) -> None:
    """Refuse what this version, or this machine, does not execute; a pipeline's limits are none of a slice's."""
    architecture, recipe, layout = workload
    of_one_stage = msgspec.structs.replace(layout, pipeline_stages=1, stage_layer_counts=None)
    mistakes = Mistakes()
    with mistakes.collected():
        check_executable(architecture, recipe, run.where)
    with mistakes.collected():
        check_layout(workload, run.where)
        check_executable_layout(workload._replace(layout=of_one_stage), run.where)
        check_fused_attention(recipe, layout, device, run.where)
        check_grouped_queries(architecture, recipe, layout, device, run.where)
        check_kernels(architecture, layout, kernels)
        gpus = [each.gpu for each in cuda_device_list()] if device == "cuda" else []
        check_products(workload, device, gpus, run.where)
    mistakes.refuse()


def _sharing(layout: Layout, stage: int) -> tuple[int, ...]:
    """The ranks that share the layers of a stage with its first one, which comes first."""
    indices = ((rank, coordinates(layout, rank)) for rank in range(layout.ranks))
    return tuple(rank for rank, index in indices if (index["pp"], index["dp"]) == (stage, 0))


def _group(asked: int | None, sharing: tuple[int, ...], layout: Layout, device: str) -> tuple[int, ...]:
    """The places of so many processes that exchange messages; none for a process alone.

    Raises:
        InputError: others than one or all of the ranks that share a stage's layers, or too few GPUs.
    """
    if asked in (None, 1):
        return ()
    if asked != len(sharing):
        sizes = {"tp": layout.tensor_parallel, "cp": layout.context_parallel, "ep": layout.expert_parallel}
        product = " * ".join(f"{size} ({axis})" for axis, size in sizes.items() if size > 1)
        allowed = f"1, or {len(sharing)} = {product}" if product else "1: no other accelerator shares its layers"
        raise InputError("processes of a slice", got=asked, allowed=allowed, where="--ranks")
    if device == "cuda" and (gpus := len(cuda_device_list())) < len(sharing):
        raise InputError("a process of a slice needs a GPU", got=f"{gpus} GPUs", allowed=f"{asked}", where="--ranks")
    return sharing


def slice_tokens(plan: Plan) -> Corpus:
    """Tokens for a slice, from the cache: numbers that are all equally likely, as many as two steps have.

    What a layer computes does not depend on them; a table's rows are read and written all over.
    """
    import numpy

    vocabulary = plan.architecture.vocabulary
    tokens = 2 * plan.recipe.global_batch * plan.architecture.sequence + 1
    drawn = numpy.random.default_rng(plan.seed).integers(vocabulary, size=tokens).astype("<i4").tobytes()
    sha256 = hashlib.sha256(drawn).hexdigest()
    path = cache_directory() / f"{sha256[:32]}-{vocabulary}.drawn.tokens"
    if not path.exists():
        with whole_file(path) as temporary:
            temporary.write_bytes(drawn)
    return Corpus(
        source=DRAWN, sha256=sha256, text_bytes=0, files=0, vocabulary=vocabulary, tokens=tokens, tokens_file=str(path)
    )
