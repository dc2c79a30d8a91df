"""The step of a whole run from the measured parts of a slice of it: what it computes measured, all else modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import PartSeconds, PassSeconds, modelled_parts
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.step_time import StepTime, step_time, timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.recorded_run.slice_parts import MeasuredSlice, SlicedPart, sliced_parts, with_sliced

SMALL = 1e-3  # by which measured seconds are lengthened to see how much of the step goes by them
RULE = "other sequences or micro-batches than the run's: layers by their flop, the rest by its tokens"


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one micro-batch in a part, both passes; of `update`, of one parameter.

    Args:
        modelled_seconds: what the machine model says of it.
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
        modelled: parts of the model that were not measured.
        scaled: the rule by which measured seconds were scaled; empty: they were not.
        plain_seconds: of the step as the machine model alone predicts it.
        measured_seconds: of the step, those that grow with the measured ones, the bubble's among them.
        low_seconds, high_seconds: the step's interval, see `sliced_step`.
    """

    device: str
    records: list[str]
    parts: list[MeasuredPart]
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

    Each part takes the median of its samples. What no slice has, and all messages, waiting and overheads, are the
    machine model's. With S seconds of the step that go by measured ones, of T, and the model's relative error u:
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
    micro_batches = accumulation(workload.recipe, workload.layout)
    traffic = [
        step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in timed_stages(workload.layout)
    ]

    def step(parts: PartSeconds | None) -> StepTime:
        return step_time(workload, machine, micro_batches=micro_batches, traffic=traffic, parts=parts)

    def total(*, slower: float = 0.0, spreads: float = 0.0) -> float:
        return step(with_sliced(modelled, measured, slower=slower, spreads=spreads)).total_seconds

    time = step(with_sliced(modelled, measured, slower=0.0, spreads=0.0))
    seconds = time.total_seconds
    share = (total(slower=SMALL) - seconds) / SMALL
    error = math.hypot(total(spreads=1.0) - seconds, (uncertainty or 0.0) * (seconds - share))
    found = SlicedStep(
        device=slices[0].device,
        records=[each.where for each in slices],
        parts=[_shown(workload, part, modelled) for part in measured],
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
    """What the run's kinds of layers are called."""
    kinds = layer_kinds(workload.architecture)
    return ["layer"] if len(kinds) == 1 else ["dense layer", "layer with experts"]


def _shown(workload: Workload, part: SlicedPart, modelled: PartSeconds) -> MeasuredPart:
    is_layer, own = part.name == "layer", modelled.update
    if part.name != "update":
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
