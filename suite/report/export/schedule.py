"""The learning rate's warm-up and decay over the training that is exported, and where they differ from the record."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from reference_runs.miniature import WARMUP_FRACTION
from suite.report.export.job import ExportedJob


class LearningRateSchedule(NamedTuple):
    """Warm-up and decay, both from the first sample on; None where the run does not say.

    Args:
        remarks: sentences on what differs from the run's record, or from the training.
    """

    warmup: int | None
    decay: int | None
    remarks: tuple[str, ...] = ()


def schedule_of(job: ExportedJob) -> LearningRateSchedule:
    """Samples of warm-up and decay.

    A decay keeps its share of the training: where other tokens are trained on than the run records, it is scaled with
    them. A warm-up keeps its samples, up to a tenth of the decay, or its recorded share of it if that is more.
    """
    warmup, decay, samples = (_count(job, "warmup"), _count(job, "decay"), job.samples)
    if decay is None:
        return LearningRateSchedule(warmup, None)
    own = job.own_samples or samples
    scaled = max(1, round(Fraction(decay * samples, own)))
    remarks = []
    if scaled != decay:
        remarks.append(
            "learning rate: its decay is scaled from the recorded training to this one, "
            f"{scaled:,} samples in place of {decay:,}"
        )
    if warmup is not None:
        most = max(round(WARMUP_FRACTION * scaled), round(Fraction(warmup * scaled, decay)))
        if warmup > most:
            words = f"{most:,} samples, {most / scaled:.0%} of the decay, in place of {warmup:,}"
            remarks.append(f"learning rate: its warm-up is shortened to {words}")
            warmup = most
    share = Fraction(scaled, samples)
    if job.steps_of(scaled) < job.steps:
        remarks.append(f"learning rate: at its minimum after {float(share):.0%} of the training, as recorded")
    elif job.steps_of(min(scaled, samples)) < job.steps_of(scaled):
        remarks.append(
            f"learning rate: the training ends after {float(1 / share):.0%} of the decay, as recorded, "
            "so that the rate does not reach its minimum"
        )
    return LearningRateSchedule(warmup, scaled, tuple(remarks))


def _count(job: ExportedJob, key: str) -> int | None:
    value = job.recorded(key)
    return value if isinstance(value, int) else None
