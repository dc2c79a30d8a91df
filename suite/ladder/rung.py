"""The ladder's rungs: what each changes, what it promises of the losses, how its gain is predicted, what it needs."""

from __future__ import annotations

import enum
import math
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.layout import Recomputation
from reference_runs.run import Precision
from suite.job.options import ScriptOptions, Texts, TrainingOptions, Update
from suite.job.training_job import COUNTED_STEPS, PROFILED_STEPS, WARM_UP_STEPS

# Relative, of losses: one rounding to 16 bits, of 8 in bf16's significand and 11 in fp16's. Logits are rounded so, and
# a loss is a mean over 1,000 tokens and more, whose roundings average out. Of fp32 sums next to them nothing is seen
ROUNDING = 2.0**-8
FP16_ROUNDING = 2.0**-11


class Track(enum.StrEnum):
    """Cost that the rungs of a track reduce: memory, or seconds of a token."""

    MEMORY = "memory"
    SPEED = "speed"


class Need(enum.StrEnum):
    """Requirement of a rung; the value completes "NOT RUN: "."""

    CUDA = "no CUDA device: the host's memory is the device's here"
    CPU = "its operator computes on a CPU alone"
    TRITON = "no CUDA device: Triton's kernels would be interpreted"
    COMPILER = "no C++ compiler (g++, c++ or CXX) and ninja"
    NAMESPACES = "no network namespaces (they need root and iproute2) and no --hosts"
    LAYERS = "too few layers: groups of sqrt(layers) are single layers"


class Promise(enum.StrEnum):
    """Promise of a rung's losses compared with those of the rung below."""

    EQUAL = "equal"
    WITHIN = "within"
    CHANGED = "changed"


class RungSetting(ScriptOptions, frozen=True, kw_only=True):
    """Everything that rungs change: options of the training script, then its recipe and layout.

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

    def training_options(self, rung: str, texts: Texts | None) -> TrainingOptions:
        """Options of the script, by the name of the launch; with texts where it tokenises."""
        options = {field: getattr(self, field) for field in ScriptOptions.__struct_fields__}
        return TrainingOptions(rung=rung, texts=texts if self.tokenises else None, **options)


def reordered_bound(*, addends: int, steps: int) -> float:
    """Largest relative difference of a loss at step `steps` when fp32 sums are added in another order.

    (S + 1) sqrt(n) u, with n addends, S steps and u = 2^-24, fp32's unit roundoff:
        sqrt(n) u   a sum of n addends: roundings are as good as independent, so that they add up as a random walk. That
                    holds too where the addends cancel, relative to what is left of them
        1           the loss of the step itself, a mean over its tokens
        S           gradients of the steps before. Adam's update has the relative error of its gradient, and moves the
                    loss by that part of what the update takes off it: at most all of the loss, each step
    One addend after the other; PyTorch adds in blocks, whose sums are rounded less often. The longest of these sums are
    those over a step's tokens, in gradients of weights; the gradients' norm is one over all parameters, but a factor of
    all gradients leaves Adam's updates as they are.

    Source: Higham and Mary, A new approach to probabilistic rounding error analysis, 2019, theorem 2.4, with
    lambda = 1. Differs from the worst case, n u, by sqrt(n).
    """
    return (steps + 1) * math.sqrt(addends) * 2.0**-24


BASE = {
    Track.MEMORY: RungSetting(keeps_gradients=True, update=Update.FOREACH),
    Track.SPEED: RungSetting(
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
        name: distinct over both tracks.
        title: what is done, in one line.
        changes: fields of `RungSetting` and their values here; none: the track's baseline.
        promise: of the losses of all steps compared with those of the rung below.
        bound: relative, where the promise is WITHIN.
        loss: why the losses are equal, within the bound, or other ones.
        predicts: the formula, or where the prediction comes from.
        seconds_unknown: why no time is predicted of a setting that has these changes; empty where it is.
        needs: without which it does not apply.
        side: whether no rung builds on it; the next rung builds on the one below it.
        main_on: the device on which it is no side rung; empty: none.
    """

    name: str
    track: Track
    title: str
    changes: dict[str, Any]
    promise: Promise
    loss: str
    predicts: str
    bound: float = 0.0
    seconds_unknown: str = ""
    needs: tuple[Need, ...] = ()
    side: bool = False
    main_on: str = ""

    @property
    def is_base(self) -> bool:
        """Whether it is the baseline of a track."""
        return not self.changes


def rounding_of(precision: Precision) -> float:
    """Largest relative difference of a loss when sums come in any order: fp32's, or one rounding to 16 bits."""
    return {Precision.FP32: REORDERED, Precision.FP16: FP16_ROUNDING}.get(precision, ROUNDING)


def applied(setting: RungSetting, changes: dict[str, Any]) -> RungSetting:
    """The setting with a rung's changes; a sharded step's micro-batch is at most a rank's samples."""
    changed = msgspec.structs.replace(setting, **changes)
    samples_of_rank = changed.samples // changed.data_parallel
    return msgspec.structs.replace(changed, micro_batch=min(changed.micro_batch, samples_of_rank))


def setting_of(track: Track, rungs: Iterable[Rung], *, divisor: int = 1) -> RungSetting:
    """The track's baseline with the changes of `rungs`, in their order; samples and micro-batch over `divisor`."""
    setting = BASE[track]
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
        if other.track is rung.track and not other.side:
            below.append(other)
    return below


def setting_above(rung: Rung, applicable: Iterable[Rung], *, divisor: int = 1) -> RungSetting:
    """The setting of a rung on top of the applicable ones below it."""
    return setting_of(rung.track, [*stands_on(rung, applicable), rung], divisor=divisor)


def _rungs() -> Iterator[Rung]:
    """Rungs of the file; where sums come in another order, the bound follows from the setting's precision."""
    file = Path(__file__).with_name("rungs.toml")
    for track, rows in tomllib.loads(file.read_text(encoding="utf-8")).items():
        rungs: list[Rung] = []
        for row in rows:
            values = msgspec.convert(row["changes"], RungSetting)
            row["changes"] = {name: getattr(values, name) for name in row["changes"]}
            row["needs"] = tuple(Need[name.upper()] for name in row.get("needs", ()))
            rung = Rung(track=Track(track), **row | {"promise": Promise(row["promise"])})
            if rung.promise is Promise.WITHIN:
                bound = rounding_of(setting_above(rung, rungs).precision)
                rung = msgspec.structs.replace(rung, bound=bound)
            rungs.append(rung)
        yield from rungs


RUNGS = tuple(_rungs())


def rungs_on(device: str) -> list[Rung]:
    """All rungs; what is a side rung elsewhere may be none on `device`."""
    return [msgspec.structs.replace(rung, side=rung.side and rung.main_on != device) for rung in RUNGS]


def seconds_unknown(setting: RungSetting) -> str:
    """Why the time of a setting is not predicted: the reason of a rung whose changes are all in it; empty where it is.

    A rung passes on what it changes to those that stand on it, and so the reason too.
    """
    values = msgspec.structs.asdict(setting)
    reasons = (rung.seconds_unknown for rung in RUNGS if rung.changes.items() <= values.items())
    return next(filter(None, reasons), "")
