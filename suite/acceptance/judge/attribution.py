"""The part that makes a step late: named by the term of the step, or chosen between two by other evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from suite.acceptance.check_table import MATRIX, MEMORY
from suite.acceptance.evidence import MiniatureLaunch
from suite.acceptance.findings import CheckFinding, CheckVerdict, joined_evidence
from suite.machine import cpu_speed
from suite.metrics.figures import StepTerm

PART_OF_TERM = {
    StepTerm.DATA_LOADING: "host (data loading)",
    StepTerm.HOST_DEVICE_COPY: "host-device link",
    StepTerm.EXPOSED_COMMUNICATION: "links",
    StepTerm.BUBBLE: "pipeline: a stage waits",
    StepTerm.OPTIMIZER: "memory bandwidth (optimizer)",
    StepTerm.OVERHEAD: "host (dispatch)",
    StepTerm.UNEXPLAINED: "in no term",
}
PRODUCT, ELEMENTWISE, MEMORY_BOUND = cpu_speed.PRODUCT, cpu_speed.ELEMENTWISE, cpu_speed.MEMORY
# By the reference kernels that slowed down most, alike; products and memory together name no part
PART_OF_SLOW_KERNELS = {
    frozenset({PRODUCT}): "matrix rate",
    frozenset({ELEMENTWISE}): "caches",
    frozenset({MEMORY_BOUND}): "memory bandwidth",
    frozenset({ELEMENTWISE, MEMORY_BOUND}): "caches and memory",
    frozenset({PRODUCT, ELEMENTWISE}): "processors' speed",
    frozenset({PRODUCT, ELEMENTWISE, MEMORY_BOUND}): "processors' speed",
}
STANDS_OUT = 1.05  # slowdown from which a kernel counts, also against the others: where the check of CPU speed warns
EXPLAINS = 0.5  # of the logarithm of the term's lateness, at least


def slow_part(
    term: StepTerm, launches: Sequence[MiniatureLaunch], rates: Sequence[CheckFinding], usual: Mapping[str, float]
) -> tuple[str, str]:
    """The part at fault, and the evidence that chose it; no evidence where the term alone names the part.

    Forward and backward passes are matrix products and operators bound by memory. What decides, in this order:
        CPU speed  slowdown of the reference kernels (products and element-wise work in the caches, work in memory)
                   between the timed steps, against the micro-measurements: the slowest kernels name the part
                   (`PART_OF_SLOW_KERNELS`), if they explain half of the term's own lateness, in logarithms
        rates      verdicts of checks 1 and 3: the bad one where the other is good
    Otherwise both parts are named.

    Args:
        usual: by term, what it usually takes beyond its prediction, as share of the predicted step.
    """
    if term in PART_OF_TERM:
        return PART_OF_TERM[term], ""
    slowdowns = _kernel_slowdowns(launches)
    speed = ""
    if slowdowns:
        speed = (
            f"in the caches, products took {slowdowns[PRODUCT]:.2f} times as long as before, element-wise work "
            f"{slowdowns[ELEMENTWISE]:.2f}; in memory {slowdowns[MEMORY_BOUND]:.2f}"
        )
        slowest = max(slowdowns.values())
        explaining = math.exp(EXPLAINS * math.log(max(1.0, _lateness(term, launches, usual))))
        slow_kernels = frozenset(kind for kind, times in slowdowns.items() if STANDS_OUT * times > slowest)
        part = PART_OF_SLOW_KERNELS.get(slow_kernels)
        if part and slowest >= max(STANDS_OUT, explaining):
            return f"{part} ({term.value})", speed
    bad = {finding.check: finding for finding in rates if finding.verdict in (CheckVerdict.WARN, CheckVerdict.FAIL)}
    if (MATRIX in bad) == (MEMORY in bad):
        return f"matrix rate or memory bandwidth ({term.value})", speed
    finding = bad[MATRIX if MATRIX in bad else MEMORY]
    part = "matrix rate" if finding.check == MATRIX else "memory bandwidth"
    rate = f"check {finding.check}, {finding.subject}: {finding.ratio or 0.0:.3f} of expected"
    return f"{part} ({term.value})", joined_evidence(speed, rate)


def _kernel_slowdowns(launches: Sequence[MiniatureLaunch]) -> dict[str, float]:
    """Slowdown of each reference kernel, the median of the launches; empty where no launch has one."""
    measured = [launch.cpu_slowdowns for launch in launches if launch.cpu_slowdowns]
    if not measured:
        return {}
    return {kind: statistics.median(of[kind] for of in measured) for kind in (PRODUCT, ELEMENTWISE, MEMORY_BOUND)}


def _lateness(term: StepTerm, launches: Sequence[MiniatureLaunch], usual: Mapping[str, float]) -> float:
    """Measured over usual seconds of the term, the median of the launches: predicted, and what is usual beyond that."""
    ratios = []
    for launch in launches:
        measured = launch.measured_terms.get(term.value, 0.0)
        predicted = launch.predicted_terms.get(term.value, 0.0)
        usual_seconds = predicted + usual.get(term.value, 0.0) * (launch.predicted_seconds or 0.0)
        if measured > 0 and predicted > 0 and usual_seconds > 0:
            ratios.append(measured / usual_seconds)
    return statistics.median(ratios) if ratios else 1.0
