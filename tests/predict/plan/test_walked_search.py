"""The search of a stack whose steps are walked through finds what walks through every layout find."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.predict.plan.enumeration import COUNTS, enumerated
from suite.predict.plan.plan import machine_of, question_of
from suite.predict.plan.question import Question
from suite.predict.plan.search import any_fits, search
from suite.predict.plan.walked_search import WORTH_IT
from suite.predict.recorded_run.sweep import formula_peak, layout_figures, layout_peak
from suite.predict.simulation.supported_layouts import describes_ranks

RUN = reference_run("gpt2-350m")


def question(gibibytes: float) -> Question:
    machine = machine_of(RUN, "h100-sxm", 4, None, "this-suite")
    asked = question_of(RUN, machine, ranks=4, fixed={}, global_batch=16)
    assert asked.layouts == stack("this-suite").layouts
    architecture = msgspec.structs.replace(RUN.architecture, layers=4)
    return asked._replace(architecture=architecture, memory_bytes=gibibytes * 2**30)


def every_peak(asked: Question) -> dict[Workload, float]:
    found = {}
    for plain, columns in enumerated(asked):
        for column in columns.T.tolist():
            layout = msgspec.structs.replace(plain, **dict(zip(COUNTS, map(int, column), strict=True)))
            workload = Workload(asked.architecture, asked.recipe, layout)
            if describes_ranks(workload):
                found[workload] = layout_peak(workload, asked.machine)
    return found


def test_a_search_finds_the_fastest_that_fit_and_whether_any_does() -> None:
    asked = question(1.0)
    peaks = every_peak(asked)
    too_large = [
        workload for workload, peak in peaks.items() if peak < WORTH_IT * formula_peak(workload, asked.machine)
    ]
    assert not too_large, "the formula leaves out what may fit"
    sizes = sorted(peaks.values())
    for room in (sizes[0] * 0.999, sizes[0] * 1.001, sizes[len(sizes) // 3]):
        limited = asked._replace(memory_bytes=room)
        fitting = [workload for workload, peak in peaks.items() if peak <= room]
        fastest = min((layout_figures(w, asked.machine).step_seconds for w in fitting), default=None)
        result = search(limited, top=3)
        assert bool(result.best) == any_fits(limited) == bool(fitting)
        assert result.smallest is not None
        assert result.smallest.figures.peak_bytes == pytest.approx(sizes[0], rel=0.02)
        if result.best:
            assert result.best[0].figures.step_seconds == pytest.approx(fastest, rel=2e-3)
            assert all(found.figures.peak_bytes <= room for found in result.best)
