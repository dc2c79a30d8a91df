"""The step of a case, of other machines, and if each pipeline stage in turn were the one that decides."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from reference_runs.run import Workload
from suite.predict.analytic import step_time as subject
from suite.predict.analytic.machine import PLAIN, Machine
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, waits_of_a_pass
from suite.predict.analytic.step_time import RankTraffic, StepTime, step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from tests.support.machines import Case
from tests.support.strategies import BLOOM

# a step is a sum of some dozens of products and quotients, each rounded to 2**-53
ROUNDING = 1e-13


def traffic_of(case: Case) -> list[RankTraffic]:
    architecture, recipe, layout, micro_batches = case
    return [
        step_traffic(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        for stage in timed_stages(architecture, layout)
    ]


def time_of(case: Case, machine: Machine) -> StepTime:
    architecture, recipe, layout, micro_batches = case
    return step_time(
        Workload(architecture, recipe, layout), machine, micro_batches=micro_batches, traffic=traffic_of(case)
    )


def stage_times(case: Case, machine: Machine) -> list[StepTime]:
    """Seconds of each stage in turn if there is no other to wait for."""
    architecture, recipe, layout, micro_batches = case
    times = []
    for stage in range(layout.pipeline_stages):
        traffic = step_traffic(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subject, "timed_stages", lambda *_, stage=stage: (stage,))
            times.append(
                step_time(
                    Workload(architecture, recipe, layout), machine, micro_batches=micro_batches, traffic=[traffic]
                )
            )
    return times


def pass_seconds(time: StepTime, *, micro_batches: int) -> float:
    """Seconds of one micro-batch in a stage: what the pipeline repeats, waiting aside."""
    return math.fsum((*time[:7], time.launch_seconds, time.accumulation_seconds)) / micro_batches


def waiting_stages(case: Case, machine: Machine) -> list[StepTime]:
    """Seconds of each stage in turn if it waits for one micro-batch of every other, all of them walked."""
    layout, micro_batches = case.layout, case.micro_batches
    alone = stage_times(case, machine)
    assert all(time.bubble_seconds == 0 for time in alone)
    if layout.schedule in NO_FLUSH:
        return alone
    passes = [pass_seconds(time, micro_batches=micro_batches) for time in alone]
    shared = layout.virtual_stages * waits_of_a_pass(layout)
    return [
        time._replace(bubble_seconds=math.fsum(passes[:stage] + passes[stage + 1 :]) / shared)
        for stage, time in enumerate(alone)
    ]


def changed(case: Case, **changes: Any) -> Case:
    return case._replace(layout=msgspec.structs.replace(case.layout, **changes))


def bloom() -> Case:
    return Case(BLOOM.architecture, BLOOM.recipe, BLOOM.layout, 128)


def having(machine: Machine, **changes: Any) -> Machine:
    """The machine with other numbers, or, by the names of its stack, with other switches."""
    switches = {name: changes.pop(name) for name in list(changes) if name in PLAIN.__struct_fields__}
    stack = msgspec.structs.replace(machine.stack, **switches)
    return msgspec.structs.replace(machine, stack=stack, **changes)


def but(time: StepTime, *names: str) -> dict[str, float]:
    """All terms but these."""
    return {name: seconds for name, seconds in time._asdict().items() if name not in names}
