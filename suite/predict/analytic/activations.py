"""Activations that one rank keeps for the backward pass: by kind, by recomputation, and by the known approximations.

Symbols: s sequence, b samples of a micro-batch, h hidden, f feed-forward width, a heads, k key-value heads of size d,
V stored vocabulary rows, L layers, t, c, p ranks of tensor, context and pipeline parallelism, v virtual stages,
T = s b / c tokens of a rank, e bytes of an element (2 in 16 bit, 4 in fp32), u = t with sequence parallelism, else 1.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.layout import CORE_ATTENTION, Layout, Recomputation
from reference_runs.placement import head_stage
from reference_runs.run import Workload
from reference_runs.stack import NO_KEEPING, Keeping, Modules
from suite.predict.analytic.elementwise import ceil_division, larger, smaller
from suite.predict.analytic.megatron_layers import MegatronLayer, by_kind, kept_by_layer
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.micro_batch import hidden_elements, micro_batch_tokens
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight
from suite.predict.analytic.process_groups import key_width
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds, stage_layers


class MicroBatchBytes(NamedTuple):
    """Bytes of one micro-batch on one rank, for any pipeline stage of a layout.

    Args:
        layer: everything that one layer keeps where nothing is recomputed.
        unit: what recomputation keeps for each unit: a layer (none, selective), a group of layers (full), or a
            virtual stage (from input).
        backward: most bytes of one layer that live in its backward pass (see `MegatronLayer.backward_bytes`), with what
            it computes again; of eager modules and of nanotron, whose working sets are not known, `layer`.
        shared: of a unit's input, what the first layer computed again keeps in place, not as a copy.
        embedding: in front of the layers, on the first stage.
        head: after the layers, on the last stage, without the logits.
        logits: on the last stage.
    """

    layer: int
    unit: int
    backward: int
    shared: int
    embedding: int
    head: int
    logits: int


def layer_activation_bytes(workload: Workload, keeping: Keeping = NO_KEEPING) -> dict[str, int]:
    """Bytes that one layer keeps for the backward pass of one micro-batch on one rank, by kind, nothing recomputed.

    What the operators of `MegatronLayer` keep. In 16 bit with dropout, f = 4 h,
    a d = k d = h: s b h (34 + 5 a s / h), and (10 + 24 / t + 5 a s / h t) with tensor, (34 / t + 5 a s / h t) with
    sequence parallelism.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, sections 4.1 and 4.2, equations 1 to 4; Shazeer 2020, arXiv
    2002.05202 (gated forms). Context parallelism splits the sequence: Megatron-LM, --context-parallel-size.
    """
    return by_kind(kept_by_layer(workload, keeping))


def score_bytes(workload: Workload) -> dict[str, int]:
    """Bytes that one layer keeps of the attention scores and of what follows from them up to the context, by kind.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.1: 5 a s^2 b in 16 bit.
    """
    return by_kind(each for each in kept_by_layer(workload, NO_KEEPING) if CORE_ATTENTION & {*each.modules})


def embedding_activation_bytes(workload: Workload) -> dict[str, int]:
    """Bytes that the first stage keeps in front of its layers for one micro-batch, by kind.

    embedding norm input      e T h / u, where there is such a norm
    embedding dropout mask    T h / u, with embedding dropout

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.3 (without the token indices, 8 T).
    """
    everywhere = hidden_elements(workload)
    kinds = {}
    if workload.architecture.embedding_norm:
        kinds["embedding norm input"] = WEIGHT_ELEMENT_BYTES[workload.recipe.precision] * everywhere
    if workload.recipe.embedding_dropout > 0:
        kinds["embedding dropout mask"] = everywhere
    return kinds


def head_activation_bytes(workload: Workload, keeping: Keeping = NO_KEEPING) -> dict[str, int]:
    """Bytes that the last stage keeps after its layers for one micro-batch, by kind.

    final norm input    e T h / u
    head input          e T h / u
    logits              4 T V / t, in fp32

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.3: 4 s b h / t (1 + V / h) in all.
    A loss that is not fused holds more for a moment: its 16-bit logits and, in the backward pass, their gradient.

    Torchtitan's, where the allocator holds most of it:
        head input    e T h: whole, gathered with sequence parallelism
        logits        (12 + e) T V / t: log-softmax, its gradient, and that of the logits, in fp32; the segment of the
                      16-bit logits, which the gradient's cast takes again

    Source: torchtitan of December 2024, train.py: cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1)), and
    del pred before the backward pass; the loss is not compiled there.
    """
    architecture, recipe, layout = workload
    element, tokens = WEIGHT_ELEMENT_BYTES[recipe.precision], micro_batch_tokens(workload)
    stream = element * hidden_elements(workload)
    logits = tokens * architecture.padded_vocabulary // layout.tensor_parallel
    if keeping.titan:
        head = element * tokens * architecture.hidden
        return {"final norm input": stream, "head input": head, "logits": (3 * FP32 + element) * logits}
    return {"final norm input": stream, "head input": stream, "logits": FP32 * logits}


def checkpoint_bytes(workload: Workload) -> int:
    """Bytes of the input that is kept for one unit of full recomputation and one micro-batch.

    e T h, over t with sequence parallelism or partitioned checkpoints.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 5 (2 s b h L in all with groups of one layer);
    Rajbhandari et al. 2020, arXiv 1910.02054, section 6.1 (partitioned checkpoints).
    """
    architecture, recipe, layout = workload
    whole = WEIGHT_ELEMENT_BYTES[recipe.precision] * micro_batch_tokens(workload) * architecture.hidden
    return whole // layout.tensor_parallel if layout.sequence_parallel or layout.partitioned_checkpoints else whole


def kept_by_operator(workload: Workload, keeping: Keeping) -> dict[str, int]:
    """Bytes that one layer keeps with selective recomputation by operator, by kind.

        layer input          e T h / u
        products' outputs    e T of the widths of every other one, from the first on, of
                             query, key, value, projection, gate, (up,) down
        attention context    e T a d / t, and its log-sum-exp: not computed again

    A compiled layer does not keep what the last product puts out: no gradient reads it.

    Source: torchtitan of December 2024, parallelisms/parallelize_llama.py, _apply_ac_to_transformer_block (_save_list,
    mm_count % 2); with tensor parallelism the reduce-scattered sums are kept too.
    """
    architecture, recipe, layout = workload
    element, t, tokens = WEIGHT_ELEMENT_BYTES[recipe.precision], layout.tensor_parallel, micro_batch_tokens(workload)
    key, h = key_width(architecture, tensor_parallel=t), architecture.hidden
    wide = [architecture.ffn_hidden // t] * (2 if architecture.activation.gated else 1)
    widths = [architecture.query_width // t, key, key, h, *wide, h][::2]
    if keeping.modules is Modules.TORCHTITAN_COMPILED and len(wide) > 1:
        widths = widths[:-1]
    kept = {
        "layer input": checkpoint_bytes(workload),
        "products' outputs": element * tokens * sum(widths),
        "attention context": element * tokens * architecture.context_width // t,
        "reduced sums": 2 * element * hidden_elements(workload) * (t > 1) * layout.sequence_parallel,
    }
    return kept | score_bytes(workload)


def inputs_stay_in_place(layout: Layout) -> bool:
    """Whether a layer that is computed again reads its kept input as it lies, or gathers it from partitions."""
    if layout.sequence_parallel or not layout.partitioned_checkpoints:
        return True
    return layout.tensor_parallel == 1


def micro_batch_bytes(workload: Workload, keeping: Keeping = NO_KEEPING) -> MicroBatchBytes:
    """Bytes of one micro-batch on one rank that hold for every pipeline stage: what stages are put together from.

    A unit's input is the first tensor that its first layer keeps, so it takes no second place when that layer is
    computed again and reads it as it lies (see `inputs_stay_in_place`).
    """
    operators = MegatronLayer(workload, keeping)
    layer = sum(each.bytes for each in operators.kept)
    after = head_activation_bytes(workload, keeping)
    logits = after["logits"]
    unit, shared = layer, 0
    if workload.layout.recomputation in (Recomputation.NONE, Recomputation.SELECTIVE):
        again = sum(each.bytes for each in operators.kept if each.leaves(workload.layout))
        unit = layer - again
    elif workload.layout.recomputation is Recomputation.SELECTIVE_OP:
        unit = sum(kept_by_operator(workload, keeping).values())
    else:
        unit = checkpoint_bytes(workload)
        shared = unit * inputs_stay_in_place(workload.layout)
    backward = operators.backward_bytes() if keeping.megatron_layers else layer
    embedding = sum(embedding_activation_bytes(workload).values())
    return MicroBatchBytes(layer, unit, backward, shared, embedding, sum(after.values()) - logits, logits)


def kept_units(layout: Layout, *, layers: int) -> int:
    """Units (see `MicroBatchBytes`) that `layers` layers of one stage keep for one micro-batch.

    none, selective    l: each layer
    selective-op       l
    full               v ceil(l / v g): each group of g layers of each virtual stage
    from input         v: each virtual stage
    """
    if layout.recomputation is Recomputation.FULL:
        virtual = layout.virtual_stages
        return virtual * ceil_division(layers, virtual * layout.checkpoint_layers)
    return layout.virtual_stages * (layers > 0) if layout.recomputation is Recomputation.FROM_INPUT else layers


def working_bytes(unit: MicroBatchBytes, layout: Layout, *, layers: int) -> int:
    """Bytes that the backward pass through `layers` layers of one stage holds at a time beside what units keep.

    full         the backward pass of the last layer of a group, the group's other layers computed again, less its input
                 where that is kept in place
    from input   one layer's backward pass (less its input where each virtual stage has this layer alone)
    others       one layer's backward pass, less its unit
    """
    if layout.recomputation is Recomputation.FULL:
        others = smaller(layers, layout.checkpoint_layers) - 1
        return (unit.layer * others + unit.backward - unit.shared) * (layers > 0)
    if layout.recomputation is Recomputation.FROM_INPUT:
        return unit.backward * (layers > 0) - unit.shared * (layers == layout.virtual_stages)
    return larger(unit.backward - unit.unit, 0 * unit.unit) * (layers > 0)


def activation_bytes(workload: Workload, *, stage: int) -> int:
    """Bytes that a rank of pipeline stage `stage` (from 0) keeps for the backward pass of one micro-batch.

    The layers' after recomputation (see `kept_units`), on the outer stages embedding and head, and the logits.
    """
    architecture, recipe, layout = workload
    unit = micro_batch_bytes(workload)
    kept = (stage == 0) * unit.embedding
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        kept = kept + micro_batch_bytes(Workload(kind, recipe, layout)).unit * kept_units(layout, layers=layers)
    return kept + (stage == head_stage(layout)) * (unit.head + unit.logits)


def approximate_activation_bytes(
    *, sequence: int, micro_batch: int, hidden: int, layers: int, tensor_parallel: int = 1
) -> float:
    """Bytes of activations by s b h L (10 + 24 / t), the usual estimate with selective recomputation.

        10        norm inputs 4, attention and feed-forward input 4, dropout masks 2: on every tensor-parallel rank
        24 / t    query, key, value 6, context 2, activation's input and output 16: split

    Source: Korthikanti et al. 2022, arXiv 2205.05198, equation 2 without its 5 a s / h t.
    Equals `layer_activation_bytes` less the scores where f = 4 h, k d = h, in 16 bit with dropout and without sequence
    parallelism. For Llama-2-70B (gated, f = 3.5 h, k d = h / 8, no dropout) the exact 40.5 s b h L at t = 1 are 19 %
    more; with a fused kernel for the gate 33.5 s b h L, 1.5 % less.
    """
    return sequence * micro_batch * hidden * layers * (10 + 24 / tensor_parallel)


def forty_s_h_l_bytes(*, sequence: int, hidden: int, layers: int) -> int:
    """Bytes of activations of one sequence by 40 s h L, a rule of thumb for fused attention without tensor parallelism.

    Differs from the exact 34 s h L without scores by 6 / 34: 17.6 % too high; from 34 s h L + 5 a s^2 L, which an
    unfused attention keeps, by far: for 13B at s = 4096 it is 194 s h L, almost five times as much.
    """
    return 40 * sequence * hidden * layers


def activation_conventions(workload: Workload) -> dict[str, float]:
    """Bytes of one micro-batch through all layers as one rank without pipeline would keep them, side by side.

    exact                      `layer_activation_bytes` of all L layers
    exact without scores       the same less `score_bytes`: selective recomputation
    s b h L (10 + 24 / t)      `approximate_activation_bytes`
    40 s h L                   `forty_s_h_l_bytes`, for each of the b sequences
    """
    architecture, recipe, layout = workload
    layers = architecture.layers
    scores = layers * sum(score_bytes(workload).values())
    exact = sum(
        number * sum(layer_activation_bytes(Workload(kind, recipe, layout)).values())
        for kind, number in layer_kinds(architecture)
    )
    return {
        "exact": exact,
        "exact without scores": exact - scores,
        "s b h L (10 + 24 / t)": approximate_activation_bytes(
            sequence=architecture.sequence,
            micro_batch=layout.micro_batch,
            hidden=architecture.hidden,
            layers=layers,
            tensor_parallel=layout.tensor_parallel,
        ),
        "40 s h L": layout.micro_batch
        * forty_s_h_l_bytes(sequence=architecture.sequence, hidden=architecture.hidden, layers=layers),
    }


def checkpoint_partitions(*, layers: int, input_bytes: float = 1, layer_bytes: float = 1) -> float:
    """Partitions d, a real number, at which kept bytes are least: sqrt(L w / i), sqrt(L) where w = i.

    Of L layers in d partitions of which only the inputs are kept, least of d i + (L / d) w:
        d i          the inputs of d partitions, i bytes each
        (L / d) w    one partition computed again, w bytes a layer

    Source: Chen et al. 2016, arXiv 1604.06174, section 4.1. With w / i = 17 (16 bit, dropout, no scores) and one
    micro-batch in flight it is 4.1 sqrt(L): groups smaller than the classical sqrt(L) layers.
    """
    least: float = (layers * layer_bytes / input_bytes) ** 0.5
    return least


def best_checkpoint_layers(workload: Workload, *, stage: int, micro_batches: int) -> int:
    """Layers a group with which full recomputation on `stage` needs the fewest bytes.

    Least over g of m kept bytes and the bytes of one group computed again (see `kept_units`, `working_bytes`), with
    m micro-batches in flight; of equals the one nearest to the real-valued least of `checkpoint_partitions`.
    """
    architecture, recipe, layout = workload
    full = msgspec.structs.replace(layout, recomputation=Recomputation.FULL)
    unit = micro_batch_bytes(Workload(architecture, recipe, full))
    layers = stage_layers(architecture, layout, stage=stage)
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    each = ceil_division(layers, layout.virtual_stages)
    real = checkpoint_partitions(layers=each, input_bytes=in_flight * unit.unit, layer_bytes=unit.layer)

    def bytes_and_distance(group: int) -> tuple[float, float]:
        grouped = msgspec.structs.replace(full, checkpoint_layers=group)
        kept = in_flight * unit.unit * kept_units(grouped, layers=layers)
        return kept + working_bytes(unit, grouped, layers=layers), abs(each / group - real)

    return min(range(1, each + 1), key=bytes_and_distance, default=1)
