"""The rungs, as data: what each changes, what it promises of the loss, how its gain is predicted, and what it needs."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import msgspec

from reference_runs.layout import Recomputation
from reference_runs.run import Precision
from suite.job.options import Habits, Update
from suite.job.training_job import COUNTED_STEPS, PROFILED_STEPS, WARM_UP_STEPS
from suite.ladder.rounding import FP16_ROUNDING, ROUNDING, reordered_bound


class Walk(enum.StrEnum):
    """What a walk makes less of."""

    MEMORY = "memory"
    SPEED = "speed"


class Need(enum.StrEnum):
    """What a rung cannot do without; the value completes "NOT RUN: "."""

    CUDA = "no CUDA device: the host's memory is the device's here"
    TRITON = "no CUDA device: Triton's kernels would be interpreted"
    COMPILER = "no C++ compiler (g++, c++ or CXX) and ninja"
    NAMESPACES = "no network namespaces (they need root and iproute2) and no --hosts"
    LAYERS = "too few layers: groups of sqrt(layers) are single layers"


class Promise(enum.StrEnum):
    """What a rung says of its losses beside those of the rung below."""

    EQUAL = "equal"
    WITHIN = "within"
    CHANGED = "changed"


class Setting(Habits, frozen=True, kw_only=True):
    """Everything that rungs change.

    Args:
        samples: of a step; micro_batch: of one pass of one rank.
        layers_per_checkpoint: of full recomputation; 0: the integer nearest to sqrt(layers), the textbook's.
        hosts: that the ranks are on, one each where there is more than one.
    """

    samples: int = 32
    micro_batch: int = 32
    precision: Precision = Precision.FP32
    recomputation: Recomputation = Recomputation.NONE
    layers_per_checkpoint: int = 1
    data_parallel: int = 1
    fully_sharded: bool = False
    offloads_state: bool = False
    fused_attention: bool = False
    compiled: bool = False
    triton: bool = False
    hosts: int = 1


BASE = {
    Walk.MEMORY: Setting(keeps_gradients=True, update=Update.FOREACH),
    Walk.SPEED: Setting(
        samples=8, micro_batch=8, tokenises=True, synchronises=True, keeps_gradients=True, update=Update.FOREACH
    ),
}
MOST_DIVISOR = 8  # of the samples: the fewest that a rung or a baseline declares are 8
TIMED_STEPS = 6
STEPS = WARM_UP_STEPS + COUNTED_STEPS + TIMED_STEPS + PROFILED_STEPS
MOST_TOKENS = 32 * 1024  # of a step: the samples that rungs declare, of the longest sequence that GPT-2's runs have
REORDERED = reordered_bound(addends=MOST_TOKENS, steps=STEPS)


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One declared difference to the rung below.

    Args:
        name: distinct over both walks.
        title: what is done, in one line.
        changes: fields of `Setting` and their values here; none: the walk's baseline.
        promise: of the losses of all steps beside those of the rung below.
        bound: relative, where the promise is WITHIN.
        loss: why the losses are equal, within the bound, or other ones.
        predicts: the formula, or where the prediction comes from.
        seconds_unknown: why no time is predicted of a setting that has these changes; empty where it is.
        needs: without which it does not apply.
        side: a rung that nothing stands on: the next one's rung below is this one's.
    """

    name: str
    walk: Walk
    title: str
    changes: dict[str, Any]
    promise: Promise
    loss: str
    predicts: str
    bound: float = 0.0
    seconds_unknown: str = ""
    needs: tuple[Need, ...] = ()
    side: bool = False

    @property
    def is_base(self) -> bool:
        """Whether it is a walk's baseline."""
        return not self.changes


REDUCED = "the same sums in another order: fp32 rounding, which Adam's steps carry on"
SAME = "the same operations on the same numbers"
RUNGS: tuple[Rung, ...] = (
    Rung(
        name="memory-baseline",
        walk=Walk.MEMORY,
        title="fp32, whole batch, all activations, foreach AdamW, gradients zeroed where they lie",
        changes={},
        promise=Promise.EQUAL,
        loss="what the others are compared with",
        predicts="20 P at the update (weights, gradients, two moments, a temporary); activations, 12 N V of logits",
    ),
    Rung(
        name="in-place",
        walk=Walk.MEMORY,
        title="operators in place; gradients take over the storage that the backward pass made",
        changes={"in_place": True, "keeps_gradients": False},
        promise=Promise.EQUAL,
        loss=SAME,
        predicts="4 P gradients are not there while activations are",
    ),
    Rung(
        name="accumulate",
        walk=Walk.MEMORY,
        title="gradient accumulation over 4 micro-batches",
        changes={"micro_batch": 8},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="activations and logits / 4",
    ),
    Rung(
        name="recompute-selective",
        walk=Walk.MEMORY,
        title="recompute attention's scores and softmax",
        changes={"recomputation": Recomputation.SELECTIVE},
        promise=Promise.EQUAL,
        loss=SAME,
        predicts="5 a s / h of 34 + 5 a s / h a layer are not kept",
    ),
    Rung(
        name="recompute-full",
        walk=Walk.MEMORY,
        title="recompute every layer from its input",
        changes={"recomputation": Recomputation.FULL},
        promise=Promise.EQUAL,
        loss=SAME,
        predicts="L inputs and one layer's activations: 4 N h (L + A)",
    ),
    Rung(
        name="recompute-sqrt",
        walk=Walk.MEMORY,
        title="recompute groups of sqrt(layers) layers",
        changes={"layers_per_checkpoint": 0},
        promise=Promise.EQUAL,
        loss=SAME,
        predicts="4 N h (L / d + d A) of layers, least at d = sqrt(L / A), about 1; at the loss 4 N h L / d",
        needs=(Need.LAYERS,),
    ),
    Rung(
        name="optimizer-loop",
        walk=Walk.MEMORY,
        title="AdamW tensor by tensor, without foreach's temporaries",
        changes={"update": Update.LOOP},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="temporaries: 8 N_t of the largest tensor in place of 4 P: less where no tensor has half of P",
    ),
    Rung(
        name="optimizer-fused",
        walk=Walk.MEMORY,
        title="fused AdamW",
        changes={"update": Update.FUSED},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="no temporaries",
    ),
    Rung(
        name="optimizer-frugal",
        walk=Walk.MEMORY,
        title="Adafactor: a second moment of rows and columns, no first one",
        changes={"update": Update.ADAFACTOR},
        promise=Promise.CHANGED,
        loss="another optimizer takes other steps",
        predicts="moments: 4 (R + C) a matrix in place of 8 R C; 4 N_t in passing",
        side=True,
    ),
    Rung(
        name="offload-activations",
        walk=Walk.MEMORY,
        title="activations offloaded to the host",
        changes={"offloads_activations": True},
        promise=Promise.EQUAL,
        loss=SAME,
        predicts="not predicted, neither peak nor time: see docs/ladder.md",
        seconds_unknown="what comes back to the device, and the copies, are in no model",
        needs=(Need.CUDA,),
        side=True,
    ),
    Rung(
        name="fp16",
        walk=Walk.MEMORY,
        title="fp16 with fp32 masters and loss scaling",
        changes={"precision": Precision.FP16},
        promise=Promise.WITHIN,
        bound=FP16_ROUNDING,
        loss="fp16 rounds to 11 bits",
        predicts="16 P of state (2 + 2 + 4 + 8) and 4 P of widened gradients in the update; activations / 2",
        side=True,
    ),
    Rung(
        name="bf16",
        walk=Walk.MEMORY,
        title="bf16 with fp32 masters and gradients",
        changes={"precision": Precision.BF16},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="bf16 rounds to 8 bits",
        predicts="18 P of state (2 + 4 + 4 + 8) in place of 16 P; activations / 2",
    ),
    Rung(
        name="loss-chunks",
        walk=Walk.MEMORY,
        title="linear and cross-entropy in 4 chunks",
        changes={"loss_chunks": 4},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="gradients of chunks are rounded before they are added",
        predicts="logits of N / 4 tokens; the gradients of head and hidden states from the forward pass on",
    ),
    Rung(
        name="fsdp-2",
        walk=Walk.MEMORY,
        title="fully sharded over 2 ranks (FSDP2)",
        changes={"data_parallel": 2, "fully_sharded": True},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="gradients are reduced over ranks",
        predicts="16 P / 2 of state, and gathered units in passing",
    ),
    Rung(
        name="fsdp-4",
        walk=Walk.MEMORY,
        title="fully sharded over 4 ranks (FSDP2)",
        changes={"data_parallel": 4, "fully_sharded": True},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="gradients are reduced over ranks",
        predicts="16 P / 4 of state, and gathered units in passing",
    ),
    Rung(
        name="fsdp-offload",
        walk=Walk.MEMORY,
        title="fully sharded, state on the host",
        changes={"fully_sharded": True, "offloads_state": True},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="the update is the host's; gradients are reduced over ranks where the rung below has whole ones",
        predicts="no state on the device but gathered units",
        seconds_unknown="copies to and from the host are not in the step-time model",
        needs=(Need.CUDA,),
    ),
    Rung(
        name="speed-baseline",
        walk=Walk.SPEED,
        title="fp32, 8 samples, tokenised in the training process, a synchronisation for every number, pageable copies",
        changes={},
        promise=Promise.EQUAL,
        loss="what the others are compared with",
        predicts="the machine profile, with the measured seconds to tokenise a sample's documents",
    ),
    Rung(
        name="batch",
        walk=Walk.SPEED,
        title="larger batch: 32 samples a step",
        changes={"samples": 32, "micro_batch": 32},
        promise=Promise.CHANGED,
        loss="a step has more samples, and there are fewer steps for the same samples",
        predicts="update and host work of a step over 4 times the tokens; larger products",
    ),
    Rung(
        name="workers",
        walk=Walk.SPEED,
        title="2 DataLoader workers make batches ahead",
        changes={"workers": 2},
        promise=Promise.EQUAL,
        loss="the same samples in the same order",
        predicts="tokenising M stays M (up to M = T) where threads use every core; is max(0, M / 2 - T) beside a GPU",
    ),
    Rung(
        name="offline",
        walk=Walk.SPEED,
        title="tokens made once, offline, and mapped into memory",
        changes={"tokenises": False},
        promise=Promise.EQUAL,
        loss="the same samples in the same order",
        predicts="tokenising becomes slices of a file",
    ),
    Rung(
        name="pinned",
        walk=Walk.SPEED,
        title="page-locked batches, copied one ahead on a stream of their own",
        changes={"pinned": True},
        promise=Promise.EQUAL,
        loss="the same samples in the same order",
        predicts="the pageable copy, as calibrated, is hidden behind computing",
        needs=(Need.CUDA,),
    ),
    Rung(
        name="no-sync",
        walk=Walk.SPEED,
        title="no needless synchronisation, tensors or autograd; fused AdamW; gradients freed",
        changes={"synchronises": False, "keeps_gradients": False, "update": Update.FUSED},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="passes over weights and gradients that fused AdamW and one norm do not make, and their calls",
    ),
    Rung(
        name="cpp-operator",
        walk=Walk.SPEED,
        title="scale, mask and softmax as one operator, in C++ (torch.library)",
        changes={"cpp_operator": True},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="two passes less over the scores, forward, and one backward",
        needs=(Need.COMPILER,),
        side=True,
    ),
    Rung(
        name="fused-attention",
        walk=Walk.SPEED,
        title="attention as one kernel that stores no scores (scaled_dot_product_attention)",
        changes={"fused_attention": True},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="the kernel, as calibrated, for two products and the passes over the scores, which are not kept",
        side=True,
    ),
    Rung(
        name="compile",
        walk=Walk.SPEED,
        title="torch.compile of every block",
        changes={"compiled": True},
        promise=Promise.WITHIN,
        bound=REORDERED,
        loss=REDUCED,
        predicts="fused element-wise operators and one call a block, as calibrated",
    ),
    Rung(
        name="mixed-precision",
        walk=Walk.SPEED,
        title="bf16 with fp32 masters",
        changes={"precision": Precision.BF16},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="bf16 rounds to 8 bits",
        predicts="products and passes over memory in bf16, as calibrated: slower where instructions lack",
    ),
    Rung(
        name="fused-kernels",
        walk=Walk.SPEED,
        title="Triton kernels of norms, activations, softmax and loss",
        changes={"triton": True},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="the same sums in another order, rounded to bf16 at other places",
        predicts="not predicted",
        seconds_unknown="a calibration does not time Triton's kernels",
        needs=(Need.TRITON,),
    ),
    Rung(
        name="ddp",
        walk=Walk.SPEED,
        title="DistributedDataParallel on this machine, 2 ranks",
        changes={"data_parallel": 2, "micro_batch": 16},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss="gradients are reduced over ranks",
        predicts="half of the samples a rank, and an all-reduce of the gradients, as calibrated with 2 ranks at once",
    ),
    Rung(
        name="ddp-hosts",
        walk=Walk.SPEED,
        title="DistributedDataParallel over two hosts: network namespaces joined by veth, or --hosts",
        changes={"data_parallel": 2, "hosts": 2},
        promise=Promise.WITHIN,
        bound=ROUNDING,
        loss=REDUCED,
        predicts="the same with messages as timed between these hosts, in a calibration of their own beforehand",
        needs=(Need.NAMESPACES,),
    ),
)


def rounding_of(precision: Precision) -> float:
    """By what part of itself a loss may differ where sums come in any order: fp32's, or one rounding to 16 bits."""
    return {Precision.FP32: REORDERED, Precision.FP16: FP16_ROUNDING}.get(precision, ROUNDING)


def seconds_unknown(setting: Setting) -> str:
    """Why the time of a setting is not predicted: the reason of a rung whose changes are all in it; empty where it is.

    A rung passes on what it changes to those that stand on it, and so the reason too.
    """
    reasons = (rung.seconds_unknown for rung in RUNGS if rung.seconds_unknown and _has(setting, rung.changes))
    return next(reasons, "")


def _has(setting: Setting, changes: dict[str, Any]) -> bool:
    return all(getattr(setting, field) == value for field, value in changes.items())


def of_walk(walk: Walk) -> tuple[Rung, ...]:
    """Its rungs, from the baseline up."""
    return tuple(rung for rung in RUNGS if rung.walk is walk)


def applied(setting: Setting, changes: dict[str, Any]) -> Setting:
    """The setting with a rung's changes; a sharded step's micro-batch is at most a rank's samples."""
    changed = msgspec.structs.replace(setting, **changes)
    own = changed.samples // changed.data_parallel
    return msgspec.structs.replace(changed, micro_batch=min(changed.micro_batch, own))


def setting_of(walk: Walk, rungs: Iterable[Rung], *, divisor: int = 1) -> Setting:
    """The walk's baseline with the changes of `rungs`, in their order; samples and micro-batch over `divisor`."""
    setting = BASE[walk]
    for rung in rungs:
        setting = applied(setting, rung.changes)
    fewer = {"samples": setting.samples // divisor, "micro_batch": setting.micro_batch // divisor}
    return msgspec.structs.replace(setting, **fewer)


def stands_on(rung: Rung, applicable: Iterable[Rung]) -> list[Rung]:
    """The applicable rungs below it, the lowest first: no side rungs, and none that does not apply here."""
    below = []
    for other in applicable:
        if other.name == rung.name:
            break
        if other.walk is rung.walk and not other.side:
            below.append(other)
    return below
