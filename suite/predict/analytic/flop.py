"""Floating-point operations of one training step: by part, by recomputation, and on each rank."""

from __future__ import annotations

from fractions import Fraction

from reference_runs.layout import CORE_ATTENTION, Layout, Recomputation, RecomputedModule, StageAssignment
from reference_runs.placement import chunk_layers, head_stage, stage_chunk_layers
from reference_runs.run import Architecture, Workload
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.experts import expert_forward_flop
from suite.predict.analytic.latent_attention import compressed_width, latent_products
from suite.predict.analytic.linear_attention import linear_forward_flop, linear_input_columns
from suite.predict.analytic.stage_layers import chunk_layer_kinds, layer_kinds, stage_layer_kinds

MODEL_CONVENTION = "all matrix products, full attention square, head included, no recomputation"
HARDWARE_CONVENTION = "as model_flop, and recomputation"


def layer_forward_flop(architecture: Architecture, *, samples: int) -> dict[str, int]:
    """Flop of matrix products in the forward pass of `samples` sequences through one layer, by part.

    A product of M x K by K x N is 2 M N K flop. With T = samples * s tokens, a heads and k key-value heads of size d,
    g = 2 for a gated activation and 1 otherwise:
        query, key, value     2 T h (a d + 2 k d)
        attention scores      2 T s a d   (the full square, whatever a kernel skips of it: see `attended_share`)
        attention context     2 T s a d
        projection            2 T h a d
        feed-forward          2 (g + 1) T h f; for experts see `expert_forward_flop`, and a router besides
    Latent attention has more products before the scores, in "query, key, value" (see `latent_attention`), and values of
    another size than queries and keys. A gate of the context has 2 T h a d more. Linear attention has `linear_products`
    in place of scores and context.
    Element-wise operations, norms and softmax are not counted.

    Source: Narayanan et al. 2021, arXiv 2104.04473, appendix (the derivation of equation 3), with f = 4 h and
    a d = k d = h.
    """
    h, f, s = architecture.hidden, architecture.ffn_hidden, architecture.sequence
    tokens, width, context = samples * s, architecture.query_width, architecture.context_width
    inputs = 2 * tokens * h * (width + 2 * architecture.kv_heads * architecture.head_dim)
    if architecture.key_value_rank is not None:
        inputs = sum(2 * tokens * rows * columns for rows, columns in latent_products(architecture).values())
    if architecture.linear:
        inputs = 2 * tokens * h * linear_input_columns(architecture)
    elif architecture.attention_gate:
        inputs += 2 * tokens * h * width
    feed_forward = {"feed-forward": (6 if architecture.activation.gated else 4) * tokens * h * f}
    if architecture.experts is not None:
        feed_forward = expert_forward_flop(architecture, tokens=tokens)
    square = {"attention scores": 2 * tokens * s * width, "attention context": 2 * tokens * s * context}
    return {
        "query, key, value": inputs,
        **(linear_forward_flop(architecture, samples=samples) if architecture.linear else square),
        "projection": 2 * tokens * h * context,
        **feed_forward,
    }


def head_forward_flop(architecture: Architecture, *, samples: int) -> int:
    """Flop of the head in the forward pass of `samples` sequences: 2 T h V with V stored rows."""
    return 2 * samples * architecture.sequence * architecture.hidden * architecture.padded_vocabulary


def forward_flop(architecture: Architecture, *, samples: int) -> dict[str, int]:
    """Flop of matrix products in the forward pass of `samples` sequences, by part: the layers' and the head's."""
    parts: dict[str, int] = {}
    for kind, layers in layer_kinds(architecture):
        for part, flop in layer_forward_flop(kind, samples=samples).items():
            parts[part] = parts.get(part, 0) + layers * flop
    return parts | {"head": head_forward_flop(architecture, samples=samples)}


def model_flop(architecture: Architecture, *, samples: int) -> int:
    """Flop that one step on `samples` sequences needs: three times the forward pass.

    The backward pass of a product is two products of the same size: by its input and by its weight. The input of the
    first layer has a gradient too, because the embedding is trained.

    Source: arXiv 2104.04473, equation 3 with 72 in place of 96: 72 B s L h^2 (1 + s / 6h + V / 12 L h).
    Of a mixture of experts it counts the experts that a token passes.
    Differs from 6 N T (N with a tied embedding) by the attention square, s / 6h of the layers' flop, less biases and
    norms: 2.3 % more for BLOOM-176B.
    """
    return 3 * sum(forward_flop(architecture, samples=samples).values())


def recomputed_flop(
    architecture: Architecture,
    *,
    samples: int,
    recomputation: Recomputation,
    layers: int,
    modules: frozenset[RecomputedModule] = CORE_ATTENTION,
) -> int:
    """Flop that recomputation adds to a step on `samples` sequences through `layers` layers of one stage.

    none         0
    selective    attention scores and context once more: 4 T s a d a layer; of other modules see `recomputed_share`
    selective-op the products whose output is not kept, see `selective_op_share`
    full         the layers' forward products once more, whatever the size of the groups
    from input   layer l restarts from the stage's input: l (l + 1) / 2 layer-forwards for l layers

    Source: Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5; Chen et al. 2016, arXiv 1604.06174.
    Differs from Korthikanti's equation for hardware flop (72 B s L h^2 (1 + s / 3h + V / 12 L h)), which adds three
    times the flop of the two products that selective recomputation repeats: 1.1 % of the step for 530B.
    """
    layer = layer_forward_flop(architecture, samples=samples)
    if recomputation is Recomputation.SELECTIVE:
        return layers * int(sum(recomputed_share(architecture, part, modules) * flop for part, flop in layer.items()))
    if recomputation is Recomputation.SELECTIVE_OP:
        return layers * int(sum(selective_op_share(architecture, part) * flop for part, flop in layer.items()))
    return repeated_layers(recomputation, layers) * sum(layer.values())


def recomputed_share(architecture: Architecture, part: str, modules: frozenset[RecomputedModule]) -> Fraction:
    """Share of a part's forward products that selective recomputation of these modules repeats.

    core_attn      attention's scores and context
    mla_up_proj    latent attention's expansions; of query, key, value together their share of the elements
    mlp, moe       all of the feed-forward part, router included, in layers without or with experts
    shared_experts of the feed-forward part what every token passes: s of k + s experts, with k that a token is sent to
    others         none: norms and activations are no products

    Source: Megatron-Core 0.16.1, core/transformer/transformer_config.py, recompute_modules.
    """
    if part.startswith("attention"):
        return Fraction(RecomputedModule.CORE_ATTENTION in modules)
    if part in ("projection", "query compression", "key, value compression"):
        return Fraction(0)
    if not part.startswith(("query", "key")):
        whole = RecomputedModule.MLP if architecture.experts is None else RecomputedModule.EXPERTS
        if whole in modules or RecomputedModule.SHARED_EXPERTS not in modules or architecture.experts is None:
            return Fraction(whole in modules)
        passed = (architecture.experts_per_token or 0) + architecture.shared_experts
        share = Fraction(architecture.shared_experts, passed) if part == "feed-forward" else part.startswith("shared")
        return Fraction(share)
    if architecture.key_value_rank is None or RecomputedModule.LATENT_PROJECTION not in modules:
        return Fraction(0)
    if part != "query, key, value":
        return Fraction(1)
    sizes = {name: rows * columns for name, (rows, columns) in latent_products(architecture).items()}
    kept = sum(size for name, size in sizes.items() if name.endswith("compression"))
    return Fraction(sum(sizes.values()) - kept, sum(sizes.values()))


def selective_op_share(architecture: Architecture, part: str) -> Fraction:
    """Share of a part's forward products that selective recomputation by operator repeats.

    Of query, key, value, projection, gate, (up,) down the first and every other one are kept, so it repeats
        query, key, value    k / (a + 2 k)     key's
        projection           1
        expansion            1 / 2 gated, the half that is not the gate; else 0
        contraction          0 gated, else 1
        feed-forward         1 / 3 gated, else 1 / 2: both together

    Attention's output is kept. Source: torchtitan of December 2024, parallelisms/parallelize_llama.py,
    _apply_ac_to_transformer_block (known code, not re-read for this file).
    """
    heads, keys, gated = architecture.heads, architecture.kv_heads, architecture.activation.gated
    shares = {
        "query, key, value": Fraction(keys, heads + 2 * keys),
        "projection": Fraction(1),
        "expansion": Fraction(1, 2) * gated,
        "contraction": Fraction(1 - gated),
        "feed-forward": Fraction(1, 3) if gated else Fraction(1, 2),
    }
    return shares.get(part, Fraction(0))


def repeated_layers(recomputation: Recomputation, layers: int) -> int:
    """Layer-forwards that the backward pass of `layers` layers of one stage repeats.

    Whole layers, but of selective recomputation by operator all operators and messages, and not all products.
    """
    if recomputation in (Recomputation.FULL, Recomputation.SELECTIVE_OP):
        return layers
    return recomputed_layers_from_input(layers) if recomputation is Recomputation.FROM_INPUT else 0 * layers


def recomputed_layers_from_input(layers: int) -> int:
    """Layer-forwards that the backward pass of `layers` layers repeats when only their input is kept: l (l + 1) / 2.

    Differs from recomputation that keeps every layer's input, l layer-forwards, by (l + 1) / 2: 40.5 for 80 layers.
    """
    return layers * (layers + 1) // 2


def recomputation_from_input_ratio(layers: int) -> float:
    """Forward passes that the backward pass of `layers` layers repeats when only their input is kept: (l + 1) / 2."""
    return recomputed_layers_from_input(layers) / layers


def groups_stopped_early(workload: Workload, *, layers: int) -> int:
    """Groups of full recomputation in a chunk of `layers` layers whose last product PyTorch leaves out.

    torch.utils.checkpoint stops as soon as the last tensor that the backward pass needs has been computed: all groups,
    ceil(l / c) of c layers, without hidden dropout. None where a dropout mask is drawn after the product, where a norm
    after it keeps its input (deep-norm), or where the product is of a function that keeps its cast input at its end.

    Source: torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    architecture, recipe, layout = workload
    keeps_input = recipe.hidden_dropout > 0 or not architecture.norm.before
    casts = recipe.product_format.casts
    if layout.recomputation is not Recomputation.FULL or keeps_input or casts:
        return 0
    return ceil_division(layers, layout.checkpoint_layers)


def early_stop_flop(workload: Workload, *, samples: int, layers: range) -> int:
    """Flop that PyTorch's recomputation leaves out of what `recomputed_flop` counts, in a chunk of these layers.

    full         the last product of each group: 2 T h f, or f' of shared experts (see `groups_stopped_early`); nothing
                 where it ends with experts alone or with a gate of shared ones, whose output their gradients need
    selective    the attention context, whose inputs are the last tensors needed: 2 T s a d a layer; nothing of a fused
                 attention, whose output is needed

    Source: torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    architecture, layout = workload.architecture, workload.layout
    if layout.recomputed >= CORE_ATTENTION and not layout.fused_attention:
        return len(layers) * layer_forward_flop(architecture, samples=samples)["attention context"]
    if not groups_stopped_early(workload, layers=len(layers)):
        return 0
    ends = [*layers[layout.checkpoint_layers - 1 : -1 : layout.checkpoint_layers], *layers[-1:]]
    dense = sum(architecture.experts is None or layer < architecture.dense_layers for layer in ends)
    shared = (len(ends) - dense) * architecture.shared_experts * architecture.expert_width
    shared = 0 if architecture.shared_gate else shared
    columns: int = dense * architecture.ffn_hidden + shared
    return 2 * samples * architecture.sequence * architecture.hidden * columns


def fused_attention_flop(workload: Workload, *, samples: int, layers: int) -> int:
    """Flop that a fused attention adds to a step on `samples` sequences through `layers` layers; 0 without one.

    With T tokens, a heads of size d with values of size w, P the larger of the two, a layer has
        2 T s a P                  scores that the backward pass computes once more, as it has not stored them
        2 T s a (2 P - d - w)      zeros with which narrower keys or values are padded, in the forward pass, twice in
                                   the backward pass, and where it is recomputed
    The full square counts, as everywhere, though a causal kernel skips half of it.

    Source: Dao et al. 2022, arXiv 2205.14135, algorithm 4; torch/utils/flop_counter.py, sdpa_backward_flop_count.
    """
    a, layout = workload.architecture, workload.layout
    if not layout.fused_attention:
        return 0
    if a.first_kind_layers and not a.dense_layers:
        layers = layers * a.full_layers // a.layers  # linear attention's kernels compute what they have not kept
    again = layers if layout.recomputed >= CORE_ATTENTION else repeated_layers(layout.recomputation, layers)
    again = 0 * layers if layout.recomputation is Recomputation.SELECTIVE_OP else again
    padded = 2 * a.heads * a.fused_head_dim - a.query_width - a.context_width
    columns = layers * (a.heads * a.fused_head_dim + 3 * padded) + again * padded
    return 2 * samples * a.sequence * a.sequence * columns


def hardware_flop(architecture: Architecture, layout: Layout, *, samples: int) -> int:
    """Flop that one step on `samples` sequences executes: model flop and recomputation (see `recomputed_flop`).

    Source: arXiv 2104.04473, equation 3 for full recomputation: 96 B s L h^2 (1 + s / 6h + V / 16 L h).
    """
    flop = model_flop(architecture, samples=samples)
    if layout.recomputation is Recomputation.FROM_INPUT:
        forward = sum(layer_forward_flop(architecture, samples=samples).values())
        # one kind of layers: `layout_mistakes` refuses others
        return flop + recomputed_layers_of_all_stages(architecture, layout) * forward
    return flop + sum(
        recomputed_flop(
            kind, samples=samples, recomputation=layout.recomputation, layers=layers, modules=layout.recomputed
        )
        for kind, layers in layer_kinds(architecture)
    )


def recomputed_layers_of_all_stages(architecture: Architecture, layout: Layout) -> int:
    """Layer-forwards that restarting from each stage's input repeats, summed over p stages of l_k layers.

    sum of l_k (l_k + 1) / 2 = p q (q + 1) / 2 + r (q + 1) with q = slots / p rounded down and r the remainder;
    a table in place of a layer takes off the slots of its stage.
    """
    if layout.stage_layer_counts is not None:
        return sum(recomputed_layers_from_input(layers) for layers in layout.stage_layer_counts)
    stages = layout.pipeline_stages
    with_tables = layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    slots = architecture.layers + (2 if with_tables else 0)
    each, more = slots // stages, slots % stages
    repeated = stages * recomputed_layers_from_input(each) + more * (each + 1)
    if with_tables:
        repeated = repeated - (each + (more > 0)) - (each - (stages == 1))
    return repeated


def executed_flop(workload: Workload, *, samples: int) -> int:
    """Flop that PyTorch executes for one step on `samples` sequences: hardware flop less the early stops, what a fused
    attention adds, and `redundant_flop`.

    Groups of recomputed layers end with the chunk of the model that has them.
    """
    architecture, layout = workload.architecture, workload.layout
    flop = hardware_flop(architecture, layout, samples=samples)
    flop += fused_attention_flop(workload, samples=samples, layers=architecture.layers)
    for kind, number in layer_kinds(architecture):
        passes = 3 * number + repeated_layers(layout.recomputation, number)
        flop += passes * redundant_flop(kind, layout, samples=samples, at_once=layout.micro_batch)
    for layers in chunk_layers(architecture.layers, layout):
        flop -= early_stop_flop(workload, samples=samples, layers=layers)
    return flop


def redundant_flop(architecture: Architecture, layout: Layout, *, samples: int, at_once: int) -> int:
    """Flop that no token needs of a layer's forward pass of `samples` sequences, over all t tensor-parallel ranks.

    keys, values    4 T h d (t - k)           where there are more ranks than k key-value heads of size d
    router          2 T h E (t - 1)           of E experts and a shared gate (as one more), as each routes all tokens
    compression     2 T h (q + c + r) (t - 1) of latent attention of ranks q and c, as each rank compresses all tokens;
                                              not with sequence parallelism
    experts         2 (g + 1) h f (P - R)     where they have a capacity: P places of all experts for every rank's part
                                              of `at_once` sequences, less the rows R that the tokens have; less than 0
                                              where more rows are dropped than places stay empty
    """
    a, t, tokens = architecture, layout.tensor_parallel, samples * architecture.sequence
    columns: int = 2 * a.head_dim * max(t - a.kv_heads, 0) + ((a.experts or 0) + a.shared_gate) * (t - 1)
    if a.key_value_rank is not None and not layout.sequence_parallel:
        columns += (compressed_width(a) + (a.rotary_dim or 0)) * (t - 1)
    parts = layout.context_parallel
    each = at_once * a.sequence // parts
    more = samples * parts * (a.expert_rows(tokens=each) - each * (a.experts_per_token or 0)) // at_once
    return 2 * a.hidden * (tokens * columns + (3 if a.activation.gated else 2) * a.expert_width * more)


def executed_model_flop(workload: Workload, *, samples: int) -> int:
    """`model_flop` as ranks execute it, sample by sample: with `redundant_flop`."""
    architecture, layout = workload.architecture, workload.layout
    return model_flop(architecture, samples=samples) + sum(
        3 * layers * redundant_flop(kind, layout, samples=samples, at_once=1)
        for kind, layers in layer_kinds(architecture)
    )


def repeated_flop(workload: Workload, *, samples: int, layers: range) -> int:
    """Flop that PyTorch executes a second time for `samples` sequences in a chunk of these layers.

    `recomputed_flop` less `early_stop_flop`, `fused_attention_flop`, and `redundant_flop` where layers are repeated.
    """
    layout, recomputation = workload.layout, workload.layout.recomputation
    flop = sum(
        fused_attention_flop(workload._replace(architecture=kind), samples=samples, layers=number)
        for kind, number in chunk_layer_kinds(workload.architecture, layers)
        if not kind.linear
    )
    flop -= early_stop_flop(workload, samples=samples, layers=layers)
    return flop + sum(
        recomputed_flop(kind, samples=samples, recomputation=recomputation, layers=number)
        + repeated_layers(recomputation, number)
        * redundant_flop(kind, layout, samples=samples, at_once=layout.micro_batch)
        for kind, number in chunk_layer_kinds(workload.architecture, layers)
    )


def rank_model_flop(workload: Workload, *, stage: int, samples: int, at_once: int = 1) -> int:
    """Flop that one rank of pipeline stage `stage` needs for `samples` sequences: its chunks' products, over t c.

    3 (l F + H) / t c, with F flop of a layer and l layers in the chunks of the stage, H of the head on its stage.
    Tensor parallelism divides every product: by heads, feed-forward columns or vocabulary rows; context parallelism by
    positions, of queries in attention. F has the layer's `redundant_flop`.
    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.

    Args:
        at_once: sequences of which experts have a capacity together.
    """
    architecture, layout = workload.architecture, workload.layout
    forward = 0
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        more = redundant_flop(kind, layout, samples=samples, at_once=at_once)
        forward += layers * (sum(layer_forward_flop(kind, samples=samples).values()) + more)
    if stage == head_stage(layout):
        forward += head_forward_flop(architecture, samples=samples)
    return 3 * forward // (layout.tensor_parallel * layout.context_parallel)


def rank_executed_flop(workload: Workload, *, stage: int, samples: int) -> int:
    """Flop that PyTorch executes on one rank of `stage` for `samples` sequences: `rank_model_flop` and recomputation.

    Each chunk adds `repeated_flop`, over t c.
    """
    layout = workload.layout
    chunks = stage_chunk_layers(workload.architecture.layers, layout, stage=stage)
    again = sum(repeated_flop(workload, samples=samples, layers=layers) for layers in chunks)
    again //= layout.tensor_parallel * layout.context_parallel
    return rank_model_flop(workload, stage=stage, samples=samples, at_once=layout.micro_batch) + again
