"""Memory of training low-rank adapters beside frozen weights, in 16 bits (LoRA) or in NF4 (QLoRA).

Symbols as in `suite.predict.analytic.activations`; r: rank of the adapters, n: ranks that shard the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import AdapterTargets, Architecture, Precision, ProductFormat, Recipe, Residual, Workload
from suite.predict.analytic.activations import checkpoint_bytes, layer_activation_bytes
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.parameters import layer_tensors
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.weight_formats import (
    ELEMENT_BYTES,
    Matrices,
    WeightFormat,
    WeightParts,
    matrices_bytes,
    scale_bytes,
    weight_parts,
)

FP32 = 4
ADAPTER_STATE = 4  # weight, gradient, and both moments
_READ_BY_EXPERTS = ("expert input", "expert contraction input")  # which only adapters' gradients need
_READ_BY_PRODUCTS = ("attention input", "feed-forward input", "contraction input")


class AdaptedMemory(NamedTuple):
    """Bytes on one of the ranks.

    Args:
        base: frozen weights.
        adapters: weights, gradients and moments of the adapters.
        outside: gathered weights of what is outside of the layers, where they are sharded.
        unit: gathered weights of one layer, where they are sharded.
        unpacked: what the largest matrix takes in 16 bits, where it is stored in 4, beyond a copy that is gone by then.
        kept: inputs of the layers, which are computed again.
        layer: what one layer keeps while its backward pass begins, with what is on its way.
        coming: gradients of that layer's adapters, which there are not yet.
        loss: logits and what the loss makes of them.
    """

    base: int
    adapters: int
    outside: int
    unit: int
    unpacked: int
    kept: int
    layer: int
    coming: int
    loss: int

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment.

        At the loss and in the last layer's backward pass there are no gradients yet; in the first layer's there are
        those of all others, and no other layer's input; the update needs as much as the gradients for a moment. The
        next layer's weights are gathered ahead.
        """
        state = self.base + self.adapters
        gradients = self.adapters // ADAPTER_STATE
        passes = state + self.outside + self.unit
        backward = passes + self.unit + self.unpacked + self.layer
        last, first = backward - gradients + self.kept, backward - self.coming
        return max(passes - gradients + self.kept + self.loss, last, first, state + gradients)


class AdaptedMatrices(NamedTuple):
    """Matrices of one layer that get an adapter.

    Args:
        ranks: of the rank that was asked for: 2 of gate and up of experts, which are one.
        merged: whether the module multiplies by a copy of its weights to which the adapter is added, as it does where
            it is no linear layer: a router's, or stacked experts.
    """

    matrices: Matrices
    ranks: int = 1
    merged: bool = False

    def parameters(self, rank: int) -> int:
        """Parameters of the adapters: r (m + n) for each matrix of m rows and n columns."""
        return self.matrices.number * self.ranks * rank * (self.matrices.rows + self.matrices.columns)


def adapted_matrices(
    architecture: Architecture, kind: Architecture, *, targets: AdapterTargets = AdapterTargets.LINEAR
) -> list[AdaptedMatrices]:
    """The matrices of one layer of a kind of the architecture's that get an adapter, as modules of transformers 5 have
    them, by default where all linear layers are targeted.

    Query, key and value are three, and so are gate, up and contraction of a gated feed-forward part. In mixtures peft
    takes the names of linear layers for those of stacked experts: experts and routers have adapters, shared experts and
    the feed-forward part of dense layers have none. It does not know gpt-oss, whose experts have biases, nor Qwen2-MoE,
    whose shared expert has a gate beside ordinary attention: their linear layers alone have some.

    Source: peft 0.21, utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING and _MOE_FUSED_TARGETS.
    """
    a = architecture
    stacked = a.experts is not None and not a.expert_bias and not (a.shared_gate and a.linear_heads is None)
    found: list[AdaptedMatrices] = []
    for tensor in layer_tensors(kind):
        owner, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        columns = tensor.elements // tensor.rows
        gates = 1 + (part == "expansion" and kind.activation.gated)
        if not tensor.matrix or part in ("convolution", "bias"):
            continue
        if targets is AdapterTargets.ATTENTION and owner != "attention":
            continue
        if owner.endswith(".experts") or part == "router":
            number = (kind.experts or 1) if part != "router" else 1
            found += stacked * [AdaptedMatrices(Matrices(tensor.rows // number, columns, number), gates, merged=True)]
        elif part == "query_key_value":
            queries = kind.query_width * (1 + kind.attention_gate)
            keys = (tensor.rows - queries) // 2
            found += [AdaptedMatrices(Matrices(queries, columns)), AdaptedMatrices(Matrices(keys, columns, 2))]
        elif part not in ("expansion", "contraction") or not stacked:
            found.append(AdaptedMatrices(Matrices(tensor.rows // gates, columns, gates)))
    return found


def trained_matrices(kind: Architecture, recipe: Recipe) -> list[AdaptedMatrices]:
    """The matrices of one layer of a dense kind that get an adapter of a run's recipe."""
    return adapted_matrices(kind, kind, targets=recipe.adapter_targets or AdapterTargets.LINEAR)


def adapter_parameters(architecture: Architecture, *, rank: int) -> int:
    """Parameters of all adapters.

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.1. On every linear layer of LLaMA-2 7B with r = 16: 39,976,960.
    """
    return sum(
        layers * each.parameters(rank)
        for kind, layers in layer_kinds(architecture)
        for each in adapted_matrices(architecture, kind)
    )


def adapted_memory(
    architecture: Architecture, recipe: Recipe, *, base: WeightFormat, rank: int, ranks: int = 1
) -> AdaptedMemory:
    """Memory of a step of one sequence on one of `ranks` ranks, with AdamW and every layer computed again.

        base        matrices of linear layers in the format, the others with stacked experts in 16 bits, over n; scales,
                    which are no parameters to FSDP, on every rank
        adapters    4 b A / n        A parameters of b bytes: 4 on one rank (peft), 2 where FSDP shards them, which
                                     wants one dtype of a unit
        kept        L e T h
        layer       `_layer_moment`
        unpacked    e m n of the largest matrix; with copies less b T f: the adapter's backward pass comes first and
                    lets its copy go; none in a layer whose fullest moment is in its experts
        loss        the logits in 16 bits twice, in fp32 twice; and what the last norm keeps

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.2 (no gradients or moments of frozen weights); Dettmers et al.
    2023, arXiv 2305.14314, sections 2 and 3; order of operators as in peft, tuners/lora/layer.py, Linear.forward.
    """
    sharded = ranks > 1
    element = ELEMENT_BYTES if sharded else FP32
    recipe = _without_dropout(recipe)
    layout = Layout(micro_batch=1, recomputation=Recomputation.FULL, fused_attention=True)
    layer = coming = kept = unit = unpacked = 0
    for kind, layers in layer_kinds(architecture):
        work, adapted = Workload(kind, recipe, layout), adapted_matrices(architecture, kind)
        moment, copy = _layer_moment(work, adapted, rank=rank, element=element)
        trained = sum(each.parameters(rank) for each in adapted)
        layer, coming = max((layer, coming), (moment, element * trained // ranks))
        kept += layers * checkpoint_bytes(work)
        parts = weight_parts(msgspec.structs.replace(kind, layers=1, dense_layers=0))
        if base is WeightFormat.NF4 and not any(each.merged for each in adapted):
            largest = max(each.matrices.rows * each.matrices.columns for each in adapted)
            unpacked = max(unpacked, ELEMENT_BYTES * largest - copy)
        packed, scales = _linear_bytes(parts, base)
        unit = max(unit, packed - scales + ELEMENT_BYTES * (parts.others + trained))
    parts = weight_parts(architecture)
    packed, scales = _linear_bytes(parts, base)
    adapters = ADAPTER_STATE * element * adapter_parameters(architecture, rank=rank)
    return AdaptedMemory(
        base=ceil_division(packed - scales + parts.whole_bytes, ranks) + scales,
        adapters=ceil_division(adapters, ranks),
        outside=ELEMENT_BYTES * parts.tables if sharded else 0,
        unit=unit if sharded else 0,
        unpacked=unpacked,
        kept=kept,
        layer=layer,
        coming=coming,
        loss=_norm_bytes(architecture)
        + 2 * (ELEMENT_BYTES + FP32) * architecture.sequence * architecture.padded_vocabulary,
    )


def _layer_moment(work: Workload, adapted: list[AdaptedMatrices], *, rank: int, element: int) -> tuple[int, int]:
    """Bytes of one layer at its fullest moment, and those of a copy that is gone when a matrix is unpacked.

    What its operators keep, `layer_activation_bytes` with the norms of `_norm_bytes`; b r T for
    each adapter of a linear layer. With b = e adapters read what products read; else each has an fp32 copy of it, b T
    for every column, and frozen products keep nothing. On their way, of the last linear layer's adapter: T h (2 e +
    2 b) and, with copies, e T f; and gradients, 2 b T h.

    With merged adapters it is the backward pass of the experts' contraction: e E (g + 1) f h of merged weights, e E f h
    of the gradient of its own, the adapters' copies in 16 bits, and on their way the gradients of T k rows of h and f,
    and of T h. Outputs of experts are gone by then. Experts without adapters do not keep what they read.
    """
    kind = work.architecture
    tokens, copied = kind.sequence, element > ELEMENT_BYTES
    norms = 1 if kind.residual is Residual.PARALLEL else 2
    kinds = layer_activation_bytes(work) | {"norm inputs": norms * _norm_bytes(kind)}
    merged = [each for each in adapted if each.merged]
    linear = [each.matrices for each in adapted if not each.merged]
    columns = sum(each.number * (rank + copied * each.columns) for each in linear)
    hidden, read = tokens * kind.hidden, copied * kinds.get("contraction input", 0)
    unneeded = {*(_READ_BY_PRODUCTS if copied else ())}
    if merged:
        unneeded = (unneeded | {"expert output"}) - {"feed-forward input"}  # which the router reads
        passing = ELEMENT_BYTES * hidden + sum(kinds[name] for name in _READ_BY_EXPERTS)
        contraction = merged[-1].matrices.elements
        weights = sum(each.matrices.elements for each in merged) + contraction
        weights += copied * sum(each.parameters(rank) for each in merged)
        passing += ELEMENT_BYTES * weights
    else:
        unneeded |= set(_READ_BY_EXPERTS)
        passing = hidden * (2 * ELEMENT_BYTES + 4 * element) + read
    held = sum(size for name, size in kinds.items() if name not in unneeded)
    return held + element * tokens * columns + passing, FP32 // ELEMENT_BYTES * read


def _norm_bytes(architecture: Architecture) -> int:
    """Bytes that a norm keeps of a sequence, with a frozen gain.

        RMSNorm      4 T h + 4 T    its input in fp32, the roots
        LayerNorm    e T h + 8 T    its input, mean and root

    Source: transformers, models/llama/modeling_llama.py, LlamaRMSNorm (counted by hooks, 2026-11-26).
    """
    rms = architecture.norm.root_mean_square
    element, statistics = (FP32, 1) if rms else (ELEMENT_BYTES, 2)
    return architecture.sequence * (element * architecture.hidden + FP32 * statistics)


def _without_dropout(recipe: Recipe) -> Recipe:
    return msgspec.structs.replace(
        recipe,
        precision=Precision.BF16_PURE,
        embedding_dropout=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        product_format=ProductFormat.NONE,
    )


def _linear_bytes(parts: WeightParts, base: WeightFormat) -> tuple[int, int]:
    """Bytes of the matrices, and those of their scales among them. Software packs linear layers, no stacked experts."""
    formats = [(WeightFormat.BF16 if each.stacked else base, each) for each in parts.linear]
    return sum(matrices_bytes(*each) for each in formats), sum(scale_bytes(*each) for each in formats)
