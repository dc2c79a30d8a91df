"""How many versions of its weights a stage stores where passes go on over updates, and how late its gradients are."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Schedule
from reference_runs.run import Workload
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight, stages_ahead, weight_versions


class StoredVersions(NamedTuple):
    """Versions of the weights that a stage alone has; and of the table that first and last stage share, 0 elsewhere."""

    own: int
    table: int


def stored_versions(workload: Workload, *, stage: int) -> StoredVersions:
    """Versions that a rank of `stage` stores once passes are in their turns.

    A shared table is updated at both ends where the first stage does, in micro-batches. There it has as many versions
    as other weights. The last stage computes with the newest one, where the first one has it: so it stores 1, but with
    pipedream-2bw 2 where an update comes within a step, with more than min(p - 1, m) micro-batches m of p stages.
    """
    workload = workload.at_stage(stage)
    layout = workload.layout
    micro_batches = accumulation(workload.recipe, layout)
    own = weight_versions(layout, stage=stage, micro_batches=micro_batches)
    if not workload.architecture.tied_embeddings or 0 < stage < layout.pipeline_stages - 1:
        return StoredVersions(own, 0)
    if stage == 0 or layout.flushes:
        return StoredVersions(own, own)
    if layout.stage_replicas is not None:
        return StoredVersions(own, _table_versions(layout, micro_batches))
    ahead = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=0) - 1
    buffered = layout.schedule is Schedule.PIPEDREAM_2BW and ahead < micro_batches
    return StoredVersions(own, 2 if buffered else 1)


def table_updates(layout: Layout, ended: int, *, micro_batches: int) -> int:
    """Updates of a shared table that the last stage has made once each replica has ended so many backward passes.

    floor(max(0, (e R_l + R_l - 1) // R_0 - (n_0 - 1)) / m_0): those of the first stage, which has n_0 micro-batches in
    flight and m_0 an update on each of its R_0 replicas, when it has come as far as the last of R_l replicas has.

    Args:
        micro_batches: of an update, on each replica of the last stage.
    """
    replicas = layout.stage_replicas or (layout.data_parallel,)
    first, last = replicas[0], replicas[-1]
    of_first = micro_batches * last // first
    ahead = int(micro_batches_in_flight(layout, micro_batches=of_first, stage=0)) - 1
    return max(0, (ended * last + last - 1) // first - ahead) // of_first


def _table_versions(layout: Layout, micro_batches: int) -> int:
    """Versions of a shared table on the last stage, where stages differ in replicas: the most in the steady state.

    From the version with which the first of its replicas computes the next micro-batch to the newest one.
    """
    assert layout.stage_replicas is not None
    first, last = layout.stage_replicas[0], layout.stage_replicas[-1]
    of_first = micro_batches * last // first
    ahead = stages_ahead(layout, 0) - 1

    def oldest(ended: int) -> int:
        if layout.schedule is Schedule.PIPEDREAM_2BW:
            return ended // micro_batches - 1
        return (ended * last // first - ahead) // of_first

    steady = (2 + ceil_division((ahead + 1) * first, last * micro_batches)) * micro_batches
    return max(
        table_updates(layout, ended, micro_batches=micro_batches) + 1 - oldest(ended)
        for ended in range(steady, steady + micro_batches)
    )


def staleness(workload: Workload, *, stage: int, replica: int = 0) -> int:
    """Updates of a stage, at most, between the weights of a micro-batch's passes and the update it takes part in.

    With p stages, stage k from 0, m micro-batches an update of each replica; where stages differ in replicas, p - k is
    that of `stages_ahead`, and m of vertical sync the first stage's:
        pipedream                  ceil((p - 1 - k) / m)
        pipedream-vertical-sync    ceil((p - 1) / m); p - 1 less r // R_0 on replica r, where the first stage has R_0
        pipedream-2bw              1
        others                     0
    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.3 (n - 1 - k and n - 1, with m = 1);
    Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    """
    workload = workload.at_stage(stage)
    layout = workload.layout
    schedule, last = layout.schedule, stages_ahead(layout, 0) - 1
    if layout.flushes:
        return 0
    if schedule is Schedule.PIPEDREAM_2BW:
        return 1
    if schedule is Schedule.PIPEDREAM:
        return ceil_division(stages_ahead(layout, stage) - 1, accumulation(workload.recipe, layout))
    if layout.stage_replicas is not None:
        last -= replica // layout.stage_replicas[0]
    return ceil_division(last, accumulation(workload.recipe, layout.at_stage(0)))
