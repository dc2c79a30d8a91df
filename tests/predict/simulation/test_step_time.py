"""Laws of the step time on a measured machine: it scales with the machine, its terms are its whole."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation
from reference_runs.layout import Recomputation, parse_layout
from reference_runs.run import Precision, Workload
from suite.job.options import DEFAULT_OPTIONS, Optimization, StepOptions, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.machine.timing_tables import Line, Subject
from suite.machine.timings import Timing
from suite.metrics.figures import Quantity, StepTerm
from suite.predict.executed_run.step_time import time_figures
from suite.predict.simulation import step_time
from suite.predict.simulation.autograd_tape import OperatorCalls
from suite.predict.simulation.cost_model import CostModel
from suite.predict.simulation.operator_calls import update_calls
from suite.predict.simulation.step_time import StepSeconds, step_seconds
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.predict.simulation.traffic import executed_traffic
from tests.support.examples import examples
from tests.support.executed_runs import Place, Run, executed_runs, rank_parameters
from tests.support.step_machine import MINIS, Machine


def steps(machine: Machine, run: Run, *, compiled: bool = False) -> list[StepSeconds]:
    return step_seconds(machine, run.workload, StepOptions(compiled=compiled))


class Products(Machine, frozen=True):
    """Matrix products alone take time: a second a flop."""

    def seconds(self, subject: Subject, *sizes: float) -> float:
        return 2 * sizes[0] * sizes[1] * sizes[2] if subject.operation == "product" else 0.0


def mini(name: str) -> Run:
    small = MINIS[name]
    return Run(small.architecture, small.recipe, small.layout)


machines = st.builds(
    Machine,
    fixed=st.floats(0, 1e-4),
    per_unit=st.floats(1e-13, 1e-9),
    host=st.floats(0, 1e-4),
    start=st.floats(0, 1e-4),
    latency=st.floats(0, 1e-3),
    per_byte=st.floats(0, 1e-8),
)


@examples(40)
@given(run=executed_runs(), machine=machines, compiled=st.booleans())
def test_a_machine_twice_as_slow_in_everything_takes_twice_as_long(run: Run, machine: Machine, compiled: bool) -> None:
    slow = Machine(**{name: 2 * value for name, value in msgspec.structs.asdict(machine).items()})
    for one, other in zip(steps(machine, run, compiled=compiled), steps(slow, run, compiled=compiled), strict=True):
        assert other == pytest.approx([2 * term for term in one])


@examples(40)
@given(run=executed_runs(), machine=machines)
def test_every_stage_takes_as_long_as_the_slowest_and_the_terms_of_the_job_sum_to_its_step(
    run: Run, machine: Machine
) -> None:
    stages = steps(machine, run)
    assert len(stages) == run.layout.pipeline_stages
    for stage in stages:
        assert min(stage) >= -1e-12
        assert stage.step == pytest.approx(stages[0].step)
    silent = steps(msgspec.structs.replace(machine, latency=0.0, per_byte=0.0), run)
    assert any(stage.bubble > 0 for stage in silent) == (len(stages) > 1)
    assert describes_ranks(Workload(*run))
    figures = time_figures(machine, Workload(*run), StepOptions())
    of_job = {f.term: f.value for f in figures if f.quantity is Quantity.STEP_SECONDS and f.rank is None}
    assert set(of_job) == {None, *(term.value for term in StepTerm)}
    assert sum(value for term, value in of_job.items() if term) == pytest.approx(of_job[None])
    rate = next(figure.value for figure in figures if figure.quantity is Quantity.TOKENS_PER_SECOND)
    assert rate * of_job[None] == pytest.approx(run.recipe.global_batch * run.architecture.sequence)


def test_a_latency_alone_is_paid_once_a_message() -> None:
    for name in MINIS:
        run = mini(name)
        messages = sum(entry.messages for entry in executed_traffic(Workload(*run), stage=0, replica=0))
        (stage,) = steps(Machine(latency=1.0), run)
        assert stage.communication == stage.step == messages > 0, name


def test_messages_are_priced_in_the_type_that_they_are_added_in() -> None:
    """Hidden states of tensor parallelism in bf16, the loss and gradients in fp32; a gather only moves bytes."""
    run = mini("bloom-mini")
    run = run._replace(layout=parse_layout("dp2,tp2,sp", base=run.layout))
    assert run.recipe.precision is Precision.BF16
    asked: Counter[tuple[str, str]] = Counter()

    class Adding(Machine, frozen=True):
        def seconds(self, subject: Subject, *sizes: float) -> float:
            asked[subject.operation, subject.dtype] += len(sizes)
            return float(subject.operation == "reduce_scatter" and subject.dtype == "bf16")

    (stage,) = steps(Adding(), run)
    (scattered,) = (
        entry.messages
        for entry in executed_traffic(Workload(*run), stage=0, replica=0)
        if (entry.axis, entry.operation) == ("tp", "reduce_scatter")
    )
    assert stage.communication == stage.step == scattered > 0
    messages = {key for key in asked if key[0] in ("all_reduce", "all_gather", "reduce_scatter")}
    assert messages == {("all_reduce", "fp32"), ("all_gather", "fp32"), ("reduce_scatter", "bf16")}


def test_host_time_alone_is_overhead_alone_and_compilation_lowers_it() -> None:
    machine = Machine(host=1e-6)
    for run in map(mini, MINIS):
        if run.architecture.experts is not None:
            continue
        (eager,), (compiled,) = steps(machine, run), steps(machine, run, compiled=True)
        # an optimizer that goes from tensor to tensor has host time of its own
        tensors = 0 if run.layout.zero_stage == 1 else len(rank_parameters(run, Place(0, 0, 0)))
        assert eager.optimizer == pytest.approx(tensors * machine.host)
        assert eager.overhead + eager.data_loading + eager.optimizer == pytest.approx(eager.step)
        assert compiled.overhead < eager.overhead


def test_a_compiled_region_is_called_once_whatever_is_in_it() -> None:
    run = mini("bloom-mini")  # with activations and dropout in a block

    class Fused(Machine, frozen=True):
        def seconds(self, subject: Subject, *sizes: float) -> float:
            return super().seconds(subject, *sizes) if subject.compiled else 0.0

    calls, elements = Fused(fixed=1.0), Fused(per_unit=1.0)
    assert steps(calls, run, compiled=True)[0].step == pytest.approx(0.0, abs=1e-290)
    (stage,) = steps(elements, run, compiled=True)
    assert stage.forward > 0
    assert stage.backward >= stage.forward
    assert stage.step == pytest.approx(stage.forward + stage.backward)


def test_a_region_s_backward_pass_is_one_call_without_the_start_of_the_engine_in_its_timing() -> None:
    class Regions(Machine, frozen=True):
        each: float

        def line(self, subject: Subject) -> Line:
            line = super().line(subject)
            if (subject.operation, subject.variant) != ("region", "backward"):
                return line
            return msgspec.structs.replace(line, timings=(Timing(self.each, 1.0, 1.0, 1.0, 1, 0),))

    run = mini("gpt2-mini")
    (start,) = steps(Regions(each=0.0, start=1.0), run, compiled=True)
    (called,) = steps(Regions(each=3.0, start=1.0), run, compiled=True)
    regions = run.architecture.layers * accumulation(run.recipe, run.layout)
    assert called.overhead - start.overhead == pytest.approx((3.0 - 1.0) * regions)


def test_what_a_backward_operator_s_timing_has_of_the_engine_is_what_was_timed_as_operators_are() -> None:
    class Engine(Machine, frozen=True):
        of_operator: float

        def seconds(self, subject: Subject, *_sizes: float) -> float:
            return 5.0 if subject.variant == "backward" else 0.0

        def line(self, subject: Subject) -> Line:
            line = super().line(subject)
            if subject.operation != "engine":
                return line
            return msgspec.structs.replace(line, timings=(Timing(self.of_operator, 1.0, 1.0, 1.0, 1, 0),))

    run = mini("gpt2-mini")
    (all_of_it,), (most,), (none,) = (steps(Engine(of_operator=part), run) for part in (5.0, 4.0, 0.0))
    assert all_of_it.backward == 0
    assert most.backward == pytest.approx(none.backward / 5)
    assert none.backward > 0


def forward_products_flop(run: Run) -> int:
    """Flop of the matrix products of a step's forward passes but those of attention's scores and context."""
    a = run.architecture
    inner, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    width = a.ffn_hidden * (3 if a.activation.gated else 2)
    if a.experts is not None:
        width = ((a.experts_per_token or 0) + a.shared_experts) * a.expert_width * 3 + a.experts  # and the router
    attention = a.hidden * (2 * inner + 2 * keys)
    if a.key_value_rank is not None and a.query_rank is not None and a.rotary_dim is not None:
        own = a.heads * (a.head_dim - a.rotary_dim + (a.value_head_dim or 0))
        attention = a.query_rank * (a.hidden + inner) + a.hidden * (a.key_value_rank + a.rotary_dim)
        attention += a.key_value_rank * own + a.hidden * a.heads * (a.value_head_dim or 0)
    dense = a.dense_layers * a.hidden * a.ffn_hidden * 3
    layers = a.layers * attention + dense + (a.layers - a.dense_layers) * a.hidden * width
    tokens = accumulation(run.recipe, run.layout) * run.layout.micro_batch * a.sequence
    return 2 * tokens * (layers + a.hidden * a.padded_vocabulary)


def test_products_alone_take_as_long_as_their_flop() -> None:
    """Forward N, backward 2 N, and N again where a layer is recomputed but for its stopped last product."""
    for run in map(mini, MINIS):
        none = run._replace(layout=msgspec.structs.replace(run.layout, recomputation=Recomputation.NONE))
        forward = forward_products_flop(run)
        (stage,), (again,) = steps(Products(), none), steps(Products(), run)
        assert (stage.forward, stage.backward) == (forward, 2 * forward)
        repeated = again.backward - stage.backward
        head = forward_products_flop(
            run._replace(architecture=msgspec.structs.replace(run.architecture, layers=0, dense_layers=0))
        )
        assert (repeated > 0.5 * (forward - head)) == (run.layout.recomputation is Recomputation.FULL)


def on_cuda(machine: Machine, name: str, training: TrainingOptions = DEFAULT_OPTIONS) -> StepSeconds:
    run = mini(name)
    options = StepOptions(kernels=Kernels(cuda=True), training_options=training)
    (stage,) = step_seconds(machine, Workload(*run), options)
    return stage


@pytest.mark.parametrize("name", ["bloom-mini", "gpt2-mini"])
def test_a_host_that_runs_ahead_of_a_gpu_costs_nothing_and_a_slow_one_costs_what_it_takes_longer(name: str) -> None:
    class Gpu(Machine, frozen=True):
        """Every operator takes `fixed`: its timing has nothing of the host in it; messages take nothing."""

        def seconds(self, subject: Subject, *sizes: float) -> float:
            return self.fixed * bool(sizes) if subject.operation not in ("all_reduce", "host_to_device") else 0.0

        def line(self, subject: Subject) -> Line:
            return (Machine() if subject.operation == "adam_tensors" else super()).line(subject)

    device, ahead, slow_host, very_slow = (on_cuda(Gpu(fixed=1e-3, host=host), name) for host in (0.0, 1e-9, 1.0, 2.0))
    computed = device.forward + device.backward + device.optimizer
    assert device.overhead == ahead.overhead == 0
    for stage in (ahead, slow_host, very_slow):
        assert stage.forward + stage.backward + stage.optimizer == computed > 0
    host = very_slow.overhead - slow_host.overhead
    assert slow_host.overhead == pytest.approx(host - computed)
    # an update that waits after every operator is as much longer as its host takes, whatever the device does
    waiting = TrainingOptions(rung="naive", synchronises=True)
    fast, slow = (on_cuda(Gpu(fixed=1e-3, host=host), name, waiting).overhead for host in (1e-9, 2e-9))
    assert slow == pytest.approx(2 * fast)
    assert 0 < slow < computed
    # of captured passes the host's work is that of the update and of making batches
    graph = TrainingOptions(rung="", pinned=True, optimizations=(Optimization.MICRO_BATCH_GRAPH,))
    pinned = TrainingOptions(rung="", pinned=True)
    plain, captured = (on_cuda(Gpu(fixed=1e-3, host=1.0), name, options) for options in (pinned, graph))
    assert captured.overhead < plain.overhead / 2
    assert captured[:5] == pytest.approx(plain[:5])
    # on a CPU all the host's work is added, without the calls, which the operators' timings have in them
    (added,) = steps(Machine(host=1.0), mini(name))
    assert 0 < added.overhead < host


@examples(30)
@given(run=executed_runs(), machine=machines)
def test_a_step_is_all_stages_passes_and_the_longest_update(run: Run, machine: Machine) -> None:
    """Without messages: what the host does for the update is no part of the schedule, and so of no bubble."""
    machine = msgspec.structs.replace(machine, latency=0.0, per_byte=0.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_time, "update_calls", lambda *_, **__: OperatorCalls())
        passes = steps(machine, run)[0].step
    cost = CostModel(machine, Workload(*run))
    updates = [
        cost.arithmetic(calls, backward=False) + cost.overhead(calls)
        for calls in (
            update_calls(Workload(*run), stage=stage, replica=0) for stage in range(run.layout.pipeline_stages)
        )
    ]
    for stage in steps(machine, run):
        assert stage.step == pytest.approx(passes + max(updates))


def test_replicas_share_a_stages_passes_and_a_step_takes_as_long_as_the_stage_that_decides() -> None:
    """Without messages and updates: gpt2-mini's second stage has the head, and takes longer than the first one."""
    run = mini("gpt2-mini")
    recipe = msgspec.structs.replace(run.recipe, global_batch=16)

    def stages(words: str) -> list[StepSeconds]:
        layout = parse_layout(f"pp2,pipedream,micro2,zero0,{words}", base=run.layout)
        return steps(Products(), run._replace(recipe=recipe, layout=layout))

    alone, first, last = stages("dp1"), stages("replicas2-1"), stages("replicas1-2")
    assert [each.forward for each in first] == [alone[0].forward / 2, alone[1].forward]
    assert [each.forward for each in last] == [alone[0].forward, alone[1].forward / 2]
    assert first[0].step == first[1].step == pytest.approx(alone[1].step)
    assert alone[1].forward + alone[1].backward == pytest.approx(alone[1].step)
    assert last[1].step < 0.7 * alone[1].step
