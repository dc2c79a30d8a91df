"""Bytes and messages that one rank hands to collectives in one step, by axis and operation, as the papers have it."""

from __future__ import annotations

from typing import Any, NamedTuple

from reference_runs.layout import Layout, Recomputation, RecomputedModule
from reference_runs.placement import head_stage
from reference_runs.run import Precision, QueryKeyNorm, Residual, Workload
from suite.predict.analytic.activations import kept_units
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.experts import chosen_experts, dispatched_tokens
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.gradient_buckets import gradient_bucket_count
from suite.predict.analytic.latent_attention import more_attention_inputs
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.parameters import trained_parameters
from suite.predict.analytic.process_groups import Traffic, group_ranks
from suite.predict.analytic.ring_attention import context_parallel_traffic
from suite.predict.analytic.stage_layers import stage_layer_kinds, stage_layers

CROSS_ENTROPY_REDUCTIONS = 3  # maximum, the target's logit, sum of exponentials


def step_traffic(workload: Workload, *, stage: int, micro_batches: int) -> list[Traffic]:
    """Collectives of one rank of pipeline stage `stage` (from 0) in a step of `micro_batches`.

    One entry for each axis and operation; of plain numbers, entries without messages are left out.
        dp, edp     `zero_traffic`: gradients and weights, over the data- and context-parallel ranks together; with
                    hybrid sharding axes shard and replicate, within groups of them and between groups
        ep          `expert_traffic`
        tp          `tensor_parallel_traffic`
        kv          of the latter, gradients of key-value heads that several ranks have
        cp          `context_parallel_traffic`
        pp          `pipeline_traffic`
        embedding   `tied_embedding_traffic`: between first and last stage

    Left out are scalars of a step: loss, gradient norm, overflow flag.
    """
    traffic = zero_traffic(workload, stage=stage, micro_batches=micro_batches)
    traffic += tensor_parallel_traffic(workload, stage=stage, micro_batches=micro_batches)
    traffic.append(expert_traffic(workload, stage=stage, micro_batches=micro_batches))
    traffic.append(context_parallel_traffic(workload, stage=stage, micro_batches=micro_batches))
    traffic.append(pipeline_traffic(workload, stage=stage, micro_batches=micro_batches))
    traffic.append(tied_embedding_traffic(workload, stage=stage))
    return [entry for entry in traffic if not isinstance(entry.messages, int) or entry.messages]


def reduced_gradient_element_bytes(precision: Precision) -> int:
    """Bytes of one gradient element as it is reduced: 4 where gradients are accumulated in fp32, 2 in fp16."""
    return int(BYTES_PER_PARAMETER[precision].gradients)


def zero_traffic(workload: Workload, *, stage: int, micro_batches: int) -> list[Traffic]:
    """Collectives of one rank over its data-parallel group in a step, by ZeRO stage.

    With Psi parameters on the rank, g bytes a reduced gradient, w a weight, m micro-batches, n ranks of the group,
    Psi' = n ceil(Psi / n) for each optimizer group:
        stage 0   all_reduce       g Psi         once a step, in the buckets of DistributedDataParallel
        stage 1   all_reduce       g Psi         as stage 0 (BLOOM's BF16_Optimizer)
                  all_gather       w Psi'        new weights, a message for each optimizer group
        reduce_scatter = true (Megatron-LM's distributed optimizer):
                  reduce_scatter   g Psi'        in place of the all-reduce: once a step, in full buckets
        stage 2   reduce_scatter   m g Psi'      no rank keeps whole gradients, so those of a micro-batch are reduced
                                                 before the next one's backward pass; in buckets
                  all_gather       w Psi'        as stage 1
        stage 3   all_gather       2 m w Psi'    in forward and again in backward pass; m w Psi' where weights stay
                                                 gathered between them (reshard_after_forward = false)
                  reduce_scatter   m g Psi'      as stage 2; both in a message for each layer, and one for the tables
                                                 and norms outside
    Hybrid sharding, stages 2 and 3: n ranks of the group that shards, axis "shard", and over R groups, "replicate":
                  all_reduce       g Psi' / n    once a step, the summed gradients of the shard, in the messages of one
                                                 micro-batch's reduce-scatters
    Full recomputation finds the weights gathered for the backward pass. The group spans context parallelism too: its
    ranks have the same weights and see different tokens, so n = dp * cp. Expert-parallel ranks have the same weights
    but for their experts: n = dp * ep * cp for all else, and experts in groups of dp * cp ranks, axis "edp". Gradients
    of a mixture of experts lie one after the other in two buffers, whose buckets are full (Megatron-LM's).

    With g = w, m = 1 a ring sends 2 Psi, 3 Psi (2 Psi with reduce_scatter), 2 Psi, 3 Psi, each times (n - 1) / n.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277, section 3.
    Rajbhandari's stage 1 reduce-scatters too, 2 Psi; BLOOM's all-reduces, 3 Psi. Megatron-LM,
    core/distributed/param_and_grad_buffer.py (buckets of the gradients' buffer, padded to a multiple of n).
    """
    architecture, recipe, layout = workload
    rank = trained_parameters(workload, stage=stage)
    kinds = stage_layer_kinds(architecture, layout, stage=stage)
    outside = (stage == 0) | (stage == head_stage(layout))
    experts = 0 if layout.expert_parallel == 1 else rank.experts
    groups = (rank.all - experts, 0) if recipe.decay_of_vectors else (rank.matrices - experts, rank.vectors)
    units = sum(layers for _, layers in kinds) + outside
    traffic = _group_traffic(workload, "dp", groups, stage=stage, micro_batches=micro_batches, units=units)
    if layout.expert_parallel > 1:
        units = sum(layers for kind, layers in kinds if kind.experts is not None)
        traffic += _group_traffic(workload, "edp", (experts, 0), stage=stage, micro_batches=micro_batches, units=units)
    return traffic


def _group_traffic(
    workload: Workload, axis: str, groups: tuple[int, int], *, stage: int, micro_batches: int, units: int
) -> list[Traffic]:
    """`zero_traffic` of matrices and vectors that the ranks of `axis` have in common, in so many units of ZeRO-3."""
    architecture, recipe, layout = workload
    copied: Any = layout.zero_stage >= 2 and layout.shard_ranks is not None and layout.shard_copies > 1
    if copied is not False:  # an array where the layout's counts are
        axis = "shard"
    n, elements = group_ranks(layout, axis), sum(groups)
    several = n > 1
    gradient = several * reduced_gradient_element_bytes(recipe.precision)
    weight = several * WEIGHT_ELEMENT_BYTES[recipe.precision]
    padded = sum(n * ceil_division(group, n) for group in groups)
    messages = sum((group > 0) * 1 for group in groups)
    summed = copied * gradient * padded // n
    if layout.zero_stage == 3:
        units = several * micro_batches * units
        gathers = 2 if layout.reshard_after_forward else 1
        return [
            Traffic(axis, "all_gather", gathers * micro_batches * weight * padded, gathers * units),
            Traffic(axis, "reduce_scatter", micro_batches * gradient * padded, units),
            *([Traffic("replicate", "all_reduce", summed, copied * units // micro_batches)] * (axis == "shard")),
        ]
    gathered = Traffic(axis, "all_gather", weight * padded, several * messages)
    if layout.zero_stage == 1 and layout.reduce_scatter:
        buckets = ceil_division(gradient * padded, layout.bucket_bytes)
        return [Traffic(axis, "reduce_scatter", gradient * padded, buckets), gathered]
    if architecture.experts is None and recipe.adapter_rank is None:
        element = reduced_gradient_element_bytes(recipe.precision)
        buckets = several * gradient_bucket_count(architecture, layout, stage=stage, element_bytes=element)
    else:
        buckets = ceil_division(gradient * elements, layout.bucket_bytes)
    if layout.zero_stage == 2:
        scattered = Traffic(axis, "reduce_scatter", micro_batches * gradient * padded, micro_batches * buckets)
        between = Traffic("replicate", "all_reduce", summed, copied * buckets)
        return [scattered, gathered, *([between] * (axis == "shard"))]
    reduced = Traffic(axis, "all_reduce", gradient * elements, buckets)
    return [reduced, gathered] if layout.zero_stage == 1 else [reduced]


def activation_message_bytes(workload: Workload) -> int:
    """Bytes of one micro-batch's hidden states on a rank that has its share of the sequence: b s h e / c.

    With b samples a micro-batch, s positions, h hidden, e bytes an element (as a weight), c context-parallel ranks.
    """
    architecture, recipe, layout = workload
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    tokens = layout.micro_batch * architecture.sequence
    return tokens * architecture.hidden * element // layout.context_parallel


class TensorParallelMessages(NamedTuple):
    """Counts that give the messages of hidden states of one micro-batch on a stage, by tensor parallelism.

    Args:
        inputs, outputs: f's and g's of the layers' parts in all passes forward, repeated ones included.
        input_gradients, output_gradients: the same in the backward pass.
        first, last: 1 where the embedding, and where the head is on the stage.
    """

    inputs: int
    outputs: int
    input_gradients: int
    output_gradients: int
    first: int
    last: int

    @property
    def gathers(self) -> int:
        """All-gathers with sequence parallelism; the head gathers twice, the embedding its output's gradient."""
        return self.inputs + self.input_gradients + self.output_gradients + self.first + 2 * self.last

    @property
    def scatters(self) -> int:
        """Reduce-scatters with sequence parallelism, and all-reduces without it."""
        return self.outputs + self.input_gradients + self.first + self.last


def tensor_parallel_messages(workload: Workload, *, stage: int) -> TensorParallelMessages:
    """Counts of pipeline stage `stage` that `tensor_parallel_traffic` multiplies."""
    architecture, layout = workload.architecture, workload.layout
    forwards = backwards = 0  # through attention, and through feed-forward parts that are f's or g's of their own
    alone = backwards_alone = 0
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        passes = layers + repeated_layers(layout.recomputation, layers)
        forwards, backwards = forwards + passes, backwards + layers
        alone, backwards_alone = alone + kind.feeds_forward * passes, backwards_alone + kind.feeds_forward * layers
    inputs, outputs = not architecture.shared_norm, architecture.residual is not Residual.PARALLEL
    return TensorParallelMessages(
        inputs=forwards + inputs * alone,
        outputs=forwards + outputs * alone,
        input_gradients=backwards + inputs * backwards_alone,
        output_gradients=backwards + outputs * backwards_alone,
        first=(stage == 0) * 1,
        last=(stage == head_stage(layout)) * 1,
    )


def tensor_parallel_traffic(workload: Workload, *, stage: int, micro_batches: int) -> list[Traffic]:
    """Collectives of one rank over its tensor-parallel group in a step.

    With a = b s h e / c bytes of hidden states, for each micro-batch:
        layer, forward      2 all-reduces of a (g: after the row-parallel projection and contraction)
        layer, backward     2 all-reduces of a (f: before the column-parallel query, key, value and expansion)
        layer, recomputed   the forward ones again, for each repeated pass through the layer
        parallel residual   1 forward in place of 2, because attention and feed-forward are added before one g; 2
                            backward still, because two norms give their inputs, and each input has its f: 1 with one
                            norm for both
        first stage         1 all-reduce of a: the vocabulary-parallel embedding, forward (g)
        last stage          1 all-reduce of a: gradient of the head's input (f)
                            3 all-reduces of 4 b s / c: cross-entropy's maximum, target logit, sum of exponentials

    With sequence parallelism each f is an all-gather forward and a reduce-scatter backward, which gathers its input
    once more for the weight's gradient; each g is a reduce-scatter forward and an all-gather backward. So with i f's
    and o g's a layer (2 and 2; parallel residual 2 and 1), F passes forward through it and 1 backward:
        all-gather          F i + i + o
        reduce-scatter      F o + i
    Once a step the gradients of all parameters that every rank stores are all-reduced in one message, because each
    rank saw its own positions. The feed-forward f and g of a layer with experts then carry the tokens that were sent
    to the rank's experts: k a for k experts a token, and a more for shared ones. With fewer key-value heads than ranks,
    the gradients of each head are all-reduced once a step over the t / k ranks that store it, axis "kv", in a message.
    Those of norms of query and key heads are all-reduced once a step too: each rank has its own heads. The f of latent
    attention is of compressed states, and of the part of the keys that heads share (see `more_attention_inputs`).

    Further all-gathers of a, neither needed with sequence parallelism:
        partitioned checkpoints   the kept input of each unit of recomputation (`kept_units`), in the backward pass
        scatter-gather            each activation or gradient that another pipeline stage sent in shares

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2;
    Black et al. 2022, arXiv 2204.06745, section 2.1.2 (parallel residual, two norms); Rajbhandari et al. 2020, section
    6.1 (partitioned checkpoints); Narayanan et al. 2021, arXiv 2104.04473, section 4.1 (scatter-gather). In section 3.2
    the last gives 8 b s h (t - 1) / t elements a layer, which this is without recomputation.
    Differs from one all-reduce each way with a parallel residual by one backward: that needs one norm for both parts,
    or f before the norms, whose own gradients each rank would then have in part.
    PyTorch's recomputation stops early where there is no dropout and so leaves out the last g of each group: 1 in
    place of 2 for groups of one layer, 0 in place of 1 with a parallel residual.
    """
    architecture, recipe, layout = workload
    a = activation_message_bytes(workload)
    several = layout.tensor_parallel > 1
    counted = tensor_parallel_messages(workload, stage=stage)
    layers = stage_layers(architecture, layout, stage=stage)
    forwards = layers + repeated_layers(layout.recomputation, layers)
    passes = several * micro_batches
    latent = more_attention_inputs(architecture)
    latent_bytes = passes * latent.columns * (a // architecture.hidden)
    reduced = passes * counted.scatters
    losses = passes * (CROSS_ENTROPY_REDUCTIONS * counted.last)
    loss_bytes = losses * (FP32 * layout.micro_batch * architecture.sequence // layout.context_parallel)
    rank = trained_parameters(workload, stage=stage)
    gradient = reduced_gradient_element_bytes(recipe.precision)
    sums = several * (rank.copied > 0) * 1
    of_copies = [Traffic("kv", "all_reduce", several * gradient * rank.copied, sums)]
    of_heads = architecture.query_key_norm is QueryKeyNorm.HEAD
    normed = several * of_heads * layers * 2 * architecture.head_dim
    if layout.sequence_parallel:
        replicated = several * rank.replicated
        gathered = passes * counted.gathers
        more = gathered_expert_tokens(workload, stage=stage)
        extra_gathered = passes * more.gathered + (forwards + layers) * latent_bytes
        extra_reduced = passes * more.reduced + layers * latent_bytes
        latent_gathers = passes * (forwards + layers) * latent.messages
        shared = gradient * replicated
        return [
            Traffic("tp", "all_reduce", loss_bytes + shared, losses + several),
            Traffic("tp", "all_gather", gathered * a + extra_gathered, gathered + latent_gathers),
            Traffic("tp", "reduce_scatter", reduced * a + extra_reduced, reduced + passes * layers * latent.messages),
            *of_copies,
        ]
    more_sums = losses + (normed > 0) + passes * layers * latent.messages
    more_bytes = loss_bytes + gradient * normed + layers * latent_bytes
    summed = Traffic("tp", "all_reduce", reduced * a + more_bytes, reduced + more_sums)
    gathered = 0 * reduced
    if layout.partitioned_checkpoints and layout.recomputation in (Recomputation.FULL, Recomputation.FROM_INPUT):
        gathered = gathered + passes * kept_units(layout, layers=layers)
    if layout.scatter_gather:
        # a rank receives as often as it sends: the end of the chain that it lacks forward, it lacks backward
        gathered = gathered + several * pipeline_messages(layout, stage=stage, micro_batches=micro_batches)
    return [summed, Traffic("tp", "all_gather", gathered * a, gathered), *of_copies]


class _ExpertTokens(NamedTuple):
    """Bytes, for a micro-batch, by which tokens sent to experts are more than the layer's own."""

    gathered: int
    reduced: int


def gathered_expert_tokens(workload: Workload, *, stage: int) -> _ExpertTokens:
    """Further bytes of tensor parallelism with sequence parallelism, in a stage's layers with experts.

    Whole experts take each rank's own tokens: nothing is gathered for them.

    An f gathers forward, again for each repeated pass and for the weight's gradient, and reduces backward; a g reduces
    forward and again, and gathers backward.
    """
    architecture, layout = workload.architecture, workload.layout
    if architecture.experts is None:
        return _ExpertTokens(0, 0)
    a, chosen = activation_message_bytes(workload), chosen_experts(architecture)
    routed = 0 if layout.whole_experts else a * chosen.numerator // chosen.denominator
    more = routed - a + (a if architecture.shared_experts else 0)
    gathered = reduced = 0
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        if kind.experts is not None:
            forwards = layers + _repeated_expert_layers(layout, layers)
            gathered = gathered + more * (forwards + layers + layers)
            reduced = reduced + more * (forwards + layers)
    return _ExpertTokens(gathered, reduced)


def _repeated_expert_layers(layout: Layout, layers: int) -> int:
    """Forward passes through `layers` layers' experts that the backward pass repeats."""
    whole = RecomputedModule.EXPERTS in layout.recomputed
    return layers if whole else repeated_layers(layout.recomputation, layers)


def expert_traffic(workload: Workload, *, stage: int, micro_batches: int) -> Traffic:
    """All-to-alls of one rank among expert-parallel ranks in a step, where experts are equally busy.

    T k h e / u bytes with T tokens of a micro-batch on the rank, k experts a token, u = t with sequence parallelism
    and 1 otherwise, for each layer with experts and micro-batch:
        forward       2    tokens to their experts, and what these make of them back
        backward      2    gradients of both
        recomputed    2    for each repeated pass

    1 / n of it stays on the rank (see `ring_sent_bytes`). Left out is the exchange of the numbers of tokens, E integers
    a layer. Source: Lepikhin et al. 2020, arXiv 2006.16668, section 3.2; Megatron-LM,
    core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    Differs from what is sent where the router prefers experts: by the rank whose experts are preferred.
    """
    architecture, recipe, layout = workload
    if layout.expert_ranks == 1:
        return Traffic("ep", "all_to_all", 0, 0)
    tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
    size = dispatched_tokens(architecture, tokens=tokens) * architecture.hidden
    size = size * WEIGHT_ELEMENT_BYTES[recipe.precision]
    size = size // layout.tensor_parallel if layout.sequence_parallel else size
    messages = 0 * micro_batches
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        if kind.experts is not None:
            forwards = layers + _repeated_expert_layers(layout, layers)
            messages = messages + micro_batches * (2 * forwards + 2 * layers)
    return Traffic("ep", "all_to_all", messages * size, messages)


def pipeline_messages(layout: Layout, *, stage: int, micro_batches: int) -> int:
    """Messages that a rank of `stage` (from 0) sends to other stages in a step: m (2 v - [first] - [head]).

    Each of its v chunks of the model sends an activation forward, except the model's last one, and a gradient
    backward, except the model's first one. It receives as many. Over all stages: 2 m (p v - 1). In a V the last stage's
    two chunks hand both to each other, so that it sends two less, and all 4 m (p - 1).

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2 (interleaving sends v times as much).
    """
    ends = (stage == 0) * 1 + (stage == head_stage(layout)) * 1
    if layout.schedule.shape_of_v:
        ends = ends + (stage == layout.pipeline_stages - 1) * 2
    return (layout.pipeline_stages > 1) * micro_batches * (2 * layout.virtual_stages - ends)


def pipeline_traffic(workload: Workload, *, stage: int, micro_batches: int) -> Traffic:
    """Messages of one rank to other pipeline stages in a step: `pipeline_messages` of a = b s h e / c bytes each.

    Every tensor-parallel rank sends all of it, except with scatter_gather or sequence parallelism: a / t. With the
    first, the receivers gather it (see `tensor_parallel_traffic`); with the second, no rank has more.

    Source: Narayanan et al. 2021, arXiv 2104.04473, sections 3.2 and 4.1.
    """
    layout = workload.layout
    size = activation_message_bytes(workload)
    if layout.sequence_parallel or layout.scatter_gather:
        size = size // layout.tensor_parallel
    messages = pipeline_messages(layout, stage=stage, micro_batches=micro_batches)
    return Traffic("pp", "send", messages * size, messages)


def tied_embedding_traffic(workload: Workload, *, stage: int) -> Traffic:
    """All-reduce of the tied embedding's gradient between first and last stage, of one rank in a step.

    g V h / t bytes in one message on the first and on the last of several stages; nothing elsewhere or untied, nor in a
    V, where both tables are on the first stage, and are one.
    Counted whole under ZeRO-2 and 3 too, as in Megatron-LM.

    Source: Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM, core/distributed/finalize_model_grads.py.
    """
    architecture, recipe, layout = workload
    ends = (stage == 0) | (stage == head_stage(layout))
    messages = (head_stage(layout) > 0) * ends * (1 if architecture.tied_embeddings else 0)
    table = architecture.padded_vocabulary * architecture.hidden // layout.tensor_parallel
    payload = messages * reduced_gradient_element_bytes(recipe.precision) * table
    return Traffic("embedding", "all_reduce", payload, messages)
