"""The memory of a step of transformers' modules under DeepSpeed's ZeRO-1, 2 and 3, as Trainer and Accelerate run it.

A layer is that of `transformers_step`, in 16 bits throughout. DeepSpeed's own part is compared with DeepSpeed 0.19.8
on CPUs (tests/predict/simulation/test_deepspeed_step.py).
Source: DeepSpeed, runtime/zero/stage_1_and_2.py (step), stage3.py (step, _prepare_fp32_grad_for_sub_group),
partitioned_param_coordinator.py, partition_parameters.py (AllGatherCoalescedHandle).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Offload
from reference_runs.run import Moments, Precision, Workload
from suite.machine.half_precision import Kernels
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.analytic.parameters import layer_tensors, outer_tensors
from suite.predict.simulation.memory_blocks import Allocator, Category, StepPhase
from suite.predict.simulation.transformers_step import EagerStep, TransformersRank, transformers_peaks
from suite.predict.simulation.transformers_step import not_described as not_in_modules
from suite.predict.simulation.zero_gradients import ELEMENT_BYTES, ZeroConfig

# Transformers' documentation has this bucket and `overlap_comm` in its examples of stage 2; of stage 1 DeepSpeed's
# defaults; and `auto` in those of stage 3, for which Trainer fills in h^2, 0.9 h^2 and 10 h
# Source: docs/source/en/deepspeed.md; integrations/deepspeed.py, trainer_config_finalize
BUCKET = 500_000_000
PREFETCHED_SHARE, PERSISTENT_ROWS = 0.9, 10
UPDATE_BYTES = ELEMENT_BYTES + FP32  # a parameter of the group at work: its gradients in one piece, and in fp32
FP64 = 8
STATE_BYTES = 3 * FP32  # a parameter: master weight and moments


def zero_config(workload: Workload) -> ZeroConfig:
    """The configuration that Transformers' documentation has for such a layout."""
    architecture, layout = workload.architecture, workload.layout
    elements, square = sum(_tensors(workload)), architecture.hidden**2
    config = ZeroConfig(
        layout.zero_stage,
        layout.state_ranks,
        elements,
        BUCKET,
        overlap_comm=layout.zero_stage > 1,
        offload=layout.offload,
    )
    if layout.zero_stage < 3:
        return config
    return config._replace(
        reduce_bucket_size=square,
        prefetch_bucket_size=int(PREFETCHED_SHARE * square),
        param_persistence_threshold=PERSISTENT_ROWS * architecture.hidden,
    )


def not_described(workload: Workload) -> list[str]:
    """Facts of the workload that these steps do not have; none: it is described."""
    recipe, layout = workload.recipe, workload.layout
    unlike = {
        f"precision {recipe.precision}": recipe.precision not in (Precision.BF16, Precision.FP16),
        f"moments in {recipe.kept_moments}": recipe.kept_moments is not Moments.FP32,
        f"ZeRO-{layout.zero_stage}": layout.zero_stage == 0,
        "hybrid sharding": layout.shard_ranks is not None,
        "offloaded weights without ZeRO-3": layout.offload is Offload.STATE and layout.zero_stage < 3,
    }
    split = layout.tensor_parallel * layout.pipeline_stages * layout.context_parallel * layout.expert_parallel > 1
    unlike["tensors or layers split over ranks"] = split
    named = [name for name, applies in unlike.items() if applies]
    return named if split else named + not_in_modules(_on_one_rank(workload))


def stored_bytes(workload: Workload, config: ZeroConfig) -> Mapping[Category, int]:
    """Bytes that live through the step.

        weights      2 N; with stage 3 2 N / n, and 2 bytes of each of the parameters that stay gathered
        optimizer    12 N / n
        gradients    with stage 3 2 N / n, 4 N / n where they are wide
        buffers      with stage 3 the bucket; with offloaded state one gradient on its way

    Of N parameters over n ranks, less what lies on the host.
    """
    offloaded, sizes = config.offload is not Offload.NONE, _tensors(workload)
    stored = {Category.WEIGHTS: ELEMENT_BYTES * config.elements, Category.OPTIMIZER: STATE_BYTES * config.share}
    if offloaded:
        stored[Category.OPTIMIZER] = 0
    if config.stage < 3:
        return stored | {Category.BUFFERS: ELEMENT_BYTES * max(sizes) * offloaded}
    persistent = ELEMENT_BYTES * sum(size for size in sizes if size <= config.param_persistence_threshold)
    share = ELEMENT_BYTES * config.share * (config.offload is not Offload.STATE)
    return stored | {
        Category.WEIGHTS: share + persistent,
        Category.GRADIENTS: config.part_bytes,
        Category.BUFFERS: config.bucket_bytes,
    }


def deepspeed_bytes(workload: Workload) -> tuple[int, int, int]:
    """Bytes of weights, of gradients between micro-batches, and of the optimizer's state."""
    config = zero_config(workload)
    stored = stored_bytes(workload, config)
    gradients = ELEMENT_BYTES * config.elements if config.stage == 1 else config.part_bytes
    return stored[Category.WEIGHTS], gradients, stored[Category.OPTIMIZER]


def gathered_bytes(workload: Workload, config: ZeroConfig) -> int:
    """Bytes of the weights of stage 3 that are gathered at a time.

        2 min(M, live + largest)        before each module, those of later ones are sent for until so many live; what a
                                        module reads itself is always sent for
        2 min(M, prefetched + largest)  the message that they come in, until all of its parameters have been read

    Of M parameters that do not stay gathered. At the end of the forward pass as many stay, as the backward pass begins
    with them.
    """
    if config.stage < 3:
        return 0
    sizes = [size for size in _tensors(workload) if size > config.param_persistence_threshold]
    largest, whole = max(sizes, default=0), sum(sizes)
    live = min(whole, config.max_live_parameters + largest)
    return ELEMENT_BYTES * (live + min(whole, config.prefetch_bucket_size + largest))


def update_bytes(workload: Workload, config: ZeroConfig) -> int:
    """Bytes that the update makes for the largest group of parameters: with decay, a sub-group with stage 3."""
    if config.offload is not Offload.NONE:
        return 0
    vectors = 0 if workload.recipe.decay_of_vectors else _vectors(workload)
    group = ceil_division(config.elements - vectors, config.ranks)
    if config.stage == 3:
        group = min(group, config.sub_group_size)
    if config.wide_gradients and config.stage == 2:  # the kept part is what the update reads; its norm is in fp64
        return FP64 * max(_tensors(workload))
    return UPDATE_BYTES * group


def deepspeed_peaks(
    workload: Workload, kernels: Kernels, config: ZeroConfig | None = None
) -> Mapping[str, Mapping[str, int]]:
    """The most bytes that are allocated at a time in each `StepPhase`, by `Category`."""
    config = config or zero_config(workload)
    alone, stored = _on_one_rank(workload), stored_bytes(workload, config)
    peaks = {}
    for phase, parts in transformers_peaks(alone, EagerStep(kernels, zero=config)).items():
        own = dict(parts)
        for category in (Category.WEIGHTS, Category.OPTIMIZER):
            own.pop(category, None)
        if phase == StepPhase.UPDATE:
            own[Category.UPDATE] = own.get(Category.UPDATE, 0) + update_bytes(workload, config)
        else:
            own[Category.GATHERED] = gathered_bytes(workload, config)
        for category, size in stored.items():
            own[category] = own.get(category, 0) + size
        peaks[phase] = {category: size for category, size in own.items() if size}
    return peaks


def _on_one_rank(workload: Workload) -> Workload:
    """The same micro-batches on one rank without sharding, in 16 bits alone."""
    architecture, recipe, layout = workload
    micro_batches = accumulation(recipe, layout)
    kept = {
        field: getattr(layout, field)
        for field in ("micro_batch", "fused_attention", "recomputation", "checkpoint_layers", "recomputed_modules")
    }
    recipe = msgspec.structs.replace(
        recipe, precision=Precision.BF16_PURE, global_batch=layout.micro_batch * micro_batches
    )
    return Workload(architecture, recipe, Layout(**kept))


def _tensors(workload: Workload) -> list[int]:
    """Elements of each parameter, as transformers' modules have them."""
    return TransformersRank(Allocator(), _on_one_rank(workload), EagerStep(Kernels(cuda=False))).sizes


def _vectors(workload: Workload) -> int:
    before, after = outer_tensors(workload.architecture)
    layer = layer_tensors(workload.architecture) * workload.architecture.layers
    return sum(tensor.elements for tensor in (*before, *layer, *after) if not tensor.matrix)
