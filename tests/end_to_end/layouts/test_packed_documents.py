"""Packed documents that do not see each other, in layouts: as one process computes them, at the predicted cost."""

from __future__ import annotations

import pytest

from suite.machine.half_precision import kernels_for
from suite.metrics.figures import Quantity
from suite.predict.executed_run.figures import memory_figures
from tests.end_to_end.layouts.agreement import disagreements
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case

pytestmark = pytest.mark.ranks

CASES = [
    Case("documents", "fp32", "dp1"),
    Case("documents", "16bit", "dp1,recompute-selective"),
    Case("documents-alibi", "fp32", "dp1,recompute-full"),
    Case("documents", "fp32", "dp2,zero3"),
    Case("documents-alibi", "16bit", "tp2,sp"),
    Case("documents", "16bit", "pp2,1f1b,interleave2"),
]
PEAK = 0.02  # of one rank, as of mixtures


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packed_documents_compute_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    done = executed(case)
    found = disagreements(done, executed(case.single))
    assert found == [], "\n".join(found)
    job, packed = done.job, done.finished[0].packed
    assert packed is not None
    assert packed.documents > 1.5 * packed.sequences
    # apart from what of the first document a sequence has, lengths are those of the texts, 10 to 60 bytes
    assert packed.attended < packed.sequences * packed.tokens * (packed.tokens + 1) // 2
    if job.layout.ranks == 1:
        memory = memory_figures(job.workload, job.step_options(kernels_for(job.recipe.precision, job.device)))
        peak = next(figure.value for figure in memory if figure.quantity == Quantity.PEAK_BYTES)
        assert done.finished[0].peak_bytes == pytest.approx(peak, rel=PEAK)
