"""Which part a late step is late by: its term names one, or this battery's other evidence decides between two."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from suite.acceptance.check_table import MATRIX, MEMORY
from suite.acceptance.evidence import Launched
from suite.acceptance.findings import Finding, Verdict
from suite.machine import cpu_speed
from suite.metrics.figures import StepTerm

OF_TERM = {
    StepTerm.DATA_LOADING: "host (data loading)",
    StepTerm.HOST_DEVICE_COPY: "host-device link",
    StepTerm.EXPOSED_COMMUNICATION: "links",
    StepTerm.BUBBLE: "pipeline: a stage waits",
    StepTerm.OPTIMIZER: "memory bandwidth (optimizer)",
    StepTerm.OVERHEAD: "host (dispatch)",
    StepTerm.UNEXPLAINED: "in no term",
}
PRODUCT, ELEMENTWISE, STREAM = cpu_speed.PRODUCT, cpu_speed.ELEMENTWISE, cpu_speed.MEMORY
OF_SLOWED = {  # by the pieces of the pace that became slower than all others, alike; a product and memory fit no part
    frozenset({PRODUCT}): "matrix rate",
    frozenset({ELEMENTWISE}): "caches",
    frozenset({STREAM}): "memory bandwidth",
    frozenset({ELEMENTWISE, STREAM}): "caches and memory",
    frozenset({PRODUCT, ELEMENTWISE}): "processors' speed",
    frozenset({PRODUCT, ELEMENTWISE, STREAM}): "processors' speed",
}
STANDS_OUT = 1.05  # times as long as before, and as the other: as much as the pace's own warning allows
EXPLAINS = 0.5  # of the logarithm of the term's lateness, at least


def slow_part(
    term: StepTerm, launches: Sequence[Launched], rates: Sequence[Finding], usual: Mapping[str, float]
) -> tuple[str, str]:
    """The part at fault, and the evidence that chose it, in words; empty where the term alone did.

    Forward and backward passes are products and operators bound by memory. In this order:
        pace     on a CPU, fixed products, fixed element-wise work in the caches and fixed work in memory between the
                 timed steps, over what each took in the micro-measurements: those that became slowest, alike
                 (`OF_SLOWED`). It counts where it is at least half of the term's own lateness, in logarithms.
        rates    verdicts of checks 1 and 3: the one that is bad where the other is not.
    Where neither stands out, both parts are named.

    Args:
        usual: what each term usually takes beyond its prediction, as share of the predicted step.
    """
    if term in OF_TERM:
        return OF_TERM[term], ""
    where = f"({term.value})"
    told = [one.paces for one in launches if one.paces]
    said = []
    if told:
        times = {kind: statistics.median(paces[kind] for paces in told) for kind in (PRODUCT, ELEMENTWISE, STREAM)}
        words = (
            f"in the caches, products took {times[PRODUCT]:.2f} times as long as before, element-wise work "
            f"{times[ELEMENTWISE]:.2f}; in memory {times[STREAM]:.2f}"
        )
        said.append(words)
        slowest = max(times.values())
        least = math.exp(EXPLAINS * math.log(max(1.0, _lateness(term, launches, usual))))
        part = OF_SLOWED.get(frozenset(kind for kind, seconds in times.items() if STANDS_OUT * seconds > slowest))
        if part and slowest >= max(STANDS_OUT, least):
            return f"{part} {where}", words
    bad = {finding.check: finding for finding in rates if finding.verdict in (Verdict.WARN, Verdict.FAIL)}
    if (MATRIX in bad) != (MEMORY in bad):
        (finding,) = (bad[number] for number in (MATRIX, MEMORY) if number in bad)
        name = "matrix rate" if finding.check == MATRIX else "memory bandwidth"
        words = f"check {finding.check}, {finding.subject}: {finding.ratio or 0.0:.3f} of expected"
        return f"{name} {where}", "; ".join([*said, words])
    return f"matrix rate or memory bandwidth {where}", "; ".join(said)


def _lateness(term: StepTerm, launches: Sequence[Launched], usual: Mapping[str, float]) -> float:
    """Measured over usual seconds of the term, the median of the launches: predicted, and what is usual beyond that."""
    ratios = []
    for one in launches:
        measured, predicted = (terms.get(term.value, 0.0) for terms in (one.measured_terms, one.predicted_terms))
        seconds = predicted + usual.get(term.value, 0.0) * (one.predicted_seconds or 0.0)
        if measured > 0 and predicted > 0 and seconds > 0:
            ratios.append(measured / seconds)
    return statistics.median(ratios) if ratios else 1.0
