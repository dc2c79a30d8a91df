"""How a launch uses its devices: compilation, kernels, shared GPUs, and the options of the suite's own script."""

from __future__ import annotations

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.job.options import DEFAULT_OPTIONS, KernelChoice, TrainingOptions
from suite.machine.packages import compilation_missing, require
from suite.predict.analytic.pipeline_schedule import halves_backward


def checked_compilation(asked: bool | None, device: str, layout: Layout) -> tuple[bool, tuple[str, ...]]:
    """Whether blocks are compiled, by default on CUDA alone; and in words why not, where the layout or machine is why.

    Raises:
        InputError: it is asked for where a compiler is missing, or the gradients of weights are found apart from those
            of inputs, which a compiled block finds together, or passes use several versions of the weights.
    """
    wanted = device == "cuda" if asked is None else asked
    missing = compilation_missing(device)
    if halves_backward(layout):
        missing = f"{layout.schedule} halves its backward pass"
    elif not layout.flushes:
        missing = f"{layout.schedule} changes the weights of a block from pass to pass"
    if not wanted or not missing:
        return wanted, ()
    if asked:
        raise InputError("cannot compile here", got=missing, allowed="--no-compile", where="--compile")
    return False, (f"eager, not compiled: {missing}",)


def checked_kernels(kernels: str, device: str) -> KernelChoice:
    """The kernels that were asked for.

    Raises:
        InputError: an unknown word, or Triton where it is not installed or, on a GPU, cannot compile.
    """
    if kernels not in list(KernelChoice):
        raise InputError("unknown kernels", got=repr(kernels), allowed=", ".join(KernelChoice), where="--kernels")
    if kernels == KernelChoice.TRITON:
        require("triton")
    if kernels == KernelChoice.TRITON and device == "cuda" and (missing := compilation_missing(device)):
        raise InputError("Triton cannot compile here", got=missing, allowed="torch", where="--kernels")
    return KernelChoice(kernels)


def checked_sharing(asked: bool, device: str, *, ranks: int, devices: int) -> tuple[bool, tuple[str, ...]]:
    """Whether ranks share GPUs, as more ranks than GPUs may where it is asked for; and in words what that changes.

    Raises:
        InputError: it is asked for without GPUs, or not asked for and needed.
    """
    if device != "cuda":
        if asked:
            raise InputError("no GPUs to share", got=device, allowed="cuda", where="--share-devices")
        return False, ()
    if ranks <= devices:
        return False, ()
    if not asked:
        allowed = f"at most {devices}, or with --share-devices, for exact figures and memory"
        raise InputError("more ranks than GPUs", got=ranks, allowed=allowed, where="--ranks")
    where = f"{devices} GPU{'s' if devices > 1 else ''} (rank modulo {devices})"
    return True, (f"{ranks} ranks share {where}, over gloo: times do not compare with ranks on own GPUs",)


# Tokens whose logits exist at once. Each part reads and writes the weight's gradient in fp32, 8 V D bytes, for 6 C V D
# flop: at an H100's data sheet (3.35 TB/s, 989 Tflop/s) 5 % of the products' time at C = 8192, and 19 % at 2048
LOSS_TOKENS = 8192
LEAST_CHUNKS = 2  # one part is the loss of all logits


def device_options(workload: Workload, device: str, *, compiled: bool, kernels: KernelChoice) -> TrainingOptions:
    """Options of a launch that is no rung of the ladder: on a GPU, whatever saves waits and needless passes.

    Batches are copied ahead from page-locked memory, but not those of a pipeline, which takes all of a step at once.
    Head and loss are computed in parts, where they are compiled. Bytes of a logit in bf16, beside the products:
        6 + 12    PyTorch's operators: widened to fp32; log-softmax, which reads twice
        4 + 20    backward: zeros, to which the targets are added; the gradient of log-softmax, which reads both twice
        6         rounded
        6         in place of these 48 a compiled part: it reads the logits twice and writes their gradient
    Not with a loss scale, by which parts do not multiply their 16-bit gradients; nor where
    tensor-parallel ranks hold a part of the vocabulary; Triton's kernels have parts of their own.
    """
    _, recipe, layout = workload
    if device != "cuda":
        return DEFAULT_OPTIONS
    in_parts = (
        compiled and kernels is KernelChoice.TORCH and not recipe.precision.scaled and layout.tensor_parallel == 1
    )
    tokens = layout.micro_batch * workload.architecture.sequence
    return TrainingOptions(
        rung="",
        pinned=layout.pipeline_stages == 1,
        loss_chunks=max(LEAST_CHUNKS, -(-tokens // LOSS_TOKENS)) if in_parts else 1,
    )
