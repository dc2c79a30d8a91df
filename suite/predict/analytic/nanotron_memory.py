"""Peak memory of a rank as nanotron's log prints it: the state, and what else the framework keeps or leaves unused.

Read in nanotron 0.4, except `KEPT_LOGIT_BYTES` and the streams, which 527 published peaks of a model of 1B show. Blocks
are dealt to stages by cost, the head counted (see `balanced_stages`). What is published is `max_memory_reserved` of
world rank 0, on the first stage: `log_memory` resets the other counter before the update, so it would not grow with the
micro-batch. CUDA's and NCCL's own memory are left out.
Source: nanotron 0.4 (PyPI): optim/gradient_accumulator.py, distributed.py, models/llama.py, parallel/, helpers.py.
Not predicted: how far the host is ahead: no column has it, nor does the machine model; of 453 rows with t > 1,
39 are more than 20 % away for it.

Symbols: N parameters of the rank, n ranks over which ZeRO shards, L layers of the stage, F micro-batches in flight,
T tokens of a micro-batch, h hidden, f feed-forward width, V vocabulary rows, t tensor-parallel ranks, p stages, m
micro-batches of a step, e bytes of an element, u = e T h bytes of the residual stream unsharded.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout, Offload
from reference_runs.placement import balanced_stages
from reference_runs.run import Architecture, Workload
from suite.machine.gpu import H100, cublas_workspace_bytes
from suite.predict.analytic.activations import kept_units, micro_batch_bytes, micro_batch_tokens, recomputed_bytes
from suite.predict.analytic.memory import (
    WEIGHT_ELEMENT_BYTES,
    optimizer_shards,
    shard_elements,
    state_bytes,
    state_ranks,
)
from suite.predict.analytic.parameters import layer_tensors, outer_tensors, total_elements
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, micro_batches_in_flight

PASS_GRADIENT_BYTES = 2  # a parameter: `FP32GradientAccumulator.backward` adds 16-bit gradients at the end of a pass
BUCKET_GRADIENT_BYTES = 2  # a parameter: DistributedDataParallel's buckets, where nothing is sharded and n > 1
GATHERED_WEIGHT_BYTES = 2  # a parameter: ZeRO-1's `all_gather_coalesced` gathers lists into one flat tensor, longer
# than any segment that activations leave, so it has a segment of its own
FORWARD_LOGIT_BYTES = 8  # a logit: `cast_to_fp32`, and `sharded_logits - logits_max` next to it
BACKWARD_LOGIT_BYTES = 6  # a logit: the softmax in fp32, and its gradient cast to 16 bit
# A logit: one fp32 tensor of the micro-batch before; what holds it was not found in the source. Of the rows with
# t = p = 1 and ZeRO-1, the 8 with m > 1 are 2.0 GiB a sample above the 2 with m = 1: 4 T V
KEPT_LOGIT_BYTES = 4
# cuBLAS's workspaces, of Python's thread and of autograd's: 32 MiB each on Hopper, 8.1 MiB before it
WORKSPACE_BYTES = 2 * cublas_workspace_bytes(H100)
# Unsharded streams of a layer: in flight, and of the backward pass before. Counted in the rows, not in the source; an
# explanation: what a collective reads and writes is its stream's until it has run, so a host that runs ahead gets new
# memory for each. Replayed by the rules of the allocator, p = 1 and t = 16 have 51 with a host that is 1,024 launches
# ahead, and none with one that waits. A layer gathers two inputs. At p = 1, where the host waits once a step, 105 rows
# with t >= 4 and several micro-batches have 47 streams in the median where the formula has 48; 17 with one micro-batch
# have 36 where it has 32; 23 with t = 2 have 16
FORWARD_STREAMS, BACKWARD_STREAMS = 2, 1
# Tokens of a micro-batch over t, from which on a pipeline's host is ahead. Fitted: 40 rows with p > 1 have as many or
# more, and 1.1 times these streams in the median
BUSY_TOKENS = 16384
# A later stage, where the host is not ahead. Fitted, for the least mean error: it waits for what it receives. 227 rows
# have 8 in the median on the first stage, half of them from 4.5 to 13.4
STAGE_STREAMS = 7
# Where tensor parallelism spans more than 16 ranks. Fitted: 41 rows over 32 ranks have 9 in the median, half of them 7
# to 12
DISTANT_STREAMS, NEAR_RANKS = 8, 16


def stage_parameters(architecture: Architecture, layout: Layout, *, stage: int) -> int:
    """Parameters of a rank of one stage; a tied embedding is stored again where the head stands without it."""
    blocks = balanced_stages(architecture, stages=layout.pipeline_stages)[stage]
    t = layout.tensor_parallel
    layer = total_elements(layer_tensors(architecture, tensor_parallel=t))
    before, after = outer_tensors(architecture, tensor_parallel=t)
    norms = total_elements(after if architecture.tied_embeddings else after[:-1])
    separate_head = blocks.head and not (architecture.tied_embeddings and blocks.embedding)
    return (
        blocks.layers * layer
        + blocks.embedding * total_elements(before)
        + blocks.norm * norms
        + separate_head * before[0].elements
    )


class NanotronMemory(NamedTuple):
    """Bytes on a rank at the fullest instant of a step.

    Args:
        state: weights, accumulated gradients and optimizer state.
        copies: gradients of one pass or their buckets, and gathered weights.
        activations: of all micro-batches in flight.
        at_loss: logits where the forward pass of the last block ends.
        backward: what the backward pass adds where it begins: gradients of one pass, and the larger of the logits'
            and the first layer's working set.
        streams: unsharded streams that collectives still hold.
        workspaces: of cuBLAS.
    """

    state: float
    copies: float
    activations: float
    at_loss: float
    backward: float
    streams: float
    workspaces: float = WORKSPACE_BYTES

    @property
    def needed(self) -> float:
        """Bytes without which the step does not run: streams are waited for before an allocation fails."""
        return self.state + self.copies + self.activations + max(self.at_loss, self.backward) + self.workspaces

    def peak(self, device_bytes: float | None = None) -> float:
        """Bytes reserved at most; the streams count only where they fit on a device of `device_bytes`.

        Source: CUDACachingAllocator.cpp, release_cached_blocks: before it fails it waits for all events and frees.
        4 published layouts with 44 to 63 GiB ran that would need 83 to 146 with the streams, 32 to 50 without.
        """
        whole = self.needed + self.streams
        return self.needed if device_bytes is not None and whole > device_bytes else whole


def held_streams(architecture: Architecture, layout: Layout, *, stage: int, layers: int, micro_batches: int) -> float:
    """Unsharded streams that collectives of sequence parallelism hold at the peak of a stage with L layers.

        (2 F + 1) L     p = 1, or T / t of 16384 and more; 2 F L where m = 1, with no backward pass before
        7 (p - 1 - k)   else, on stage k; 8 where tensor parallelism spans more than 16 ranks

    None without sequence parallelism, at t = 1, and on a stage without layers.
    """
    t, stages = layout.tensor_parallel, layout.pipeline_stages
    if t == 1 or not layout.sequence_parallel or not layers:
        return 0
    tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
    if stages == 1 or tokens >= BUSY_TOKENS * t:
        in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
        return (FORWARD_STREAMS * in_flight + (micro_batches > 1) * BACKWARD_STREAMS) * layers
    return DISTANT_STREAMS if t > NEAR_RANKS else STAGE_STREAMS * (stages - 1 - stage)


def nanotron_memory(workload: Workload, *, stage: int, micro_batches: int) -> NanotronMemory:
    """Bytes on a rank of pipeline stage `stage` (from 0), by part.

        state         `state_bytes` of N, the optimizer's part over n
        copies        2 N of DDP's buckets or of gathered weights
        activations   F L times `micro_batch_bytes` of a layer, of which 24 e T h / t are a gated layer's with f = 4 h,
                      and e T a d / t more where the context is copied; embedding, final norm and head
        at loss       (8 + 4) T V / t      4 where m > 1
        backward      2 N, and the larger of
                      (6 + 4) T V / t      the head
                      g e T f / t + 2 e T h / t    the last layer: gradients of the expansion, beyond what they free
                                                   (g = 2 gated, else 1), and of its input and output
                      and what is computed again
        streams       u times `held_streams`
        workspaces    64 MiB

    F is `micro_batches_in_flight`.

    Raises:
        ValueError: what is not described: ZeRO-2 and 3, offloading, schedules without flush, virtual stages.
    """
    architecture, recipe, layout = workload
    if architecture.experts is not None or architecture.key_value_rank is not None:
        raise ValueError("nanotron_memory describes dense layers with plain attention")
    if layout.zero_stage > 1 or layout.offload is not Offload.NONE or layout.schedule in NO_FLUSH:
        raise ValueError("nanotron_memory describes ZeRO-0 and 1 with a flush and without offloading")
    if layout.virtual_stages > 1:
        raise ValueError(f"balanced stages have no virtual stages, got {layout.virtual_stages}")
    blocks = balanced_stages(architecture, stages=layout.pipeline_stages)[stage]
    parameters = stage_parameters(architecture, layout, stage=stage)
    several, shards = state_ranks(layout) > 1, optimizer_shards(layout)
    state = state_bytes(parameters, recipe.precision, optimizer=shard_elements(parameters, shards)).all
    copied = GATHERED_WEIGHT_BYTES if shards > 1 else several * BUCKET_GRADIENT_BYTES

    element, t = WEIGHT_ELEMENT_BYTES[recipe.precision], layout.tensor_parallel
    tokens = micro_batch_tokens(workload)
    unit = micro_batch_bytes(workload)
    stream = element * tokens * architecture.hidden
    context = element * tokens * architecture.query_width // t if layout.micro_batch > 1 else 0
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    each = (unit.unit + context) * kept_units(layout, layers=blocks.layers) + blocks.embedding * unit.embedding
    activations = in_flight * each + blocks.head * unit.head

    logits = blocks.head * tokens * architecture.padded_vocabulary // t
    kept = KEPT_LOGIT_BYTES * (micro_batches > 1)
    expansions = 2 if architecture.activation.gated else 1
    layer = expansions * element * tokens * architecture.ffn_hidden // t + 2 * stream // t
    working = (blocks.layers > 0) * layer + recomputed_bytes(unit, layout, layers=blocks.layers)
    return NanotronMemory(
        state=state,
        copies=copied * parameters,
        activations=activations,
        at_loss=(FORWARD_LOGIT_BYTES + kept) * logits,
        backward=PASS_GRADIENT_BYTES * parameters + max((BACKWARD_LOGIT_BYTES + kept) * logits, working),
        streams=stream
        * held_streams(architecture, layout, stage=stage, layers=blocks.layers, micro_batches=micro_batches),
    )


def fullest_peak(workload: Workload, *, micro_batches: int, device_bytes: float | None = None) -> float:
    """Bytes on a rank of the fullest stage."""
    return max(
        nanotron_memory(workload, stage=stage, micro_batches=micro_batches).peak(device_bytes)
        for stage in range(workload.layout.pipeline_stages)
    )
