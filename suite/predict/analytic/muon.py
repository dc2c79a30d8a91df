"""Muon: what it keeps of the layers' matrices, and the products that orthogonalise its updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reference_runs.run import Architecture, Workload
from suite.predict.analytic.elementwise import larger, smaller
from suite.predict.analytic.gemm import gemm_flop, product_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import expert_shards, optimizer_shards
from suite.predict.analytic.parameters import ParameterTensor, Spread, layer_tensors
from suite.predict.analytic.stage_layers import stage_layer_kinds

ITERATIONS = 5  # Newton-Schulz: Jordan et al. 2024; PyTorch's default; GLM-4.5's (arXiv 2508.06471, section 2.4)
ELEMENT_BYTES = 2  # they are in bf16


class Orthogonalised(NamedTuple):
    """So many matrices of one shape on a rank, whose state so many ranks share.

    Args:
        short: rows or columns, whichever are fewer.
    """

    matrices: float
    short: int
    long: int
    shards: int


def momentum_elements(workload: Workload, *, stage: int) -> float:
    """Elements in the matrices of a rank's layers, which Muon updates; routers and experts are among them."""
    return sum(layers * tensor.elements for tensor, layers, _ in _matrices(workload, stage=stage))


def orthogonalised(workload: Workload, *, stage: int) -> list[Orthogonalised]:
    """The matrices that Muon orthogonalises on a rank of a stage, those that are stored as one taken apart.

    Queries, keys and values are three, both halves of a gated expansion two, and each expert's its own. A
    tensor-parallel rank's part of a matrix counts as a matrix.
    """
    layout, sharded = workload.layout, workload.layout.zero_stage >= 1
    found = []
    for tensor, layers, kind in _matrices(workload, stage=stage):
        of_experts = tensor.spread is Spread.EXPERTS
        shards = expert_shards(layout) if of_experts and sharded else optimizer_shards(layout)
        copies = (kind.experts or 1) // layout.expert_parallel if of_experts else 1
        columns = tensor.elements // tensor.rows
        for rows in _parts(tensor, kind, copies):
            found.append(Orthogonalised(layers * copies, smaller(rows, columns), larger(rows, columns), shards))
    return found


def orthogonalisation_flop(matrices: Orthogonalised) -> float:
    """Flop of the iterations over one rank's share of these matrices.

    5 (2 n^2 m + 2 n^3 + 2 n^2 m) each, n the shorter and m the longer side: X X^T, its square, and their sum times X.
    Source: torch/optim/_muon.py, _zeropower_via_newtonschulz; Jordan et al. 2024.
    """
    n, m = matrices.short, matrices.long
    each = 2 * gemm_flop(M=n, N=m, K=n) + gemm_flop(M=n, N=n, K=n)
    return ITERATIONS * matrices.matrices * each / matrices.shards


def orthogonalisation_seconds(workload: Workload, machine: Machine, *, stage: int) -> float:
    """Seconds of Muon's iterations on a rank of a stage; 0 with other optimizers.

    `orthogonalisation_flop` by the products' sizes. Each matrix is orthogonalised by one of the ranks that share its
    state, in turns. Gathering what they hold of it is left out: at most another all-gather of the 16-bit weights.
    Source: Liu et al. 2025, arXiv 2502.16982, section 2.3 (Distributed Muon).
    """
    if not workload.recipe.orthogonalises:
        return 0.0
    return sum(
        ITERATIONS * each.matrices / each.shards * _iteration_seconds(machine, each.short, each.long)
        for each in orthogonalised(workload, stage=stage)
    )


def _iteration_seconds(machine: Machine, short: int, long: int) -> float:
    sizes = ((short, short, long), (short, short, short), (short, long, short))
    return sum(
        product_seconds(
            M=rows,
            N=columns,
            K=depth,
            element_bytes=ELEMENT_BYTES,
            table=machine.matrix_efficiency,
            peak_flop_per_second=machine.peak_flop_per_second,
            memory_bytes_per_second=machine.achievable_memory_bytes_per_second,
            saturation=machine.matrix_saturation,
            overlap=machine.product_overlap,
        )[0]
        for rows, columns, depth in sizes
    )


def _matrices(workload: Workload, *, stage: int) -> Iterator[tuple[ParameterTensor, int, Architecture]]:
    """The matrices of one layer of each kind on a rank, how many such layers the stage has, and their kind."""
    architecture, layout = workload.architecture, workload.layout
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        tensors = layer_tensors(kind, tensor_parallel=layout.tensor_parallel, expert_parallel=layout.expert_parallel)
        yield from ((tensor, layers, kind) for tensor in tensors if tensor.matrix)


def _parts(tensor: ParameterTensor, kind: Architecture, copies: int) -> list[int]:
    """Rows of the matrices that are stored as one tensor: of one expert's where it has those of several."""
    rows = tensor.rows // copies
    if tensor.name == "attention.query_key_value.weight":
        queries = rows * kind.heads * (1 + kind.attention_gate)
        queries = queries // (kind.heads * (1 + kind.attention_gate) + 2 * kind.kv_heads)
        return [queries, (rows - queries) // 2, (rows - queries) // 2]
    if tensor.name.endswith("expansion.weight") and "feed_forward" in tensor.name and kind.activation.gated:
        return [rows // 2, rows // 2]
    return [rows]
