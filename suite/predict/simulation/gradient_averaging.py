"""Averaging over the data-parallel ranks as it is executed here: bytes, messages, and 1-bit Adam's state."""

from __future__ import annotations

import re
from collections import Counter

from reference_runs.run import Workload
from suite.job.options import POWER_SGD_RANK, Averaging
from suite.predict.analytic.memory import FP32
from suite.predict.analytic.one_bit_compression import compressed_all_reduce_traffic, error_feedback_bytes
from suite.predict.analytic.parameters import ParameterTensor
from suite.predict.analytic.process_groups import Traffic
from suite.predict.simulation.state import parameter_tensors_of_rank, shared_table

HALF = 2  # bytes of fp16 and bf16
POWER_SGD_MESSAGES = 3  # of a bucket: what is not compressed, P, Q; empty ones too
POWER_SGD_LEAST_RATE = 2  # below which PyTorch sends a matrix as it is


def one_bit_vectors(workload: Workload, *, stage: int) -> tuple[list[int], int]:
    """How 1-bit Adam divides a rank's parameters: elements of each compressed vector, and of all others together.

    The matrices of a layer are one vector; biases, norms and the tables outside the layers are exact.
    """
    vectors: Counter[str] = Counter()
    exact = 0
    for tensor in parameter_tensors_of_rank(workload.architecture, workload.layout, stage=stage):
        layer = re.match(r"blocks\.\d+\.", tensor.name)
        if tensor.matrix and layer:
            vectors[layer[0]] += tensor.elements
        else:
            exact += tensor.elements
    return list(vectors.values()), exact


def one_bit_state_bytes(workload: Workload, *, stage: int) -> int:
    """Bytes that 1-bit Adam keeps on a rank beyond `executed_state`: the errors."""
    compressed, _ = one_bit_vectors(workload, stage=stage)
    return sum(error_feedback_bytes(elements, ranks=workload.layout.state_ranks) for elements in compressed)


def averaging_traffic(
    workload: Workload, *, stage: int, averaging: Averaging, buckets: list[int], element_bytes: int
) -> list[Traffic]:
    """Collectives of one rank over "dp" to average once, scalars left out.

    With N elements in `buckets` of `element_bytes` each:
        exact           all_reduce    the buckets
        fp16, bf16      all_reduce    2 N, a message a bucket
        powersgd        all_reduce    4 (rows + columns) r for each matrix that shrinks to half or less, with
                                      r = min(4, rows, columns), its other elements as they are; 3 messages a bucket
        one-bit-adam    `compressed_all_reduce_traffic` of `one_bit_vectors`, an all_reduce of the exact ones in fp32

    Source: torch/distributed/algorithms/ddp_comm_hooks, default_hooks.py and powerSGD_hook.py (_should_compress);
    Vogels et al. 2019, arXiv 1905.13727, algorithm 1.
    """
    if averaging is Averaging.ONE_BIT:
        compressed, others = one_bit_vectors(workload, stage=stage)
        exact = Traffic("dp", "all_reduce", FP32 * others, 1 if others else 0)
        return [*compressed_all_reduce_traffic(compressed, ranks=workload.layout.state_ranks), exact]
    if averaging is Averaging.POWER_SGD:
        tensors = parameter_tensors_of_rank(workload.architecture, workload.layout, stage=stage)
        elements = sum(_power_sgd_elements(tensor) for tensor in tensors)
        return [Traffic("dp", "all_reduce", element_bytes * elements, POWER_SGD_MESSAGES * len(buckets))]
    share = HALF / element_bytes if averaging in (Averaging.FP16, Averaging.BF16) else 1
    return [Traffic("dp", "all_reduce", round(share * sum(buckets)), len(buckets))]


def replica_traffic(workload: Workload, *, stage: int, element_bytes: int) -> list[Traffic]:
    """All-reduces of gradients by a replica of a stage without flush, once an update.

    A message for the weights that decay, one for the others, and one for a table that another stage has too: none where
    stages differ in replicas, all of which sum it at once ("embedding").
    """
    tensors = parameter_tensors_of_rank(workload.architecture, workload.layout, stage=stage)
    shared = shared_table(workload)
    if workload.layout.stage_replicas is not None:
        tensors = [each for each in tensors if each.name not in shared]
    groups = {(each.matrix or workload.recipe.decay_of_vectors, each.name in shared) for each in tensors}
    payload = element_bytes * sum(each.elements for each in tensors)
    return [Traffic("dp", "all_reduce", payload, len(groups))]


def _power_sgd_elements(tensor: ParameterTensor) -> int:
    columns = tensor.elements // tensor.rows
    factors = (tensor.rows + columns) * min(POWER_SGD_RANK, tensor.rows, columns)
    return factors if factors * POWER_SGD_LEAST_RATE < tensor.elements else tensor.elements
