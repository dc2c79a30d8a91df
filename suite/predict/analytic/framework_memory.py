"""Peak memory of a rank as a framework's log prints it: the state, and what else the framework keeps or leaves unused.

Symbols: N parameters of the rank, n ranks over which ZeRO shards, L layers of the stage, F micro-batches in flight,
T tokens of a micro-batch, h hidden, f feed-forward width, V vocabulary rows, t tensor-parallel ranks, p stages, m
micro-batches of a step, e bytes of an element, u = e T h bytes of the residual stream unsharded.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout, Offload
from reference_runs.placement import Blocks, balanced_stages
from reference_runs.run import Architecture, Workload
from suite.predict.analytic.activations import kept_units, micro_batch_bytes, micro_batch_tokens, recomputed_bytes
from suite.predict.analytic.memory import (
    BYTES_PER_PARAMETER,
    WEIGHT_ELEMENT_BYTES,
    optimizer_shards,
    shard_elements,
    state_bytes,
    state_ranks,
)
from suite.predict.analytic.parameters import layer_tensors, outer_elements, rank_parameters, stage_layers
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, micro_batches_in_flight


class Framework(NamedTuple):
    """What a framework keeps next to weights, gradients, optimizer state and the activations of the layers.

    Args:
        balanced_stages: blocks are dealt by cost, the head counted (see `balanced_stages`), not by `stage_layers`.
        pass_gradient_bytes: a parameter, for the 16-bit gradients of one backward pass, added to those in fp32 at its
            end.
        bucket_gradient_bytes: a parameter, for buckets of replicated gradients (n = 1); None: one bucket of the layout.
        gathered_weight_bytes: a parameter, for the flat copy that ZeRO-1's all-gather of weights writes.
        forward_logit_bytes: an element of the logits at the loss.
        backward_logit_bytes: an element of the logits where the head's backward pass begins.
        kept_logit_bytes: an element of the logits of the micro-batch before, still held at the loss of the next.
        context_copy: a micro-batch of several samples is transposed after the attention: the projection's input is a
            copy of the context.
        forward_streams: a layer and micro-batch in flight, unsharded streams that sequence parallelism gathers in the
            forward pass and that are not yet free at its end where the host is ahead of the accelerator.
        backward_streams: a layer, those of the backward pass before.
        busy_tokens: of a micro-batch, over tensor-parallel ranks, from which on a pipeline's host is ahead.
        stage_streams: a later stage, such streams where it is not.
        distant_streams: such streams where it is not and tensor parallelism spans more than `near_ranks`.
    """

    balanced_stages: bool
    pass_gradient_bytes: int
    bucket_gradient_bytes: int | None
    gathered_weight_bytes: int
    forward_logit_bytes: int
    backward_logit_bytes: int
    kept_logit_bytes: int
    context_copy: bool
    forward_streams: int
    backward_streams: int
    busy_tokens: int
    stage_streams: int
    distant_streams: int
    near_ranks: int


GENERIC = Framework(
    balanced_stages=False,
    pass_gradient_bytes=0,
    bucket_gradient_bytes=None,
    gathered_weight_bytes=0,
    forward_logit_bytes=4,
    backward_logit_bytes=6,
    kept_logit_bytes=0,
    context_copy=False,
    forward_streams=0,
    backward_streams=0,
    busy_tokens=1,
    stage_streams=0,
    distant_streams=0,
    near_ranks=1,
)
"""Nothing but the state, a bucket, and fp32 logits: 4 bytes at the loss, with their 16-bit gradient 6 after it."""

NANOTRON = Framework(
    balanced_stages=True,
    pass_gradient_bytes=2,
    bucket_gradient_bytes=2,
    gathered_weight_bytes=2,
    forward_logit_bytes=8,
    backward_logit_bytes=6,
    kept_logit_bytes=4,
    context_copy=True,
    forward_streams=2,
    backward_streams=1,
    busy_tokens=16384,
    stage_streams=7,
    distant_streams=8,
    near_ranks=16,
)
"""Read in nanotron 0.4, except `kept_logit_bytes` and the last six, which 527 published peaks of a model of 1B show.

    2 a parameter   `FP32GradientAccumulator.backward` adds all 16-bit gradients to its fp32 buffer at the end of a pass
    2 a parameter   DistributedDataParallel's buckets, where nothing is sharded and data parallelism is above 1
    2 a parameter   `all_gather_coalesced` gathers lists, for which PyTorch allocates one flat tensor: longer than any
                    segment that activations leave, so it has a segment of its own
    8 a logit       `cast_to_fp32`, and `sharded_logits - logits_max` next to it
    6 a logit       the softmax in fp32, and its gradient cast to 16 bit
    4 a logit       one fp32 tensor of the micro-batch before; what holds it was not found in the source. Of the rows
                    with t = p = 1 and ZeRO-1, the 8 with m > 1 are 2.0 GiB a sample above the 2 with m = 1: 4 T V
    2, 1 streams    counted in the rows, not in the source; an explanation, not tested: what a collective reads and
                    writes is its stream's until it has run, so a host that runs ahead gets new memory for each. A
                    layer gathers two inputs. At p = 1, where the host waits once a step, 105 rows with t >= 4 and
                    several micro-batches have 47 streams in the median where the formula has 48; 17 with one
                    micro-batch have 36 where it has 32; 23 with t = 2 have 16
    16384 tokens    fitted: 40 rows with p > 1 have as many or more, and 1.1 times these streams in the median
    7 streams       fitted, for the least mean error: a pipeline's host waits for what it receives. 227 rows have 8 a
                    later stage in the median on the first, half of them from 4.5 to 13.4
    8 streams       fitted: 41 rows with tensor parallelism over 32 ranks have 9 in the median, half of them 7 to 12

What is published is `max_memory_reserved` of world rank 0, on the first stage: `log_memory` resets the other counter
before the update, so it would not grow with the micro-batch. CUDA's and NCCL's own memory are left out.
Source: nanotron 0.4 (PyPI): optim/gradient_accumulator.py, distributed.py, models/llama.py, parallel/, helpers.py.
Not predicted: how far the host is ahead; of 453 rows with t > 1, 41 are more than 20 % away for it.
"""


def stage_blocks(architecture: Architecture, layout: Layout, framework: Framework, *, stage: int) -> Blocks:
    """Blocks on one stage: balanced where the framework does so, else as the layout assigns them."""
    if framework.balanced_stages:
        return balanced_stages(architecture, stages=layout.pipeline_stages)[stage]
    last = stage == layout.pipeline_stages - 1
    return Blocks(stage_layers(architecture, layout, stage=stage), stage == 0, last, last)


def stage_parameters(architecture: Architecture, layout: Layout, framework: Framework, *, stage: int) -> int:
    """Parameters of a rank of one stage; a tied embedding is stored again where the head stands without it."""
    if not framework.balanced_stages:
        return rank_parameters(architecture, layout, stage=stage).all
    blocks = balanced_stages(architecture, stages=layout.pipeline_stages)[stage]
    t = layout.tensor_parallel
    layer = sum(tensor.elements for tensor in layer_tensors(architecture, tensor_parallel=t))
    before, after = outer_elements(architecture, tensor_parallel=t)
    norms = sum(after if architecture.tied_embeddings else after[:-1])
    own_head = blocks.head and not (architecture.tied_embeddings and blocks.embedding)
    return blocks.layers * layer + blocks.embedding * sum(before) + blocks.norm * norms + own_head * before[0]


class FrameworkMemory(NamedTuple):
    """Bytes on a rank at the fullest instant of a step.

    Args:
        state: weights, accumulated gradients and optimizer state.
        copies: gradients of one pass or their buckets, and gathered weights.
        activations: of all micro-batches in flight.
        at_loss: logits where the forward pass of the last block ends.
        backward: what the backward pass adds where it begins: gradients of one pass, and the larger of the logits'
            and the first layer's working set.
        streams: unsharded streams that collectives still hold.
    """

    state: float
    copies: float
    activations: float
    at_loss: float
    backward: float
    streams: float

    @property
    def needed(self) -> float:
        """Bytes without which the step does not run: streams are waited for before an allocation fails."""
        return self.state + self.copies + self.activations + max(self.at_loss, self.backward)

    def peak(self, device_bytes: float | None = None) -> float:
        """Bytes reserved at most; the streams count only where they fit on a device of `device_bytes`.

        Source: CUDACachingAllocator.cpp, release_cached_blocks: before it fails it waits for all events and frees.
        4 published layouts with 44 to 63 GiB ran that would need 83 to 146 with the streams, 32 to 50 without.
        """
        whole = self.needed + self.streams
        return self.needed if device_bytes is not None and whole > device_bytes else whole


def held_streams(
    architecture: Architecture, layout: Layout, framework: Framework, *, stage: int, layers: int, micro_batches: int
) -> float:
    """Unsharded streams that collectives of sequence parallelism hold at the peak of a stage with L layers.

        (2 F + 1) L     p = 1, or T / t of 16384 and more; 2 F L where m = 1, with no backward pass before
        7 (p - 1 - k)   else, on stage k; 8 where tensor parallelism spans more than 16 ranks

    None without sequence parallelism, at t = 1, and on a stage without layers. The numbers are nanotron's.
    """
    t, stages = layout.tensor_parallel, layout.pipeline_stages
    if t == 1 or not layout.sequence_parallel or not layers:
        return 0
    tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
    if stages == 1 or tokens >= framework.busy_tokens * t:
        in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
        return (framework.forward_streams * in_flight + (micro_batches > 1) * framework.backward_streams) * layers
    return framework.distant_streams if t > framework.near_ranks else framework.stage_streams * (stages - 1 - stage)


def framework_memory(workload: Workload, framework: Framework, *, stage: int, micro_batches: int) -> FrameworkMemory:
    """Bytes on a rank of pipeline stage `stage` (from 0), by part.

        state         `state_bytes` of N, the optimizer's part over n
        copies        2 N of DDP's buckets or of gathered weights
        activations   F L times `micro_batch_bytes` of a layer, of which 24 e T h / t are a gated layer's with f = 4 h,
                      and e T h / t more where the context is copied; embedding, final norm and head
        at loss       (8 + 4) T V / t      4 where m > 1
        backward      2 N, and the larger of
                      (6 + 4) T V / t      the head
                      g e T f / t + 2 e T h / t    the last layer: gradients of the expansion, beyond what they free
                                                   (g = 2 gated, else 1), and of its input and output
                      and what is computed again
        streams       u times `held_streams`

    The numbers are nanotron's; `Framework` has them. F is `micro_batches_in_flight`.

    Raises:
        ValueError: what is not described: ZeRO-2 and 3, offloading, schedules without flush, balanced virtual stages.
    """
    architecture, recipe, layout = workload
    if layout.zero_stage > 1 or layout.offload is not Offload.NONE or layout.schedule in NO_FLUSH:
        raise ValueError("framework_memory describes ZeRO-0 and 1 with a flush and without offloading")
    if framework.balanced_stages and layout.virtual_stages > 1:
        raise ValueError(f"balanced stages have no virtual stages, got {layout.virtual_stages}")
    blocks = stage_blocks(architecture, layout, framework, stage=stage)
    parameters = stage_parameters(architecture, layout, framework, stage=stage)
    several, shards = state_ranks(layout) > 1, optimizer_shards(layout)
    state = state_bytes(parameters, recipe.precision, optimizer=shard_elements(parameters, shards)).all
    if shards > 1:
        copies: float = framework.gathered_weight_bytes * parameters
    elif framework.bucket_gradient_bytes is None:
        gradient = BYTES_PER_PARAMETER[recipe.precision].gradients
        copies = several * min(layout.bucket_bytes, gradient * parameters)
    else:
        copies = several * framework.bucket_gradient_bytes * parameters

    element, t = WEIGHT_ELEMENT_BYTES[recipe.precision], layout.tensor_parallel
    tokens = micro_batch_tokens(workload)
    unit = micro_batch_bytes(workload)
    stream = element * tokens * architecture.hidden
    context = stream // t if framework.context_copy and layout.micro_batch > 1 else 0
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    each = (unit.unit + context) * kept_units(layout, layers=blocks.layers) + blocks.embedding * unit.embedding
    activations = in_flight * each + blocks.head * unit.head

    logits = blocks.head * tokens * architecture.padded_vocabulary // t
    kept = framework.kept_logit_bytes * (micro_batches > 1)
    expansions = 2 if architecture.activation.gated else 1
    layer = expansions * element * tokens * architecture.ffn_hidden // t + 2 * stream // t
    working = (blocks.layers > 0) * layer + recomputed_bytes(unit, layout, layers=blocks.layers)
    return FrameworkMemory(
        state=state,
        copies=copies,
        activations=activations,
        at_loss=(framework.forward_logit_bytes + kept) * logits,
        backward=framework.pass_gradient_bytes * parameters
        + max((framework.backward_logit_bytes + kept) * logits, working),
        streams=stream
        * held_streams(architecture, layout, framework, stage=stage, layers=blocks.layers, micro_batches=micro_batches),
    )


def fullest_peak(
    workload: Workload, framework: Framework, *, micro_batches: int, device_bytes: float | None = None
) -> tuple[float, int]:
    """Bytes on a rank of the fullest stage, and that stage (from 0)."""
    peaks = [
        framework_memory(workload, framework, stage=stage, micro_batches=micro_batches).peak(device_bytes)
        for stage in range(workload.layout.pipeline_stages)
    ]
    most = max(peaks)
    return most, peaks.index(most)
