"""Seconds of experts' matrix multiplications beyond those of their sizes."""

from __future__ import annotations

from reference_runs.run import Workload
from reference_runs.stack import Accumulation
from suite.predict.analytic.gemm import ProductTables, gemm_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.product_formats import factor_element_bytes


def adding_seconds(workload: Workload, machine: Machine, sizes: tuple[int, int, int], *, in_format: bool) -> float:
    """Seconds more of the product that gives an expert's weight its gradient, where it adds that to a sum.

    It reads and writes 2 g bytes an element of the sum in place of writing w. An expert's few rows leave little
    arithmetic to hide them; in other layers they are part of what `product_exposure` was fitted to.

    Args:
        sizes: M, N and K of the forward product M x K by K x N; the gradient's is K x M by M x N.
        in_format: the factors are in the format of the recipe's products.
    """
    if machine.stack.accumulation is not Accumulation.IN_PRODUCT:
        return 0.0
    M, N, K = sizes
    precision, table = workload.recipe.precision, machine.matrix_efficiency
    element = WEIGHT_ELEMENT_BYTES[precision]
    rest = (
        table.weight_gradient if isinstance(table, ProductTables) else table,
        machine.product_rate(in_format=in_format),
        machine.achievable_memory_bytes_per_second,
        machine.matrix_saturation,
        machine.product_overlap,
        factor_element_bytes(workload.recipe.product_format) if in_format else element,
    )
    added = int(2 * BYTES_PER_PARAMETER[precision].gradients)
    return gemm_seconds(K, N, M, added, *rest) - gemm_seconds(K, N, M, element, *rest)
