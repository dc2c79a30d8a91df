"""A step takes as many times as long as its parts as a reference step did, whose shapes are those of no miniature."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import parse_layout
from reference_runs.miniature import miniature
from suite.calibration.shapes import miniature_shapes
from suite.job.options import DEFAULT_OPTIONS, StepOptions
from suite.machine.half_precision import Kernels
from suite.machine.profile import REPEATED, UNSEEN, Check
from suite.machine.reference_step import TimedReferenceStep, reference_step
from suite.machine.timing_tables import Subject
from suite.machine.timings import Timing
from suite.predict.simulation.operator_calls import micro_batch_calls
from suite.predict.simulation.step_correction import (
    MODEL_UNCERTAINTY,
    nearest_reference_step,
    step_correction,
    uncertainty,
)
from suite.predict.simulation.step_time import StepConditions, step_seconds
from tests.support.step_machine import Machine

CPU = Kernels()
MACHINE = Machine(fixed=1e-6, per_unit=1e-11, host=1e-6, start=1e-5, latency=1e-4, per_byte=1e-9)


def timed(ranks: int, *, compiled: bool = False, seconds: float = 1.0) -> TimedReferenceStep:
    return TimedReferenceStep(
        step=reference_step(ranks, compiled=compiled, threads=1),
        timing=Timing(seconds, seconds, seconds, seconds, 3, 0),
    )


def parts(one: TimedReferenceStep) -> float:
    own = one.step
    (stage,) = step_seconds(MACHINE, own.workload, StepOptions(compiled=own.compiled))
    return stage.step


def test_the_factor_is_what_the_reference_step_took_over_the_sum_of_its_parts() -> None:
    for ranks, compiled in itertools.product((1, 2), (False, True)):
        alone = parts(timed(ranks, compiled=compiled))
        found = step_correction(MACHINE, timed(ranks, compiled=compiled, seconds=1.25 * alone), kernels=CPU)
        assert found.parts_seconds == alone > 0
        assert found.factor == pytest.approx(1.25)


def test_every_term_of_a_step_takes_the_factor_times_as_long() -> None:
    """The terms of each miniature, and of the stages of a pipeline, which wait likewise."""
    workloads = [miniature(reference_run(name), "cpu", ranks=2).workload for name in miniatures().values()]
    bloom = miniature(reference_run(miniatures()["bloom-mini"]), "cpu", ranks=2)
    piped = bloom.workload._replace(layout=parse_layout("pp2,micro2", base=bloom.layout))
    for workload in (*workloads, piped):
        whole, longer = (
            step_seconds(MACHINE, workload, StepOptions(), StepConditions(correction_factor=factor))
            for factor in (1.0, 1.5)
        )
        assert len(whole) == workload.layout.pipeline_stages
        for once, more in zip(whole, longer, strict=True):
            assert once.step > 0
            assert workload is not piped or once.bubble > 0
            assert tuple(more) == pytest.approx(tuple(1.5 * seconds for seconds in once))


def test_what_tokenising_was_measured_to_take_has_no_factor() -> None:
    mini = miniature(reference_run(miniatures()["gpt2-mini"]), "cpu", ranks=1)
    training = msgspec.structs.replace(DEFAULT_OPTIONS, tokenises=True)

    def loading(factor: float, sample_seconds: float) -> float:
        (stage,) = step_seconds(
            MACHINE,
            mini.workload,
            StepOptions(training_options=training),
            StepConditions(sample_seconds=sample_seconds, correction_factor=factor),
        )
        return stage.data_loading

    assert loading(2.0, 0.0) == pytest.approx(2 * loading(1.0, 0.0))
    assert loading(2.0, 0.5) - loading(2.0, 0.0) == pytest.approx(0.5 * mini.recipe.global_batch)


def test_parts_that_the_profile_no_longer_has_are_those_that_are_kept_with_the_reference_step() -> None:
    kept = msgspec.structs.replace(timed(2, seconds=3.0), parts_seconds=2.0)
    assert step_correction(MACHINE, kept, kernels=CPU) == (kept, 2.0)
    assert step_correction(MACHINE, kept, kernels=CPU).factor == pytest.approx(1.5)


def test_the_reference_step_nearest_to_a_layout_is_executed_likewise_by_as_many_ranks_or_more() -> None:
    one, two, both, eight = timed(1), timed(2), timed(2, compiled=True), timed(8)
    steps = [one, two, both, eight]
    assert nearest_reference_step(steps, ranks=1, compiled=False) is one
    assert nearest_reference_step(steps, ranks=2, compiled=False) is two
    assert nearest_reference_step(steps, ranks=3, compiled=False) is eight
    assert nearest_reference_step(steps, ranks=9, compiled=False) is eight
    assert nearest_reference_step(steps, ranks=1, compiled=True) is both
    assert nearest_reference_step(steps, ranks=8, compiled=True) is both
    assert nearest_reference_step([one, two], ranks=2, compiled=True) is None
    assert nearest_reference_step([], ranks=2, compiled=False) is None


def test_no_shape_of_a_reference_step_is_one_of_a_miniature() -> None:
    for ranks in (1, 2, 3, 4, 8):
        used = miniature_shapes("cpu", ranks=ranks)
        theirs = {
            "product": {tuple(sorted(shape)) for layers in (used.block_layers, used.output_layers) for shape in layers},
            "batched_product": {tuple(shape) for shape in used.attentions},
            "layer_norm": set(used.norms),
            "softmax": set(used.softmaxes),
            "cross_entropy": set(used.losses),
        }
        own = reference_step(ranks, compiled=False, threads=1)
        (chunk,) = micro_batch_calls(own.workload, StepOptions(), stage=0)
        shapes = {(call.operation, call.sizes) for _, call in chunk.calls if call.operation in theirs}
        assert {operation for operation, _ in shapes} == set(theirs)
        for operation, sizes in shapes:
            # of a product and its backward pass the same three sizes change their places
            assert (tuple(sorted(sizes)) if operation == "product" else sizes) not in theirs[operation]


def test_a_reference_step_is_written_and_read_as_it_is() -> None:
    one = timed(2, compiled=True)
    assert msgspec.json.decode(msgspec.json.encode(one), type=TimedReferenceStep) == one


def check(error: float, kind: str = UNSEEN) -> Check:
    measured = Timing(1.0, 1.0, 1.0, 1.0, 3, 0)
    subject = Subject(operation="scale")
    return Check(kind=kind, subject=subject, sizes=(1.0,), predicted_seconds=1 + error, timing=measured)


def test_uncertainty_is_the_models_the_reference_steps_spread_and_the_interpolations_bias() -> None:
    still = timed(1)
    assert uncertainty(still, []) == MODEL_UNCERTAINTY
    assert uncertainty(still, [check(0.1), check(-0.1), check(0.9, REPEATED)]) == pytest.approx(MODEL_UNCERTAINTY)
    spread = msgspec.structs.replace(still, timing=Timing(1.0, 1.0, 0.8, 1.2, 3, 0))
    assert uncertainty(spread, [check(0.08)]) == pytest.approx((MODEL_UNCERTAINTY**2 + 0.2**2 + 0.08**2) ** 0.5)
