"""One rank's median timed step, split into the terms that predictions have too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from suite.execute.measure.phases import Part
from suite.execute.measure.timeline import Shares
from suite.metrics.figures import StepTerm

_COMPUTES = {Part.FORWARD: StepTerm.FORWARD, Part.BACKWARD: StepTerm.BACKWARD, Part.UPDATE: StepTerm.OPTIMIZER}


def term_seconds(
    step_seconds: Sequence[float],
    phase_seconds: Sequence[Mapping[Part, float]],
    shares: Mapping[Part, Shares],
    *,
    profiled_steps: int,
) -> dict[str, float]:
    """Seconds of every `StepTerm` of a rank; their sum is the median of `step_seconds`.

    A phase's seconds are its share of a step, mean over the steps, of that median: the medians of the phases do not add
    up to a step.

        data loading                 that phase
        host-device copy             that phase, and exposed copies of the others
        forward, backward            compute of the phase
        optimizer                    compute of the update: norm, clipping, Adam, casts
        exposed communication        of all phases, as below
        launch and host overhead     of all phases, as below
        bubble                       pipeline - forward - backward: a stage's waits, messages included, because the
                                     profiler does not show how long a message travels
        unexplained                  the median - all of these: between the phases

    A phase's compute is that of the profile. Profiling costs time: if the phase took longer under the profiler, its
    overhead is reduced by the difference, but not below 0. Then all parts are scaled to the phase's seconds, which were
    measured without a profiler.

    Args:
        step_seconds, phase_seconds: of each timed step.
        shares: over all profiled steps.
    """
    median = statistics.median(step_seconds)
    pairs = list(zip(step_seconds, phase_seconds, strict=True))
    seconds = {part: median * statistics.fmean(phases[part] / whole for whole, phases in pairs) for part in Part}
    terms = dict.fromkeys(StepTerm, 0.0)
    terms[StepTerm.DATA_LOADING] = seconds[Part.DATA_LOADING]
    terms[StepTerm.HOST_DEVICE_COPY] = seconds[Part.HOST_DEVICE_COPY]
    for part, term in _COMPUTES.items():
        compute, communication, copy, overhead = _scaled(shares[part], seconds[part], profiled_steps)
        terms[term] += compute
        terms[StepTerm.EXPOSED_COMMUNICATION] += communication
        terms[StepTerm.HOST_DEVICE_COPY] += copy
        terms[StepTerm.OVERHEAD] += overhead
    # without a pipeline its phase takes 0 s
    terms[StepTerm.BUBBLE] = max(0.0, seconds[Part.PIPELINE] - seconds[Part.FORWARD] - seconds[Part.BACKWARD])
    terms[StepTerm.UNEXPLAINED] = median - sum(terms.values())
    return {term.value: value for term, value in terms.items()}


def _scaled(share: Shares, seconds: float, steps: int) -> tuple[float, float, float, float]:
    """Compute, communication, copies and overhead, which together are `seconds`."""
    compute, communication, copy, overhead = (
        nanoseconds / 1e9 / steps for nanoseconds in (share.compute, share.communication, share.copy, share.overhead)
    )
    profiling = max(0.0, compute + communication + copy + overhead - seconds)
    overhead = max(0.0, overhead - profiling)
    whole = compute + communication + copy + overhead
    if whole == 0:
        return 0.0, 0.0, 0.0, seconds
    scale = seconds / whole
    return compute * scale, communication * scale, copy * scale, overhead * scale
