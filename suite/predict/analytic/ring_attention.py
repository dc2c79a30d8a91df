"""Attention of parts of a sequence: keys and values that travel round the ring of context-parallel ranks.

Symbols: T tokens of a rank, c ranks of the ring, t tensor-parallel ranks, a heads of size d, k key-value heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.layout import CORE_ATTENTION, Layout, Recomputation
from reference_runs.run import Mask, Workload
from reference_runs.stack import ContextParallel, Stack
from suite.predict.analytic.elementwise import larger
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.micro_batch import micro_batch_tokens
from suite.predict.analytic.process_groups import Traffic, key_width
from suite.predict.analytic.stage_layers import stage_layers

OF_PYTORCH = (ContextParallel.PYTORCH, ContextParallel.PYTORCH_2_5)


class RingWork(NamedTuple):
    """Work of fused attention in a ring beyond that of one kernel over the whole sequence.

    Args:
        imbalance: blocks that the busiest rank computes, over the mean of all ranks.
        forward_bytes, backward_bytes: what one layer and micro-batch moves to add up the blocks' results.
    """

    imbalance: float
    forward_bytes: float
    backward_bytes: float


def ring_work(workload: Workload, stack: Stack) -> RingWork:
    """Imbalance, and bytes of adding up blocks, of the `context_parallel` that PyTorch has; of others 1 and 0.

    Where each rank has consecutive positions and the mask is causal, the last one computes c - 1 whole blocks and half
    of its own, c - 1 / 2 of c / 2 in the mean: (2 c - 1) / c. Halves from either end of the sequence (head and tail)
    are as much for each. With w bytes an element, of T a d / t elements:
        (w + 4) + 4 + w     the first block's output becomes fp32; the sum is cast back at the end
        (c - 1) (4 + w + 4) a block's output is weighed into the sum
        (c - 1) 4 w         keys and values are joined for each message, in both passes
        c (4 + w + 4)       gradients of queries, added up in fp32
        c 2 (4 + w + 4 + 8) those of keys and values: added to what came, and joined for the message

    Source: PyTorch 2.5.1, torch/distributed/tensor/experimental/_attention.py, _templated_ring_attention,
    _SDPAMerger and _is_causal_behavior, which skips blocks and so does not balance; 2.6.0, the same, _cp_options
    (enable_load_balance) (read). Copies of the halves that 2.6.0 adds up are left out.
    """
    layout, architecture = workload.layout, workload.architecture
    ranks = layout.context_parallel
    if stack.context_parallel not in OF_PYTORCH:
        return RingWork(1.0, 0.0, 0.0)
    consecutive = stack.context_parallel is ContextParallel.PYTORCH_2_5 and architecture.mask is Mask.CAUSAL
    w = WEIGHT_ELEMENT_BYTES[workload.recipe.precision]
    elements = (ranks > 1) * micro_batch_tokens(workload) * architecture.context_width / layout.tensor_parallel
    summed, joined = 2 * FP32 + w, (ranks - 1) * 4 * w
    return RingWork(
        (2 * ranks - 1) / ranks if consecutive else 1.0,
        elements * (2 * (w + FP32) + (ranks - 1) * summed + joined),
        elements * (ranks * (summed + 2 * (summed + 2 * FP32)) + joined),
    )


def attention_forwards(layout: Layout, layers: int) -> int:
    """Forward passes of `layers` layers' attention in a micro-batch, with those that recomputation repeats."""
    if layout.recomputation is Recomputation.SELECTIVE_OP:
        return layers
    again = layers if layout.recomputed >= CORE_ATTENTION else repeated_layers(layout.recomputation, layers)
    return layers + again


def context_parallel_traffic(workload: Workload, *, stage: int, micro_batches: int) -> Traffic:
    """Keys and values that one rank sends round its context-parallel ring in a step (ring attention).

    Keys and values of a rank's share of the sequence are 2 b s k d e / (c t) bytes, with k key-value heads of size d
    (at least one a rank), c ranks of the ring. For each layer and micro-batch, one message each:
        forward      c - 1   keys and values go round until every rank has seen every block
        backward     c - 1   keys and values again
                     c - 1   their gradients, gathered on the way home
        recomputed   c - 1   for each repeated pass, and with selective recomputation, which repeats the attention

    Source: Liu et al. 2023, arXiv 2310.01889, section 3 (a block is sent while the one before it is computed).
    c - 1 steps of each kind are Transformer Engine's: the backward ring starts at the block where the forward ring
    ended and turns the other way. Implementations that start at home send the gradients c times.
    Gradients of weights are reduced over dp and cp together (see `zero_traffic`).
    """
    architecture, recipe, layout = workload
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    layers = stage_layers(architecture, layout, stage=stage)
    forwards = attention_forwards(layout, layers)
    tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
    keys = key_width(architecture, tensor_parallel=layout.tensor_parallel)
    values = keys * (architecture.value_head_dim or architecture.head_dim) // architecture.head_dim
    block = tokens * (keys + values) * element
    messages = micro_batches * (layout.context_parallel - 1) * (forwards + 2 * layers)
    return Traffic("cp", "send", messages * block, messages)


def exposed_ring_seconds(
    workload: Workload,
    stack: Stack,
    seconds: float,
    *,
    kinds: Sequence[tuple[float, int]],
    backward_share: float,
    micro_batches: int,
) -> float:
    """Seconds of a step's context-parallel messages that attention does not hide.

    gathered     all: attention begins when the keys and values of all ranks are there
    ring         (c - 1) / c of both passes of attention hide them: a block travels while the one before it is computed
    PyTorch's    of each layer, with q seconds for a block of keys and values, and c - 1 of c blocks that hide:
                     (c - 1) q       in a forward pass
                     3 (c - 1) q     in the backward pass: the gradients' blocks are in fp32
                     2 q             the gradients' last message, during which nothing is computed
                 A block has as many heads as queries, since keys and values are repeated before attention.

    Source: Liu et al. 2023, arXiv 2310.01889, section 3; PyTorch 2.5.1, _templated_ring_attention_backward; torchtitan
    0.1.0, models/llama3/model/model.py, repeat_kv (read). From 2.6.0 on PyTorch gathers all further blocks while it
    computes the first: what a slow network then exposes is left out.

    Args:
        seconds: of all messages of `context_parallel_traffic`.
        kinds: of each kind of layer, seconds of a forward pass through its attention, and layers.
        backward_share: seconds of the backward pass over those of the forward pass.
    """
    ranks = workload.layout.context_parallel
    if stack.context_parallel is ContextParallel.GATHERED:
        return seconds
    share = (ranks - 1) / ranks
    if stack.context_parallel is ContextParallel.RING:
        both = (1 + backward_share) * sum(number * forward for forward, number in kinds)
        return larger(seconds - share * micro_batches * both, 0.0)
    architecture, tensor_parallel = workload.architecture, workload.layout.tensor_parallel
    layers = sum(number for _, number in kinds)
    forwards = attention_forwards(workload.layout, layers)
    messages = micro_batches * (ranks - 1) * (forwards + 2 * layers)
    repeated = architecture.query_width / tensor_parallel / key_width(architecture, tensor_parallel=tensor_parallel)
    block = repeated * seconds / larger(messages, 1)
    exposed = 0.0
    for forward, number in kinds:
        passes = number * forwards / larger(layers, 1)
        exposed = exposed + passes * larger((ranks - 1) * block - share * forward, 0.0)
        hides = share * backward_share * forward
        exposed = exposed + number * (larger(3 * (ranks - 1) * block - hides, 0.0) + 2 * block)
    return micro_batches * exposed
