"""Peak memory of a rank as nanotron's log prints it: the state, and what else the framework keeps or leaves unused.

Read in nanotron 0.4, except `KEPT_LOGIT_BYTES` and the streams, which 527 published peaks of a model of 1B show. Blocks
are dealt to stages by cost, the head counted (see `balanced_stages`). What is published is `max_memory_reserved` of
world rank 0, on the first stage: `log_memory` resets the other counter before the update, so it would not grow with the
micro-batch. CUDA's and NCCL's own memory are left out.
Source: nanotron 0.4 (PyPI): optim/gradient_accumulator.py, distributed.py, models/llama.py, parallel/, helpers.py.
Not predicted: hosts that are ahead although layers are short, or not although they are long. No column shows them: 30
rows, 14 of them on 512 accelerators, make 2.7 of the 7.5 % by which 527 are missed.

Symbols: N parameters of the rank, n ranks over which ZeRO shards, L layers of the stage, F micro-batches in flight,
T tokens of a micro-batch, h hidden, f feed-forward width, V vocabulary rows, t tensor-parallel ranks, p stages, m
micro-batches of a step, e bytes of an element, u = e T h bytes of the residual stream unsharded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from reference_runs.layout import Layout, Offload
from reference_runs.placement import balanced_stages
from reference_runs.run import Architecture, Workload
from reference_runs.stack import Keeping, Modules
from suite.machine.gpu import H100, cublas_workspace_bytes
from suite.predict.analytic.activations import kept_units, micro_batch_bytes, working_bytes
from suite.predict.analytic.flop import layer_forward_flop
from suite.predict.analytic.memory import (
    WEIGHT_ELEMENT_BYTES,
    StateBytes,
    optimizer_shards,
    shard_elements,
    state_bytes,
    state_ranks,
)
from suite.predict.analytic.micro_batch import micro_batch_tokens
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
# memory for each. At p = 1, where the host waits once a step, 105 rows with t >= 4 and several micro-batches have 47
# streams in the median where the formula has 48; 17 with one micro-batch have 36 where it has 32
FORWARD_STREAMS, BACKWARD_STREAMS = 2, 1
# Of a host that is not ahead: what one layer's backward pass makes. Both row layers gather a gradient; both column
# layers gather their input again and make an unsharded gradient
LAYER_STREAMS = 6
# A layer's passes at the host of an H100, from the step times of the same rows: 4.2 to 4.8 ms with one stage; with
# several 8.5, 13, 20 and 45 ms at t = 2, 4, 8 and 16, of whatever size as long as computing takes less
HOST_SECONDS, HOST_SECONDS_A_RANK = 0.0045, 0.0025
LAYER_FLOP_PER_SECOND = 3.3e14  # of an H100, in layers that take longer: 25 ms for 16 sequences at t = 4, 8.2e12 flop
NODE_RANKS = 8  # collectives of more ranks leave the node: with one stage too they take longer than the host
# Micro-batches of one stage from which on a host that computing does not hold back is ahead: nothing keeps the hosts of
# a group together within a step. Fitted
AHEAD_MICRO_BATCHES = 16
# Ranks of tensor parallelism beyond which no host is ahead in the first step. Fitted: 41 rows over 32 ranks have 9
# streams in the median, half of them 7 to 12
NEAR_RANKS = 16


_known_unit = lru_cache(maxsize=64)(micro_batch_bytes)  # the same on every stage


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
    """Bytes on a rank of a pipeline stage, with the same words as the closed form's `StageMemory`.

    Args:
        stored: weights, accumulated gradients and optimizer state.
        copies: gradients of one pass or their buckets, and gathered weights.
        activations: of all micro-batches in flight.
        logits: where the forward pass of the last block ends.
        backward: what the backward pass adds where it begins: gradients of one pass, and the larger of the logits'
            and the first layer's working set.
        streams: unsharded streams that collectives still hold.
        workspaces: of cuBLAS.
    """

    stored: StateBytes
    copies: float
    activations: float
    logits: float
    backward: float
    streams: float
    workspaces: float = WORKSPACE_BYTES

    @property
    def weights(self) -> float:
        """Bytes of weights, on every replica."""
        return self.stored.weights

    @property
    def gradients(self) -> float:
        """Bytes of gradients that add up over micro-batches."""
        return self.stored.gradients

    @property
    def optimizer(self) -> float:
        """Bytes of moments and master weights."""
        return self.state - self.weights - self.gradients

    @property
    def state(self) -> float:
        """Bytes of weights, gradients and optimizer state."""
        return self.stored.all

    @property
    def after_forward(self) -> float:
        """Bytes reserved where the backward pass begins."""
        return sum(self._whole_step().values()) + self.logits

    @property
    def after_backward(self) -> float:
        """Bytes reserved in the backward pass of the last layer, or of the head."""
        return sum(self._whole_step().values()) + self.backward

    @property
    def at_update(self) -> float:
        """Bytes of tensors at the update."""
        return self.state + self.copies + self.workspaces

    @property
    def peak(self) -> float:
        """Bytes reserved at most."""
        return max(self.after_forward, self.after_backward)

    def fullest_instant(self) -> tuple[str, dict[str, float]]:
        """When a rank holds most, and the bytes of each part that lives then; they add up to the peak."""
        if self.logits >= self.backward:
            return "after the forward pass", self._whole_step() | {"logits": self.logits}
        return "in the backward pass", self._whole_step() | {"backward pass": self.backward}

    def _whole_step(self) -> dict[str, float]:
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer state": self.optimizer,
            "buckets or gathered weights": self.copies,
            "activations": self.activations,
            "what collectives still hold": self.streams,
            "workspaces of libraries": self.workspaces,
        }


def host_is_ahead(architecture: Architecture, layout: Layout, *, micro_batches: int) -> bool:
    """Whether the host is ahead of its accelerator throughout a step: a layer's passes take the latter longer.

    p > 1    flop of the layer / 3.3e14 t against 4.5 ms + (t - 1) 2.5 ms
    p = 1    against 4.5 ms; also with groups of more than 8 ranks, and from 16 micro-batches on
    """
    t, several = layout.tensor_parallel, layout.pipeline_stages > 1
    if not several and (t > NODE_RANKS or micro_batches >= AHEAD_MICRO_BATCHES):
        return True
    flop = 3 * sum(layer_forward_flop(architecture, samples=layout.micro_batch).values())
    host = HOST_SECONDS + several * (t - 1) * HOST_SECONDS_A_RANK
    return flop / (layout.context_parallel * t * LAYER_FLOP_PER_SECOND) >= host


def held_streams(architecture: Architecture, layout: Layout, *, stage: int, layers: int, micro_batches: int) -> float:
    """Unsharded streams that collectives of sequence parallelism hold at the peak of a stage with L layers.

        (2 F + 1) L             the host is ahead; 2 F L where m <= F: no backward pass comes before
        6 + (F - 2) (2 L + 1)   else, on the first stage, up to 16 ranks: F - 2 forward passes of the first step
        6                       else

    A layer's two, and one of the embedding. That the first step's are held is counted in the rows; an explanation: the
    next stage takes the second message when it has compiled its kernels, on the first. The host goes on until it needs
    a gradient; in nanotron 0.4 it would wait for each message to leave.

    None without sequence parallelism, at t = 1, and on a stage without layers.
    """
    t = layout.tensor_parallel
    if t == 1 or not layout.sequence_parallel or not layers:
        return 0
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    if host_is_ahead(architecture, layout, micro_batches=micro_batches):
        return (FORWARD_STREAMS * in_flight + (micro_batches > in_flight) * BACKWARD_STREAMS) * layers
    unreceived = max(in_flight - 2, 0) if stage == 0 and t <= NEAR_RANKS else 0
    return LAYER_STREAMS + unreceived * (FORWARD_STREAMS * layers + 1)


def not_described(workload: Workload) -> list[str]:
    """Features of a run that `nanotron_memory` does not describe; none: it describes all."""
    architecture, layout = workload.architecture, workload.layout
    reasons = {
        "mixtures of experts": architecture.experts is not None,
        "latent attention": architecture.key_value_rank is not None,
        "ZeRO-2 and 3": layout.zero_stage > 1,
        "offloading": layout.offload is not Offload.NONE,
        "schedules without flush": layout.schedule in NO_FLUSH,
        "virtual stages": layout.virtual_stages > 1,
    }
    return [reason for reason, is_so in reasons.items() if is_so]


def nanotron_memory(
    workload: Workload, *, stage: int, micro_batches: int, device_bytes: float | None = None
) -> NanotronMemory:
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

    F is `micro_batches_in_flight`. The streams count only where they fit into `device_bytes`: before an allocation
    fails, the allocator waits for all events and frees (CUDACachingAllocator.cpp, release_cached_blocks). 4 published
    layouts with 44 to 63 GiB ran that would need 83 to 146 with the streams, 32 to 50 without.

    Raises:
        ValueError: what is `not_described`.
    """
    if reasons := not_described(workload):
        raise ValueError(f"nanotron_memory does not describe {', '.join(reasons)}")
    architecture, recipe, layout = workload
    blocks = balanced_stages(architecture, stages=layout.pipeline_stages)[stage]
    parameters = stage_parameters(architecture, layout, stage=stage)
    several, shards = state_ranks(layout) > 1, optimizer_shards(layout)
    stored = state_bytes(parameters, recipe.precision, optimizer=shard_elements(parameters, shards))
    copied = GATHERED_WEIGHT_BYTES if shards > 1 else several * BUCKET_GRADIENT_BYTES

    element, t = WEIGHT_ELEMENT_BYTES[recipe.precision], layout.tensor_parallel
    tokens = micro_batch_tokens(workload)
    unit = _known_unit(workload, Keeping(Modules.NANOTRON, fp32_shards=False))
    stream = element * tokens * architecture.hidden
    context = element * tokens * architecture.query_width // t if layout.micro_batch > 1 else 0
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    each = (unit.unit + context) * kept_units(layout, layers=blocks.layers) + blocks.embedding * unit.embedding
    activations = in_flight * each + blocks.head * unit.head

    logits = blocks.head * tokens * architecture.padded_vocabulary // t
    kept = KEPT_LOGIT_BYTES * (micro_batches > 1)
    expansions = 2 if architecture.activation.gated else 1
    layer = expansions * element * tokens * architecture.ffn_hidden // t + 2 * stream // t
    working = (blocks.layers > 0) * layer + working_bytes(unit, layout, layers=blocks.layers)
    memory = NanotronMemory(
        stored=stored,
        copies=copied * parameters,
        activations=activations,
        logits=(FORWARD_LOGIT_BYTES + kept) * logits,
        backward=PASS_GRADIENT_BYTES * parameters + max((BACKWARD_LOGIT_BYTES + kept) * logits, working),
        streams=stream
        * held_streams(architecture, layout, stage=stage, layers=blocks.layers, micro_batches=micro_batches),
    )
    fits = device_bytes is None or memory.peak <= device_bytes
    return memory if fits else memory._replace(streams=0)
