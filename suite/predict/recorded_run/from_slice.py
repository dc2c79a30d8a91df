"""The step of a whole run from the measured parts of a slice of it: what it computes measured, all else modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.placement import head_stage
from reference_runs.run import Workload
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import (
    EMBEDDING,
    HEAD,
    LAYER,
    PartSeconds,
    PassSeconds,
    modelled_parts,
    workloads_of_parts,
)
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds
from suite.predict.analytic.step_time import StepTime, step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.recorded_run.slice_parts import MeasuredSlice, SlicedPart, exchanged_axes, sliced_parts, with_sliced

SMALL = 1e-3  # by which measured seconds are lengthened to see how much of the step goes by them
RULE = "other sequences or micro-batches than the run's: layers by their flop, the rest by its tokens"


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one micro-batch in a part, both passes; of `update`, of one parameter.

    Args:
        modelled_seconds: what the machine model says of it; 0 where messages are in the measured ones.
        spread: half of the range between the quartiles of the samples, over the median; None: of fewer than 4.
    """

    name: str
    seconds: float
    modelled_seconds: float
    spread: float | None
    samples: int


class SlicedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of which parts were measured.

    Args:
        messages: axes whose messages are in the measured parts.
        modelled: parts of the model that were not measured.
        scaled: the rule by which measured seconds were scaled; empty: they were not.
        plain_seconds: of the step as the machine model alone predicts it.
        measured_seconds: of the step, those that grow with the measured ones, the bubble's among them.
        low_seconds, high_seconds: the step's interval, see `sliced_step`.
    """

    device: str
    records: list[str]
    parts: list[MeasuredPart]
    messages: list[str]
    modelled: list[str]
    scaled: str
    step_seconds: float
    plain_seconds: float
    measured_seconds: float
    low_seconds: float
    high_seconds: float


def sliced_step(
    run: str, workload: Workload, machine: Machine, slices: Sequence[MeasuredSlice], *, uncertainty: float | None
) -> tuple[StepTime, SlicedStep]:
    """The step of a run whose parts were measured in slices of it, all on one device.

    Each part takes the median of its samples. What no slice has, waiting, overheads and messages are the machine
    model's, but for messages within parts whose slices had them. With S seconds of the step that go by measured ones,
    of T, and the model's relative error u:
        interval    T - e to T + e,  e = hypot(T' - T, u (T - S))
    where T' is the step whose measured parts are all slower by their spread.

    Args:
        run: the name of the recorded run, or of the run file's.
        uncertainty: u; None: unknown, and taken as 0.

    Raises:
        InputError: a slice of another run, architecture, precision or layout, or of another device than the first
            one; or recomputation from a stage's input, with which no layer has a time of its own.
    """
    measured, modelled = sliced_parts(run, workload, slices), modelled_parts(workload, machine)
    axes, micro_batches = exchanged_axes(slices), accumulation(workload.recipe, workload.layout)
    stages = timed_stages(workload.architecture, workload.layout)
    traffic = [step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in stages]
    beyond = [
        [*(entry for entry in entries if entry[0] not in axes), *_of_other_parts(workload, measured, axes, stage)]
        for stage, entries in zip(stages, traffic, strict=True)
    ]

    def step(parts: PartSeconds | None) -> StepTime:
        entries = traffic if parts is None else beyond
        return step_time(workload, machine, micro_batches=micro_batches, traffic=entries, parts=parts)

    def total(*, slower: float = 0.0, spreads: float = 0.0) -> float:
        return step(with_sliced(modelled, measured, slower=slower, spreads=spreads)).total_seconds

    time = step(with_sliced(modelled, measured, slower=0.0, spreads=0.0))
    seconds = time.total_seconds
    share = (total(slower=SMALL) - seconds) / SMALL
    error = math.hypot(total(spreads=1.0) - seconds, (uncertainty or 0.0) * (seconds - share))
    found = SlicedStep(
        device=slices[0].device,
        records=[each.where for each in slices],
        parts=[_shown(workload, part, modelled, has_messages=bool(axes)) for part in measured],
        messages=sorted(axes - {"kv"}),
        modelled=_not_measured(workload, measured),
        scaled=RULE if any(part.scaled for part in measured) else "",
        step_seconds=seconds,
        plain_seconds=step(None).total_seconds,
        measured_seconds=share,
        low_seconds=seconds - error,
        high_seconds=seconds + error,
    )
    return time, found


def _names(workload: Workload) -> list[str]:
    """Names of the run's kinds of layers."""
    kinds = layer_kinds(workload.architecture)
    return ["layer"] if len(kinds) == 1 else ["dense layer", "layer with experts"]


def _of_other_parts(
    workload: Workload, measured: Sequence[SlicedPart], axes: frozenset[str], stage: int
) -> list[tuple[str, str, int, int]]:
    """Messages over `axes` of what a stage has and no slice measured."""
    if not axes:
        return []
    layout, micro_batches = workload.layout, accumulation(workload.recipe, workload.layout)
    names = {(part.name, part.kind) for part in measured}
    kinds = workloads_of_parts(workload)
    numbers = [number for _, number in stage_layer_kinds(workload.architecture, layout, stage=stage)]
    of_parts = [
        (kind, LAYER, number, ("layer", n)) for n, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
    ]
    of_parts.append((kinds[0], EMBEDDING, int(stage == 0), ("embedding", 0)))
    of_parts.append((kinds[0], HEAD, int(stage == head_stage(layout)), ("head", 0)))
    return [
        (axis, operation, number * size, number * messages)
        for of, part, number, name in of_parts
        if number and name not in names
        for axis, operation, size, messages in step_traffic(of, stage=part, micro_batches=micro_batches)
        if axis in axes
    ]


def _shown(workload: Workload, part: SlicedPart, modelled: PartSeconds, *, has_messages: bool) -> MeasuredPart:
    is_layer, own = part.name == "layer", modelled.update
    if has_messages and part.name != "update":
        own = 0.0  # says nothing of messages
    elif part.name != "update":
        passes: PassSeconds = modelled.layers[part.kind] if is_layer else getattr(modelled, part.name)
        own = passes.total
    return MeasuredPart(
        name=_names(workload)[part.kind] if is_layer else part.name,
        seconds=part.seconds.total,
        modelled_seconds=own,
        spread=part.spread,
        samples=part.samples,
    )


def _not_measured(workload: Workload, measured: Sequence[SlicedPart]) -> list[str]:
    """Parts of the model that are the machine model's."""
    found = {(part.name, part.kind) for part in measured}
    layers = [name for kind, name in enumerate(_names(workload)) if ("layer", kind) not in found]
    return [*layers, *(name for name in ("embedding", "head", "update") if (name, 0) not in found)]
