"""The search over traced layouts finds what tracing every size would, by a few traces."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator
from suite.job.dry_run_job import Moment
from suite.job.trace_job import ModelSource, Sharding, StepTrace, TracedParameters, TraceJob
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_uncertainty
from suite.predict.analytic.usable_memory import usable_memory
from suite.reproduce.traced_fit import Bracket, TracedFit, TracedQuestion, traced_fit

ON = "h100-sxm"
ROOM = int(peak_uncertainty(PeakKind.WALKED).room(usable_memory(accelerator(ON).board).usable))
PARAMETERS = TracedParameters(total=1, trainable=1, by_dtype={"float32": 1}, buffers=0)
JOB = TraceJob(source=ModelSource(module="model.py:build"), ranks=8)
LAYOUTS = tuple(
    msgspec.structs.replace(JOB, sharding=sharding, recompute=recompute)
    for sharding in Sharding
    for recompute in (False, True)
)
moments = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), min_size=1, max_size=4)


class Model:
    """Peaks of a model: state that ranks share, whole if they are replicas, and bytes of a sample."""

    def __init__(self, *, state: int, sample: int, layer: int) -> None:
        self._state, self._sample, self._layer = state, sample, layer
        self.jobs: list[TraceJob] = []

    def peak(self, job: TraceJob) -> int:
        """The larger of two moments: all activations, or the update with its temporaries."""
        shared = 1 if job.sharding is Sharding.REPLICATED else job.ranks
        gathered = self._layer * (8 if job.sharding is Sharding.KEPT else 1)
        kept = self._sample // 4 if job.recompute else self._sample
        state = self._state // shared
        return max(state + gathered + job.micro_batch * kept, state + self._state // (4 * shared))

    def traced(self, jobs: Sequence[TraceJob]) -> list[StepTrace]:
        """A trace of each job, of which the peak alone is something."""
        self.jobs += jobs
        return [
            StepTrace(
                model="Model",
                software="",
                sequence=128,
                layers=0,
                layer_class="",
                parameters=PARAMETERS,
                operators=[],
                collectives=[],
                kept_bytes={},
                peak_bytes=self.peak(job),
                fullest=[Moment("update", {"weights": self.peak(job)})],
                peak_modules={},
                seconds=0.0,
            )
            for job in jobs
        ]


def fitted(model: Model, **question: object) -> TracedFit:
    asked = TracedQuestion(layouts=LAYOUTS, on=ON, network_bytes_per_second=None)._replace(**question)
    return traced_fit(asked, model.traced)


def sized(layout: TraceJob, micro_batch: int) -> TraceJob:
    return msgspec.structs.replace(layout, micro_batch=micro_batch, micro_batches=1)


@given(moments, st.integers(1, 20_000), st.booleans())
def test_the_largest_size_is_that_of_tracing_every_one(
    parts: list[tuple[int, int]], limit: int, doubling: bool
) -> None:
    sizes = [2**power for power in range(10)] if doubling else list(range(1, 513))
    peaks = {size: max(a + b * size for a, b in parts) for size in sizes}
    bracket, asked = Bracket(sizes, limit, {1: peaks[1]}), 1
    while (size := bracket.proposed()) is not None:
        assert size not in bracket.peaks
        bracket.peaks[size] = peaks[int(size)]
        asked += 1
    assert bracket.largest == max((size for size in sizes if peaks[size] <= limit), default=None)
    assert asked <= 12


@pytest.mark.parametrize("batch", [None, 96])
def test_every_layout_has_its_largest_micro_batch_and_the_fastest_fits(batch: int | None) -> None:
    model = Model(state=ROOM // 2, sample=ROOM // 40, layer=ROOM // 100)
    answer = fitted(model, batch=batch)
    allowed = [1, 2, 3, 4, 6, 12] if batch else [2**power for power in range(12)]
    for layout in LAYOUTS:
        tried = [job.micro_batch for job in model.jobs if sized(job, 1) == layout]
        peak_of = {size: model.peak(sized(layout, size)) for size in allowed}
        assert max(size for size in allowed if peak_of[size] <= ROOM) in tried
    assert answer.fastest is not None
    assert answer.fastest.trace.peak_bytes <= ROOM
    assert answer.largest is not None
    if batch:
        assert {job.micro_batch * job.micro_batches for job in model.jobs} == {12}
    else:
        larger = answer.largest.job.micro_batch + 1
        assert min(model.peak(sized(layout, larger)) for layout in LAYOUTS) > ROOM
    assert answer.traces == len(model.jobs) == len(set(model.jobs))
    assert answer.traces <= 6 * len(LAYOUTS)
    assert answer.enough is None


def test_the_fewest_accelerators_that_would_do_are_whole_nodes() -> None:
    model = Model(state=30 * ROOM, sample=ROOM // 40, layer=ROOM // 100)
    answer = fitted(model, sharded=LAYOUTS[-1], network_bytes_per_second=50e9)
    assert answer.fastest is None
    assert answer.enough is not None
    ranks = answer.enough.job.ranks
    peaks = {number: model.peak(msgspec.structs.replace(LAYOUTS[-1], ranks=number)) for number in range(16, 97, 8)}
    least = next(number for number, peak in peaks.items() if peak <= ROOM)
    assert ranks == least == 40
    of_batch = fitted(model, sharded=LAYOUTS[-1], network_bytes_per_second=50e9, batch=64)
    assert of_batch.enough is not None
    assert of_batch.enough.job.ranks == 64


def test_no_number_of_accelerators_holds_a_sample_that_none_holds() -> None:
    model = Model(state=ROOM, sample=5 * ROOM, layer=0)
    assert fitted(model, sharded=LAYOUTS[-1]).enough is None
    assert fitted(model, sharded=None).enough is None
    assert fitted(model).smallest.job.recompute


def test_sizes_may_be_fractions_of_ranks() -> None:
    peaks = {Fraction(1, ranks): 100 * 10**9 + 1000 * 10**9 // ranks for ranks in range(1, 100)}
    sizes = sorted(peaks)
    bracket = Bracket(sizes, 120.5e9, {sizes[0]: peaks[sizes[0]], sizes[-1]: peaks[sizes[-1]]})
    while (size := bracket.proposed()) is not None:
        bracket.peaks[size] = peaks[Fraction(size)]
    assert bracket.largest == Fraction(1, 49)  # 100 + 1000 / 49 is 120.4
