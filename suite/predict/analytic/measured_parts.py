"""Seconds of what a pipeline stage computes, part by part: layers, embedding, head, update.

Measured ones take the place of the machine's in `step_time`, which adds messages, waiting and overheads to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Recomputation, Schedule
from reference_runs.placement import head_stage
from reference_runs.run import Workload
from suite.predict.analytic.layer_time import LayerTime, head_seconds, layer_time
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_bound_operators import update_element_bytes
from suite.predict.analytic.stage_computation import micro_batch_seconds, stage_computation
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds

EMBEDDING, LAYER, HEAD = range(3)  # stages of the pipeline whose stages are these parts alone


class PassSeconds(NamedTuple):
    """Seconds of one micro-batch: forward, and backward with what is computed again. No messages."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward

    def times(self, number: float) -> PassSeconds:
        """So many of them."""
        return PassSeconds(number * self.forward, number * self.backward)


NOTHING = PassSeconds(0.0, 0.0)


class PartSeconds(NamedTuple):
    """Seconds of one rank's share of each part of a model, measured or not.

    Args:
        layers: of one layer of each of `layer_kinds`.
        head: with the last norm and the loss.
        update: of the optimizer, a parameter that the rank updates.
        shared: what the layers of a stage share, once for all: a mask, the angles of rotations. The machine model has
            no time for it.
    """

    layers: tuple[PassSeconds, ...]
    embedding: PassSeconds
    head: PassSeconds
    update: float
    shared: PassSeconds = NOTHING


class StageParts(NamedTuple):
    """Seconds of one micro-batch on a stage by part, of all its layers together with what they share."""

    layers: PassSeconds
    embedding: PassSeconds
    head: PassSeconds

    @property
    def both(self) -> PassSeconds:
        """Seconds of all parts."""
        return PassSeconds(sum(part.forward for part in self), sum(part.backward for part in self))


def workloads_of_parts(workload: Workload) -> list[Workload]:
    """For each of `layer_kinds` the workload whose pipeline has the stages `EMBEDDING`, `LAYER` and `HEAD`."""
    apart = msgspec.structs.replace(
        workload.layout,
        pipeline_stages=3,
        virtual_stages=1,
        schedule=Schedule.ONE_F_ONE_B,
        stage_layer_counts=(0, 1, 0),
    )
    kinds = [kind for kind, _ in layer_kinds(workload.architecture)]
    shapes = [msgspec.structs.replace(kind, layers=1, dense_layers=0) for kind in kinds]
    return [Workload(shape, workload.recipe, apart) for shape in shapes]


def modelled_parts(workload: Workload, machine: Machine) -> PartSeconds:
    """Modelled seconds of each part: a stage's products, operators, casts, kernels and launches.

    Each part is the stage of a pipeline that has nothing else: embedding | one layer | head. So the parts of a stage
    add up to its micro-batch without messages, where the host is not the slower one. Casts of weights, once a step,
    and adding up gradients are in no part.

    Raises:
        InputError: recomputation from a stage's input: a layer's time then depends on how many there are.
    """
    layout, recipe = workload.layout, workload.recipe
    if layout.recomputation is Recomputation.FROM_INPUT:
        got, allowed = layout.recomputation.value, "none, selective, selective-op, full"
        raise InputError("layout.recomputation: no layer has a time of its own", got=got, allowed=allowed)
    head = head_seconds(workload, machine)

    def part(kind: Workload, stage: int, layer: LayerTime) -> PassSeconds:
        computation = stage_computation(kind, machine, stage=stage, kinds=[layer], head=head)
        passed = micro_batch_seconds(kind, machine, stage=stage, computation=computation, message_seconds=0.0)
        backward = passed.slowdown * computation.backward_pass
        return PassSeconds(passed.seconds - backward, backward)

    kinds = [(kind, layer_time(kind, machine)) for kind in workloads_of_parts(workload)]
    first, layer = kinds[0]
    return PartSeconds(
        tuple(part(kind, LAYER, layer) for kind, layer in kinds),
        part(first, EMBEDDING, layer),
        part(first, HEAD, layer),
        machine.update_passes
        * update_element_bytes(recipe.precision, recipe.kept_moments)
        / machine.achievable_memory_bytes_per_second,
    )


def stage_parts(workload: Workload, parts: PartSeconds, *, stage: int) -> StageParts:
    """The parts of pipeline stage `stage`: its layers, the embedding on the first, the head on its own."""
    counts = [number for _, number in stage_layer_kinds(workload.architecture, workload.layout, stage=stage)]
    layers = [layer.times(number) for layer, number in zip(parts.layers, counts, strict=True)]
    return StageParts(
        _sum([*layers, parts.shared.times(sum(counts) > 0)]),
        parts.embedding.times(stage == 0),
        parts.head.times(stage == head_stage(workload.layout)),
    )


def _sum(passes: Sequence[PassSeconds]) -> PassSeconds:
    return PassSeconds(sum(each.forward for each in passes), sum(each.backward for each in passes))
