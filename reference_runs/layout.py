"""How a run is laid out over ranks, as data and as the text that the command line takes."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from reference_runs.errors import InputError, nearest
from reference_runs.quantities import MOST, Samples

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class Schedule(enum.StrEnum):
    """Order of micro-batches over pipeline stages.

    gpipe: all forward passes of a step, then all backward passes.
    1f1b: PipeDream-Flush: a stage alternates as soon as it can; interleaved where a rank has several virtual stages.
    zero-bubble: as 1f1b, but a backward pass is two, of the inputs and of the weights, and the second waits until the
        stage has nothing else to do (ZB-H1); interleaved where a rank has several virtual stages.
    zbv: as zero-bubble, with two chunks a rank in the shape of a V: the first of p ranks has chunks 0 and 2 p - 1
        (ZB-V).
    dualpipev: two chunks a rank likewise; a forward pass of one overlaps with a backward pass of the other
        (DualPipeV).
    pipedream: 1F1B without flush; a stage keeps the weight version of every micro-batch in flight (weight stashing).
    pipedream-vertical-sync: as pipedream, and all stages use the version that the first one used.
    pipedream-2bw: without flush, gradients of a step's micro-batches accumulated: two weight versions suffice.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"
    ZBV = "zbv"
    DUALPIPEV = "dualpipev"
    PIPEDREAM = "pipedream"
    PIPEDREAM_VERTICAL_SYNC = "pipedream-vertical-sync"
    PIPEDREAM_2BW = "pipedream-2bw"

    @property
    def flushes(self) -> bool:
        """Whether all passes of a step end before its update, in a pipeline."""
        return self not in (Schedule.PIPEDREAM, Schedule.PIPEDREAM_VERTICAL_SYNC, Schedule.PIPEDREAM_2BW)

    @property
    def shape_of_v(self) -> bool:
        """Whether rank k of p has chunks k and 2 p - 1 - k, so that the first one has embedding and head."""
        return self in (Schedule.ZBV, Schedule.DUALPIPEV)


class Recomputation(enum.StrEnum):
    """Which activations are computed again in the backward pass.

    none: all are kept.
    selective: attention scores and what follows from them, up to the product with the values.
    selective-op: all but attention's output and that of every other matrix product of a layer (torchtitan).
    full: all within a group of `checkpoint_layers` layers, whose input is kept.
    from-input: only the stage's input is kept; each layer's backward pass starts again from there.
    """

    NONE = "none"
    SELECTIVE = "selective"
    SELECTIVE_OP = "selective-op"
    FULL = "full"
    FROM_INPUT = "from-input"


class RecomputedModule(enum.StrEnum):
    """Parts of a layer that selective recomputation may name: --recompute-modules of Megatron-Core.

    core_attn: attention between its projections.
    layernorm: norms of hidden states that are no part of a linear layer: before latent attention, before experts.
    mla_up_proj: queries, keys and values of latent attention, from their compressed states on.
    moe_act: what activations of experts put out.
    mlp, moe: all of a dense feed-forward part, or of a mixture of experts, after its norm.
    shared_experts: the experts that every token passes.

    Source: Megatron-Core 0.16.1, core/transformer/transformer_config.py, recompute_modules.
    """

    CORE_ATTENTION = "core_attn"
    LAYER_NORM = "layernorm"
    LATENT_PROJECTION = "mla_up_proj"
    EXPERT_ACTIVATION = "moe_act"
    MLP = "mlp"
    EXPERTS = "moe"
    SHARED_EXPERTS = "shared_experts"


CORE_ATTENTION = frozenset({RecomputedModule.CORE_ATTENTION})


class StageAssignment(enum.StrEnum):
    """How layers are dealt to pipeline stages; earlier stages take the remainder.

    layers: layers evenly; embedding and head come on top of the first and last stage.
    layers-and-tables: embedding and head count as a layer each (BLOOM, GLM).
    """

    LAYERS = "layers"
    LAYERS_AND_TABLES = "layers-and-tables"


class Offload(enum.StrEnum):
    """State, or activations, kept in the host's memory.

    none: nothing.
    activations: what the modules that Megatron-Core's --offload-modules may name read: norms, query, key and value,
        attention and its projection, and of experts expansion and activation.
    optimizer: master weights, moments and the sharded gradients (ZeRO-Offload).
    state: weights too, copied in for each use (FullyShardedDataParallel's CPU offload, ZeRO-Infinity).
    """

    NONE = "none"
    OPTIMIZER = "optimizer"
    STATE = "state"
    ACTIVATIONS = "activations"

    @property
    def of_state(self) -> bool:
        """Whether any state is on the host."""
        return self in (Offload.OPTIMIZER, Offload.STATE)


AXES = ("tp", "cp", "dp", "pp")


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallel axes and what goes with them.

    Args:
        micro_batch: samples of one forward and backward pass of a model replica.
        accumulation: micro-batches a rank and step; None: global batch / (replicas * micro-batch).
        recomputed_modules: of selective recomputation; none named: attention's scores.
        shard_ranks: with ZeRO-2 and 3, ranks of a group that shards, of those with the same weights; groups hold copies
            of each other's shards (hybrid sharding). None: all.
        bucket_bytes: gradient bytes that one data-parallel all-reduce waits for.
        expert_parallel: ranks that share out the experts of a layer. Each has samples of its own and the rest of the
            model whole, so that dense parts are replicated over data_parallel * expert_parallel ranks, an expert over
            data_parallel.
        whole_experts: tensor parallelism does not split experts: its ranks share them out too, tensor_parallel *
            expert_parallel in all (Megatron-Core's expert-tensor-parallel-size of 1). Needs sequence parallelism.
        rank_order: the axes joined by hyphens, the one whose neighbours have consecutive ranks first; without "ep" its
            ranks come next to those of "dp", before them.
        reduce_scatter: with ZeRO-1, whether a rank gets the gradients of its own shard alone (Megatron-LM's distributed
            optimizer); else all ranks get all of them (BLOOM's BF16_Optimizer).
        reshard_after_forward: with ZeRO-3, whether gathered weights are dropped between forward and backward pass.
        checkpoint_layers: layers of one group of full recomputation.
        partitioned_checkpoints: each tensor-parallel rank keeps its share of the groups' inputs.
        fused_attention: scores are never stored (FlashAttention).
        scatter_gather: tensor-parallel ranks send a share each to the next stage, which gathers them.
        stage_layer_counts: layers of each stage, or of each chunk in the order of the forward pass where a stage has
            several (`virtual_stages`); None: as `stage_assignment` says.
        stage_replicas: ranks of each stage, where stages of a schedule without flush differ in them; micro-batches are
            dealt to them in turns. `data_parallel` is then 1, or that of the one stage in question (`at_stage`), and
            ranks are numbered stage by stage. None: `data_parallel` ranks of each.
    """

    micro_batch: Samples = 1
    data_parallel: Count = 1
    tensor_parallel: Count = 1
    pipeline_stages: Count = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    whole_experts: bool = False
    sequence_parallel: bool = False
    zero_stage: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    shard_ranks: Count | None = None
    virtual_stages: Count = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recomputation: Recomputation = Recomputation.NONE
    recomputed_modules: tuple[RecomputedModule, ...] = ()
    accumulation: Count | None = None
    bucket_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST * 10**6, extra={"unit": "byte"})] = 25 * 2**20
    rank_order: str = "tp-cp-dp-pp"
    stage_assignment: StageAssignment = StageAssignment.LAYERS
    reduce_scatter: bool = False
    reshard_after_forward: bool = True
    checkpoint_layers: Count = 1
    partitioned_checkpoints: bool = False
    fused_attention: bool = False
    scatter_gather: bool = False
    offload: Offload = Offload.NONE
    stage_layer_counts: tuple[Annotated[int, msgspec.Meta(ge=0, le=MOST)], ...] | None = None
    stage_replicas: tuple[Count, ...] | None = None

    @property
    def recomputed(self) -> frozenset[RecomputedModule]:
        """Modules that selective recomputation computes again."""
        selective = self.recomputation is Recomputation.SELECTIVE
        return frozenset(self.recomputed_modules) or CORE_ATTENTION if selective else frozenset()

    @property
    def executed_recomputation(self) -> Recomputation:
        """Recomputation of layers that cannot compute other named modules again than core attention: none of them."""
        return self.recomputation if self.recomputed <= CORE_ATTENTION else Recomputation.NONE

    @property
    def flushes(self) -> bool:
        """Whether all passes of a step end before its update, which they do in one stage."""
        return self.pipeline_stages == 1 or self.schedule.flushes

    @property
    def ranks(self) -> int:
        """Processes of the job: the product of the axes, or all replicas of all stages."""
        if self.stage_replicas is not None:
            return sum(self.stage_replicas)
        return self.replicas * self.tensor_parallel * self.pipeline_stages * self.context_parallel

    def at_stage(self, stage: int) -> Layout:
        """As a rank of pipeline stage `stage` (from 0) sees it: other stages may have other numbers of replicas."""
        if self.stage_replicas is None:
            return self
        return msgspec.structs.replace(self, data_parallel=self.stage_replicas[stage], accumulation=None)

    @property
    def dealt_to(self) -> int:
        """Replicas of the model, or of stages: they divide a step's micro-batches."""
        return self.data_parallel if self.stage_replicas is None else math.lcm(*self.stage_replicas)

    @property
    def replicas(self) -> int:
        """Ranks along which samples are split: data_parallel * expert_parallel."""
        return self.data_parallel * self.expert_parallel

    @property
    def expert_splits(self) -> int:
        """Tensor-parallel ranks that split each expert: all, or 1 where experts are whole."""
        return 1 if self.whole_experts else self.tensor_parallel

    @property
    def expert_ranks(self) -> int:
        """Ranks that share out the experts of a layer, and exchange tokens."""
        return self.expert_parallel * (self.tensor_parallel if self.whole_experts else 1)

    @property
    def state_ranks(self) -> int:
        """Ranks that hold the same weights, experts aside: replicas * context_parallel, which split their samples.

        Gradients are averaged over them, and ZeRO shards over them, or over groups of them (`sharding_ranks`).
        Source: Megatron-LM, core/parallel_state.py, get_data_parallel_group(with_context_parallel=True).
        """
        return self.replicas * self.context_parallel

    @property
    def sharding_ranks(self) -> int:
        """Ranks over which ZeRO shards: `shard_ranks` neighbours of `state_ranks`, or all of these."""
        return self.state_ranks if self.shard_ranks is None or self.zero_stage < 2 else self.shard_ranks

    @property
    def shard_copies(self) -> int:
        """Groups of `sharding_ranks`, each of which has all of the state: 1 without hybrid sharding."""
        return self.state_ranks // self.sharding_ranks

    @property
    def axis_order(self) -> tuple[str, ...]:
        """The axes in the order of `rank_order`; "ep" where it has several ranks, or the order names it."""
        order = self.rank_order.split("-")
        if self.expert_parallel > 1 and "ep" not in order and "dp" in order:
            order.insert(order.index("dp"), "ep")
        return tuple(order)

    @property
    def fully_sharded(self) -> bool:
        """Whether weights are gathered for each pass: ZeRO-2 and 3, where there are other ranks' parts or the host's.

        One rank has nothing to shard: its stages are plain data parallelism.
        """
        return self.zero_stage >= 2 and (self.state_ranks > 1 or self.offload is Offload.STATE)

    @property
    def scatters_gradients(self) -> bool:
        """Whether the gradients of a step are reduced to the shards of ZeRO-1: `reduce_scatter` over several ranks."""
        return self.zero_stage == 1 and self.reduce_scatter and self.state_ranks > 1


_GRAMMAR = (
    "dpN, tpN, ppN, cpN, epN, sp, zero0/1/2/3, shardN (ranks), reduce-scatter/all-reduce, reshard/noreshard, "
    "offload/offload-optimizer/offload-activations/no-offload, "
    "interleaveN, " + "/".join(Schedule) + ", "
    "recompute-"
    + "/".join(Recomputation)
    + " or modules of "
    + "+".join(RecomputedModule)
    + ", everyN (layers), fused/unfused, microN, accumulateN, bucketN (MB), "
    + "/".join(StageAssignment)
    + ", layersN-N-… (of each stage), replicasN-N-… (of each stage)"
    + ", order-tp-cp-dp-pp (any order of ranks), separated by commas"
)
_ORDER, _AGAIN = "order-", "recompute-"
_DIGITS = 9  # of a count: no machine has as many ranks
_WORDS: dict[str, tuple[str, object]] = {
    "sp": ("sequence_parallel", True),
    "reduce-scatter": ("reduce_scatter", True),
    "all-reduce": ("reduce_scatter", False),
    "reshard": ("reshard_after_forward", True),
    "noreshard": ("reshard_after_forward", False),
    "offload": ("offload", Offload.STATE),
    "offload-optimizer": ("offload", Offload.OPTIMIZER),
    "offload-activations": ("offload", Offload.ACTIVATIONS),
    "no-offload": ("offload", Offload.NONE),
    "fused": ("fused_attention", True),
    "unfused": ("fused_attention", False),
    **{schedule.value: ("schedule", schedule) for schedule in Schedule},
    **{f"recompute-{kind}": ("recomputation", kind) for kind in Recomputation},
    "selective-op": ("recomputation", Recomputation.SELECTIVE_OP),
    **{assignment.value: ("stage_assignment", assignment) for assignment in StageAssignment},
    **{f"zero{stage}": ("zero_stage", stage) for stage in range(4)},
}
_LISTS = {"layers": "stage_layer_counts", "replicas": "stage_replicas"}
_COUNTS = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "shard": "shard_ranks",
    "interleave": "virtual_stages",
    "accumulate": "accumulation",
    "micro": "micro_batch",
    "every": "checkpoint_layers",
    "bucket": "bucket_bytes",
}


def usual_virtual_stages(schedule: Schedule, *, pipeline_stages: int) -> int:
    """Virtual stages of a rank where the text says nothing of them: the two of a V, else one."""
    return 2 if schedule.shape_of_v and pipeline_stages > 1 else 1


def parse_layout(text: str, *, base: Layout) -> Layout:
    """The layout that `text` asks for; axes that it omits are 1, shards over all ranks, the rest is from `base`.

    Layers that `base` lists for each stage are of its own stages and chunks, dealt as it says: others are dealt evenly.

    Raises:
        InputError: a word outside the grammar, a word given twice, or a count of 0.
    """
    axes = ("data_parallel", "tensor_parallel", "pipeline_stages", "context_parallel", "expert_parallel")
    omitted: dict[str, object] = dict.fromkeys((*axes, "virtual_stages"), 1) | {
        "sequence_parallel": False,
        "shard_ranks": None,
        "accumulation": None,
        "stage_replicas": None,
    }
    named = _with_stages(named_fields(text, where="--layout"))
    if named.get("recomputation", Recomputation.SELECTIVE) is not Recomputation.SELECTIVE:
        omitted["recomputed_modules"] = ()
    changes = omitted | named
    layout = msgspec.structs.replace(base, **changes)
    if "virtual_stages" not in named:
        usual = usual_virtual_stages(layout.schedule, pipeline_stages=layout.pipeline_stages)
        layout = msgspec.structs.replace(layout, virtual_stages=usual)
    chunks, of_base = ((of.pipeline_stages, of.virtual_stages, of.stage_assignment) for of in (layout, base))
    if "stage_layer_counts" not in named and chunks != of_base:
        layout = msgspec.structs.replace(layout, stage_layer_counts=None)
    if changes.get("reduce_scatter") and layout.zero_stage != 1:
        what = "reduce-scatter is a form of zero1"
        raise InputError(what, got=f"zero{layout.zero_stage}", allowed="zero1,reduce-scatter", where="--layout")
    return layout


def stages_word(word: str, numbers: Iterable[int]) -> str:
    """The word of a layout that lists a number for each stage, such as replicas2-1."""
    return word + "-".join(map(str, numbers))


def _with_stages(named: dict[str, object]) -> dict[str, object]:
    """Values that the words name, with the stages that replicas are listed for; equally many of each are those of dpN.

    Raises:
        InputError: none of a stage, another number of stages, or replicas of all stages too.
    """
    replicas = named.get("stage_replicas")
    if not isinstance(replicas, tuple):
        return named
    word = stages_word("replicas", replicas)
    if min(replicas) < 1:
        raise InputError("replicas of a stage", got=word, allowed="1 or more", where="--layout")
    if (stages := named.setdefault("pipeline_stages", len(replicas))) != len(replicas):
        raise InputError(f"{word}: replicas of {len(replicas)} stages", got=f"pp{stages}", where="--layout")
    if "data_parallel" in named:
        got = f"{word} with dp{named['data_parallel']}"
        raise InputError("replicas of each stage, and of all", got=got, allowed="one of both", where="--layout")
    if len(set(replicas)) == 1:
        return {key: value for key, value in named.items() if key != "stage_replicas"} | {"data_parallel": replicas[0]}
    return named


def named_fields(text: str, *, where: str) -> dict[str, object]:
    """The fields of a layout that the words of `text` name, with their values; of any part of a layout.

    Raises:
        InputError: a word outside the grammar, a word given twice, or a count of 0.
    """
    named: dict[str, object] = {}
    for word in text.split(","):
        name = word.strip()
        counted = re.fullmatch(rf"({'|'.join(_COUNTS)})([0-9]{{1,{_DIGITS}}})|zero[0-9]+", name)
        listed = re.fullmatch(rf"({'|'.join(_LISTS)})([0-9]{{1,{_DIGITS}}}(?:-[0-9]{{1,{_DIGITS}}})*)", name)
        value: object = tuple(map(int, listed.group(2).split("-"))) if listed else None
        if listed is not None:
            key = _LISTS[listed.group(1)]
        elif name not in _WORDS and (modules := _modules(name)):
            key, value = "recomputation", Recomputation.SELECTIVE
            named["recomputed_modules"] = () if {*modules} == CORE_ATTENTION else modules
        elif name in _WORDS:
            key, value = _WORDS[name]
        elif name.startswith(_ORDER) and _is_order(name.removeprefix(_ORDER)):
            key, value = "rank_order", name.removeprefix(_ORDER)
        elif counted is None:
            meant = _meant(name)
            raise InputError("not a layout", got=repr(word), meant=meant, allowed=_GRAMMAR, where=where)
        elif counted.group(1) is None or int(counted.group(2)) < 1:
            raise InputError("number out of range", got=repr(word), allowed=_GRAMMAR, where=where)
        else:
            key = _COUNTS[counted.group(1)]
            value = int(counted.group(2)) * (10**6 if key == "bucket_bytes" else 1)
        if key in named:
            raise InputError("given twice", got=repr(word), where=where)
        named[key] = value
    return named


def _modules(word: str) -> tuple[RecomputedModule, ...]:
    """The modules that a word recomputes, in their own order; none: it is another word."""
    parts = set(word.removeprefix(_AGAIN).split("+")) if word.startswith(_AGAIN) else set()
    return tuple(module for module in RecomputedModule if module in parts) if parts <= {*RecomputedModule} else ()


def _recompute_word(layout: Layout, *, complete: bool) -> str:
    """The word of what is recomputed; core_attn, which selective means by itself, where all is said."""
    usual = layout.recomputation is Recomputation.SELECTIVE and complete
    modules = layout.recomputed_modules or (CORE_ATTENTION if usual else ())
    return _AGAIN + ("+".join(modules) or layout.recomputation)


def _is_order(text: str) -> bool:
    """Whether it names each axis once; "ep" may be missing."""
    axes = text.split("-")
    return sorted(axis for axis in axes if axis != "ep") == sorted(AXES) and axes.count("ep") <= 1


def _meant(word: str) -> str | None:
    """The word of a layout that `word` misspells."""
    number = word[len(word.rstrip("0123456789")) :]
    return nearest(word, [*_WORDS, *(f"{name}{number or 'N'}" for name in _COUNTS)])


def _unlike(layout: Layout, base: Layout) -> set[str]:
    """The fields that differ from `base`."""
    return {field for field in layout.__struct_fields__ if getattr(layout, field) != getattr(base, field)}


def layout_text(layout: Layout, *, complete: bool = False, base: Layout | None = None) -> str:
    """The text of `layout` in the command line's grammar: the axes always, the rest where it is not the default.

    Args:
        complete: say too what is the default, so that the text is read as this layout from any base.
        base: say too where it differs from this layout, which lists no layers, so that the text is read as `layout`
            from it.
    """
    said = () if base is None else _unlike(layout, base)
    usual = Layout().bucket_bytes
    sizes = (layout.data_parallel, layout.tensor_parallel, layout.pipeline_stages, layout.context_parallel)
    words = {
        f"dp{layout.data_parallel}": layout.stage_replicas is None,
        f"tp{layout.tensor_parallel}": True,
        f"pp{layout.pipeline_stages}": True,
        f"cp{layout.context_parallel}": layout.context_parallel > 1,
        f"ep{layout.expert_parallel}": layout.expert_parallel > 1,
        "sp": layout.sequence_parallel,
        f"zero{layout.zero_stage}": True,
        f"shard{layout.shard_ranks}": layout.shard_ranks is not None,
        "reduce-scatter": layout.zero_stage == 1 and layout.reduce_scatter,
        "all-reduce": (complete or "reduce_scatter" in said) and not layout.reduce_scatter,
        "noreshard": (layout.zero_stage == 3 or "reshard_after_forward" in said) and not layout.reshard_after_forward,
        "reshard": (complete or "reshard_after_forward" in said) and layout.reshard_after_forward,
        "offload": layout.offload is Offload.STATE,
        f"offload-{layout.offload}": layout.offload in (Offload.OPTIMIZER, Offload.ACTIVATIONS),
        "no-offload": "offload" in said and layout.offload is Offload.NONE,
        f"interleave{layout.virtual_stages}": layout.virtual_stages
        != usual_virtual_stages(layout.schedule, pipeline_stages=layout.pipeline_stages),
        layout.schedule.value: layout.pipeline_stages > 1 or "schedule" in said,
        stages_word("replicas", layout.stage_replicas or ()): layout.stage_replicas is not None,
        stages_word("layers", layout.stage_layer_counts or ()): layout.stage_layer_counts is not None,
        _recompute_word(layout, complete=complete or "recomputed_modules" in said): True,
        f"every{layout.checkpoint_layers}": complete or layout.checkpoint_layers > 1 or "checkpoint_layers" in said,
        "fused": layout.fused_attention,
        "unfused": (complete or "fused_attention" in said) and not layout.fused_attention,
        f"micro{layout.micro_batch}": True,
        f"accumulate{layout.accumulation}": layout.accumulation is not None,
        layout.stage_assignment.value: (complete and layout.pipeline_stages > 1) or "stage_assignment" in said,
        f"{_ORDER}{layout.rank_order}": "rank_order" in said
        or (complete and sum(size > 1 for size in (*sizes, layout.expert_parallel)) > 1),
        f"bucket{layout.bucket_bytes // 10**6}": (layout.bucket_bytes != usual or "bucket_bytes" in said)
        and layout.bucket_bytes % 10**6 == 0,
    }
    return ",".join(word for word, is_said in words.items() if is_said)
