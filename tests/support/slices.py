"""Slices of recorded runs that were never executed: their jobs, and the times that they are said to have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.run import ReferenceRun
from suite.job.events import Status
from suite.job.slice import Slice, SlicePart, SliceStage, SliceTimes
from suite.job.training_job import Job
from suite.predict.analytic.measured_parts import PartSeconds, PassSeconds
from suite.predict.recorded_run.slice_parts import MeasuredSlice
from suite.records.record import RankOutcome, begin_record
from suite.records.store import Opened, new_identity, records_directory
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan
from tests.support.record_halves import end

PARAMETERS = 10**6  # that an update updates


@cache
def _job() -> Job:
    return job_for(small_plan(ranks=1), CORPUS, "/none")


def slice_job(run: ReferenceRun, *, sequence: int | None = None, micro_batch: int | None = None, **layout: Any) -> Job:
    """The job of one ordinary layer of a run, with embedding and head, in the share of an accelerator."""
    own = run.layout
    local = msgspec.structs.replace(
        own,
        data_parallel=1,
        pipeline_stages=1,
        virtual_stages=1,
        stage_layer_counts=None,
        zero_stage=0,
        accumulation=None,
        micro_batch=micro_batch or own.micro_batch,
    )
    sliced = {"layers": 1, "dense_layers": 0, "sequence": sequence or run.architecture.sequence}
    return msgspec.structs.replace(
        _job(),
        name=f"{run.name}-slice",
        architecture=msgspec.structs.replace(run.architecture, **sliced),
        recipe=run.recipe,
        layout=msgspec.structs.replace(
            local, **{"recomputation": own.executed_recomputation, "recomputed_modules": (), **layout}
        ),
        slice=Slice(
            run=run.name,
            layout=own,
            stage=SliceStage.ONLY,
            layers=1,
            sequence=run.architecture.sequence,
            micro_batch=own.micro_batch,
            rank=0,
        ),
    )


def times_of(
    parts: PartSeconds, *, kind: int = -1, samples: Mapping[SlicePart, list[float]] | None = None
) -> SliceTimes:
    """Times that are those of the parts, five times the same; `samples` take the place of some, or of none."""
    passes = {
        SlicePart.SHARED_FORWARD: parts.shared.forward,
        SlicePart.EMBEDDING_FORWARD: parts.embedding.forward,
        SlicePart.EMBEDDING_BACKWARD: parts.embedding.backward,
        SlicePart.LAYER_FORWARD: parts.layers[kind].forward,
        SlicePart.LAYER_BACKWARD: parts.layers[kind].backward,
        SlicePart.HEAD_FORWARD: parts.head.forward,
        SlicePart.HEAD_BACKWARD: parts.head.backward,
        SlicePart.UPDATE: PARAMETERS * parts.update,
    }
    seconds = {part: [second] * 5 for part, second in passes.items()} | dict(samples or {})
    return SliceTimes(seconds={part: each for part, each in seconds.items() if each}, updated_parameters=PARAMETERS)


def measured(job: Job, times: SliceTimes, *, device: str = "a device", where: str = "record.json") -> MeasuredSlice:
    return MeasuredSlice(job, times, where, device)


def ones(seconds: float = 1.0) -> PartSeconds:
    """Every pass of every part takes so long."""
    each = PassSeconds(seconds, seconds)
    return PartSeconds((each,), each, each, seconds / PARAMETERS, PassSeconds(seconds, 0.0))


def stored(results: Path, job: Job, times: SliceTimes | None, **hardware: str) -> Path:
    """The first half of the record of a launch that left these times; None: it left none."""
    begin = begin_record(job, CORPUS, new_identity())
    begin = msgspec.structs.replace(begin, hardware=begin.hardware | hardware)
    opened = Opened(records_directory(results, job.name), begin)
    outcome = RankOutcome(rank=0, steps=[], last="finished", slice_times=times)
    opened.close(end(begin.id, status=Status.OK if times else Status.OUT_OF_MEMORY, ranks=[outcome]))
    return opened.path
