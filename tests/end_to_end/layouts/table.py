"""The table of layouts, and the small runs that are executed in them: one of each miniature's features."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec

from reference_runs.catalog import check_layout, miniatures, reference_run
from reference_runs.layout import Layout, Recomputation, parse_layout
from reference_runs.miniature import miniature
from reference_runs.run import (
    Activation,
    Balancing,
    Gate,
    Mask,
    Norm,
    Objective,
    Position,
    ProductFormat,
    QueryKeyNorm,
    Workload,
)
from suite.job.training_job import LEAST_STEPS
from suite.reproduce.plan import Plan
from tests.support.launches import FP32_WITHOUT_DROPOUT, WHOLE_BATCHES

STEPS = LEAST_STEPS
GLOBAL_BATCH = 8
MICRO_BATCH = 2
SINGLE = "dp1"
DROPOUT = 0.1
GROUPS = 2  # keys and values of grouped queries

LAYOUTS = str.split("""
    dp1 dp1,recompute-selective dp1,recompute-full dp1,recompute-full,every3 dp1,fused
    dp1,fused,recompute-selective dp1,fused,recompute-full
    dp2 dp2,zero1 dp2,zero1,reduce-scatter dp2,zero2 dp2,zero3 dp2,zero3,reshard dp2,zero3,noreshard
    dp2,zero3,offload dp2,zero2,recompute-selective dp2,zero3,recompute-full dp2,zero1,fused
    dp2,zero3,fused,recompute-selective
    tp2 tp2,sp tp2,sp,fused tp2,fused,recompute-full,every2 tp2,recompute-selective tp2,recompute-full
    tp2,sp,recompute-full,every2
    pp2,gpipe pp2,1f1b pp2,1f1b,recompute-selective pp2,1f1b,recompute-full,every2 pp2,1f1b,interleave2
    pp2,1f1b,fused,recompute-selective pp2,zero-bubble pp2,zero-bubble,interleave2
    pp2,zero-bubble,recompute-selective pp2,zbv pp2,dualpipev pp2,pipedream
    pp2,pipedream-vertical-sync,recompute-full pp2,pipedream-2bw,recompute-selective
    cp2 cp2,recompute-selective cp2,fused cp2,zero3,fused,recompute-selective cp2,zero1,recompute-full,every3
    cp2,zero3
    ep2 ep2,recompute-selective ep2,recompute-full,every3 ep2,zero1
    dp4 dp4,zero1 dp4,zero1,reduce-scatter dp4,zero2 dp4,zero3
    tp4
    dp4,zero2,shard2,micro1 dp4,zero3,shard2 dp4,zero3,shard2,micro1
    tp4,sp
    pp4,1f1b pp4,pipedream,micro8 pp4,pipedream-2bw
    cp4
    cp2,dp2 cp2,dp2,zero1 cp2,dp2,zero3 cp2,dp2,zero3,shard2
    cp2,tp2 cp2,tp2,sp,recompute-full,every2
    cp2,pp2,1f1b,interleave2
    ep4
    ep2,dp2 ep2,dp2,zero1 ep2,dp2,zero1,reduce-scatter
    ep2,zero3
    ep2,dp2,zero2 ep2,dp2,zero3 ep2,dp2,zero3,noreshard,recompute-full,every2
    ep2,tp2 ep2,tp2,sp,recompute-full,every2
    ep2,pp2,1f1b ep2,pp2,1f1b,interleave2,zero1,recompute-full
    ep2,dp2,pp2,1f1b,zero1,micro1
    ep2,cp2 ep2,cp2,zero1,recompute-full ep2,cp2,zero3
    dp2,tp2 dp2,tp2,sp,zero1 dp2,tp2,sp,zero1,reduce-scatter dp2,tp2,zero2 dp2,tp2,sp,zero3
    dp2,pp2,gpipe dp2,pp2,1f1b,zero1 dp2,pp2,1f1b,zero1,reduce-scatter
    cp2,dp2,zero1,reduce-scatter
    dp2,pp2,1f1b,interleave2
    tp2,pp2,1f1b tp2,pp2,1f1b,interleave2,sp,recompute-full tp2,pp2,zero-bubble,sp
    dp2,pp2,zero-bubble,zero1,reduce-scatter dp2,pp2,pipedream dp2,pp2,pipedream-2bw,recompute-selective
    dp2,pp2,pipedream-vertical-sync,micro1
    cp2,pp2,zero-bubble,zero1,reduce-scatter
    tp2,pp2,zbv,sp tp2,pp2,dualpipev
    dp2,pp2,zbv,zero1,reduce-scatter,micro1 dp2,pp2,dualpipev,zero1,reduce-scatter,micro1
    cp2,pp2,dualpipev,zero1,reduce-scatter
    pp4,zero-bubble
    dp2,tp2,pp2,1f1b dp2,tp2,pp2,1f1b,interleave2,sp,zero1,recompute-full
""")
# Where dropout changes what is recomputed and sent; masks differ between ranks, so that only figures can agree
WITH_DROPOUT = str.split("""
    dp1,recompute-full dp2,zero3,recompute-full tp2,recompute-full tp2,sp,recompute-full,every2
    pp2,1f1b,recompute-full,every2 pp2,zero-bubble pp2,pipedream-2bw,recompute-selective
""")
# Products in 8 bits: where scales, casts and what is kept could differ
WITH_FP8 = str.split("""
    dp1 dp1,recompute-selective dp1,recompute-full,every3 dp1,fused dp2,zero1 dp2,zero3,recompute-full
    pp2,1f1b,interleave2 cp2 dp2,pp2,1f1b,zero1
""")
ONLY_SOME = {"dropout": WITH_DROPOUT, "fp8": WITH_FP8}


# Variations of a miniature, in attention or experts: what no recorded one combines, and small enough for many layouts
_SIGMOID_EXPERTS: dict[str, Any] = {
    "experts": 16,
    "experts_per_token": 4,
    "expert_ffn_hidden": 24,
    "shared_experts": 1,
    "dense_layers": 1,
    "gate": Gate.SIGMOID,
    "gate_scale": 2.5,
    "expert_groups": 4,
    "groups_per_token": 2,
}
_LATENT: dict[str, Any] = {
    "kv_heads": 4,
    "head_dim": 24,
    "rotary_dim": 8,
    "query_rank": 40,
    "key_value_rank": 24,
    "value_head_dim": 16,
}
VARIED = "llama2-mini"
VARIATIONS: dict[str, dict[str, Any]] = {
    "five-layers": {"layers": 5},  # which no two or four chunks divide
    # two layers a chunk of two stages in a V, or one of four
    "eight-layers": {"layers": 8},
    "eight-tied-layers": {"layers": 8, "tied_embeddings": True},
    # one key-value head, learned positions, LayerNorms and biases everywhere
    "starcoder": {
        "kv_heads": 1,
        "norm": Norm.PRE_LAYER_NORM,
        "activation": Activation.GELU_TANH,
        "position": Position.LEARNED,
        "rotary_dim": None,
        "rotary_base": None,
        "biases": True,
        "tied_embeddings": True,
    },
    "documents": {"mask": Mask.DOCUMENTS, "mean_document": 8},
    "documents-alibi": {
        "mask": Mask.DOCUMENTS,
        "mean_document": 8,
        "position": Position.ALIBI,
        "rotary_dim": None,
        "rotary_base": None,
        "kv_heads": 4,
    },
    "normed-heads": {"query_key_norm": QueryKeyNorm.HEAD},
    "mixtral": {"experts": 8, "experts_per_token": 2, "auxiliary_loss_weight": 0.02},
    "qwen3-moe": {
        "experts": 16,
        "experts_per_token": 4,
        "expert_ffn_hidden": 24,
        "auxiliary_loss_weight": 0.001,
        "query_key_norm": QueryKeyNorm.HEAD,
    },
    "shared-experts": {**_SIGMOID_EXPERTS, "balancing": Balancing.NONE},
    "gated-shared-experts": {
        **_SIGMOID_EXPERTS,
        "balancing": Balancing.NONE,
        "shared_gate": True,
        "scaled_embedding": True,
    },
    "capacity": {"experts": 8, "experts_per_token": 2, "auxiliary_loss_weight": 0.02, "capacity_factor": 1.1},
    "few-places": {**_SIGMOID_EXPERTS, "balancing": Balancing.NONE, "capacity_factor": 0.5},
    # DeepSeek-V2-Lite's attention: queries are not compressed
    "latent": {**_LATENT, "query_rank": None},
    "deepseek": {
        **_LATENT,
        **_SIGMOID_EXPERTS,
        "balancing": Balancing.BIAS,
        "balancing_rate": 0.01,
        "sequence_loss_weight": 0.05,
    },
}


class Case(NamedTuple):
    """One run in one layout.

    Args:
        run: name of the miniature, or of a variation.
        arithmetic: "fp32" or, in the recorded precision, "16bit", both without dropout; "dropout": fp32 with dropout;
            "fp8": as "16bit", with products in 8 bits.
        layout: what it says, in the command line's grammar; ZeRO-0, no recomputation and 1F1B where it says nothing.
        parts: of a sequence, in each of which experts have places of their own, as on so many context-parallel ranks.
    """

    run: str
    arithmetic: str
    layout: str
    parts: int = 1

    @property
    def name(self) -> str:
        in_parts = f":{self.parts} parts" if self.parts > 1 else ""
        return f"{self.run}:{self.arithmetic}:{self.layout.replace(',', '+')}{in_parts}"

    @property
    def is_compared(self) -> bool:
        """Whether one process computes the same: not with masks or scales that each rank has of its own.

        In 8 bits, other roundings of what is cast are others by 2^-4 of an element: fused attention has such.
        """
        rounds_otherwise = self.arithmetic == "fp8" and any(word in self.layout for word in ("cp", "fused"))
        return self.arithmetic != "dropout" and not rounds_otherwise

    @property
    def single(self) -> Case:
        """The same run in one process."""
        has_places = "capacity_factor" in VARIATIONS.get(self.run, {})
        return self._replace(layout=SINGLE, parts=small_run(self).layout.context_parallel if has_places else 1)


def table() -> list[Case]:
    """Every miniature in every layout that it has; layouts of one mesh stand together."""
    return [
        Case(run, arithmetic, layout)
        for layout in LAYOUTS
        for run, recorded in miniatures().items()
        for arithmetic in ("fp32", "16bit", "dropout", "fp8")
        if layout in ONLY_SOME.get(arithmetic, LAYOUTS)
        and not (arithmetic == "fp8" and is_mixture(recorded))
        and ("fused" not in layout.split(",") or has_plain_mask(recorded))
        and ("cp" not in layout or has_dealt_positions(recorded))
        and ("micro" not in layout or has_equal_micro_batches(recorded))
        and ("pipedream" not in layout or goes_without_flush(recorded, arithmetic))
        and not (has_halves(layout) and is_mixture(recorded))
        and (not layout.startswith("ep") or is_mixture(recorded))
    ]


def has_halves(layout: str) -> bool:
    """Whether backward passes are in halves."""
    return any(word in layout for word in ("zero-bubble", "zbv", "dualpipev"))


@functools.cache
def has_plain_mask(recorded: str) -> bool:
    """Whether the recorded run's scores are causal and have no bias, as fused attention wants them."""
    shape = reference_run(recorded).architecture
    return shape.mask is Mask.CAUSAL and shape.position is not Position.ALIBI


@functools.cache
def has_dealt_positions(recorded: str) -> bool:
    """Whether context-parallel ranks can share out the recorded run's sequences."""
    shape = reference_run(recorded).architecture
    return shape.mask is Mask.CAUSAL and not shape.top_query_layer


@functools.cache
def has_equal_micro_batches(recorded: str) -> bool:
    """Whether a step's loss does not depend on how its samples are cut into micro-batches.

    Blanks differ in number between samples, and an auxiliary loss is that of a micro-batch.
    """
    run = reference_run(recorded)
    return run.recipe.objective is Objective.CAUSAL_LM and run.architecture.balancing is not Balancing.AUXILIARY_LOSS


@functools.cache
def goes_without_flush(recorded: str, arithmetic: str) -> bool:
    """Whether the recorded run has no experts, and in 16 bit no loss scale."""
    run = reference_run(recorded)
    return run.architecture.experts is None and not (arithmetic == "16bit" and run.recipe.precision.scaled)


@functools.cache
def is_mixture(recorded: str) -> bool:
    """Whether the recorded run has experts, which ranks can share out, and no zero-bubble schedule executes."""
    return reference_run(recorded).architecture.experts is not None


@functools.cache
def small_run(case: Case) -> Plan:
    """The miniature of the case with four layers of 64: about 250,000 parameters; all batches are whole ones.

    The rest of the shape keeps its recorded ratio to the hidden size. On four ranks no table of 34 positions (OPT) and
    in no bucket of 60 kB do the parameters divide evenly.
    """
    recorded = reference_run(miniatures()[VARIED if case.run in VARIATIONS else case.run])
    mini = miniature(recorded, "cpu", ranks=1, steps=STEPS)
    shape = mini.architecture
    architecture = msgspec.structs.replace(
        shape,
        layers=4,
        hidden=64,
        heads=4,
        head_dim=16,
        kv_heads=4 if shape.kv_heads == shape.heads else GROUPS,
        ffn_hidden=64 * shape.ffn_hidden // shape.hidden // 8 * 8,
        vocabulary=600,
        padded_vocabulary=608,
        sequence=32,
        rotary_dim=shape.rotary_dim and 16 * shape.rotary_dim // shape.head_dim // 2 * 2,
    )
    if case.run in VARIATIONS:
        changed = VARIATIONS[case.run]
        usual = {"gate": Gate.SOFTMAX_OF_CHOSEN, "balancing": Balancing.AUXILIARY_LOSS} if "experts" in changed else {}
        architecture = msgspec.structs.replace(architecture, **(usual | changed))
    recipe = msgspec.structs.replace(
        mini.recipe,
        global_batch=GLOBAL_BATCH,
        tokens=STEPS * GLOBAL_BATCH * architecture.sequence,
        warmup=GLOBAL_BATCH,
        decay=STEPS * GLOBAL_BATCH,
        **(FP32_WITHOUT_DROPOUT | WHOLE_BATCHES),
    )
    if case.arithmetic == "dropout":
        recipe = msgspec.structs.replace(
            recipe, embedding_dropout=DROPOUT, hidden_dropout=DROPOUT, attention_dropout=DROPOUT
        )
    if case.arithmetic in ("16bit", "fp8"):
        precision = mini.recipe.precision
        recipe = msgspec.structs.replace(recipe, precision=precision)
        if precision.scaled:
            recipe = msgspec.structs.replace(recipe, initial_loss_scale=1024.0)  # no step is skipped
    if case.arithmetic == "fp8":
        recipe = msgspec.structs.replace(recipe, product_format=ProductFormat.FP8_CURRENT)
    layout = parse_layout(
        case.layout,
        base=Layout(
            micro_batch=MICRO_BATCH,
            recomputation=Recomputation.NONE,
            bucket_bytes=60_000,
            rank_order=mini.layout.rank_order,
            stage_assignment=mini.layout.stage_assignment,
            reshard_after_forward=mini.layout.reshard_after_forward,
        ),
    )
    architecture.check(case.name)
    check_layout(Workload(architecture, recipe, layout), case.name)
    return Plan(
        name=case.name,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device="cpu",
        compiled=False,
        steps=STEPS,
        seed=3,
    )


def mesh_of(case: Case) -> str:
    """Axes with several ranks and their sizes, from the innermost out: runs may have them in another order."""
    layout = small_run(case).layout
    if layout.stage_replicas is not None:
        return f"replicas{'-'.join(map(str, layout.stage_replicas))}"
    sizes = {
        "dp": layout.data_parallel,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_stages,
        "cp": layout.context_parallel,
        "ep": layout.expert_parallel,
    }
    return "-".join(f"{axis}{sizes[axis]}" for axis in layout.axis_order if sizes[axis] > 1) or SINGLE
