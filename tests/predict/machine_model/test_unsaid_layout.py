"""Fields that a layout's words leave unsaid: attention as the stack has it, where no record says it."""

from __future__ import annotations

from typing import Any

import msgspec

from reference_runs.architecture_choices import Mask, Position
from reference_runs.catalog import reference_run, run_names
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import ReferenceRun
from reference_runs.stack import stack
from suite.predict.machine_model.unsaid_layout import fuses_attention, usual_layout
from suite.predict.plan.departures import most_changing_stack
from suite.predict.plan.plan import machine_of, question_of
from suite.predict.plan.predicted_run import PredictionRequest, prediction_of_run
from suite.predict.recorded_run.figures import NO_PRICES
from suite.predict.recorded_run.slice_parts import MeasuredSlice
from tests.support.slices import measured, ones, slice_job, times_of

UNPUBLISHED = [name for name in run_names() if reference_run(name).recorded_layout is None]
WORDS = "dp16,tp8,zero1"
BYTES_PER_SECOND = 400e9


def asked(words: str, *, stack_name: str | None = None, slices: tuple[MeasuredSlice, ...] = ()) -> PredictionRequest:
    return PredictionRequest("h100", None, words, BYTES_PER_SECOND, NO_PRICES, stack_name, slices=slices)


def taken(run: ReferenceRun, words: str, *, stack_name: str | None = None) -> bool:
    """Whether attention is fused in the layout that is predicted."""
    layout = prediction_of_run(run, asked(words, stack_name=stack_name)).layout
    assert layout is not None
    return layout.fused_attention


def changed(run: ReferenceRun, **architecture: object) -> ReferenceRun:
    return msgspec.structs.replace(run, architecture=msgspec.structs.replace(run.architecture, **architecture))


def test_attention_is_as_a_plan_for_the_same_stack_holds_it() -> None:
    for run in map(reference_run, UNPUBLISHED):
        for stack_name in (None, "pytorch", "megatron-core", "megatron-lm-2022"):
            machine = machine_of(run, "h100", 128, 3200, stack_name)
            (held,) = question_of(run, machine, ranks=128, fixed={}, global_batch=None).fused
            assert held == (stack_name != "megatron-lm-2022"), (run.name, stack_name)
            assert taken(run, WORDS, stack_name=stack_name) == held, (run.name, stack_name)


def test_words_come_before_the_stack() -> None:
    run = reference_run("llama2-70b")
    assert not taken(run, f"{WORDS},unfused")
    assert taken(run, f"{WORDS},fused", stack_name="megatron-lm-2022")


def test_a_mask_or_positions_that_no_fused_kernel_has_are_not_fused() -> None:
    run = reference_run("llama2-7b")
    assert fuses_attention(run.architecture, stack("pytorch"))
    for change in ({"mask": Mask.PREFIX}, {"mask": Mask.DOCUMENTS}, {"position": Position.ALIBI}):
        other = changed(run, **change)
        assert not fuses_attention(other.architecture, stack("pytorch"))
        assert usual_layout(other) == Layout()
        machine = machine_of(other, "h100", 8, None, "pytorch")
        assert question_of(other, machine, ranks=8, fixed={}, global_batch=None).fused == (False,)


def test_a_recorded_layout_keeps_its_attention() -> None:
    for run in map(reference_run, ("bloom-176b", "glm-130b", "gpt3-175b", "llama3.1-8b")):
        assert usual_layout(run, "pytorch") == run.layout
        assert taken(run, "dp2,tp8,micro1", stack_name="pytorch") == run.layout.fused_attention


def test_memory_on_an_assumed_machine_is_of_fused_attention_too() -> None:
    run = msgspec.structs.replace(reference_run("llama2-7b"), cluster=None)
    request = PredictionRequest(None, None, "dp1,tp8", None, NO_PRICES, None)
    predicted = prediction_of_run(run, request)
    assert predicted.machine is not None
    assert [each.option for each in predicted.assumed] == ["--on", "--stack"]
    assert predicted.layout == Layout(tensor_parallel=8, fused_attention=True)


def test_a_measured_slice_says_what_its_words_leave_unsaid() -> None:
    run = msgspec.structs.replace(reference_run("llama2-7b"), recorded_layout=reference_run("gpt3-175b").layout)
    words: dict[str, Any] = {"micro_batch": 1, "tensor_parallel": 8, "sequence_parallel": False}
    for is_fused in (False, True):
        job = slice_job(run, **words, fused_attention=is_fused, recomputation=Recomputation.NONE)
        request = asked("dp1,tp8", slices=(measured(job, times_of(ones()), device="NVIDIA H100 80GB HBM3"),))
        predicted = prediction_of_run(reference_run("llama2-7b"), request)
        assert predicted.sliced is not None
        assert predicted.layout is not None
        assert predicted.layout.fused_attention == is_fused
        assert most_changing_stack(predicted, request) is not None
