"""Products in formats of 8 and 4 bits: which run in them, bytes of what is cast, and what is kept in them.

Symbols as in `suite.predict.analytic.activations`; e bytes of an element that is cast (2 in 16 bit).
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout, Offload
from reference_runs.run import ProductFormat, Workload
from suite.predict.analytic.elementwise import ceil_division, chosen
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES

BLOCK = 128  # elements of a block of fp8-blockwise, and rows of a block of weights
MX_BLOCK = 32
NVFP4_BLOCK = 16
# products that stay in the dtype of the precision
OF_ATTENTION = ("attention scores", "attention context", "attention state", "attention update")
OF_ADAPTERS = ("adapter inputs", "adapter outputs")
WIDER = ("router", "shared gate", *OF_ATTENTION, *OF_ADAPTERS)
SAME_INPUT = ("key, value compression",)  # parts whose input an earlier one has cast
AFTER_NORMS = ("query, key, value", "expansion")  # parts whose input a norm puts out
SUMMED = ("projection", "contraction")  # parts whose output tensor-parallel ranks add up
# One scale for a whole weight: each shard is cast alone, and the transpose is made of 8-bit elements after a gather.
OF_WHOLE_TENSORS = (ProductFormat.FP8_DELAYED, ProductFormat.FP8_CURRENT)
# formats whose scale of a whole tensor follows from its own elements, which are read for it first
READS_FIRST = (ProductFormat.FP8_CURRENT, ProductFormat.NVFP4)


def format_bytes(product_format: ProductFormat, *, rows: int, columns: int, is_weight: bool = False) -> int:
    """Bytes of a matrix of R x C elements in this format with its scales, whose blocks lie along the rows.

        fp8-delayed, fp8-current    R C + 4
        fp8-blockwise               R C + 4 R ceil(C / 128); of a weight R C + 4 ceil(R / 128) ceil(C / 128)
        mxfp8                       R C + R ceil(C / 32)
        nvfp4                       ceil(R C / 2) + R ceil(C / 16) + 4

    Source: as `ProductFormat`. Padding of the scales to tiles of 128 x 4 (cuBLAS) is left out.

    Raises:
        ValueError: the format "none".
    """
    elements = rows * columns
    match product_format:
        case ProductFormat.FP8_DELAYED | ProductFormat.FP8_CURRENT:
            return elements + FP32
        case ProductFormat.FP8_BLOCKWISE:
            blocks = ceil_division(rows, BLOCK) if is_weight else rows
            return elements + FP32 * blocks * ceil_division(columns, BLOCK)
        case ProductFormat.MXFP8:
            return elements + rows * ceil_division(columns, MX_BLOCK)
        case ProductFormat.NVFP4:
            return ceil_division(elements, 2) + rows * ceil_division(columns, NVFP4_BLOCK) + FP32
    raise ValueError("none is no format of its own")


def both_orientations_bytes(product_format: ProductFormat, *, rows: int, columns: int, is_weight: bool = False) -> int:
    """Bytes of a matrix and of its transpose in this format.

    Each matrix is a factor of two products, which add up along its columns in one and along its rows in the other.
    Blocks lie along that sum, and Hopper's fp8 products take factors whose sum is along memory alone.
    """
    return format_bytes(product_format, rows=rows, columns=columns, is_weight=is_weight) + format_bytes(
        product_format, rows=columns, columns=rows, is_weight=is_weight
    )


def factor_element_bytes(product_format: ProductFormat) -> float:
    """Bytes of one element of a large factor with its part of the block's scale."""
    each = {
        ProductFormat.FP8_BLOCKWISE: 1 + FP32 / BLOCK,
        ProductFormat.MXFP8: 1 + 1 / MX_BLOCK,
        ProductFormat.NVFP4: 0.5 + 1 / NVFP4_BLOCK,
    }
    return each.get(product_format, 1.0)


def cast_bytes(
    product_format: ProductFormat,
    *,
    rows: int,
    columns: int,
    element: int,
    is_weight: bool = False,
    fused_chains: bool = False,
) -> int:
    """Bytes that casting a matrix of R x C elements moves: one kernel reads it and writes both orientations.

    e R C                        reading it
    e R C                        reading it first for its largest element: fp8-current and nvfp4; not where a compiler
                                 finds that one in the kernel that writes the matrix (`fused_chains`)
    `both_orientations_bytes`    writing
    """
    written = both_orientations_bytes(product_format, rows=rows, columns=columns, is_weight=is_weight)
    reads = 1 + (product_format in READS_FIRST and not fused_chains)
    return reads * element * rows * columns + written


def cast_kernels(product_format: ProductFormat) -> int:
    """Kernels that cast one matrix."""
    return 1 + (product_format in READS_FIRST)


def products_in_format(workload: Workload) -> dict[str, tuple[int, int, int, int]]:
    """Parts of `layer_products` that are computed in the recipe's product format; none where it is "none"."""
    if not workload.recipe.product_format.casts:
        return {}
    return {part: sizes for part, sizes in layer_products(workload).items() if part not in WIDER}


class LayerCasts(NamedTuple):
    """Bytes that one rank's casts move in one layer and micro-batch, and how many matrices are cast, by pass.

    Args:
        inputs: of the products, in the forward pass, and again where that is repeated.
        gradients: of the products' outputs, in the backward pass.
        weights: of all of the layer's matrices, once.
    """

    inputs: int
    gradients: int
    weights: int
    input_matrices: int
    gradient_matrices: int


def layer_casts(workload: Workload, *, transformer_engine: bool = False, fused_chains: bool = False) -> LayerCasts:
    """Casts of one layer: of each product's input, of its output's gradient, and of its weight.

    Of M x K by K x N (`layer_products`): M x K, M x N and N x K. Products that read the same tensor share its cast
    (the compressions of latent attention; both branches of a block with one norm); each expert's rows are a matrix of
    their own. Nothing is fused with norms and activations: a kernel that does both reads less.
    With `transformer_engine`, fp8-delayed, and t tensor-parallel ranks under sequence parallelism (else t = 1):
        inputs that are a norm's output    the norm writes them in the format; for the weight's gradient they are
                                           transposed in the backward pass: 2 M K (that the norm writes a byte less an
                                           element is left out)
        gradients of outputs that are summed over ranks    (e + 1) M N / t before they are gathered, and transposed
                                           then: 2 M N; where nothing is gathered one kernel does both
    With `transformer_engine`, in any format, experts besides copy their input to pad the tokens of each to a multiple
    of 16, and their output without the padding: 2 e S h each for S tokens, and as much in the backward pass.
    Source: Transformer Engine, pytorch/module/layernorm_linear.py, linear.py, and base.py, grad_output_preprocess
    (known code). Scales of the other formats need the whole norm's output, or its blocks along both directions.
    Experts: Megatron-Core 0.11, core/transformer/moe/experts.py, TEGroupedMLP (fp8_padding, fp8_unpadding).
    """
    product_format, element = workload.recipe.product_format, WEIGHT_ELEMENT_BYTES[workload.recipe.precision]
    parts, a = products_in_format(workload), workload.architecture
    same = (*SAME_INPUT, "expansion" if a.experts is None else "shared expansion") if a.shared_norm else SAME_INPUT
    fused = transformer_engine and product_format is ProductFormat.FP8_DELAYED
    shards = workload.layout.tensor_parallel if workload.layout.sequence_parallel else 1
    inputs = gradients = weights = matrices = 0
    for part, (count, rows, columns, depth) in parts.items():
        dense = a.experts is None or part in ("query, key, value", "projection")
        if part not in same:
            if fused and dense and part in AFTER_NORMS:
                gradients = gradients + count * 2 * format_bytes(product_format, rows=rows, columns=depth)
            else:
                inputs = inputs + count * cast_bytes(
                    product_format, rows=rows, columns=depth, element=element, fused_chains=fused_chains
                )
            matrices = matrices + count
        written = cast_bytes(product_format, rows=rows, columns=columns, element=element, fused_chains=fused_chains)
        if fused and dense and part in SUMMED:
            whole = format_bytes(product_format, rows=rows, columns=columns)
            gathered = (element * rows * columns + whole) // shards + 2 * whole
            written = chosen(shards > 1, gathered, written)
        gradients = gradients + count * written
        weights = weights + count * cast_bytes(
            product_format, rows=columns, columns=depth, element=element, is_weight=True
        )
    if transformer_engine and a.experts is not None and parts:
        count, rows, _, hidden = parts["expansion"]
        padded = 2 * 2 * element * count * rows * hidden
        inputs, gradients = inputs + padded, gradients + padded
    return LayerCasts(inputs, gradients, weights, matrices, sum(count for count, *_ in parts.values()))


def weight_casts(layout: Layout, *, micro_batches: int) -> int:
    """How often a step casts each weight: once, as copies stay; with ZeRO-3 each time that it is gathered."""
    if layout.zero_stage < 3:
        return 1
    return (2 if layout.reshard_after_forward else 1) * micro_batches


def layer_weight_copies_bytes(workload: Workload, *, primary: bool = False) -> int:
    """Bytes of the copies of one layer's weights in the products' format, both orientations, that a rank holds.

    They last for the step, next to the weights of the precision; 0 where those are gathered or fetched layer by layer.
    With `primary` and ZeRO-1 of whole-tensor scales they take the place of those: w bytes a weight less, so that both
    orientations are about what 16-bit weights alone would be.

    Source: Transformer Engine, pytorch/module/linear.py (workspaces of weights, is_first_microbatch); NeMo 2.0,
    recipes/precision/mixed_precision.py (fp8_params), Transformer Engine, fp8_model_init (known code).
    """
    recipe, layout = workload.recipe, workload.layout
    if layout.zero_stage == 3 or layout.offload is Offload.STATE:
        return 0
    in_place = primary and recipe.product_format in OF_WHOLE_TENSORS
    dropped = WEIGHT_ELEMENT_BYTES[recipe.precision] * in_place * (layout.zero_stage == 1)
    return sum(
        count
        * (
            both_orientations_bytes(recipe.product_format, rows=columns, columns=depth, is_weight=True)
            - dropped * columns * depth
        )
        for count, _, columns, depth in products_in_format(workload).values()
    )
