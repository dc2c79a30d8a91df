"""Options of a launch that is no rung of the ladder, by device: `reproduce` takes them, predictions suppose them."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.job.options import DEFAULT_OPTIONS, KernelChoice, Optimization, TrainingOptions
from suite.predict.analytic.pipeline_schedule import halves_backward
from suite.predict.simulation.optimizations import PlannedLaunch, default_optimizations

# Tokens whose logits exist at once. Each part reads and writes the weight's gradient in fp32, 8 V D bytes, for 6 C V D
# flop: at an H100's data sheet (3.35 TB/s, 989 Tflop/s) 5 % of the products' time at C = 8192, and 19 % at 2048
LOSS_TOKENS = 8192
LEAST_CHUNKS = 2  # one part is the loss of all logits


def device_options(
    workload: Workload,
    device: str,
    *,
    compiled: bool,
    kernels: KernelChoice,
    optimizations: tuple[Optimization, ...] | None = None,
) -> TrainingOptions:
    """Options of a launch that is no rung of the ladder: on a GPU, whatever saves waits and needless passes.

    Batches are copied ahead from page-locked memory, but not those of a pipeline, which takes all of a step at once.
    Head and loss are computed in parts, where they are compiled. Bytes of a logit in bf16, beside the products:
        6 + 12    PyTorch's operators: widened to fp32; log-softmax, which reads twice
        4 + 20    backward: zeros, to which the targets are added; the gradient of log-softmax, which reads both twice
        6         rounded
        6         in place of these 48 a compiled part: it reads the logits twice and writes their gradient
    Not with a loss scale, by which parts do not multiply their 16-bit gradients; nor where
    tensor-parallel ranks hold a part of the vocabulary; Triton's kernels have parts of their own.

    Args:
        optimizations: that were checked; None: the default ones.
    """
    if optimizations is None:
        optimizations = default_optimizations(PlannedLaunch(workload, device, compiled, kernels))
    _, recipe, layout = workload
    if device != "cuda":
        return msgspec.structs.replace(DEFAULT_OPTIONS, optimizations=optimizations)
    in_parts = (
        compiled and kernels is KernelChoice.TORCH and not recipe.precision.scaled and layout.tensor_parallel == 1
    )
    tokens = layout.micro_batch * workload.architecture.sequence
    return TrainingOptions(
        rung="",
        pinned=layout.pipeline_stages == 1,
        loss_chunks=max(LEAST_CHUNKS, -(-tokens // LOSS_TOKENS)) if in_parts else 1,
        optimizations=optimizations,
    )


def not_compiled(layout: Layout) -> str:
    """Why the layout's blocks cannot be compiled, in words; empty: they can."""
    if halves_backward(layout):
        return f"{layout.schedule} halves its backward pass"
    if not layout.flushes:
        return f"{layout.schedule} changes the weights of a block from pass to pass"
    return ""
