"""Bytes of weights, gradients and optimizer state on one rank."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Precision, Recipe
from suite.predict.parameters import parameter_tensors

FP32 = 4
WEIGHT_ELEMENT_BYTES = {Precision.FP32: 4, Precision.BF16: 2}
STEP_COUNTER_BYTES = 4  # torch.optim.AdamW keeps one fp32 counter a parameter tensor that it updates


def group_elements(architecture: Architecture, recipe: Recipe) -> list[int]:
    """Parameters of each optimizer group: those with weight decay, then those without; empty groups left out.

    Matrices decay. Vectors (biases, LayerNorm) decay only where the recipe says so.
    """
    decaying = still = 0
    for tensor in parameter_tensors(architecture):
        if tensor.matrix or recipe.decay_of_vectors:
            decaying += tensor.elements
        else:
            still += tensor.elements
    return [elements for elements in (decaying, still) if elements]


def shard_elements(elements: int, shards: int) -> int:
    """Elements of one shard when `elements` are padded to a multiple of `shards` and split evenly: ceil(N / n)."""
    return -(-elements // shards)


def optimizer_shards(layout: Layout) -> int:
    """Ranks that share one copy of the optimizer state: the data-parallel axis from ZeRO-1 on, otherwise 1."""
    return layout.data_parallel if layout.zero_stage >= 1 else 1


def weight_bytes(architecture: Architecture, recipe: Recipe, layout: Layout) -> int:
    """Bytes of weights on one rank: w per parameter, each optimizer group padded to a multiple of its shards.

    w is 4 in fp32 and 2 in bf16; fp32 master weights belong to the optimizer.
    """
    n = optimizer_shards(layout)
    stored = sum(n * shard_elements(elements, n) for elements in group_elements(architecture, recipe))
    return WEIGHT_ELEMENT_BYTES[recipe.precision] * stored


def gradient_bytes(architecture: Architecture) -> int:
    """Bytes of gradients on one rank: 4 N, accumulated in fp32 and not sharded below ZeRO-2.

    Source: BigScience, train/tr11-176B-ml/README.md, section "Deepspeed config" (4 bytes a parameter, unsharded).
    """
    return FP32 * sum(tensor.elements for tensor in parameter_tensors(architecture))


def optimizer_bytes(architecture: Architecture, recipe: Recipe, layout: Layout) -> int:
    """Bytes of optimizer state on one rank.

    For each group of N elements over n shards, with k = ceil(N / n):
        8 k   first and second moment in fp32
        4 k   master weights, where the weights themselves are not fp32
        4     the step counter

    So bf16 training holds 2 + 4 + 12 = 18 bytes a parameter on one rank, and 6 + 12 / n with ZeRO-1 over n.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 counts 12 bytes of state (K = 12) and gradients of
    2 bytes, hence 16; accumulating gradients in fp32 makes it 18.
    """
    n = optimizer_shards(layout)
    element = 2 * FP32 + (0 if recipe.precision is Precision.FP32 else FP32)
    return sum(
        element * shard_elements(elements, n) + STEP_COUNTER_BYTES for elements in group_elements(architecture, recipe)
    )
