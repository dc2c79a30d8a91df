"""Tensor-parallel messages of Transformer Engine's layers: what hides is what a walk over a layer's methods says."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.placement import head_stage
from reference_runs.run import Precision, ProductFormat, Residual, Workload
from reference_runs.stack import stack
from suite.predict.analytic.exposed_messages import (
    exposed_dtensor_seconds,
    exposed_tensor_parallel_shares,
    narrow_gathers_share,
    tensor_parallel_factors,
)
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.layer_time import split_product_seconds
from suite.predict.analytic.machine import PLAIN, Machine
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.traffic import step_traffic
from suite.predict.machine_model.model import machine_model, modelled_machine
from tests.support.machines import A100, Case, cases, machines
from tests.support.steps import bloom, changed, time_of

BULK = Fraction(16, 132)
# Transformer Engine, initialize_ub: layer and pass -> method; dgrad's collective is next to the product of the weights'
# gradient or of the inputs', see `exposed_tensor_parallel_shares`
METHODS = {
    "ring_exchange": ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"),
    "pipeline": ("proj_fprop", "fc2_fprop"),
    "bulk": ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"),
}


def of_core(machine: Machine, **switches: object) -> Machine:
    switched = msgspec.structs.replace(machine.stack, transformer_engine=True, **switches)
    return msgspec.structs.replace(machine, stack=switched)


def exposed_of(method: str, pieces: int) -> Fraction:
    return {"ring_exchange": Fraction(0), "pipeline": Fraction(1, pieces), "bulk": BULK}[method]


def method_of(name: str) -> str:
    return next(method for method, names in METHODS.items() if name in names)


@given(cases(), machines(), st.integers(2, 8))
def test_shares_are_those_of_the_methods_of_a_layers_collectives(case: Case, machine: Machine, pieces: int) -> None:
    case = changed(case, sequence_parallel=True)
    workload, layout = Workload(*case[:3]), case.layout
    machine = of_core(machine, tensor_parallel_chunks=pieces)
    if layout.tensor_parallel > machine.accelerators_per_node:
        return
    parallel = case.architecture.residual is Residual.PARALLEL
    inputs, outputs = ("qkv", "fc1"), ("fc2",) if parallel else ("proj", "fc2")
    for stage in range(layout.pipeline_stages):
        layers = stage_layers(case.architecture, layout, stage=stage)
        again = repeated_layers(layout.recomputation, layers)
        first, last = stage == 0, stage == head_stage(layout)
        gathers = [Fraction(1)] * (first + 2 * last)
        scatters = [Fraction(1)] * (first + last)
        # a layer counts as often as it runs, and a group's recomputation may stop in its midst
        for times, collected, names in (
            (layers + again, gathers, [f"{name}_fprop" for name in inputs]),
            (layers, gathers, [f"{name}_dgrad" for name in inputs]),  # gathered again
            (layers, gathers, [f"{name}_dgrad" for name in outputs]),  # gradients
            (layers + again, scatters, [f"{name}_fprop" for name in outputs]),
            (layers, scatters, [f"{name}_wgrad" for name in inputs]),
        ):
            assert times == int(times)
            for name in names:
                collected += [exposed_of(method_of(name), pieces)] * int(times)
        shares = exposed_tensor_parallel_shares(workload, machine, stage=stage)
        assert shares.gathers == pytest.approx(float(sum(gathers) / max(len(gathers), 1)), rel=1e-12)
        assert shares.scatters == pytest.approx(float(sum(scatters) / max(len(scatters), 1)), rel=1e-12)
        assert shares.sums == 1
        if layout.tensor_parallel > 1:  # as many messages as the traffic has
            messages = {
                operation: number
                for axis, operation, _, number in step_traffic(workload, stage=stage, micro_batches=1)
                if axis == "tp"
            }
            assert messages.get("all_gather", 0) == len(gathers)
            assert messages.get("reduce_scatter", 0) == len(scatters)


@given(cases(), machines(), st.booleans())
def test_input_gradients_hide_next_to_the_product_that_does_not_need_them(
    case: Case, machine: Machine, splits: bool
) -> None:
    """Each layer's input gathered again and its gradient scattered or all-reduced, but for multiprocessors."""
    workload = Workload(*changed(case, sequence_parallel=splits)[:3])
    switched = msgspec.structs.replace(
        machine.stack, transformer_engine=False, tensor_parallel_chunks=1, overlaps_input_gradients=True
    )
    machine = msgspec.structs.replace(machine, stack=switched)
    inputs = 1 if case.architecture.shared_norm else 2
    for stage in range(case.layout.pipeline_stages):
        shares = exposed_tensor_parallel_shares(workload, machine, stage=stage)
        layers = stage_layers(case.architecture, case.layout, stage=stage)
        hidden = (1 - float(BULK)) * inputs * layers
        traffic = step_traffic(workload, stage=stage, micro_batches=1)
        size = 2 if case.recipe.precision != "fp32" else 4
        least = size * case.layout.micro_batch * case.architecture.sequence // case.layout.context_parallel
        numbers = {
            operation: number
            for axis, operation, sent, number in traffic
            if axis == "tp" and sent >= number * least  # of hidden states, not the sums of cross-entropy
        }
        found = {"all_gather": shares.gathers, "reduce_scatter": shares.scatters}
        for operation, share in found.items() if splits else ():
            if number := numbers.get(operation, 0):
                assert share == pytest.approx(1 - hidden / number, rel=1e-12)
        assert 0 < min(shares) <= max(shares) <= 1
        assert (shares.sums == 1) if splits else (shares.gathers == shares.scatters == 1)


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("network", [1e9, 5e9, 1e12])
def test_over_a_slow_network_what_is_longer_than_the_products_is_exposed(network: float, splits: bool) -> None:
    """tp 16 on nodes of 8: products of 14336 x 2688 and 14336 x 3584 of a layer hide no more than they take.

    With sequence parallelism gathers and scatters, each as many seconds as they take; without it all-reduces alone.
    """
    case = changed(bloom(), tensor_parallel=16, data_parallel=1, sequence_parallel=splits)
    machine = msgspec.structs.replace(A100, network_bytes_per_second=network, network_efficiency=1.0)

    def seconds(overlaps: bool) -> float:
        switched = msgspec.structs.replace(PLAIN, overlaps_input_gradients=overlaps)
        return time_of(case, msgspec.structs.replace(machine, stack=switched)).tensor_parallel_seconds

    tokens, hidden, layers = 2 * 2048, 14336, 6
    products = 2 * tokens * hidden * (3 * hidden + 4 * hidden) / 16 / (0.75 * 312e12)
    most = case.micro_batches * layers * products * (2 if splits else 1)
    saved = seconds(False) - seconds(True)
    if network < 1e11:
        assert saved == pytest.approx(most, rel=1e-9)
        assert seconds(True) > 0.5 * seconds(False)
    else:
        assert 0 < saved < 0.7 * most


def test_messages_around_experts_are_whole() -> None:
    """Two thirds of the bytes of Mixtral's layers, with 2 experts a token, are around experts."""
    run = reference_run("mixtral-8x7b")
    layout = Layout(tensor_parallel=8, sequence_parallel=True)
    machine = msgspec.structs.replace(A100, stack=msgspec.structs.replace(PLAIN, overlaps_input_gradients=True))
    shares = exposed_tensor_parallel_shares(Workload(run.architecture, run.recipe, layout), machine, stage=0)
    layers = run.architecture.layers
    hidden = (1 - float(BULK)) / 3 * 2 * layers
    assert shares.gathers == pytest.approx(1 - hidden / (6 * layers + 3), rel=1e-12)
    assert shares.scatters == pytest.approx(1 - hidden / (4 * layers + 2), rel=1e-12)


@given(cases(), machines(), st.booleans())
def test_nothing_hides_without_sequence_parallelism_over_nodes_or_without_a_direct_link(
    case: Case, machine: Machine, engine: bool
) -> None:
    def shares(machine: Machine, **changes: object) -> object:
        return exposed_tensor_parallel_shares(Workload(*changed(case, **changes)[:3]), machine, stage=0)

    machine = of_core(machine, tensor_parallel_chunks=4)
    assert shares(machine, sequence_parallel=False) == (1, 1, 1)
    wide = 2 * machine.accelerators_per_node
    assert shares(machine, sequence_parallel=True, tensor_parallel=wide) == (1, 1, 1)
    software = machine.stack if engine else msgspec.structs.replace(PLAIN, tensor_parallel_chunks=4)
    apart = msgspec.structs.replace(machine, direct_link=False, stack=software)
    assert shares(apart, sequence_parallel=True) == (1, 1, 1)


def test_messages_over_pcie_are_exposed_whole_on_every_accelerator() -> None:
    """Llama 3.1 8B at tp4 moves 1,060 GB a step, 33 s at 32 GB/s: more than the 6.7 s of a link that hides them."""
    run = reference_run("llama3.1-8b")
    layout = Layout(tensor_parallel=4, sequence_parallel=True, fused_attention=True)
    wrong = {}
    for name in accelerator_names():
        device = accelerator(name)
        precision = next(Precision(dtype) for dtype in ("bf16", "fp16", "fp32") if dtype in device.peak_flop_per_second)
        machine = modelled_machine(
            machine_model(),
            machine_model().values(),
            device=device,
            software=stack("megatron-core").switches,
            precision=precision,
            product_format=ProductFormat.NONE,
            network_bytes_per_second=None,
            accelerators_per_node=8,
        )
        shares = exposed_tensor_parallel_shares(Workload(run.architecture, run.recipe, layout), machine, stage=0)
        whole = "PCIe" in device.board.link or name == "this-cpu"
        if not (shares == (1, 1, 1) if whole else max(shares.gathers, shares.scatters) < 0.3):
            wrong[name] = shares
    assert wrong == {}


@pytest.mark.parametrize("product_format", ProductFormat)
@given(case=cases(), machine=machines())
def test_gathers_alone_are_as_narrow_as_the_products_that_read_them(
    product_format: ProductFormat, case: Case, machine: Machine
) -> None:
    recipe = msgspec.structs.replace(case.recipe, product_format=product_format)
    workload = Workload(case.architecture, recipe, case.layout)
    assert narrow_gathers_share(workload, stack("generic").switches) == 1
    wide = 4 if recipe.precision == "fp32" else 2
    narrow = {"none": wide, "fp8-blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
    expected = narrow.get(product_format, 1) / wide
    assert narrow_gathers_share(workload, stack("megatron-core").switches) == pytest.approx(expected, rel=1e-12)
    machine = of_core(machine, tensor_parallel_chunks=4)
    shares = exposed_tensor_parallel_shares(workload, machine, stage=0)
    assert tensor_parallel_factors(workload, machine, stage=0) == {
        "all_gather": shares.gathers * narrow_gathers_share(workload, machine.stack),
        "reduce_scatter": shares.scatters,
        "all_reduce": shares.sums,
    }


INPUTS, OUTPUTS = ("query, key, value", "expansion"), ("projection", "contraction")
# Messages of a layer of torchtitan by the product beside each, none where a sum stands between them: gathers, scatters
DTENSOR = {
    Recomputation.NONE: ((*INPUTS, *OUTPUTS), (*OUTPUTS, None, None)),
    Recomputation.SELECTIVE_OP: ((*INPUTS, *INPUTS, *OUTPUTS), (*OUTPUTS, None, None)),
    Recomputation.FULL: ((*INPUTS, *INPUTS, *OUTPUTS), (*OUTPUTS, "projection", None, None)),
}


@pytest.mark.parametrize("product_format", ["none", "fp8-current"])
@pytest.mark.parametrize("pieces", [1, 8])
@pytest.mark.parametrize("recomputation", DTENSOR)
def test_messages_of_torchtitan_hide_beside_one_product_each(
    recomputation: Recomputation, pieces: int, product_format: str
) -> None:
    run = reference_run("llama3.1-70b")
    layout = Layout(
        tensor_parallel=8, sequence_parallel=True, micro_batch=2, fused_attention=True, recomputation=recomputation
    )
    recipe = msgspec.structs.replace(run.recipe, product_format=ProductFormat(product_format))
    workload = Workload(run.architecture, recipe, layout)
    titan = msgspec.structs.replace(stack("torchtitan-compiled").switches, tensor_parallel_chunks=pieces)
    machine = msgspec.structs.replace(A100, stack=titan, product_peak_flop_per_second=2 * A100.peak_flop_per_second)
    products = split_product_seconds(workload, machine)
    moved = 2 * run.architecture.sequence * run.architecture.hidden * 2 / A100.achievable_memory_bytes_per_second
    narrow = 0.5 if product_format != "none" else 1.0
    layers, sent = run.architecture.layers, 1.5 * products["projection"][0]

    def found(operation: str, counted: int) -> float:
        return exposed_dtensor_seconds(workload, machine, 0, 3, operation, 3 * counted * sent) / 3

    def exposed(part: str | None, *, share: float, summed: float) -> float:
        if pieces == 1 or part is None:
            return share * (sent + 2 * moved)
        return max(share * sent - 7 / 8 * products[part][0], 0.0) + summed

    gathers, scatters = DTENSOR[recomputation]
    gathered = sum(exposed(part, share=narrow, summed=0.0) for part in gathers)
    scattered = sum(exposed(part, share=1.0, summed=9 / 8 * moved) for part in scatters)
    ends, again = 2 * (sent + 2 * moved), 2 * (recomputation is not Recomputation.NONE)
    assert found("all_gather", (6 + again) * layers + 3) == pytest.approx(layers * gathered + ends, rel=1e-12)
    assert found("reduce_scatter", (4 + again) * layers + 2) == pytest.approx(layers * scattered + ends, rel=1e-12)
    assert exposed_dtensor_seconds(workload, machine, 0, 3, "all_reduce", 2.0) == 2.0
