"""Experts cost more than their products: sums that they add to, biases one by one, objects of the host."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reference_runs.layout import Layout
from reference_runs.run import ProductFormat, Workload
from reference_runs.stack import Accumulation
from suite.predict.analytic.expert_time import adding_seconds
from suite.predict.analytic.experts import weighed_bias_bytes
from suite.predict.analytic.layer_time import layer_time
from suite.predict.analytic.stage_computation import expert_kernels, host_launches
from tests.support.machines import A100
from tests.support.steps import having
from tests.support.strategies import BLOOM

MIXTURE = msgspec.structs.replace(
    BLOOM.architecture, sequence=64, experts=64, experts_per_token=2, feed_forward_bias=False
)


def test_the_gradient_of_an_experts_weight_reads_and_writes_the_sum_that_its_product_adds_it_to() -> None:
    workload = Workload(MIXTURE, BLOOM.recipe, Layout())
    slow = msgspec.structs.replace(A100, memory_bytes_per_second=1e9)  # bytes alone take time
    adding, apart = (
        layer_time(workload, having(slow, accumulation=how)).backward_seconds
        for how in (Accumulation.IN_PRODUCT, Accumulation.SEPARATE)
    )
    weights = 64 * 2 * MIXTURE.hidden * MIXTURE.ffn_hidden  # two matrices of each
    assert adding - apart == pytest.approx(weights * (2 * 4 - 2) / slow.achievable_memory_bytes_per_second, rel=1e-9)


class Moved(TorchDispatchMode):
    """Bytes that operators read and write, views left out."""

    moved = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        read = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        written = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        memory = {each.untyped_storage().data_ptr() for each in read}
        if not all(each.untyped_storage().data_ptr() in memory for each in written):
            self.moved += sum(each.nbytes for each in (*read, *written))
        return out


def test_biases_of_experts_move_the_bytes_of_megatron_cores_code() -> None:
    """The lines of TEGroupedMLP's `_apply_bias`, executed; what is left over is the weights and the biases."""
    experts, each, hidden = 4, 1024, 512
    rows = experts * each
    outputs = torch.randn(rows, hidden, dtype=torch.bfloat16).requires_grad_()
    biases = [torch.randn(hidden, dtype=torch.bfloat16).requires_grad_() for _ in range(experts)]
    weights = torch.rand(rows, 1).requires_grad_()
    with Moved() as forward:
        parts = zip(outputs.split(each), biases, weights.split(each), strict=True)
        added = torch.cat([part + bias * weight for part, bias, weight in parts]).to(outputs.dtype)
    gradient = torch.randn_like(added)
    with Moved() as backward:
        added.backward(gradient)
    architecture = msgspec.structs.replace(MIXTURE, hidden=hidden, experts=experts, experts_per_token=1)
    predicted = weighed_bias_bytes(Workload(architecture, BLOOM.recipe, Layout()), tokens=rows, element=2)
    assert (forward.moved, backward.moved) == pytest.approx(predicted, rel=0.01)
    assert all(count >= least for count, least in zip((forward.moved, backward.moved), predicted, strict=True))


def test_biases_of_experts_cost_time_where_transformer_engine_runs_them() -> None:
    biased = msgspec.structs.replace(MIXTURE, expert_bias=True)
    plain, with_bias = (Workload(each, BLOOM.recipe, Layout()) for each in (MIXTURE, biased))
    engine = having(A100, transformer_engine=True)
    for machine, least in ((engine, 5.0), (A100, 0.0)):
        more = [
            getattr(layer_time(with_bias, machine), name) - getattr(layer_time(plain, machine), name)
            for name in ("operator_seconds", "operator_backward_seconds")
        ]
        elements = 64 * 2 * MIXTURE.hidden * BLOOM.layout.micro_batch  # rows of two experts a token
        assert min(more) > least * elements / machine.memory_bytes_per_second
    launched = [expert_kernels(with_bias, each.stack, collective=1) for each in (engine, A100)]
    assert launched[0] - launched[1] == pytest.approx(8 / 3 * 64 + 2)


def test_the_host_makes_an_object_for_each_expert_of_what_is_cast() -> None:
    """Two a product and pass: 2 x 64 forward, 2 x 64 backward in each layer."""
    machine = having(A100, transformer_engine=True)
    cast = msgspec.structs.replace(BLOOM.recipe, product_format=ProductFormat.FP8_CURRENT)
    layers = msgspec.structs.replace(MIXTURE, layers=3)
    plain, formatted = (
        host_launches(Workload(layers, recipe, Layout()), machine, stage=0) for recipe in (BLOOM.recipe, cast)
    )
    assert formatted - plain == 3 * 4 * 64
    assert host_launches(Workload(layers, cast, Layout()), A100, stage=0) == plain


def test_arithmetic_that_takes_long_enough_hides_those_bytes() -> None:
    adding = having(A100, accumulation=Accumulation.IN_PRODUCT)
    workload = Workload(MIXTURE, BLOOM.recipe, Layout())
    assert adding_seconds(workload, adding, (10**5, 4096, 4096), in_format=False) == 0
    assert adding_seconds(workload, adding, (8, 4096, 4096), in_format=False) > 0
