"""Layouts of traced steps: what data-parallel ranks share, and what the backward pass computes again."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, parse_layout
from suite.job.trace_job import Sharding, TraceJob

ALLOWED = (
    "dpN, zero0 (DistributedDataParallel), zero3 (FSDP2), noreshard, recompute-full, selective-op, selective-layerN, "
    "accumulateN, sync, no-sync, microN"
)
_SPLITS = ("data_parallel", "zero_stage", "reshard_after_forward", "recomputation", "accumulation", "micro_batch")
_LAYERS = re.compile(r"selective-layer([1-9][0-9]{0,3})")
_AGAIN = ("selective-op", "selective-layer")


class TraceLayout(NamedTuple):
    """The words of a layout, and the fields of a `TraceJob` that they name.

    Args:
        accumulation: micro-batches of a step; None: not said.
    """

    ranks: int = 1
    sharding: Sharding = Sharding.REPLICATED
    recompute: bool = False
    recompute_every: int = 1
    saves_products: bool = False
    synchronises_once: bool = False
    accumulation: int | None = None
    micro_batch: int | None = None


def trace_layout(text: str) -> TraceLayout:
    """The layout of that text, which only data parallelism may split.

    selective-op        layers are computed again but for attention and every other matrix product (torchtitan)
    selective-layerN    every N-th layer is computed again (torchtitan)
    no-sync             gradients are reduced after a step's last micro-batch (`no_sync`, FSDP2's
                        `set_requires_gradient_sync(False)`); sync: after each. Unsaid: DistributedDataParallel once, as
                        PyTorch's examples, Trainer and Accelerate have it; FSDP2 each time, its default

    Raises:
        InputError: an unknown word, or a layout that splits tensors or layers.
    """
    words = [word.strip() for word in text.split(",")]
    syncs = [word for word in words if word in ("sync", "no-sync")]
    again = [word for word in words if word == "selective-op" or _LAYERS.fullmatch(word)]
    others = [word for word in words if word not in syncs + again]
    plain = Layout()
    layout = parse_layout(",".join(others), base=plain) if others else plain
    for field in msgspec.structs.fields(Layout):
        if field.name not in _SPLITS and getattr(layout, field.name) != getattr(plain, field.name):
            what = "a trace splits neither tensors nor layers"
            raise InputError(what, got=text, allowed=ALLOWED, where="--layout")
    if layout.zero_stage not in (0, 3) or layout.recomputation not in (Recomputation.NONE, Recomputation.FULL):
        raise InputError("is not traced", got=text, allowed=ALLOWED, where="--layout")
    full = layout.recomputation is Recomputation.FULL
    for given in (syncs, [*again, *["recompute-full"] * full]):
        if len(given) > 1:
            raise InputError("exclude each other", got=", ".join(given), where="--layout")
    every = _LAYERS.fullmatch(again[0]) if again else None
    sharded = layout.fully_sharded
    kept = Sharding.RESHARDED if layout.reshard_after_forward else Sharding.KEPT
    return TraceLayout(
        ranks=layout.ranks,
        sharding=kept if sharded else Sharding.REPLICATED,
        recompute=full or bool(again),
        recompute_every=int(every.group(1)) if every else 1,
        saves_products=again == ["selective-op"],
        synchronises_once=syncs == ["no-sync"] if syncs else not sharded,
        accumulation=layout.accumulation,
        micro_batch=layout.micro_batch if any(word.startswith("micro") for word in others) else None,
    )


def layout_words(job: TraceJob) -> str:
    """The layout of a job, in words that `trace_layout` reads as it."""
    sharded = job.sharding is not Sharding.REPLICATED
    words = [f"dp{job.ranks}", *["zero3"] * sharded, *["noreshard"] * (job.sharding is Sharding.KEPT)]
    if job.recompute:
        of_layers = "recompute-full" if job.recompute_every == 1 else f"selective-layer{job.recompute_every}"
        words.append("selective-op" if job.saves_products else of_layers)
    if job.micro_batches > 1:
        words.append(f"accumulate{job.micro_batches}")
        if job.synchronises_once is sharded:  # not as where nothing is said
            words.append("no-sync" if sharded else "sync")
    return ",".join([*words, f"micro{job.micro_batch}"])
