"""Two measured runs of one model, by their logs or by their traces: one node and two, before and after."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reference_runs.training_logs.training_log import TrainingLog
from suite.predict.diagnosis.causes import ExpectedStep, SlowCause, candidates, seen_causes
from suite.predict.diagnosis.diagnosis import MOST_CAUSES
from suite.predict.diagnosis.pace import Pace
from suite.predict.diagnosis.trace_causes import late_cause, late_rank, longer_terms
from suite.predict.diagnosis.trace_terms import StepTerms

LEAST_LOSS = 0.05  # of the rate of one accelerator; less is noise
_SMALLER = 0.7  # times the samples of an accelerator
_MOSTLY = 0.5  # of a step
_LEAST_OF_RECOMPUTATION, _MOST_OF_RECOMPUTATION = 1.15, 1.4  # times the step without
_WORK_ALIKE = 0.02  # relative: flop a step of both


class ComparedRuns(msgspec.Struct, frozen=True):
    """Comparison of one run with another.

    Args:
        slowdown: seconds of a sample and accelerator here over those of the other run, or of a step where the batches
            are not known; below 1: this run is faster.
        of_step: whether it is of steps.
        formula_changed: whether both print another flop for the same batch: their rates are not comparable.
    """

    here: str
    other: str
    seconds: float
    other_seconds: float
    slowdown: float
    of_step: bool
    formula_changed: bool
    causes: list[SlowCause]
    of_traces: bool = False


class ComparedRun(NamedTuple):
    """A run of the two: its log, its pace, and how many accelerators it had; None: not known."""

    log: TrainingLog
    pace: Pace
    gpus: int | None
    batch: int | None
    micro_batch: int | None = None

    @property
    def device_samples(self) -> float | None:
        """Samples of a step on one accelerator; None: not known."""
        return self.batch / self.gpus if self.batch and self.gpus else None


def compared(here: ComparedRun, other: ComparedRun) -> ComparedRuns:
    """How much slower one run is than another, each sample and accelerator, and why."""
    shares = here.device_samples, other.device_samples
    slowdown = here.pace.seconds / other.pace.seconds
    if shares[0] and shares[1]:
        slowdown *= shares[1] / shares[0]
    causes = []
    if slowdown > 1 + LEAST_LOSS:
        causes = [cause for cause in seen_causes(here.log, here.pace) if cause.seconds is None or cause.seconds > 0]
        excess = here.pace.seconds * (1 - 1 / slowdown)
        if here.gpus and other.gpus and here.gpus > other.gpus:
            words = f"messages between {here.gpus} accelerators in place of {other.gpus}: links or the network"
            confirm = (
                "NCCL_DEBUG=INFO (NET/IB or NET/Socket), nccl-tests between nodes; GPUs show 100 % while they wait"
            )
            causes.append(SlowCause(words, excess, confirm))
    return ComparedRuns(
        here.log.where,
        other.log.where,
        here.pace.seconds,
        other.pace.seconds,
        slowdown,
        None in shares,
        _formula_changed(here, other),
        causes,
    )


def compared_traces(here: Sequence[StepTerms], other: Sequence[StepTerms]) -> ComparedRuns:
    """How much longer a step takes than that of another run, and the terms that take longer; traces of several ranks.

    Terms are those of the rank that the others wait for, else of the first.
    """
    slow, usual = late_rank(here), late_rank(other)
    shown, beside = here[slow.place if slow else 0], other[usual.place if usual else 0]
    slowdown = shown.seconds / beside.seconds
    causes = []
    if slowdown > 1 + LEAST_LOSS:
        late = [] if slow is None or usual is not None else [late_cause(here, slow)]
        causes = [*late, *longer_terms(shown, beside)][:MOST_CAUSES]
    seconds = shown.seconds, beside.seconds
    return ComparedRuns(
        shown.where,
        beside.where,
        *seconds,
        slowdown,
        of_step=True,
        formula_changed=False,
        causes=causes,
        of_traces=True,
    )


def _formula_changed(here: ComparedRun, other: ComparedRun) -> bool:
    """Whether printed rates times step times differ although the batches are alike."""
    works = []
    for run in (here, other):
        printed = [step.flop_per_second for step in run.log.steps if step.flop_per_second]
        if not printed or run.device_samples is None:
            return False
        works.append(statistics.median(printed) * run.pace.seconds / run.device_samples)
    return abs(works[0] / works[1] - 1) > _WORK_ALIKE


def with_candidates(
    found: ComparedRuns, here: ComparedRun, other: ComparedRun, expected: ExpectedStep | None
) -> ComparedRuns:
    """The comparison with what would explain a slower run: costs that do not shrink with its batch, changes of it.

    Args:
        expected: this run as predicted; None: not known. A change of it that takes as much longer, relatively, as this
            run takes than the other, is a candidate.
    """
    if found.slowdown <= 1 + LEAST_LOSS:
        return found
    causes, samples = list(found.causes), (here.device_samples, other.device_samples)
    excess = found.seconds * (1 - 1 / found.slowdown)
    if samples[0] and samples[1] and (share := samples[0] / samples[1]) < _SMALLER:
        fixed = _fixed_share(share, found.seconds / found.other_seconds)
        if fixed > _MOSTLY:
            words = f"costs that do not shrink with the batch: {share:.2g} times the samples of an accelerator, "
            words += f"{found.seconds / found.other_seconds:.2g} times the step"
            confirm = "the host that launches kernels, and messages: larger micro-batches, torch.compile, CUDA graphs"
            causes.append(SlowCause(words, min(fixed * found.seconds, excess), confirm))
    if here.micro_batch and other.micro_batch and here.micro_batch < other.micro_batch:
        words = f"micro-batches of {here.micro_batch} samples in place of {other.micro_batch}"
        confirm = "a profile: short kernels, and a host that cannot launch fast enough; larger micro-batches"
        causes.append(SlowCause(words, excess, confirm))
    if not expected and _LEAST_OF_RECOMPUTATION <= found.slowdown <= _MOST_OF_RECOMPUTATION:
        words = "activations that are computed again, which takes up to a third of a step"
        causes.append(SlowCause(words, excess, "gradient checkpointing in the configuration; a trace"))
    if expected:
        measured = found.seconds / found.slowdown / expected.seconds
        for each in candidates(expected, found.slowdown * expected.seconds, known=expected.workload.layout):
            if each.seconds is not None:
                causes.append(msgspec.structs.replace(each, seconds=measured * each.seconds))
    return msgspec.structs.replace(found, causes=causes[:MOST_CAUSES])


def _fixed_share(samples: float, seconds: float) -> float:
    """The share of the step here that does not depend on its samples, if the rest is proportional to them.

    Args:
        samples, seconds: of this run over those of the other.
    """
    fixed = (seconds - samples) / (1 - samples)  # of the other step
    return min(1.0, max(0.0, fixed / seconds))
