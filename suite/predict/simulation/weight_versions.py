"""How many versions of its weights a stage stores where passes go on over updates, and how late its gradients are."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Schedule
from reference_runs.run import Workload
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight, weight_versions


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
    layout = workload.layout
    micro_batches = accumulation(workload.recipe, layout)
    own = weight_versions(layout, stage=stage, micro_batches=micro_batches)
    if not workload.architecture.tied_embeddings or 0 < stage < layout.pipeline_stages - 1:
        return StoredVersions(own, 0)
    if stage == 0 or layout.flushes:
        return StoredVersions(own, own)
    ahead = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=0) - 1
    buffered = layout.schedule is Schedule.PIPEDREAM_2BW and ahead < micro_batches
    return StoredVersions(own, 2 if buffered else 1)


def staleness(workload: Workload, *, stage: int) -> int:
    """Updates of a stage, at most, between the weights of a micro-batch's passes and the update it takes part in.

    With p stages, stage k from 0, m micro-batches an update:
        pipedream                  ceil((p - 1 - k) / m)
        pipedream-vertical-sync    ceil((p - 1) / m)
        pipedream-2bw              1
        others                     0
    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.3 (n - 1 - k and n - 1, with m = 1);
    Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    """
    layout = workload.layout
    schedule, last = layout.schedule, layout.pipeline_stages - 1
    if layout.flushes:
        return 0
    if schedule is Schedule.PIPEDREAM_2BW:
        return 1
    late = last - stage if schedule is Schedule.PIPEDREAM else last
    return ceil_division(late, accumulation(workload.recipe, layout))
