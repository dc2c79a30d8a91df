"""The step of a whole run from the parts of a slice."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Recomputation
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from suite.job.slice import SlicePart
from suite.predict.analytic.collective_time import axis_groups, collective_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import LAYER, PartSeconds, PassSeconds, modelled_parts, workloads_of_parts
from suite.predict.analytic.traffic import step_traffic
from suite.predict.recorded_run.from_slice import RULE, SlicedStep, sliced_step
from suite.predict.recorded_run.prediction import run_prediction
from tests.support.layouts import machine_of
from tests.support.slices import PARAMETERS, measured, ones, slice_job, times_of

RUNS = ("gpt2-124m", "bloom-176b", "gpt-neox-20b", "llama3.1-405b", "grok-1", "opt-175b", "nemotron4-340b")
ROUNDING = 1e-9


class Case(NamedTuple):
    run: ReferenceRun
    machine: Machine
    parts: PartSeconds

    @property
    def workload(self) -> Workload:
        return self.run.workload


def case_of(run: ReferenceRun) -> Case:
    machine = machine_of(run, own_software=True)
    return Case(run, machine, modelled_parts(run.workload, machine))


def case(name: str) -> Case:
    return case_of(reference_run(name))


def found(case: Case, *slices: object, uncertainty: float | None = None) -> SlicedStep:
    return sliced_step(case.run.name, case.workload, case.machine, slices, uncertainty=uncertainty)[1]  # type: ignore[arg-type]


def plain_seconds(case: Case) -> float:
    step = run_prediction(case.workload, case.machine).step
    assert step is not None
    return step.total_seconds


@pytest.mark.parametrize("name", RUNS)
def test_a_slice_that_takes_what_the_model_says_gives_the_plain_prediction(name: str) -> None:
    known = case(name)
    step = found(known, measured(slice_job(known.run), times_of(known.parts)), uncertainty=0.1)
    assert step.step_seconds == pytest.approx(plain_seconds(known), rel=ROUNDING)
    assert step.plain_seconds == pytest.approx(plain_seconds(known), rel=ROUNDING)
    assert (step.modelled, step.scaled) == ([], "")
    rest = plain_seconds(known) - step.measured_seconds
    assert 0 < rest < plain_seconds(known) / 2
    # the samples do not differ, so that the model's share alone is uncertain
    assert step.high_seconds - step.step_seconds == pytest.approx(0.1 * rest, rel=1e-6)
    assert {part.name: part.modelled_seconds for part in step.parts} == {
        part.name: pytest.approx(part.seconds, rel=ROUNDING) for part in step.parts
    }


def test_deepseek_keeps_the_modelled_time_of_its_dense_layers() -> None:
    run = reference_run("deepseek-v3")
    recipe = msgspec.structs.replace(run.recipe, product_format=ProductFormat.NONE)
    known = case_of(msgspec.structs.replace(run, recipe=recipe))
    times = times_of(known.parts, samples={SlicePart.LAYER_FORWARD: [2 * known.parts.layers[1].forward]})
    step = found(known, measured(slice_job(known.run), times))
    assert "dense layer" in step.modelled
    assert [part.name for part in step.parts if "layer" in part.name] == ["layer with experts"]
    assert step.step_seconds > step.plain_seconds


@given(st.floats(0.01, 100.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_interval_widens_with_the_samples_and_with_the_models_error(
    seconds: float, apart: float, uncertainty: float
) -> None:
    known = case("bloom-176b")
    spread = [seconds * (1 + apart * place) for place in (-0.5, -0.25, 0.0, 0.25, 0.5)]
    passes = {SlicePart.LAYER_FORWARD: spread, SlicePart.LAYER_BACKWARD: spread}

    def interval(samples: dict[SlicePart, list[float]], error: float) -> float:
        job, times = slice_job(known.run), times_of(ones(seconds), samples=samples)
        step = found(known, measured(job, times), uncertainty=error)
        assert step.low_seconds <= step.step_seconds <= step.high_seconds
        return step.high_seconds - step.low_seconds

    none, of_model, of_samples = interval({}, 0.0), interval({}, uncertainty), interval(passes, 0.0)
    assert none == pytest.approx(0.0, abs=1e-9 * seconds)
    both = interval(passes, uncertainty)
    assert both == pytest.approx(math.hypot(of_model, of_samples), rel=1e-6, abs=1e-9 * seconds)
    if apart > 0.01:
        # quartiles of five samples, at 1.5 and 4.5 of them
        share = 0.375 * apart * 2
        slowest = max(5, 6) * 128  # layers of a stage, and micro-batches
        assert of_samples > share * slowest * 2 * seconds * 0.9


def test_messages_within_measured_parts_are_not_added_again() -> None:
    """Layers that take what the model says of them with their messages give the plain prediction."""
    known = case("bloom-176b")
    parts, micro_batches = modelled_parts(known.workload, known.machine), 128
    groups = axis_groups(known.workload.layout, known.machine)
    (of_parts,) = workloads_of_parts(known.workload)
    entries = step_traffic(of_parts, stage=LAYER, micro_batches=micro_batches)
    messages = [each for each in entries if each[0] == "tp"]
    assert messages
    seconds = sum(
        collective_seconds(operation, groups[axis], payload_bytes=size, messages=number)
        for axis, operation, size, number in messages
    )
    half = seconds / micro_batches / 2
    layer = PassSeconds(parts.layers[0].forward + half, parts.layers[0].backward + half)
    without = {part: [] for part in SlicePart if part.value.startswith(("embedding", "head"))}
    times = times_of(parts._replace(layers=(layer,)), samples=without)
    alone = slice_job(known.run)
    assert alone.slice is not None
    ranks = tuple(range(alone.layout.tensor_parallel))
    together = msgspec.structs.replace(alone, slice=msgspec.structs.replace(alone.slice, group=ranks))
    step, other = sliced_step(
        known.run.name, known.workload, known.machine, [measured(together, times)], uncertainty=None
    )
    assert other.messages == ["tp"]
    assert other.step_seconds == pytest.approx(other.plain_seconds, rel=ROUNDING)
    again = found(known, measured(alone, times)).step_seconds - other.step_seconds
    assert again > 5 * seconds  # layers of the emptiest stage; more waits in the bubble
    plain = run_prediction(known.workload, known.machine).step
    assert plain is not None
    # what is left are messages of embedding or head, on the stage that takes longest
    assert step.tensor_parallel_seconds < 0.1 * plain.tensor_parallel_seconds
    with pytest.raises(InputError, match="slices with messages over different axes"):
        found(known, measured(together, times), measured(alone, times))


def test_one_accelerator_takes_the_sum_of_its_parts() -> None:
    """An independent count: no messages, no bubble."""
    run = reference_run("gpt2-124m")
    alone = msgspec.structs.replace(run.layout, data_parallel=1, zero_stage=0, accumulation=None)
    known = case_of(msgspec.structs.replace(run, recorded_layout=alone))
    step, other = sliced_step(
        run.name, known.workload, known.machine, [measured(slice_job(known.run), times_of(ones(0.5)))], uncertainty=None
    )
    micro_batches = accumulation(run.recipe, alone)
    passes = micro_batches * (run.architecture.layers + 2) * 2 * 0.5
    parameters = sum(run_prediction(known.workload, known.machine).parameters.values())
    update = 0.5 / PARAMETERS * parameters
    rest = step.accumulation_seconds + step.overhead_seconds
    assert other.step_seconds == pytest.approx(passes + micro_batches * 0.5 + update + rest, rel=ROUNDING)
    assert step.layer_seconds + step.embedding_seconds + step.head_seconds == pytest.approx(
        passes + micro_batches * 0.5, rel=ROUNDING
    )
    assert step.optimizer_seconds == pytest.approx(update, rel=ROUNDING)


def test_samples_of_two_slices_are_put_together_and_a_part_that_none_has_is_modelled() -> None:
    known = case("bloom-176b")
    job = slice_job(known.run)
    ends = {part: [] for part in SlicePart if part.value.startswith(("embedding", "head", "update"))}
    middle = measured(job, times_of(known.parts, samples=ends), where="middle")
    first = measured(job, times_of(known.parts, samples={SlicePart.HEAD_FORWARD: [], SlicePart.HEAD_BACKWARD: []}))
    one, both = found(known, middle), found(known, middle, first)
    assert one.modelled == ["embedding", "head", "update"]
    assert both.modelled == ["head"]
    assert both.records == ["middle", "record.json"]
    assert {part.name: part.samples for part in both.parts} == {"layer": 10, "shared": 10, "embedding": 5, "update": 5}
    with pytest.raises(InputError, match="slices of two devices; got another, allowed: a device"):
        found(known, middle, measured(job, times_of(known.parts), device="another"))


def test_fewer_than_four_samples_have_no_spread() -> None:
    known = case("bloom-176b")
    times = times_of(known.parts, samples={SlicePart.LAYER_FORWARD: [1.0, 2.0, 3.0]})
    spreads = {part.name: part.spread for part in found(known, measured(slice_job(known.run), times)).parts}
    assert spreads["layer"] is None
    assert spreads["head"] == 0


@pytest.mark.parametrize("name", ["bloom-176b", "gpt2-124m"])
def test_a_slice_of_another_size_is_scaled_by_flop_and_tokens_and_says_so(name: str) -> None:
    known = case(name)
    whole = known.run.architecture
    half, double = whole.sequence // 2, 2 * known.run.layout.micro_batch
    # as many tokens: the products of T x h take as long, those of attention half
    job = slice_job(known.run, sequence=half, micro_batch=double)
    step = found(known, measured(job, times_of(ones(1.0))))
    assert step.scaled == RULE
    seconds = {part.name: part.seconds for part in step.parts}
    assert (seconds["embedding"], seconds["head"], seconds["shared"]) == (2, 2, 1)
    attention = 4 * whole.sequence * whole.hidden  # flop a token of scores and context
    products = 2 * (4 * whole.hidden**2 + 2 * whole.hidden * whole.ffn_hidden)
    assert seconds["layer"] == pytest.approx(2 * (products + attention) / (products + attention / 2), rel=ROUNDING)


def test_whole_sequences_stand_for_parts_of_them_by_their_flop() -> None:
    known = case("grok-1")
    assert known.run.layout.context_parallel == 2
    job = slice_job(known.run, context_parallel=1)
    step = found(known, measured(job, times_of(ones(1.0))))
    assert step.scaled == RULE
    assert {part.name: part.seconds for part in step.parts if part.name != "update"} == {
        "layer": 1,
        "shared": 0.5,
        "embedding": 1,
        "head": 1,
    }


def test_a_slice_of_another_layout_run_shape_or_precision_is_refused() -> None:
    known, other = case("bloom-176b"), case("gpt2-124m")
    job = slice_job(known.run)
    wide = msgspec.structs.replace(job, architecture=msgspec.structs.replace(job.architecture, ffn_hidden=8))
    scaled = msgspec.structs.replace(job.recipe, product_format=ProductFormat.FP8_CURRENT)
    of_known = times_of(known.parts)
    for refused, times, words in (
        (slice_job(known.run, tensor_parallel=2), of_known, "tensor_parallel 2, not 4 as in dp8,tp4,pp12"),
        (
            slice_job(known.run, recomputation=Recomputation.NONE),
            of_known,
            "recomputation none, not full as in dp8,tp4,pp12",
        ),
        (slice_job(known.run, fused_attention=True), of_known, "fused_attention True, not False"),
        (slice_job(other.run), times_of(other.parts), "record.json: .*a slice of gpt2-124m, not bloom-176b"),
        (wide, of_known, "layers of another architecture"),
        (
            msgspec.structs.replace(job, recipe=scaled),
            of_known,
            "product_format fp8-current, not none .--gemm-dtype fp8-current asks for it",
        ),
        (msgspec.structs.replace(job, slice=None), of_known, "a record of bloom-176b-slice, which is no slice"),
    ):
        with pytest.raises(InputError, match=words):
            found(known, measured(refused, times))
