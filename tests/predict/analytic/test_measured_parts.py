from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation, reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import PartSeconds, PassSeconds, modelled_parts, stage_parts
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.step_time import StepTime, step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from tests.support.layouts import run_machine_of
from tests.support.machines import A100, Case, cases, machines
from tests.support.steps import ROUNDING, bloom, changed, time_of, traffic_of

PASSES = st.builds(PassSeconds, st.floats(0, 10), st.floats(0, 10))
RECOMPUTED = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)


def with_layers_of_their_own(case: Case) -> Case:
    """The case, without recomputation from the stage's input."""
    kept = case.layout.recomputation in RECOMPUTED
    return case if kept else changed(case, recomputation=Recomputation.FULL)


@st.composite
def launching_machines(draw: st.DrawFn) -> Machine:
    """Machines whose host may be the slower one, with stacks that wait for it and that accumulate apart."""
    names = st.sampled_from(["generic", "gpt-neox", "megatron-core", "deepspeed-zero3-2021"])
    seconds = st.sampled_from([0.0, 1e-6, 1e-3])
    return msgspec.structs.replace(
        draw(machines()),
        kernel_seconds=draw(seconds),
        launch_seconds=draw(seconds),
        step_overhead_seconds=draw(seconds),
        stack=stack(draw(names)).switches,
    )


def time_from(case: Case, machine: Machine, parts: PartSeconds) -> StepTime:
    architecture, recipe, layout, micro_batches = case
    workload = Workload(architecture, recipe, layout)
    return step_time(workload, machine, micro_batches=micro_batches, traffic=traffic_of(case), parts=parts)


def parts_of(case: Case, machine: Machine) -> PartSeconds:
    return modelled_parts(Workload(*case[:3]), machine)


@given(cases().map(with_layers_of_their_own), launching_machines())
def test_parts_that_take_what_the_machine_says_give_the_plain_prediction(case: Case, machine: Machine) -> None:
    plain, same = time_of(case, machine), time_from(case, machine, parts_of(case, machine))
    # differences of sums of some dozens of terms
    assert same.total_seconds == pytest.approx(plain.total_seconds, rel=100 * ROUNDING, abs=0)
    assert same.data_parallel_seconds == pytest.approx(
        plain.data_parallel_seconds, rel=100 * ROUNDING, abs=100 * ROUNDING * plain.total_seconds
    )
    assert same.forward_seconds == same.backward_seconds == same.operator_seconds == 0


def test_the_same_holds_for_every_recorded_run_that_has_a_layout_and_a_network() -> None:
    timed = 0
    for name in run_names():
        run = reference_run(name)
        layout, machine = run.recorded_layout, run_machine_of(run, own_software=True)
        if layout is None or layout.offload is not Offload.NONE or machine is None or machine.machine is None:
            continue
        case = Case(run.architecture, run.recipe, layout, accumulation(run.recipe, layout))
        parts = parts_of(case, machine.machine)
        assert len(parts.layers) == (2 if run.architecture.first_kind_layers else 1)
        plain, same = time_of(case, machine.machine), time_from(case, machine.machine, parts)
        assert same.total_seconds == pytest.approx(plain.total_seconds, rel=100 * ROUNDING, abs=0), name
        timed += 1
    assert timed >= 20


@given(cases().map(with_layers_of_their_own), launching_machines(), PASSES, PASSES, PASSES)
def test_given_parts_are_the_time_of_the_stage_that_has_them(
    case: Case, machine: Machine, layer: PassSeconds, embedding: PassSeconds, head: PassSeconds
) -> None:
    case = changed(case, pipeline_stages=1, virtual_stages=1)
    time = time_from(case, machine, PartSeconds((layer,), embedding, head, 0.0))
    m = case.micro_batches
    assert time.layer_seconds == pytest.approx(m * case.architecture.layers * sum(layer), rel=ROUNDING, abs=0)
    assert time.embedding_seconds == pytest.approx(m * sum(embedding), rel=ROUNDING, abs=0)
    assert time.head_seconds == pytest.approx(m * sum(head), rel=ROUNDING, abs=0)
    assert time.optimizer_seconds == 0


@given(st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_a_slower_layer_lengthens_the_slowest_stage_and_its_bubble(slower: float, more: float) -> None:
    case = bloom()
    parts = parts_of(case, A100)

    def seconds(factor: float) -> float:
        layers = tuple(layer.times(factor) for layer in parts.layers)
        return time_from(case, A100, parts._replace(layers=layers)).total_seconds

    layer, workload = parts.layers[0].total, Workload(*case[:3])
    slowest = max(
        stage_layers(case.architecture, case.layout, stage=stage)
        for stage in timed_stages(case.architecture, case.layout)
    )
    waited = case.architecture.layers - slowest
    grown = seconds(slower * more) - seconds(slower)
    rounding = 10 * ROUNDING * seconds(slower * more)  # of the difference of two steps
    expected = (more - 1) * slower * layer * (case.micro_batches * slowest + waited)
    # more data-parallel traffic overlaps with a longer backward pass
    hidden = A100.overlap_share * (more - 1) * slower * parts.layers[0].backward * slowest
    assert expected - hidden - rounding <= grown <= expected + rounding
    assert stage_parts(workload, parts, stage=1).layers.total == pytest.approx(slowest * layer, rel=ROUNDING)


def test_the_stage_with_a_slow_head_decides() -> None:
    case = bloom()
    parts = parts_of(case, A100)
    slow = parts._replace(head=PassSeconds(1.0, 2.0))
    time = time_from(case, A100, slow)
    assert time.head_seconds == pytest.approx(3.0 * case.micro_batches, rel=ROUNDING)
    assert time.embedding_seconds == 0
    assert time_from(case, A100, parts._replace(embedding=PassSeconds(1.0, 2.0))).embedding_seconds > 0


def test_a_layer_has_no_time_of_its_own_where_the_stage_starts_again_for_each() -> None:
    case = changed(bloom(), recomputation=Recomputation.FROM_INPUT)
    with pytest.raises(InputError, match="no layer has a time of its own; got from-input"):
        parts_of(case, A100)


def test_the_parts_of_a_stage_are_its_traffic_free_micro_batch() -> None:
    case = changed(bloom(), pipeline_stages=1, virtual_stages=1, tensor_parallel=1, data_parallel=1)
    workload = Workload(*case[:3])
    parts = stage_parts(workload, parts_of(case, A100), stage=0)
    time = time_of(case, A100)
    assert step_traffic(workload, stage=0, micro_batches=case.micro_batches) == []
    alone = time.total_seconds - time.optimizer_seconds
    assert case.micro_batches * parts.both.total == pytest.approx(alone, rel=ROUNDING)
