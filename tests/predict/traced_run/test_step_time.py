"""Seconds of a traced step are made of the terms that formulas have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.layout import Layout
from reference_runs.run import Precision
from suite.job.events import CountedCollective
from suite.job.operators import OperatorKind, TracedOperator, TracePhase
from suite.job.trace_job import ModelSource, Sharding, TraceJob
from suite.predict.analytic.collective_time import collective_seconds, group
from suite.predict.analytic.exposed_messages import exposed_data_parallel_seconds
from suite.predict.analytic.gemm import ProductTables, gemm_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.machine_model.from_profile import profiled_operators
from suite.predict.machine_model.model import run_machine
from suite.predict.traced_run.operator_time import OperatorRates, operator_seconds
from suite.predict.traced_run.step_time import traced_time
from tests.predict.machine_model.test_from_profile import measured

TOKENS, WIDTH = 4096, 8192
FP32 = 6e13


def h100(**changes: Any) -> Machine:
    named = run_machine(None, Precision.BF16, ranks=8, accelerator_name="h100-sxm", stack_name="pytorch")
    assert named is not None
    assert named.machine is not None
    return msgspec.structs.replace(named.machine, **changes)


def rates(machine: Machine, **changes: Any) -> OperatorRates:
    return OperatorRates(machine, fp32_flop_per_second=FP32, is_fp32=False, causal=True, tokens=TOKENS)._replace(
        **changes
    )


def call(kind: OperatorKind, **changes: Any) -> TracedOperator:
    values: dict[str, Any] = {"operator": "aten.add", "phase": TracePhase.FORWARD, "module": "layers.*", "sizes": ()}
    values |= {"dtype": "bfloat16", "calls": 1, "flop": 0, "read_bytes": 0, "written_bytes": 0}
    return TracedOperator(kind=kind, **(values | changes))


def product(M: int, N: int, K: int, **changes: Any) -> TracedOperator:
    sizes = ((M, K), (K, N))
    return call(OperatorKind.GEMM, operator="aten.mm", sizes=sizes, flop=2 * M * N * K, **changes)


def test_a_product_takes_what_the_formula_says_of_its_shape_and_dtype() -> None:
    machine = h100()

    def seconds(M: int, N: int, K: int, width: int, peak: float) -> float:
        memory, table = machine.achievable_memory_bytes_per_second, machine.matrix_efficiency
        assert not isinstance(table, ProductTables)
        both = (machine.matrix_saturation, machine.product_overlap)
        return gemm_seconds(M, N, K, width, table, peak, memory, *both)

    peak, shape = machine.peak_flop_per_second, (TOKENS, WIDTH, WIDTH)
    odd = (TOKENS, 50257, WIDTH)
    expected = {
        "16 bits": (product(*shape), rates(machine), seconds(*shape, 2, peak)),
        "fp32 among 16 bits": (product(*shape, dtype="float32"), rates(machine), seconds(*shape, 4, FP32)),
        "fp32 alone": (product(*shape, dtype="float32"), rates(machine, is_fp32=True), seconds(*shape, 4, peak)),
        "a head of odd size": (product(*odd), rates(machine), machine.misalignment * seconds(*odd, 2, peak)),
        "experts": (
            product(*shape, module="layers.*.mlp.experts"),
            rates(machine),
            machine.expert_slowdown * seconds(*shape, 2, peak),
        ),
    }
    wrong = {
        name: found
        for name, (each, priced, wanted) in expected.items()
        if (found := operator_seconds(each, priced)) != pytest.approx(wanted + machine.kernel_seconds, rel=1e-12)
    }
    assert wrong == {}
    assert machine.misalignment > 1
    assert machine.expert_slowdown > 1


def test_products_and_operators_have_what_a_profile_measured_of_their_kind() -> None:
    slow = measured(beside_products=0.25)
    fast, passes = profiled_operators(
        measured(), Precision.FP32, ranks=2, network_bytes_per_second=None, stack_name="pytorch"
    )
    found, slower = profiled_operators(
        slow, Precision.FP32, ranks=2, network_bytes_per_second=None, stack_name="pytorch"
    )
    assert found.machine is not None
    assert fast.machine is not None
    priced = rates(fast.machine, is_fp32=True, passes=passes)
    tables = fast.machine.matrix_efficiency
    assert isinstance(tables, ProductTables)
    for phase, depth, table in (
        (TracePhase.FORWARD, 512, tables.forward),
        (TracePhase.BACKWARD, 512, tables.input_gradient),
        (TracePhase.BACKWARD, TOKENS, tables.weight_gradient),
    ):
        wanted = gemm_seconds(
            512, 512, depth, 4, table, fast.machine.peak_flop_per_second, fast.machine.memory_bytes_per_second, 0.0, 1.0
        )
        each = product(512, 512, depth, phase=phase, dtype="float32")
        assert operator_seconds(each, priced) == pytest.approx(wanted + fast.machine.kernel_seconds, rel=1e-12)
    assert set(passes) == {"norm", "softmax", "loss", "activation", "sum"}
    assert all(slower[name] >= passes[name] >= 1 for name in passes)
    moved = {"read_bytes": 2**20, "written_bytes": 2**20}
    bandwidth = fast.machine.memory_bytes_per_second
    for operator, kind, subject in (
        ("aten.native_layer_norm", OperatorKind.NORM, "norm"),
        ("aten.gelu", OperatorKind.ELEMENT_WISE, "activation"),
        ("aten.add", OperatorKind.ELEMENT_WISE, "sum"),
        ("aten._softmax", OperatorKind.NORM, "softmax"),
    ):
        wanted = 2 * passes[subject] * 2**20 / bandwidth + fast.machine.kernel_seconds
        assert operator_seconds(call(kind, operator=operator, **moved), priced) == pytest.approx(wanted, rel=1e-12)
    missing, _ = profiled_operators(
        measured(), Precision.FP32, ranks=16, network_bytes_per_second=None, stack_name="pytorch"
    )
    assert missing.machine is None
    assert "--network" in missing.missing


@pytest.mark.parametrize("sharding", Sharding)
def test_messages_are_hidden_as_formulas_say_and_the_first_and_the_last_are_not(sharding: Sharding) -> None:
    machine = h100()
    job = TraceJob(source=ModelSource(configuration="config.json"), ranks=8, sharding=sharding, micro_batches=2)
    operators = [
        product(TOKENS, WIDTH, WIDTH, calls=100),
        product(TOKENS, WIDTH, WIDTH, calls=200, phase=TracePhase.BACKWARD),
    ]
    links = group(machine, ranks=8, ranks_in_node=8)
    stage = 0 if sharding is Sharding.REPLICATED else 3
    few, many = (
        [CountedCollective("dp", "all_gather", size, 10), CountedCollective("dp", "reduce_scatter", size, 5)]
        if stage
        else [CountedCollective("dp", "all_reduce", size, 5)]
        for size in (10**8, 10**12)
    )
    each = operator_seconds(operators[0], rates(machine))
    for collectives in (few, many):
        spent = {
            one.operation: collective_seconds(
                one.operation, links, payload_bytes=one.payload_bytes, messages=one.messages
            )
            for one in collectives
        }
        found = traced_time(operators, collectives, rates(machine), job)
        rest = {one.operation: spent[one.operation] * (1 - 1 / one.messages) for one in collectives}
        wanted = exposed_data_parallel_seconds(
            Layout(data_parallel=8, zero_stage=stage),
            reduction_seconds=sum(rest.values()) - rest.get("all_gather", 0.0),
            gather_seconds=rest.get("all_gather", 0.0),
            backward_seconds=100 * each,
            computation_seconds=150 * each,
            micro_batches=2,
            overlap_share=machine.overlap_share,
            overlap_cost=machine.overlap_cost,
        )
        ends = sum(spent.values()) - sum(rest.values())
        assert found.messages == spent
        assert found.message_seconds == pytest.approx(wanted + ends, rel=1e-3)  # launches make passes longer


def test_the_host_makes_a_step_longer_whose_kernels_are_short() -> None:
    machine = h100()
    job = TraceJob(source=ModelSource(configuration="config.json"))
    short = call(OperatorKind.ELEMENT_WISE, calls=1000)
    eager, fused = (
        traced_time([msgspec.structs.replace(short, calls=calls)], [], rates(machine), job) for calls in (1000, 100)
    )
    host = 1000 * machine.launch_seconds
    assert host <= sum(eager.operators.values()) + eager.launch_seconds <= 1.1 * host
    assert eager.launch_seconds == pytest.approx(10 * fused.launch_seconds)
    counters = call(OperatorKind.HOST, operator="aten._local_scalar_dense", calls=10**6)
    assert traced_time([counters], [], rates(machine), job).launch_seconds == 0
    long = traced_time([product(TOKENS, WIDTH, WIDTH, calls=10)], [], rates(machine), job)
    assert long.launch_seconds < 1e-6 * sum(long.operators.values())
