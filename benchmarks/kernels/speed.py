"""The benchmark as pytest collects it: one point a kernel, size, dtype, pass and function; `-k` selects.

All functions of a case are timed in turn by the first of its points; each point then hands its samples to
pytest-benchmark, which stores them and compares them between commits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from benchmarks.kernels.case import DEVICE, Case, LackingError
from benchmarks.kernels.registry import cases
from benchmarks.kernels.turns import COPY, CaseTimings, measured
from suite.machine.timings import median
from suite.predict.analytic.kernel_cost import kernel_bytes, kernel_flop

SECONDS = 0.3  # of a pass; more where the least number of rounds takes them
CLOCK = {"now": 0.0}  # stands at the last measured sample
CASES = {case.name: case for case in cases(DEVICE) if case.is_selected}
POINTS = [
    pytest.param(case.name, which, form, id=f"{case.name}-{which}-{form}")
    for case in CASES.values()
    for which in case.passes
    for form in case.functions(DEVICE)
    if case.has(which, form)
]


@lru_cache(maxsize=1)  # of the last case alone: the points of a case are neighbours
def _timings(name: str) -> dict[str, CaseTimings] | Exception:
    """By pass, the timings of a case, or why it failed: an error is raised at every point, and measured once."""
    try:
        return measured(CASES[name], DEVICE, seconds=SECONDS)
    except Exception as error:  # whatever it is, every point of the case raises it
        return error


@pytest.mark.benchmark(timer=lambda: CLOCK["now"])
@pytest.mark.parametrize(("name", "which", "form"), POINTS)
def test_seconds(name: str, which: str, form: str, benchmark: Any) -> None:
    """Nothing but the time: an error where the function fails or computes something else."""
    case, timings = CASES[name], _timings(name)
    if isinstance(timings, Exception):
        raise timings
    measurement = timings[which]
    if (error := measurement.errors.get(form)) is not None:
        if isinstance(error, LackingError):
            pytest.skip(str(error))  # no failure: the table says why this machine cannot have this way
        raise error
    benchmark.group = f"{name}-{which}"
    benchmark.extra_info |= _facts(case, which, form, measurement)
    samples = iter(measurement.seconds[form])

    def begin() -> None:
        CLOCK["now"] = 0.0

    def show() -> None:
        CLOCK["now"] = next(samples)

    benchmark.pedantic(show, setup=begin, rounds=len(measurement.seconds[form]))


def _facts(case: Case, which: str, form: str, measurement: CaseTimings) -> dict[str, Any]:
    """Facts that the table and the plot need besides the samples."""
    formula = case.formula or case.kernel
    return {
        "kernel": case.kernel,
        "variant": case.variant,
        "dtype": case.dtype,
        "pass": which,
        "form": form,
        "sizes": dict(case.sizes),
        "over": case.over,
        "device": DEVICE.type,
        "least_bytes": getattr(kernel_bytes(formula, **case.sizes), which),
        "flop": getattr(kernel_flop(formula, case.variant, **case.sizes), which),
        "copy_bytes_per_second": measurement.copy_bytes / median(measurement.seconds[COPY]),
        "host_seconds": measurement.host_seconds.get(form),
        "warm_up_seconds": measurement.warm_up[form],
    }
