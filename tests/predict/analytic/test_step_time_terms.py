"""Each term beyond the textbooks' model, alone: what it adds, to what, and that it changes nothing else."""

from __future__ import annotations

import math

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.placement import chunk_layers, head_stage
from reference_runs.run import Architecture, Precision, ProductFormat, Recipe, Workload
from reference_runs.stack import Accumulation, ContextParallel, stack
from suite.predict.analytic.collective_time import axis_groups, collective_seconds, group
from suite.predict.analytic.exposed_messages import shard_copies_bytes
from suite.predict.analytic.gemm import EfficiencyTable
from suite.predict.analytic.layer_time import layer_time
from suite.predict.analytic.machine import PLAIN, Machine
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.process_groups import axes_in_node, group_ranks
from suite.predict.analytic.product_formats import layer_casts
from suite.predict.analytic.stage_computation import stage_kernels
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.step_time import StepTime
from suite.predict.analytic.traffic import step_traffic
from tests.support.examples import examples
from tests.support.machines import A100, Case, cases, flat_efficiency, machines
from tests.support.steps import ROUNDING, but, changed, having, pass_seconds, stage_times, time_of, waiting_stages
from tests.support.strategies import BLOOM

SWITCHES = st.fixed_dictionaries({"layer_kernels": st.integers(1, 40), "head_kernels": st.integers(1, 80)})


def counted_kernels(case: Case, switches: dict[str, int], *, stage: int, collective: int = 1) -> float:
    """Kernels of one micro-batch on a rank of `stage`, walked layer by layer; a collective counts as so many."""
    architecture, _, layout, _ = case
    layers = stage_layers(architecture, layout, stage=stage)
    of_a_layer = switches["layer_kernels"]
    if layout.tensor_parallel > 1:
        each_way = 2 if layout.sequence_parallel else 1  # a gather and a scatter in place of a sum
        of_a_layer += collective * each_way * 2
    kernels = 0.0
    for layer in range(layers):
        kernels += 3 * of_a_layer  # a gradient of input and weights for each output
        kernels += {
            Recomputation.NONE: 0,
            Recomputation.SELECTIVE: of_a_layer / 4,
            Recomputation.SELECTIVE_OP: of_a_layer,
            Recomputation.FULL: of_a_layer,
            Recomputation.FROM_INPUT: (layer + 1) * of_a_layer,  # again from the stage's input up to this layer
        }[layout.recomputation]
    if stage == head_stage(layout):
        kernels += 3 * switches["head_kernels"]
    return kernels


@given(cases(), machines(), SWITCHES, st.floats(1e-9, 1e-3))
def test_the_time_of_each_kernel_adds_kernels_times_seconds(
    case: Case, machine: Machine, switches: dict[str, int], seconds: float
) -> None:
    plain = stage_times(case, having(machine, **switches))
    slowed = stage_times(case, having(machine, **switches, kernel_seconds=seconds))
    for stage, (before, after) in enumerate(zip(plain, slowed, strict=True)):
        kernels = counted_kernels(case, switches, stage=stage)
        # the term is a difference of two sums with the accelerator's time, whose last digit is lost
        lost = ROUNDING * case.micro_batches * pass_seconds(after, micro_batches=case.micro_batches)
        expected = case.micro_batches * kernels * seconds
        assert after.launch_seconds == pytest.approx(expected, rel=ROUNDING, abs=lost)
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        assert before.launch_seconds == before.accumulation_seconds == before.overhead_seconds == 0


def busy_accelerator(time: StepTime) -> float:
    """Seconds in which the accelerator is busy: what it computes, and collectives that it waits for."""
    return math.fsum(time[:6]) + time.launch_seconds


@given(cases(), machines(), SWITCHES, st.floats(0.01, 1.0))
def test_a_host_that_keeps_up_costs_at_most_the_smooth_maximums_bound(
    case: Case, machine: Machine, switches: dict[str, int], share: float
) -> None:
    # a slower pass would hide more traffic
    machine = having(machine, **switches, kernel_seconds=1e-6, overlap_share=0.0)
    for stage, before in enumerate(stage_times(case, machine)):
        accelerator = busy_accelerator(before) / case.micro_batches
        host = share * accelerator
        each = host / counted_kernels(case, switches, stage=stage, collective=2)
        after = stage_times(case, having(machine, launch_seconds=each))[stage]
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        more = (after.launch_seconds - before.launch_seconds) / case.micro_batches
        # sums of some dozens of terms are subtracted from each other
        lost = ROUNDING * accelerator
        assert more == pytest.approx(math.hypot(1, share**4) ** 0.25 * accelerator - accelerator, rel=0, abs=lost)
        assert -lost <= more <= (2 ** (1 / 8) - 1) * accelerator + lost
        if share <= 0.5:
            assert more <= accelerator / (8 * 2**8) + lost  # (1 + x)^(1/8) <= 1 + x / 8


@given(cases(), machines(), SWITCHES)
def test_a_host_a_thousand_times_slower_decides_alone(case: Case, machine: Machine, switches: dict[str, int]) -> None:
    machine = having(machine, **switches, kernel_seconds=1e-6)
    for stage, before in enumerate(stage_times(case, machine)):
        kernels = counted_kernels(case, switches, stage=stage, collective=2)
        each = 1000 * busy_accelerator(before) / case.micro_batches / kernels
        after = stage_times(case, having(machine, launch_seconds=each))[stage]
        # the accelerator's share is 1000^-8 / 8, far below a rounding
        assert busy_accelerator(after) == pytest.approx(case.micro_batches * kernels * each, rel=ROUNDING, abs=0)


@given(cases(), machines(), SWITCHES, st.floats(1e-9, 1e-3))
def test_a_host_that_waits_at_every_recomputed_layer_adds_its_whole_time(
    case: Case, machine: Machine, switches: dict[str, int], seconds: float
) -> None:
    machine = having(machine, **switches, launch_seconds=seconds, overlap_share=0.0)
    waiting = stage_times(case, having(machine, synchronises_layers=True))
    for stage, (before, after) in enumerate(zip(stage_times(case, machine), waiting, strict=True)):
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        waits = case.layout.recomputation is not Recomputation.NONE
        host = waits * case.micro_batches * counted_kernels(case, switches, stage=stage, collective=2) * seconds
        lost = ROUNDING * busy_accelerator(after)
        assert after.launch_seconds - before.launch_seconds == pytest.approx(host, rel=ROUNDING, abs=lost)


# a gradient as the backward pass leaves it, and reading and writing the sum
ACCUMULATED_BYTES = {
    Precision.FP32: 4 + 4 + 4,
    Precision.BF16: 2 + 4 + 4,
    Precision.FP16: 2 + 2 + 2,
    Precision.FP16_GRADIENT_COPY: 2 + 2 + 2,
    Precision.FP16_NO_MASTER: 2 + 2 + 2,
    Precision.BF16_PURE: 2 + 2 + 2,
}


@given(cases(), machines(), st.booleans(), st.sampled_from(Accumulation))
def test_gradients_are_added_up_once_a_micro_batch_where_no_product_does_it(
    case: Case, machine: Machine, single: bool, accumulation: Accumulation
) -> None:
    if single:
        case = changed(case, pipeline_stages=1, virtual_stages=1)._replace(micro_batches=1)
    architecture, recipe, layout, micro_batches = case
    plain = stage_times(case, machine)
    added = stage_times(case, having(machine, accumulation=accumulation))
    always = accumulation is Accumulation.SEPARATE_ALWAYS
    times = micro_batches if always or (accumulation is Accumulation.SEPARATE and micro_batches > 1) else 0
    for stage, (before, after) in enumerate(zip(plain, added, strict=True)):
        parameters = rank_parameters(architecture, layout, stage=stage).all
        moved = times * ACCUMULATED_BYTES[recipe.precision] * parameters
        seconds = moved / machine.achievable_memory_bytes_per_second
        assert after.accumulation_seconds == pytest.approx(seconds, rel=ROUNDING, abs=0)
        assert but(after, "accumulation_seconds") == but(before, "accumulation_seconds")


@given(cases(), machines(), st.integers(1, 8))
def test_pieces_that_overlap_expose_one_of_them(case: Case, machine: Machine, chunks: int) -> None:
    whole, pieces = stage_times(case, machine), stage_times(case, having(machine, tensor_parallel_chunks=chunks))
    layout = case.layout
    cut = layout.sequence_parallel and layout.tensor_parallel <= machine.accelerators_per_node
    for before, after in zip(whole, pieces, strict=True):
        exposed = before.tensor_parallel_seconds / (chunks if cut else 1)
        assert after.tensor_parallel_seconds == pytest.approx(exposed, rel=ROUNDING, abs=0)
        assert but(after, "tensor_parallel_seconds") == but(before, "tensor_parallel_seconds")


@given(cases(), machines())
def test_messages_to_the_next_stage_that_overlap_take_no_time_where_stages_interleave(
    case: Case, machine: Machine
) -> None:
    hidden = stage_times(case, having(machine, overlaps_pipeline=True))
    for before, after in zip(stage_times(case, machine), hidden, strict=True):
        assert (before.pipeline_seconds > 0) == (case.layout.pipeline_stages > 1)
        assert after.pipeline_seconds == (0 if case.layout.virtual_stages > 1 else before.pipeline_seconds)
        assert but(after, "pipeline_seconds") == but(before, "pipeline_seconds")


def test_a_stack_that_overlaps_experts_hides_their_messages_in_proportion_to_the_share() -> None:
    architecture = msgspec.structs.replace(BLOOM.architecture, layers=2, experts=8, experts_per_token=2)
    case = Case(architecture, BLOOM.recipe, Layout(data_parallel=8, expert_parallel=8), 4)

    def exposed(share: float, *, overlaps: bool) -> float:
        (time,) = stage_times(case, having(A100, overlap_share=share, overlaps_experts=overlaps))
        return time.expert_parallel_seconds

    whole = exposed(0.0, overlaps=True)
    assert whole > 0
    assert exposed(0.5, overlaps=False) == whole
    hidden = whole - exposed(1e-4, overlaps=True)
    assert hidden > 0
    assert whole - exposed(2e-4, overlaps=True) == pytest.approx(2 * hidden, rel=1e-9)
    assert exposed(1.0, overlaps=True) == 0


@given(cases(), machines())
def test_a_stack_that_does_not_overlap_exposes_all_data_parallel_traffic(case: Case, machine: Machine) -> None:
    architecture, recipe, layout, micro_batches = case
    machine = having(machine, overlaps_data_parallel=False, overlap_share=1.0)
    groups = axis_groups(layout, machine)
    for stage, time in enumerate(stage_times(case, machine)):
        entries = step_traffic(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        seconds = math.fsum(
            collective_seconds(operation, groups[axis], payload_bytes=payload, messages=messages)
            for axis, operation, payload, messages in entries
            if axis in ("dp", "shard", "replicate")
        )
        assert time.data_parallel_seconds == pytest.approx(seconds, rel=ROUNDING, abs=0)


@given(cases(), machines(), st.sampled_from([0.0, 0.1]))
def test_one_ring_makes_a_group_between_nodes_as_slow_as_one_rank_a_node(
    case: Case, machine: Machine, contention: float
) -> None:
    machine = having(machine, network_contention=contention)
    ringed, layout = axis_groups(case.layout, having(machine, one_ring=True)), case.layout
    for axis, inside in axes_in_node(layout, accelerators_per_node=machine.accelerators_per_node).items():
        ranks = group_ranks(layout, axis)
        if inside >= ranks:
            assert ringed[axis] == axis_groups(layout, machine)[axis]
            assert ringed[axis].latency_seconds == machine.link_latency_seconds
        else:
            share = machine.achievable_network_bytes_per_second / machine.accelerators_per_node
            rate = min(machine.achievable_link_bytes_per_second, share / (1 + contention * math.log2(ranks)))
            assert ringed[axis] == pytest.approx((ranks, rate, machine.network_latency_seconds), rel=ROUNDING, abs=0)


@given(machines(), st.integers(0, 10), st.integers(0, 6), st.floats(0, 1))
def test_a_network_is_slower_with_every_doubling_of_the_nodes(
    machine: Machine, doublings: int, ranks_in_node: int, contention: float
) -> None:
    machine = having(machine, link_bytes_per_second=math.inf)
    sizes = {"ranks": 2 ** (doublings + ranks_in_node), "ranks_in_node": 2**ranks_in_node}
    free, contended = group(machine, **sizes), group(having(machine, network_contention=contention), **sizes)
    slower = free.bytes_per_second / (1 + contention * doublings)
    assert contended == pytest.approx(free._replace(bytes_per_second=slower), rel=ROUNDING, abs=0)


@given(cases(), machines(), st.floats(0, 10))
def test_the_overhead_comes_once_a_step(case: Case, machine: Machine, seconds: float) -> None:
    plain, more = time_of(case, machine), time_of(case, having(machine, step_overhead_seconds=seconds))
    assert more == plain._replace(overhead_seconds=seconds)
    assert more.total_seconds == pytest.approx(plain.total_seconds + seconds, rel=ROUNDING, abs=0)


NUMBERS = {
    "matrix_saturation": (0.0, 1000.0),
    "misalignment": (1.0, 4.0),
    "kernel_seconds": (0.0, 1e-3),
    "launch_seconds": (0.0, 1e-3),
    "residual_passes": (0.1, 10.0),
    "inner_passes": (0.1, 10.0),
    "score_passes": (0.1, 10.0),
    "loss_passes": (0.1, 50.0),
    "update_passes": (0.1, 10.0),
    "network_contention": (0.0, 1.0),
    "step_overhead_seconds": (0.0, 1.0),
    "expert_slowdown": (1.0, 2.0),
    "overlap_cost": (0.0, 1.0),
}


FASTER = {  # the more, the faster
    **dict.fromkeys(("product_overlap", "score_product_overlap", "format_efficiency"), (0.05, 1.0)),
    "usual_network_bytes_per_second": (1e8, 1e12),
}


COUNTS = ("layer_kernels", "head_kernels")


# switch -> the faster choice, the slower one
SWITCHED: dict[str, tuple[object, object]] = {
    "fused_bias": (True, False),
    "fused_rotary": (True, False),
    "loss_share": (0.3, 1.0),
    "accumulation": (Accumulation.IN_PRODUCT, Accumulation.SEPARATE_ALWAYS),
    "tensor_parallel_chunks": (4, 1),
    "transformer_engine": (True, False),
    "overlaps_data_parallel": (True, False),
    "overlaps_pipeline": (True, False),
    "synchronises_layers": (False, True),
    "one_ring": (False, True),
    "overlaps_gathers": (True, False),
    "reduces_in_16_bit": (True, False),
    "gathers_in_format": (True, False),
    "overlaps_input_gradients": (True, False),
    "context_parallel": (ContextParallel.RING, ContextParallel.GATHERED),
    "overlaps_experts": (True, False),
    "sends_once_to_nodes": (True, False),
}


def test_every_number_and_switch_of_the_step_is_among_those_that_never_make_it_faster() -> None:
    new = set(Machine.__struct_fields__[-len(Machine.__struct_defaults__) :])
    # more overlap and more flop per second are faster; what the peak rests on changes no time, and the link to the host
    # that of an offloaded optimizer alone; kernels change memory alone; slow exponentials are slower with heads below
    # 128, and relatively faster above
    peaks = {"peak_is_measured", "product_peak_flop_per_second", "host_bytes_per_second", "kernels", "exponential_flop"}
    # what reaches other memories hides messages, and then reads weights once for each piece of a product
    assert new == {*NUMBERS, *peaks, "stack", *FASTER, "direct_link"}
    # two others choose other numbers: libraries, the attention kernel; the third is the host's time or none; modules
    # say how things are written, see test_layer_time.py; the last changes memory alone
    others = {"generation", "attention", "python_launches", "modules", "fp32_shards"}
    assert set(PLAIN.__struct_fields__) == {*SWITCHED, *COUNTS, *others}


@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS, *SWITCHED, *FASTER])
@examples(25)
@given(cases(), machines(), st.data())
def test_more_of_it_never_makes_a_step_faster(name: str, case: Case, machine: Machine, data: st.DataObject) -> None:
    host = data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    # Computation's share of a pass hides traffic, and beside a slow host more computation is a larger share of a pass
    # that takes no longer: the law holds without overlap alone.
    machine = having(machine, kernel_seconds=1e-6, launch_seconds=host, overlap_share=0.0 if host else 1.0)
    if name in SWITCHED:
        less, more = SWITCHED[name]
    elif name in COUNTS:
        less, more = sorted(data.draw(st.lists(st.integers(1, 100), min_size=2, max_size=2)))
    else:
        bounds = (NUMBERS | FASTER)[name]
        less, more = sorted(data.draw(st.lists(st.floats(*bounds), min_size=2, max_size=2)))
        if name in FASTER:
            less, more = more, less
    fast, slow = (time_of(case, having(machine, **{name: value})).total_seconds for value in (less, more))
    assert fast <= slow * (1 + ROUNDING)


def without_v(case: Case) -> Case:
    """The case with another schedule where its own has two chunks a stage, in the shape of a V."""
    return changed(case, schedule=Schedule.ONE_F_ONE_B) if case.layout.schedule.shape_of_v else case


@given(cases(), machines())
def test_counted_layers_are_those_that_the_assignment_deals(case: Case, machine: Machine) -> None:
    case = changed(without_v(case), virtual_stages=1)
    dealt = chunk_layers(case.architecture.layers, case.layout)
    counted = changed(case, stage_layer_counts=tuple(len(layers) for layers in dealt))
    assert chunk_layers(case.architecture.layers, counted.layout) == dealt
    assert stage_times(counted, machine) == stage_times(case, machine)


@given(cases(), machines(), st.data())
def test_a_step_of_counted_layers_is_the_slowest_of_all_its_stages(
    case: Case, machine: Machine, data: st.DataObject
) -> None:
    stages, left, counts = case.layout.pipeline_stages, case.architecture.layers, []
    for _ in range(stages - 1):
        counts.append(data.draw(st.integers(0, left)))
        left -= counts[-1]
    # with every term that a micro-batch has: the other stages' are what the slowest one waits for
    machine = having(
        machine,
        kernel_seconds=data.draw(st.sampled_from([0.0, 1e-6, 1e-3])),
        launch_seconds=data.draw(st.sampled_from([0.0, 1e-6, 1e-3])),
        accumulation=data.draw(st.sampled_from(Accumulation)),
        synchronises_layers=data.draw(st.booleans()),
        overlaps_pipeline=data.draw(st.booleans()),
        tensor_parallel_chunks=data.draw(st.sampled_from([1, 4])),
    )
    case = changed(case, virtual_stages=1, stage_layer_counts=(*counts, left))
    longest = max(time.total_seconds for time in waiting_stages(case, machine))
    assert time_of(case, machine).total_seconds == pytest.approx(longest, rel=ROUNDING, abs=0)


ARRAYS = (
    "memory_efficiency",
    "fused_attention_efficiency",
    "link_efficiency",
    "link_latency_seconds",
    "network_efficiency",
    "network_latency_seconds",
    "overlap_share",
)


@given(cases(), machines(), SWITCHES, st.data())
def test_arrays_of_parameters_give_what_each_number_gives(
    case: Case, machine: Machine, switches: dict[str, int], data: st.DataObject
) -> None:
    case = changed(case, schedule=data.draw(st.sampled_from([Schedule.ONE_F_ONE_B, case.layout.schedule])))
    switched = {
        name: data.draw(st.sampled_from(choices), label=name)
        for name, choices in SWITCHED.items()
        if name not in ("loss_share",)
    }
    machine = having(machine, **switches, **switched)
    points = 3
    shares, seconds = st.floats(0.05, 1.0), st.floats(1e-9, 1e-3)
    draws = {name: seconds if name.endswith("seconds") else shares for name in ARRAYS}
    draws |= {name: st.floats(*bounds) for name, bounds in NUMBERS.items()}
    drawn = {name: data.draw(st.lists(each, min_size=points, max_size=points)) for name, each in draws.items()}
    efficiency = data.draw(st.lists(shares, min_size=points, max_size=points))
    table = EfficiencyTable((1.0,), (1.0,), (1.0,), (((numpy.array(efficiency),),),))
    columns = {name: numpy.array(values) for name, values in drawn.items()}
    together = time_of(case, having(machine, matrix_efficiency=table, **columns))
    for place in range(points):
        numbers = {name: values[place] for name, values in drawn.items()}
        alone = time_of(case, having(machine, matrix_efficiency=flat_efficiency(efficiency[place]), **numbers))
        swept = StepTime(*(float(numpy.broadcast_to(term, points)[place]) for term in together))
        assert swept.total_seconds == pytest.approx(alone.total_seconds, rel=ROUNDING, abs=0)
        if case.layout.pipeline_stages == 1:
            # NumPy rounds powers and logarithms on its own; the launch term is a difference of longer times
            lost = ROUNDING * alone.total_seconds
            assert swept == pytest.approx(alone, rel=ROUNDING, abs=lost)


@given(cases(), machines(), st.floats(1e-9, 1e-3))
def test_waiting_for_the_host_hides_traffic_too(case: Case, machine: Machine, seconds: float) -> None:
    machine = having(machine, overlap_share=1.0, overlaps_data_parallel=True, kernel_seconds=1e-6)
    for before, after in zip(
        stage_times(case, machine), stage_times(case, having(machine, launch_seconds=seconds)), strict=True
    ):
        # the same traffic, and a pass that takes as long or longer
        assert after.data_parallel_seconds <= before.data_parallel_seconds * (1 + ROUNDING)


def test_casts_take_inputs_and_gradients_of_every_micro_batch_and_weights_once() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, product_format=ProductFormat.FP8_CURRENT)
    layout = Layout(recomputation=Recomputation.NONE, micro_batch=2)
    workload = Workload(BLOOM.architecture, recipe, layout)
    casts = layer_casts(workload)
    assert min(casts.inputs, casts.gradients, casts.weights) > 0
    moved = BLOOM.architecture.layers * (7 * (casts.inputs + casts.gradients) + casts.weights)
    machine = msgspec.structs.replace(A100, product_peak_flop_per_second=A100.peak_flop_per_second)
    seconds = time_of(Case(*workload, 7), machine).cast_seconds
    assert seconds == pytest.approx(moved / A100.achievable_memory_bytes_per_second, rel=ROUNDING)


def test_kernels_of_casts_are_of_four_inputs_a_forward_pass_and_four_gradients() -> None:
    forwards = {Recomputation.NONE: 1, Recomputation.SELECTIVE: 1, Recomputation.FULL: 2}
    for recomputation, passes in forwards.items():
        for product_format, each in ((ProductFormat.FP8_DELAYED, 1), (ProductFormat.FP8_CURRENT, 2)):
            layout = Layout(recomputation=recomputation)
            in_8_bit = msgspec.structs.replace(BLOOM.recipe, product_format=product_format)
            plain, casting = (
                stage_kernels(Workload(BLOOM.architecture, recipe, layout), A100, stage=0)
                for recipe in (BLOOM.recipe, in_8_bit)
            )
            assert casting - plain == each * BLOOM.architecture.layers * (4 * passes + 4)


def mixture(*, experts: int, shared: int = 0) -> Architecture:
    """BLOOM's shape with experts in place of its feed-forward parts."""
    routed = {"experts": experts, "experts_per_token": 2, "shared_experts": shared, "feed_forward_bias": False}
    return msgspec.structs.replace(BLOOM.architecture, **routed)


def test_a_layer_with_experts_launches_products_of_each_of_them() -> None:
    layout, layers = Layout(expert_parallel=2), BLOOM.architecture.layers

    def kernels(experts: int, shared: int = 0, recipe: Recipe = BLOOM.recipe) -> float:
        workload = Workload(mixture(experts=experts, shared=shared), recipe, layout)
        return stage_kernels(workload, A100, stage=0)

    dense = stage_kernels(Workload(BLOOM.architecture, BLOOM.recipe, Layout()), A100, stage=0)
    # of one expert a rank: what routes, and two exchanges; forward once, backward twice
    assert kernels(2) - dense == 3 * layers * (15 + 2)
    assert kernels(32) - kernels(2) == 3 * layers * 2 * 15
    assert kernels(32, shared=1) - kernels(32) == 3 * layers * 2
    casting = msgspec.structs.replace(BLOOM.recipe, product_format=ProductFormat.FP8_DELAYED)
    # inputs of attention's two products and of 2 of each of 16 experts; as many gradients
    assert kernels(32, recipe=casting) - kernels(32) == 2 * layers * (2 + 2 * 16)


def test_a_token_that_goes_once_to_each_node_takes_less_of_the_network_and_no_less_inside_one() -> None:
    shape = mixture(experts=64)
    for ranks, faster in ((8, False), (32, True)):
        case = Case(shape, BLOOM.recipe, Layout(expert_parallel=ranks), 1)
        once, each = (
            time_of(case, having(A100, sends_once_to_nodes=how)).expert_parallel_seconds for how in (True, False)
        )
        assert (once < each) == faster
        assert faster or once == each


def test_recomputation_repeats_attention_or_whole_layers() -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, layers=5)
    kept, selective, full = (
        Workload(shape, BLOOM.recipe, Layout(recomputation=one))
        for one in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    )
    layer, plain = layer_time(kept, A100), time_of(Case(*kept, 3), A100)
    assert 0 < layer.attention_operator_seconds < layer.operator_seconds
    for workload, products, operators in (
        (selective, layer.attention_seconds, layer.attention_operator_seconds),
        (full, layer.forward_seconds, layer.operator_seconds),
    ):
        time = time_of(Case(*workload, 3), A100)
        assert time.recomputation_seconds == pytest.approx(3 * 5 * products, rel=ROUNDING)
        assert time.operator_seconds - plain.operator_seconds == pytest.approx(3 * 5 * operators, rel=1e-9)
        assert (time.forward_seconds, time.backward_seconds) == (plain.forward_seconds, plain.backward_seconds)


@pytest.mark.parametrize(
    ("name", "copied"), [("pytorch", 0), ("transformers", 14), ("this-suite", 14), ("torchtitan", 14)]
)
def test_fsdp2_copies_what_is_gathered_twice_and_gradients_once(name: str, copied: int) -> None:
    """bf16: two gathers of 2 bytes, read and written; gradients of 2 bytes written as 4."""
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.BF16)
    for zero_stage, expected in ((3, copied), (2, 0)):
        workload = Workload(BLOOM.architecture, recipe, Layout(data_parallel=8, zero_stage=zero_stage))
        assert shard_copies_bytes(workload, stack(name).switches, parameters=3) == 3 * expected
