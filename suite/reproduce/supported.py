"""Refuses in one line whatever this version describes but does not execute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reference_runs.catalog import global_batch_at
from reference_runs.errors import InputError, Mistakes
from reference_runs.layout import Layout, stages_word
from reference_runs.run import (
    BLANK_TOKENS,
    LEAST_WINDOW,
    Architecture,
    Balancing,
    Mask,
    Moments,
    Norm,
    Objective,
    Optimizer,
    Position,
    Precision,
    ProductFormat,
    QueryKeyNorm,
    Recipe,
    Residual,
    Workload,
)
from suite.job.options import Averaging, KernelChoice
from suite.job.training_job import WARM_UP_STEPS
from suite.machine.gpu import Gpu
from suite.predict.analytic.pipeline_schedule import halves_backward, least_micro_batches
from suite.predict.analytic.product_formats import products_in_format
from suite.predict.simulation.supported_layouts import layout_limits, unexecuted_parts

FP8_CAPABILITY, FP8_MULTIPLE = (8, 9), 16  # torch._scaled_mm on CUDA: aten/src/ATen/native/cuda/ScaledBlas.cpp


def check_executable(architecture: Architecture, recipe: Recipe, where: str) -> None:
    """Refuse an architecture or recipe that this version describes but does not execute.

    Raises:
        InputError: it is one of them; every reason has a line.
    """
    Mistakes(_reasons(architecture, recipe, where)).refuse()


def _reasons(architecture: Architecture, recipe: Recipe, where: str) -> Iterator[InputError]:
    """Each reason for which an architecture or recipe is not executed."""
    for wrong, what, got, allowed in (
        *_of_the_model(architecture),
        *_of_the_products(architecture, recipe),
        *_of_the_samples(architecture, recipe),
    ):
        if wrong:
            yield InputError(f"this version does not execute {what}", got=got, allowed=allowed, where=where)
    if recipe.precision.scaled and (recipe.initial_loss_scale is None or recipe.loss_scale_window is None):
        what = f"{recipe.precision.value} is executed with a dynamic loss scale, and the file does not record one"
        yield InputError(what, allowed="recipe.initial_loss_scale and recipe.loss_scale_window", where=where)


class _Limit(NamedTuple):
    """A limit: the words for it, whether it is asked for, and what is allowed in its place."""

    applies: bool
    what: str
    got: object
    allowed: str


def _of_the_model(a: Architecture) -> tuple[_Limit, ...]:
    block = f"{a.residual.value} architecture.residual, top_query_layer {a.top_query_layer}"
    unknown_block = not a.norm.before and (a.residual is Residual.PARALLEL or a.top_query_layer)
    without_rate = a.balancing is Balancing.BIAS and a.balancing_rate is None
    unknown_top = a.top_query_layer and a.position is not Position.LEARNED
    return (
        _Limit(
            a.key_value_rank is not None and a.norm is Norm.DEEP_NORM,
            "latent attention with deep-norm",
            f"{a.key_value_rank} architecture.key_value_rank",
            "another norm",
        ),
        _Limit(without_rate, "experts that a bias balances", "no architecture.balancing_rate", "one"),
        _Limit(
            a.mask is Mask.DOCUMENTS and a.position is Position.LEARNED,
            "learned positions of packed documents, which would have to begin anew in each",
            f"{a.position.value} with {a.mask.value}",
            "rotary, alibi",
        ),
        *(_Limit(True, part, "architecture", "none") for part in unexecuted_parts(a)),
        _Limit(unknown_block, f"{a.norm.value} in that block", block, "sequential, False"),
        _Limit(unknown_top, "a top-query layer with those positions", a.position, Position.LEARNED.value),
    )


def _of_the_products(a: Architecture, recipe: Recipe) -> tuple[_Limit, ...]:
    product_format = recipe.product_format
    executed = (ProductFormat.NONE, ProductFormat.FP8_CURRENT)
    got = f"{product_format.value} recipe.product_format"
    with_experts = a.experts is not None and product_format is ProductFormat.FP8_CURRENT
    moments = f"{recipe.moments.value} recipe.moments"
    pure = recipe.precision is Precision.BF16_PURE
    others = ", ".join(each for each in Precision if each is not Precision.BF16_PURE)
    return (
        _Limit(pure, "training without fp32 moments", recipe.precision.value, others),
        _Limit(recipe.moments is not Moments.FP32, "moments of the optimizer in that dtype", moments, "fp32"),
        _Limit(
            recipe.optimizer not in (Optimizer.ADAM, Optimizer.ADAMW),
            "that optimizer",
            f"{recipe.optimizer.value} recipe.optimizer",
            "adam, adamw",
        ),
        _Limit(recipe.adapter_rank is not None, "adapters alone", f"rank {recipe.adapter_rank}", "predict, --lora"),
        _Limit(product_format not in executed, "products in that format", got, ", ".join(executed)),
        _Limit(with_experts, "experts with products in a format of their own", got, ProductFormat.NONE.value),
    )


def _of_the_samples(a: Architecture, recipe: Recipe) -> tuple[_Limit, ...]:
    blanks = recipe.objective is Objective.BLANK_INFILLING
    short = 0 if recipe.packed_samples is None else LEAST_WINDOW * recipe.packed_samples
    rows = a.vocabulary + len(BLANK_TOKENS)
    samples = f"{recipe.objective.value} with {a.mask.value}"
    both = "causal-lm with causal, blank-infilling with prefix"
    unrotated, few = blanks and a.position is not Position.ROTARY, blanks and a.padded_vocabulary < rows
    no_rows = "blank infilling without rows for its special tokens"
    stored, length = f"{a.padded_vocabulary} architecture.padded_vocabulary", f"{a.sequence} architecture.sequence"
    return (
        _Limit(blanks != (a.mask is Mask.PREFIX), "that recipe.objective with that mask", samples, both),
        _Limit(unrotated, "blank infilling with those positions", a.position, "rotary"),
        _Limit(few, no_rows, stored, f"at least {rows}"),
        _Limit(blanks and a.sequence < short, "blank infilling in so short windows", length, f"at least {short}"),
    )


def check_executable_layout(workload: Workload, where: str) -> None:
    """Refuse a layout that this version describes but does not execute.

    Raises:
        InputError: it is one of them; the line names every part that is not executed.
    """
    if limits := [limit.name for limit in layout_limits(workload) if limit.applies]:
        what = "this version does not execute that layout"
        raise InputError(what, got=" and ".join(limits), allowed=_EXECUTED_LAYOUTS, where=where)


_EXECUTED_LAYOUTS = (
    "dpN, epN, tpN, sp with tpN, cpN, ppN, interleaveN, gpipe, 1f1b, zero-bubble, zbv, dualpipev, "
    "pipedream/pipedream-vertical-sync/pipedream-2bw with ppN and dpN or replicasN-N-… (zero0) alone, zero0/1, "
    "layersN-N-…, reduce-scatter, all-reduce, zero2/3 without ppN, shardN, reshard, noreshard, offload with zero2/3, "
    "recompute-none/selective/full, everyN, fused with a plain causal mask, microN, accumulateN, bucketN"
)


def check_fused_attention(recipe: Recipe, layout: Layout, device: str, where: str) -> None:
    """Refuse a fused attention that PyTorch's kernels for a device do not compute.

    On a CPU with dropout, as it would store the scores; on CUDA of parts of a sequence, whose masks are not plainly
    causal: flash kernels take none.

    Raises:
        InputError: it is asked for.
    """
    if layout.fused_attention and layout.context_parallel > 1 and device == "cuda":
        what, got = "PyTorch's flash attention on CUDA takes no mask of dealt positions", f"cp{layout.context_parallel}"
        raise InputError(what, got=got, allowed="cp1, unfused, or --device cpu", where=where)
    if layout.fused_attention and recipe.attention_dropout > 0 and device == "cpu":
        what, got = "fused attention drops nothing on a CPU", f"{recipe.attention_dropout} recipe.attention_dropout"
        raise InputError(what, got=got, allowed="0, unfused, or --device cuda", where=where)


def check_replicas(layout: Layout, device: str, where: str) -> None:
    """Refuse stages with different numbers of replicas over NCCL, which sends all messages of two ranks in one order.

    Raises:
        InputError: they are asked for.
    """
    if layout.stage_replicas is not None and device == "cuda":
        what = (
            "stages with different numbers of replicas on GPUs: messages of two ranks must pass each other, as by gloo"
        )
        got = stages_word("replicas", layout.stage_replicas)
        raise InputError(what, got=got, allowed="dpN, or --device cpu", where=where)


def check_grouped_queries(architecture: Architecture, recipe: Recipe, layout: Layout, device: str, where: str) -> None:
    """Refuse a fused attention of grouped queries in fp32 on CUDA: PyTorch's kernel for fp32 knows no groups.

    Raises:
        InputError: it is asked for.
    """
    grouped = architecture.kv_heads < architecture.heads
    if grouped and layout.fused_attention and device == "cuda" and recipe.precision is Precision.FP32:
        what, got = "fused attention of grouped queries on CUDA", recipe.precision.value
        raise InputError(what, got=got, allowed="16 bit, or unfused", where=where)


def check_products(workload: Workload, device: str, gpus: Sequence[Gpu], where: str) -> None:
    """Refuse products in 8 bits on GPUs that have none, and of sizes that theirs do not take; CPUs compute them wider.

    Raises:
        InputError: an architecture before Ada (8.9), or a dimension of a product that is no multiple of 16.
    """
    if not workload.recipe.product_format.casts or device != "cuda":
        return
    if old := [gpu.capability for gpu in gpus if gpu.capability < FP8_CAPABILITY]:
        what = "GPUs of this compute capability have no products in 8 bits"
        allowed = f"{'.'.join(map(str, FP8_CAPABILITY))} or later: Ada, Hopper, Blackwell; or --gemm-dtype none"
        raise InputError(what, got=".".join(map(str, old[0])), allowed=allowed, where=where)
    sizes = {size for part in products_in_format(workload).values() for size in part[1:]}
    if odd := sorted(size for size in sizes if size % FP8_MULTIPLE):
        what = f"products in 8 bits of sizes that are no multiples of {FP8_MULTIPLE}"
        raise InputError(what, got=", ".join(map(str, odd)), allowed="--gemm-dtype none", where=where)


def check_kernels(architecture: Architecture, layout: Layout, kernels: KernelChoice, where: str = "--kernels") -> None:
    """Refuse Triton's kernels for a model or layout that has something which none of them computes.

    Raises:
        InputError: it has; the line names all of it.
    """
    names = without_triton_kernel(architecture)
    if layout.context_parallel > 1:
        names.append("parts of a sequence (context parallelism)")
    if halves_backward(layout):
        names.append(f"gradients of inputs without those of weights ({layout.schedule})")
    if kernels is KernelChoice.TRITON and names:
        raise InputError("no Triton kernel computes this", got=", ".join(names), allowed="torch", where=where)


def without_triton_kernel(architecture: Architecture) -> list[str]:
    """Words for the parts of an architecture that no Triton kernel computes."""
    normed = architecture.query_key_norm is not QueryKeyNorm.NONE
    lacking = {
        "norms without gain": not architecture.norm_gain,
        "norms of queries and keys that do not rotate": normed and architecture.rotary_dim is None,
        "a bias of the head": architecture.head_bias,
        "packed documents that do not see each other": architecture.mask is Mask.DOCUMENTS,
        "a sliding window": (architecture.sliding_window or architecture.sequence) < architecture.sequence,
    }
    return [name for name, lacks in lacking.items() if lacks]


def check_averaging(averaging: Averaging, workload: Workload, device: str) -> None:
    """Refuse a way of averaging that does not go with the rest.

    Raises:
        InputError: it does not.
    """
    if averaging is Averaging.EXACT:
        return
    architecture, recipe, layout = workload
    name, t = averaging.value, layout.tensor_parallel
    of_rank = averaging in (Averaging.ONE_BIT, Averaging.POWER_SGD)
    copies = of_rank and t > architecture.kv_heads
    for wrong, what, got, allowed in (
        (layout.data_parallel == 1, f"{name} without data-parallel ranks to average over", "dp1", "dp2 or more"),
        (copies, f"{name} with copies of key-value heads, which would differ", f"tp{t}", f"tp{architecture.kv_heads}"),
        (layout.expert_parallel > 1, f"{name} with experts shared out", f"ep{layout.expert_parallel}", "ep1"),
        (layout.zero_stage > 0, f"{name} with state that is sharded over ranks", f"zero{layout.zero_stage}", "zero0"),
        (
            averaging is Averaging.POWER_SGD and recipe.precision.scaled,
            "powersgd of fp16 gradients, whose factors need fp32",
            recipe.precision.value,
            "bf16, fp32",
        ),
        (averaging is Averaging.BF16 and device == "cpu", "bf16 without NCCL (PyTorch's hook)", device, "cuda"),
    ):
        if wrong:
            raise InputError(what, got=got, allowed=allowed, where="--optimizer, --gradient-compression, --layout")


def check_ramp_up(recipe: Recipe, layout: Layout, where: str) -> None:
    """Refuse a ramp-up that cannot be executed, or that is still going on in the steps that are counted.

    Raises:
        InputError: it is recorded in part; its batches are not whole micro-batches of every replica (but with GPipe,
            one for each stage); it does not end at the whole batch, or not within the warm-up steps, or with pipeline
            stages not before the last of them, which prepares the schedule of the whole batch.
    """
    ramp_up = (recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples)
    start, increment, samples = ramp_up
    if start is None or increment is None or samples is None:
        if ramp_up != (None, None, None):
            raise InputError("recipe.batch_rampup_start, increment, samples: all or none", got=ramp_up, where=where)
        return
    replicas = layout.dealt_to * layout.expert_parallel * layout.micro_batch
    least = layout.replicas * layout.micro_batch * least_micro_batches(layout)
    if start % replicas or increment % replicas or not least <= start <= recipe.global_batch:
        what, got = "recipe.batch_rampup_start and batch_rampup_increment", f"{start} and {increment}"
        allowed = f"multiples of data_parallel * micro_batch = {replicas}, from {least} to {recipe.global_batch}"
        raise InputError(what, got=got, allowed=allowed, where=where)
    if (remainder := recipe.global_batch - start) % increment:
        what = f"recipe.batch_rampup_increment does not divide global_batch - batch_rampup_start = {remainder}"
        raise InputError(what, got=increment, where=where)
    seen = 0
    for _ in range(WARM_UP_STEPS - (layout.pipeline_stages > 1)):
        seen += global_batch_at(recipe, seen)
    if global_batch_at(recipe, seen) < recipe.global_batch:
        what = "recipe.batch_rampup_samples: the steps that are counted need the whole batch"
        allowed = f"a ramp-up that ends within the first {seen} samples"
        raise InputError(what, got=samples, allowed=allowed, where=where)
