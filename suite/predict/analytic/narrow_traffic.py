"""Bytes of data-parallel messages in a narrower format than the tensors that they bring, over those of the tensors."""

from __future__ import annotations

from reference_runs.run import Workload
from reference_runs.stack import Stack
from suite.predict.analytic.elementwise import chosen
from suite.predict.analytic.layer_time import ROUTED
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.product_formats import (
    OF_WHOLE_TENSORS,
    READS_FIRST,
    factor_element_bytes,
    products_in_format,
)
from suite.predict.analytic.stage_layers import stage_layer_kinds


def reductions_share(workload: Workload, stack: Stack, *, stage: int, axis: str) -> float:
    """Share of the bytes of reduced gradients, on every stage and axis: w / g if the stack reduces in 16 bit, else 1.

    With w bytes of a weight and g of a gradient as it is added up. Weights whose shards are fp32 are so in
    DistributedDataParallel too, and so are their gradients.
    """
    del stage, axis
    precision = workload.recipe.precision
    if not stack.reduces_in_16_bit or (stack.fp32_shards and workload.layout.zero_stage < 2):
        return 1.0
    return WEIGHT_ELEMENT_BYTES[precision] / BYTES_PER_PARAMETER[precision].gradients


def gathers_casts(workload: Workload, stack: Stack) -> bool:
    """Whether new weights are cast before they are gathered, once a step, where several ranks shard.

    An array where the layout's counts of ranks are.
    """
    return _casts_before(workload, stack) & (workload.layout.sharding_ranks > 1)


def _casts_before(workload: Workload, stack: Stack) -> bool:
    of_whole = workload.recipe.product_format in OF_WHOLE_TENSORS
    return stack.gathers_in_format and of_whole and workload.layout.zero_stage >= 1


def weight_casts_share(workload: Workload, stack: Stack) -> float:
    """Bytes of casting a step's new weights over those of `layer_casts`: 2 f / (r w + 2 f) where they arrive cast.

    Reading what was gathered and writing its transpose, of f bytes an element each, in place of reading w bytes r times
    (`cast_bytes`) and writing both. Of weights that each pass gathers anew (ZeRO-3) the backward pass alone needs the
    transpose: half of it. The cast of the own shard before the gather is left out.
    """
    if not _casts_before(workload, stack):
        return 1.0
    recipe, layout = workload.recipe, workload.layout
    narrow = factor_element_bytes(recipe.product_format)
    read = (1 + (recipe.product_format in READS_FIRST)) * WEIGHT_ELEMENT_BYTES[recipe.precision]
    share = 2 * narrow / (read + 2 * narrow)
    if layout.zero_stage == 3 and layout.reshard_after_forward:
        share = share / 2
    return chosen(gathers_casts(workload, stack), share, 1.0)


def gathers_share(workload: Workload, stack: Stack, *, stage: int, axis: str) -> float:
    """Share of the bytes of gathered weights: matrices in 8 bits in such a format; tables, norms and biases whole.

    1 - (1 - f / w) Psi' / Psi, with f bytes of an element in the format, Psi parameters of the rank that the ranks of
    `axis` gather, Psi' of them in such products. On the axis "edp" they are experts alone.

    Source: NeMo 1.23 and 2.0, core/optim/distributed_adam.py (buckets of 8-bit parameters have param_sync_dtype uint8).
    """
    if not _casts_before(workload, stack):
        return 1.0
    casts = gathers_casts(workload, stack)
    recipe = workload.recipe
    narrow = factor_element_bytes(recipe.product_format) / WEIGHT_ELEMENT_BYTES[recipe.precision]
    if axis == "edp":
        return chosen(casts, narrow, 1.0)
    architecture, layout = workload.architecture, workload.layout
    apart = layout.expert_parallel > 1
    rank = rank_parameters(architecture, layout, stage=stage)
    cast = 0
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        for part, (count, _, columns, depth) in products_in_format(workload._replace(architecture=kind)).items():
            if not (apart and kind.experts is not None and part in ROUTED):
                cast = cast + layers * count * columns * depth
    return chosen(casts, 1 - (1 - narrow) * cast / (rank.all - (rank.experts if apart else 0)), 1.0)
