"""Checks the options of a dry run: they become a plan."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.catalog import check_layout, miniatures, reference_run, run_names
from reference_runs.errors import InputError, Mistakes
from reference_runs.incomplete import check_whole
from reference_runs.layout import Layout, Offload, Schedule, parse_layout
from reference_runs.named_runs import meant_run
from reference_runs.run import Workload
from suite.reproduce.plan import plan
from suite.reproduce.recorded_recipe import in_whole_batches, with_loss_scale
from suite.reproduce.request import Request
from suite.reproduce.supported import check_executable, check_executable_layout, check_fused_attention


class DryPlan(NamedTuple):
    """A run that is not launched: its name, the step of a rank, and the accelerator that it was recorded on.

    Args:
        changes: what is executed in another way than recorded, in words.
    """

    name: str
    workload: Workload
    accelerator: str | None
    changes: tuple[str, ...] = ()


def dry_plan(name: str, layout: str | None, *, mini: bool, results: Path, option: str = "--layout") -> DryPlan:
    """The checked plan for a recorded run, a run file or a miniature, in its own layout or the one asked for.

    A ramp-up of the batch is left out: steps of the whole batch are counted.

    Args:
        option: that gave the layout.

    Raises:
        InputError: unknown name, damaged file, a bad layout, or what is not executed without memory.
    """
    is_whole = (name.endswith(".toml") or name in run_names()) and not mini
    if not is_whole:
        if name not in miniatures() and not mini:
            allowed = "a run or miniature of `runs`, or a run file ending in .toml"
            meant = meant_run(name, [*miniatures(), *run_names()])
            raise InputError("unknown run", got=repr(name), meant=meant, allowed=allowed)
        request = Request(name=name, mini=mini, layout=layout, device="cpu", compiled=False, results=results)
        planned = plan(request)
        check_without_memory(planned.workload, option)
        workload = planned.workload._replace(recipe=in_whole_batches(planned.recipe))
        return DryPlan(planned.name, workload, None)
    run = reference_run(name)
    check_whole(run, needs_layout=layout is None)
    recorded = run.recorded_layout or Layout()
    chosen = recorded if layout is None else parse_layout(layout, base=recorded)
    workload, changes = _as_executed(Workload(run.architecture, in_whole_batches(run.recipe), chosen))
    _, recipe, chosen = workload
    where = option if layout else run.where
    mistakes = Mistakes()
    with mistakes.collected():
        check_executable(run.architecture, recipe, run.where)
    with mistakes.collected():
        check_layout(workload, where)
        check_executable_layout(workload, where)
        check_fused_attention(recipe, chosen, "cpu", where)
        check_without_memory(workload, where)
    mistakes.refuse()
    return DryPlan(run.name, workload, None if run.cluster is None else run.cluster.accelerator, changes)


def _as_executed(workload: Workload) -> tuple[Workload, tuple[str, ...]]:
    """A recorded run as it can be executed: without what only its own framework does, and what that changes."""
    architecture, recipe, layout = workload
    changes = []
    if layout.partitioned_checkpoints and layout.tensor_parallel > 1:
        layout = msgspec.structs.replace(layout, partitioned_checkpoints=False)
        changes.append("every tensor-parallel rank keeps the inputs of recomputed groups whole, not its share")
    if layout.scatter_gather and layout.tensor_parallel > 1:
        layout = msgspec.structs.replace(layout, scatter_gather=False)
        changes.append("every tensor-parallel rank sends its hidden states whole to the next stage, not its share")
    if (scaled := with_loss_scale(recipe)) is not recipe:
        recipe = scaled
        changes.append("a dynamic loss scale, which the file does not record; it changes no count")
    return Workload(architecture, recipe, layout), tuple(changes)


def check_without_memory(workload: Workload, where: str) -> None:
    """Refuse what needs numbers, or a device.

    Raises:
        InputError: it does.
    """
    architecture, _, layout = workload
    sample = architecture.sequence * (architecture.experts_per_token or 0)
    ranks = layout.expert_parallel
    flushing = ", ".join(schedule for schedule in Schedule if schedule.flushes)
    for wrong, got, allowed in (
        (sample % ranks > 0, f"{sample} rows of a sample over ep{ranks}", "ranks that share them out evenly"),
        (layout.offload is not Offload.NONE, f"offload {layout.offload.value}", "state on the accelerator"),
        (not layout.flushes, f"{layout.schedule}, whose steps overlap", flushing),
    ):
        if wrong:
            raise InputError("not executed without memory", got=got, allowed=allowed, where=where)
