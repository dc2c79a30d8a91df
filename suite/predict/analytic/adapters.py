"""Memory of training low-rank adapters beside frozen weights, in 16 bits (LoRA) or in NF4 (QLoRA).

Symbols as in `suite.predict.analytic.activations`; r: rank of the adapters, n: ranks that shard the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Precision, ProductFormat, Recipe, Workload
from reference_runs.stack import Keeping, Modules, Weights32
from suite.predict.analytic.activations import checkpoint_bytes, head_activation_bytes, layer_activation_bytes
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.parameters import layer_tensors
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.weight_formats import (
    ELEMENT_BYTES,
    Matrices,
    WeightFormat,
    WeightParts,
    matrices_bytes,
    weight_parts,
)

FP32 = 4
ADAPTER_STATE = 4  # weight, gradient, and both moments
_EAGER = Keeping(Modules.EAGER, Weights32.NEVER)
GAINED = "norm outputs before gain"  # which a frozen gain does not need
_READ_BY_EXPERTS = ("expert input", "expert contraction input")  # which have no adapters
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
        loss: logits and what the loss makes of them.
    """

    base: int
    adapters: int
    outside: int
    unit: int
    unpacked: int
    kept: int
    layer: int
    loss: int

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment.

        At the loss and in the last layer's backward pass there are no gradients yet; in the first layer's there are all
        of them, and no other layer's input; the update needs as much as the gradients for a moment. The next layer's
        weights are gathered ahead.
        """
        state = self.base + self.adapters
        gradients = self.adapters // ADAPTER_STATE
        passes = state + self.outside + self.unit
        backward = passes + self.unit + self.unpacked + self.layer
        return max(
            passes - gradients + self.kept + self.loss, backward - gradients + self.kept, backward, state + gradients
        )


def adapted_projections(architecture: Architecture) -> list[Matrices]:
    """The matrices of one layer that get an adapter: every linear layer but experts and routers, as modules have them.

    Query, key and value are three, and so are gate, up and contraction of a gated feed-forward part.
    """
    a, found = architecture, []
    for tensor in layer_tensors(a):
        _, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        if not tensor.matrix or ".experts." in tensor.name or part in ("router", "shared_gate", "convolution"):
            continue
        columns = tensor.elements // tensor.rows
        if part == "query_key_value":
            queries = a.query_width * (1 + a.attention_gate)
            keys = (tensor.rows - queries) // 2
            found += [Matrices(queries, columns), Matrices(keys, columns, 2)]
        elif part == "expansion" and a.activation.gated:
            found.append(Matrices(tensor.rows // 2, columns, 2))
        else:
            found.append(Matrices(tensor.rows, columns))
    return found


def adapter_parameters(architecture: Architecture, *, rank: int) -> int:
    """Parameters of all adapters: r (m + n) for each matrix of m rows and n columns.

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.1. On every linear layer of LLaMA-2 7B with r = 16: 39,976,960.
    """
    return sum(
        layers * each.number * rank * (each.rows + each.columns)
        for kind, layers in layer_kinds(architecture)
        for each in adapted_projections(kind)
    )


def adapted_memory(
    architecture: Architecture, recipe: Recipe, *, base: WeightFormat, rank: int, ranks: int = 1
) -> AdaptedMemory:
    """Memory of a step of one sequence on one of `ranks` ranks, with AdamW and every layer computed again.

        base        `WeightParts.bytes` of the format, over n
        adapters    4 b A / n        A parameters of b bytes: 4 on one rank (peft), 2 where FSDP shards them, which
                                     wants one dtype of a unit
        kept        L e T h
        layer       what its operators keep, `layer_activation_bytes` of eager modules without results before a norm's
                    gain and what experts read; b r T for each adapter. With b = e adapters read what products read;
                    else each has an fp32 copy of it, b T for every column, and frozen products keep nothing. On their
                    way, of the last adapter: T h (2 e + 2 b) and, with copies, e T f; and gradients, 2 b T h
        unpacked    e m n of the largest matrix; with copies less b T f: the adapter's backward pass comes first and
                    lets its copy go
        loss        `head_activation_bytes` of eager modules: the logits in 16 bits twice, in fp32 twice; without e T h
                    that the frozen head would read, and e T h of an RMSNorm before its frozen gain

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.2 (no gradients or moments of frozen weights); Dettmers et al.
    2023, arXiv 2305.14314, sections 2 and 3; order of operators as in peft, tuners/lora/layer.py, Linear.forward.
    Beside peft's and bitsandbytes's modules executed without memory (2026-11-29, r = 16, n = 1 and 8): LoRA of LLaMA-2
    7B at 4,096 tokens and Llama 3.1 8B at 2,048 within 0.1 %; QLoRA of the former 0.03 % below, with n = 8 2.3 % below.
    """
    sharded = ranks > 1
    element = ELEMENT_BYTES if sharded else FP32
    layout = Layout(micro_batch=1, recomputation=Recomputation.FULL, fused_attention=True)
    recipe = msgspec.structs.replace(
        recipe,
        precision=Precision.BF16_PURE,
        embedding_dropout=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        product_format=ProductFormat.NONE,
    )
    parts = weight_parts(architecture)
    tokens = architecture.sequence
    layer = kept = largest = unit = copy = 0
    unneeded = (GAINED, *_READ_BY_EXPERTS, *(() if sharded else _READ_BY_PRODUCTS))
    for kind, layers in layer_kinds(architecture):
        work = Workload(kind, recipe, layout)
        projections = adapted_projections(kind)
        kinds = layer_activation_bytes(work, _EAGER)
        held = sum(size for name, size in kinds.items() if name not in unneeded)
        columns = sum(each.number * (rank if sharded else rank + each.columns) for each in projections)
        passing = tokens * kind.hidden * (2 * ELEMENT_BYTES + 4 * element)
        read = 0 if sharded else kinds.get("contraction input", 0)
        passing += read
        copy = max(copy, FP32 // ELEMENT_BYTES * read)
        layer = max(layer, held + element * tokens * columns + passing)
        kept += layers * checkpoint_bytes(work)
        largest = max(largest, *(each.rows * each.columns for each in projections))
        one = msgspec.structs.replace(kind, layers=1, dense_layers=0)
        unit = max(unit, _linear_bytes(weight_parts(one), base))
    adapters = ADAPTER_STATE * element * adapter_parameters(architecture, rank=rank)
    after = head_activation_bytes(Workload(architecture, recipe, layout), _EAGER)
    unread = ELEMENT_BYTES * tokens * architecture.hidden  # of a norm before its gain
    loss = sum(after.values()) - after["head input"] - unread * architecture.norm.root_mean_square
    return AdaptedMemory(
        base=ceil_division(parts.bytes(base), ranks),
        adapters=ceil_division(adapters, ranks),
        outside=parts.whole_bytes if sharded else 0,
        unit=unit if sharded else 0,
        unpacked=max(0, ELEMENT_BYTES * largest - copy) if base is WeightFormat.NF4 else 0,
        kept=kept,
        layer=layer,
        loss=loss,
    )


def _linear_bytes(parts: WeightParts, base: WeightFormat) -> int:
    return sum(matrices_bytes(base, each) for each in parts.linear)
