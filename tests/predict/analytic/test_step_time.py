from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload, Schedule
from reference_runs.placement import head_stage
from reference_runs.run import Workload
from suite.predict.analytic import stage_computation
from suite.predict.analytic import step_time as subject
from suite.predict.analytic.collective_time import axis_groups, collective_seconds, group, taken_share
from suite.predict.analytic.exposed_messages import exposed_data_parallel_seconds
from suite.predict.analytic.flop import head_forward_flop, layer_forward_flop, recomputed_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.layer_time import fused_attention_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, bubble_fraction
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.step_time import StepTime, step_time
from suite.predict.analytic.traffic import step_traffic
from tests.support.machines import A100, Case, at_peak, cases, flat_efficiency, machines
from tests.support.steps import ROUNDING, bloom, changed, pass_seconds, stage_times, time_of, traffic_of, waiting_stages
from tests.support.strategies import BLOOM


@given(cases())
def test_the_products_of_all_ranks_have_the_flop_of_the_layer(case: Case) -> None:
    architecture, recipe, layout, _ = case
    ranks = layout.tensor_parallel * layout.context_parallel
    flop = {
        part: ranks * products * 2 * M * N * K
        for part, (products, M, N, K) in layer_products(Workload(architecture, recipe, layout)).items()
    }
    flop["feed-forward"] = flop.pop("expansion") + flop.pop("contraction")
    assert flop == layer_forward_flop(architecture, samples=layout.micro_batch)


def matrix_seconds(time: StepTime) -> float:
    return time.forward_seconds + time.backward_seconds + time.recomputation_seconds


@given(cases(), machines())
def test_a_machine_without_other_limits_takes_the_flop_over_the_peak(case: Case, machine: Machine) -> None:
    machine = at_peak(machine)
    architecture, _, layout, micro_batches = case = changed(case, fused_attention=False)
    ranks = layout.tensor_parallel * layout.context_parallel
    b = layout.micro_batch
    most = 0.0
    for stage in range(layout.pipeline_stages):
        layers = stage_layers(architecture, layout, stage=stage)
        flop = 3 * layers * sum(layer_forward_flop(architecture, samples=b).values())
        flop += recomputed_flop(architecture, samples=b, recomputation=layout.recomputation, layers=layers)
        if stage == head_stage(layout):
            flop += 3 * head_forward_flop(architecture, samples=b)
        most = max(most, micro_batches * flop / (ranks * machine.peak_flop_per_second))
    time = time_of(case, machine)
    assert matrix_seconds(time) == pytest.approx(most, rel=ROUNDING, abs=0)
    assert time.total_seconds == pytest.approx(matrix_seconds(time) + time.bubble_seconds, rel=ROUNDING, abs=0)


@given(cases(), machines())
def test_terms_are_finite_not_negative_and_add_up(case: Case, machine: Machine) -> None:
    time = time_of(case, machine)
    assert all(0 <= seconds < math.inf for seconds in time)
    assert time.total_seconds == pytest.approx(math.fsum(time), rel=ROUNDING, abs=0)
    assert time.forward_seconds > 0
    assert time.optimizer_seconds > 0


RATES = ("peak_flop_per_second", "memory_bytes_per_second", "link_bytes_per_second", "network_bytes_per_second")


@given(cases(), machines(), st.sampled_from(RATES), st.floats(1.0, 1e6))
def test_a_faster_machine_is_never_slower(case: Case, machine: Machine, rate: str, times: float) -> None:
    faster = msgspec.structs.replace(machine, **{rate: times * getattr(machine, rate)})
    assert time_of(case, faster).total_seconds <= time_of(case, machine).total_seconds * (1 + ROUNDING)


@given(cases(), machines())
def test_a_machine_twice_as_fast_in_everything_takes_half_the_time(case: Case, machine: Machine) -> None:
    twice = msgspec.structs.replace(
        machine,
        **{rate: 2 * getattr(machine, rate) for rate in RATES},
        link_latency_seconds=machine.link_latency_seconds / 2,
        network_latency_seconds=machine.network_latency_seconds / 2,
    )
    # powers of two do not round
    assert time_of(case, twice) == tuple(seconds / 2 for seconds in time_of(case, machine))


@given(cases(), machines(), st.integers(1, 3))
def test_equal_stages_wait_for_the_schedules_bubble(case: Case, machine: Machine, layers: int) -> None:
    stages = case.layout.pipeline_stages
    architecture = msgspec.structs.replace(case.architecture, layers=layers * stages * case.layout.virtual_stages)
    _, recipe, layout, micro_batches = case = changed(
        case._replace(architecture=architecture), stage_assignment="layers"
    )
    traffic = traffic_of(case)
    with pytest.MonkeyPatch.context() as patch:  # neither embedding nor head, and of every stage the last one's traffic
        patch.setattr(subject, "head_seconds", lambda *_: (0.0, 0.0))
        patch.setattr(stage_computation, "embedding_bytes", lambda *_: 0)
        patch.setattr(stage_computation, "loss_bytes", lambda *_: 0)
        same = len(traffic) * traffic[-1:]
        time = step_time(Workload(architecture, recipe, layout), machine, micro_batches=micro_batches, traffic=same)
    # all terms up to the bubble are what the pipeline repeats
    share = time.bubble_seconds / math.fsum(time[:8])
    assert share == pytest.approx(bubble_fraction(layout, micro_batches=micro_batches), rel=ROUNDING, abs=0)


@given(cases(), machines())
def test_gpipe_takes_as_long_as_1f1b(case: Case, machine: Machine) -> None:
    case = changed(case, virtual_stages=1)
    gpipe, one_f_one_b = (
        time_of(changed(case, schedule=schedule), machine) for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
    )
    assert gpipe == one_f_one_b


def test_interleaving_divides_the_bubble_and_multiplies_the_messages() -> None:
    case = changed(bloom(), stage_assignment="layers", pipeline_stages=7, schedule=Schedule.ONE_F_ONE_B)
    plain, interleaved = (time_of(changed(case, virtual_stages=virtual), A100) for virtual in (1, 5))
    # a middle stage sends twice a micro-batch and chunk, the last stage once less; one of them is the slowest
    assert interleaved.pipeline_seconds / plain.pipeline_seconds == pytest.approx(9, rel=ROUNDING, abs=0)
    for time, virtual in ((plain, 1), (interleaved, 5)):
        alone = stage_times(changed(case, virtual_stages=virtual), A100)
        # the last of seven stages decides, and fills with a chunk of each of the six before it
        assert time.forward_seconds == alone[6].forward_seconds > alone[5].forward_seconds
        others = math.fsum(pass_seconds(each, micro_batches=128) for each in alone[:6])
        assert time.bubble_seconds == pytest.approx(others / virtual, rel=ROUNDING, abs=0)


@given(cases(), machines())
def test_no_stage_that_waits_for_every_other_takes_longer_than_the_one_that_decides(
    case: Case, machine: Machine
) -> None:
    layout, longest = case.layout, max(time.total_seconds for time in waiting_stages(case, machine))
    counts = [stage_layers(case.architecture, layout, stage=stage) for stage in range(1, layout.pipeline_stages - 1)]
    # Stages between the ends are timed as the second of them, layer by layer. One with l - 1 layers for the second's l
    # is then off by its messages, which are as many, and by the recomputation from a stage's input, which is quadratic:
    # together by at most the time of one of the second's layers.
    shorter = sum(count < counts[0] for count in counts)
    of_a_layer = 0.0
    if shorter and layout.schedule not in NO_FLUSH:
        second = stage_times(case, machine)[1]
        of_a_layer = pass_seconds(second, micro_batches=case.micro_batches) / counts[0] / layout.virtual_stages
    decided = time_of(case, machine).total_seconds
    assert decided == pytest.approx(longest, rel=ROUNDING, abs=shorter * of_a_layer)


@given(cases(), machines())
def test_communication_terms_are_the_seconds_of_the_collectives_of_their_axis(case: Case, machine: Machine) -> None:
    architecture, recipe, layout, micro_batches = case
    # all computation hides traffic that it may overlap with, and computation takes far longer than any traffic
    machine = msgspec.structs.replace(machine, overlap_share=1.0)
    slow = msgspec.structs.replace(machine, peak_flop_per_second=machine.peak_flop_per_second * 1e-30)
    for stage, time in enumerate(stage_times(case, slow)):
        seconds = dict.fromkeys(("tp", "cp", "pp", "dp", "embedding"), 0.0)
        for axis, operation, payload, messages in step_traffic(
            Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches
        ):
            of_data = axis in ("dp", "shard", "replicate")
            hidden = of_data and (operation != "all_gather" or layout.zero_stage == 3)
            if not hidden:
                members = axis_groups(layout, machine)[axis]
                spent = collective_seconds(operation, members, payload_bytes=payload, messages=messages)
                seconds["dp" if of_data else axis] += spent
        assert (
            time.tensor_parallel_seconds,
            time.context_parallel_seconds,
            time.pipeline_seconds,
            time.data_parallel_seconds,
            time.tied_embedding_seconds,
        ) == pytest.approx(tuple(seconds.values()), rel=ROUNDING, abs=0)


def test_exposed_traffic_is_what_the_computation_that_it_may_overlap_leaves() -> None:
    times: dict[str, Any] = {
        "gather_seconds": 4.0,
        "backward_seconds": 3.0,
        "computation_seconds": 5.0,
        "micro_batches": 4,
        "overlap_share": 0.5,
    }
    # reduction 10, gathers 4, backward pass 3 of a computation of 5, four micro-batches, half of which hides
    exposed = {0: 10 - 1.5 + 4, 1: 10 - 1.5 + 4, 2: 10 - 6 + 4, 3: 14 - 10}
    found = {
        seconds: {
            zero: exposed_data_parallel_seconds(Layout(zero_stage=zero), reduction_seconds=seconds, **times)
            for zero in exposed
        }
        for seconds in (10.0, 0.5)
    }
    assert found == {10.0: exposed, 0.5: {0: 4, 1: 4, 2: 4, 3: 0}}


def test_hidden_traffic_slows_the_computation_that_hides_it() -> None:
    def added(reduction: float, cost: float, **more: Any) -> float:
        times = {"gather_seconds": 1.0, "backward_seconds": 3.0, "computation_seconds": 5.0, "micro_batches": 4}
        layout = Layout(zero_stage=1)
        return exposed_data_parallel_seconds(
            layout, reduction_seconds=reduction, overlap_share=1.0, overlap_cost=cost, **times, **more
        )

    # 3 s hide behind the backward pass, what is left is exposed whole; 1 s of gathers hides where it may
    assert added(2.0, 0.25) - added(2.0, 0.0) == 0.5
    assert added(10.0, 0.25) - added(10.0, 0.0) == 0.75
    assert added(0.0, 0.25) == 1.0
    assert added(0.0, 0.25, gathers_overlap=True) == 0.25


FSDP = msgspec.structs.replace(
    BLOOM.layout, data_parallel=64, tensor_parallel=1, pipeline_stages=1, zero_stage=3, micro_batch=1
)
USUAL = msgspec.structs.replace(A100, overlap_share=1.0, overlap_cost=0.5, usual_network_bytes_per_second=25e9)


def sharded_seconds(gbits: float, *, micro_batches: int = 1, shards: int | None = None) -> float:
    """Seconds of BLOOM on 8 nodes with such a network each, sharded over all ranks or over groups of `shards`."""
    layout = msgspec.structs.replace(FSDP, shard_ranks=shards)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=64 * micro_batches)
    case = Case(BLOOM.architecture, recipe, layout, micro_batches)
    return time_of(case, msgspec.structs.replace(USUAL, network_bytes_per_second=gbits / 8 * 1e9)).total_seconds


RATES_IN_GBIT = st.floats(10, 10_000)


@given(st.lists(RATES_IN_GBIT, min_size=2, max_size=2), st.integers(1, 8), st.sampled_from([None, 2, 8, 32, 64]))
def test_sharded_steps_never_take_longer_over_a_faster_network(
    gbits: list[float], micro_batches: int, shards: int | None
) -> None:
    slow, fast = (sharded_seconds(rate, micro_batches=micro_batches, shards=shards) for rate in sorted(gbits))
    assert fast <= slow * (1 + ROUNDING)


@given(RATES_IN_GBIT, st.integers(1, 8))
def test_one_group_that_shards_is_fsdp(gbits: float, micro_batches: int) -> None:
    assert sharded_seconds(gbits, micro_batches=micro_batches, shards=64) == sharded_seconds(
        gbits, micro_batches=micro_batches
    )


def test_copies_of_shards_in_each_node_pay_where_networks_are_slow_and_micro_batches_several() -> None:
    """Each micro-batch gathers weights twice and reduces gradients over the network; copies add up gradients once."""
    for gbits in (100.0, 400.0):
        assert sharded_seconds(gbits, micro_batches=8, shards=8) < 0.9 * sharded_seconds(gbits, micro_batches=8)


def test_hidden_messages_take_less_a_second_from_computation_over_a_slower_network() -> None:
    def shares(gbits: float) -> list[float]:
        machine = msgspec.structs.replace(USUAL, network_bytes_per_second=gbits / 8 * 1e9)
        inside, across = (group(machine, ranks=64, ranks_in_node=ranks) for ranks in (64, 8))
        return [taken_share(machine, inside), taken_share(machine, across)]

    # 8 accelerators with 200 Gbit/s each are usual; without that all that was fitted is taken
    assert [shares(gbits) for gbits in (400.0, 800.0, 1600.0, 3200.0)] == [[1, 0.25], [1, 0.5], [1, 1], [1, 1]]
    slow = msgspec.structs.replace(A100, network_bytes_per_second=1e9)
    assert taken_share(slow, group(slow, ranks=64, ranks_in_node=8)) == 1


def test_an_axis_in_the_node_uses_links_and_one_across_nodes_the_network() -> None:
    axes = axis_groups(BLOOM.layout, A100)
    link, network = A100.achievable_link_bytes_per_second, A100.achievable_network_bytes_per_second
    # tp 4 and, two to a node, dp 8; stages and their tables are in different nodes
    assert axes["tp"][:2] == (4, link)
    assert axes["dp"][:2] == (8, network * 2 / 8)
    assert axes["pp"][:2] == (12, network / 8)
    assert axes["embedding"][:2] == (2, network / 8)
    turned = msgspec.structs.replace(BLOOM.layout, rank_order="pp-dp-cp-tp")
    assert axis_groups(turned, A100)["tp"].bytes_per_second == network / 8


@given(cases(), machines())
def test_attention_that_stores_no_scores_moves_queries_keys_values_and_output(case: Case, machine: Machine) -> None:
    architecture, recipe, layout, _ = case
    slow_memory = msgspec.structs.replace(machine, peak_flop_per_second=math.inf)
    forward, backward = fused_attention_seconds(Workload(architecture, recipe, layout), slow_memory)
    c, t, b = layout.context_parallel, layout.tensor_parallel, layout.micro_batch
    element = 4 if recipe.precision == "fp32" else 2
    queries = b * architecture.sequence // c * architecture.hidden // t
    keys = b * architecture.sequence * architecture.kv_heads * architecture.head_dim // t
    seconds = element * (2 * queries + 2 * keys) / machine.achievable_memory_bytes_per_second
    assert (forward, backward) == pytest.approx((seconds, 2 * seconds), rel=ROUNDING, abs=0)


def test_the_optimizers_shard_shrinks_with_zero() -> None:
    plain, sharded = (time_of(changed(bloom(), zero_stage=stage), A100) for stage in (0, 1))
    stored = max(rank_parameters(BLOOM.architecture, BLOOM.layout, stage=stage).all for stage in range(12))
    # 34 bytes a parameter of the slowest stage, at most those of the fullest
    assert plain.optimizer_seconds <= 34 * stored / A100.achievable_memory_bytes_per_second * (1 + ROUNDING)
    assert plain.optimizer_seconds == pytest.approx(8 * sharded.optimizer_seconds, rel=ROUNDING, abs=0)


def test_state_in_the_hosts_memory_is_refused() -> None:
    with pytest.raises(InputError, match="layout.offload: no time is predicted; got optimizer, allowed: none"):
        time_of(changed(bloom(), offload=Offload.OPTIMIZER), A100)


@given(cases(), machines(), st.data())
def test_arrays_of_layouts_give_what_each_layout_gives(case: Case, machine: Machine, data: st.DataObject) -> None:
    machine = msgspec.structs.replace(machine, matrix_efficiency=flat_efficiency(0.75))
    architecture, recipe, layout, micro_batches = changed(
        case, virtual_stages=1, tensor_parallel=1, pipeline_stages=1, stage_assignment="layers", shard_ranks=None
    )
    rows = [
        {
            "data_parallel": data.draw(st.integers(1, 40)),
            "tensor_parallel": data.draw(st.sampled_from([1, case.layout.tensor_parallel])),
            "pipeline_stages": data.draw(st.integers(1, architecture.layers)),
            "micro_batch": data.draw(st.integers(1, 4)),
        }
        for _ in range(3)
    ]
    columns = {name: numpy.array([row[name] for row in rows], dtype=float) for name in rows[0]}
    found = time_of(Case(architecture, recipe, msgspec.structs.replace(layout, **columns), micro_batches), machine)
    for place, row in enumerate(rows):
        each = time_of(Case(architecture, recipe, msgspec.structs.replace(layout, **row), micro_batches), machine)
        swept = [float(numpy.broadcast_to(seconds, len(rows))[place]) for seconds in found]
        # of stages that take equally long but for a rounding, either may be the one whose terms are shown
        assert math.fsum(swept) == pytest.approx(each.total_seconds, rel=ROUNDING, abs=0)
        if row["pipeline_stages"] == 1:
            assert swept == list(each)
