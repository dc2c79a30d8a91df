"""Counters on small cases whose answer is known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from suite.execute.data.token_stream import TokenStream
from suite.execute.measure.counters import (
    CollectiveCounter,
    KeptForBackward,
    LocalFlopCounter,
    SynchronisationCounter,
    storage_bytes,
)
from suite.execute.measure.phases import Part, Phases
from suite.execute.parallel.fake_group import fake_group


def test_a_storage_counts_once_however_many_tensors_look_into_it() -> None:
    base = torch.zeros(10, 3)
    assert storage_bytes([base, base[2:], base.view(-1), torch.zeros(5, dtype=torch.uint8)]) == 120 + 5


def test_kept_bytes_are_the_inputs_of_products_and_the_outputs_of_relu() -> None:
    first, second = nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)
    kept = KeptForBackward(lambda: [first.weight, second.weight])
    x = torch.zeros(7, 3)
    with kept.hooks():
        second(torch.relu(first(x))).sum()
    # x for the first weight's gradient; relu's output for its own gradient and for the second weight's, once
    assert kept.bytes() == 4 * (7 * 3 + 7 * 5)


def test_recomputation_keeps_the_input_alone() -> None:
    layers = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))
    kept = KeptForBackward(layers.parameters)
    x = torch.zeros(7, 3, requires_grad=True)
    with kept.hooks():
        checkpoint(layers, checkpoint(layers, x, use_reentrant=False), use_reentrant=False)
    assert kept.bytes() == 2 * 4 * 7 * 3


class _Recomputed(nn.Module):
    """Two linear layers that remember what lies between them without keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.between: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        self.between.append(StorageWeakRef(hidden.untyped_storage()))  # the second layer keeps it for its backward pass
        out: Tensor = self.second(hidden)
        return out


def test_under_the_flop_counter_what_a_checkpoint_recomputes_is_freed() -> None:
    layers = [_Recomputed() for _ in range(3)]
    x = torch.ones(4, 8, requires_grad=True)
    counter = LocalFlopCounter()
    with counter:
        out = x
        for layer in layers:
            out = checkpoint(layer, out, use_reentrant=False)
        out.sum().backward()
        assert [len(layer.between) for layer in layers] == [2, 2, 2]
        assert [layer.between[-1].expired() for layer in layers] == [True, True, True]
    # products of each: two forward, the first one again, and the gradients of two inputs and two weights
    assert counter.get_total_flops() == 3 * 7 * 2 * 4 * 8 * 8


@pytest.mark.parametrize("recomputes", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_fused_attention_of_grouped_queries_counts_as_of_as_many_keys_as_queries(groups: int, recomputes: bool) -> None:
    batch, heads, length, width = 2, 6, 5, 8
    q = torch.ones(batch, heads, length, width, requires_grad=True)
    k, v = (torch.ones(batch, groups, length, width, requires_grad=True) for _ in range(2))
    with LocalFlopCounter(recomputes=recomputes) as counter:
        scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups < heads).sum().backward()
    product = 2 * batch * heads * length * length * width
    assert counter.get_total_flops() == (2 + 4 + recomputes) * product


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_region_that_computes_attention_again_runs_under_the_counters() -> None:
    def attention(x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=True)

    def core(x: Tensor) -> Tensor:
        out: Tensor = checkpoint(attention, x.sin(), use_reentrant=False)
        return out.cos()

    torch._dynamo.reset()
    compiled = torch.compile(core)
    gradients = []
    for function in (core, compiled):
        x = torch.linspace(-1, 1, 2 * 3 * 8 * 4).view(2, 3, 8, 4).requires_grad_()
        with CollectiveCounter({}) as collectives, SynchronisationCounter(torch.device("cpu")) as waits:
            function(x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
        assert (collectives.collectives(), waits.count) == ([], 0)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("foreach", [True, False])
def test_on_a_processor_neither_a_batch_nor_an_optimizer_s_step_counters_wait_and_what_is_logged_does(
    tmp_path: Path, foreach: bool
) -> None:
    tokens = numpy.arange(100, dtype="<i4")
    tokens.tofile(tmp_path / "tokens")
    stream = TokenStream(str(tmp_path / "tokens"), tokens=len(tokens), sequence=4, seed=1)
    model = nn.Linear(4, 3)
    adam = torch.optim.AdamW(model.parameters(), foreach=foreach)
    device = torch.device("cpu")
    phases = Phases(device)
    untouched = Tensor.tolist
    with SynchronisationCounter(device, phases) as waits:
        with phases.phase(Part.DATA_LOADING):
            batch = stream.micro_batch(0, 2)
            assert len(batch.tokens_BT.tolist()) == 2
        assert waits.count == 0
        loss = model(batch.tokens_BT.float()).square().mean()
        loss.backward()
        assert waits.count == 0
        with phases.phase(Part.UPDATE):
            adam.step()
            assert waits.count == 0
            loss.item()
            torch.stack([loss, loss]).tolist()
    assert waits.count == 2
    adam.step()
    loss.tolist()
    assert waits.count == 2
    assert Tensor.tolist is untouched


def test_an_optimizer_that_reads_a_weight_s_norm_waits_for_it() -> None:
    model = nn.Linear(4, 3, bias=False)
    adafactor = torch.optim.Adafactor(model.parameters(), foreach=False)
    model(torch.ones(1, 4)).sum().backward()
    with SynchronisationCounter(torch.device("cpu")) as waits:
        adafactor.step()
    assert waits.count > 0


def test_on_a_gpu_numbers_of_the_host_do_not_wait_and_what_is_copied_there_does() -> None:
    """On tensors without numbers: no GPU is needed."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        there, here = torch.empty(3, device="cuda"), torch.empty(3)
        with SynchronisationCounter(torch.device("cuda")) as waits:
            here.to(torch.float64)
            there.to("cpu", non_blocking=True)
            here.copy_(there, non_blocking=True)
            here.copy_(here + 1)
            assert waits.count == 0
            there.to("cpu")
            here.copy_(there)
            assert waits.count == 2
            for tensor, count in ((here, 2), (there, 3)):
                with pytest.raises(DataDependentOutputException):
                    tensor.sum().item()
                assert waits.count == count


def test_a_product_that_is_added_in_another_dtype_counts_as_one() -> None:
    sums = torch.empty(7, 3, device="meta")
    a, b = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((7, 5), (5, 3)))
    with (counter := LocalFlopCounter()):
        torch.addmm(sums, a, b, out_dtype=torch.float32, out=sums)
        torch.addmm(torch.ones(3), torch.ones(7, 5), torch.ones(5, 3))
    assert counter.get_total_flops() == 2 * (2 * 7 * 5 * 3)


def test_grouped_products_count_each_row_once_however_they_are_dealt() -> None:
    x_RK, weight_EKM = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(3, 16, 24, dtype=torch.bfloat16)
    gradient_RM = torch.ones(8, 24, dtype=torch.bfloat16)
    for ends in ([2, 5, 8], [0, 0, 8]):
        offsets = torch.tensor(ends, dtype=torch.int32)
        for a, b in ((x_RK, weight_EKM), (gradient_RM.T, x_RK)):
            with LocalFlopCounter() as counter:
                torch.nn.functional.grouped_mm(a, b, offs=offsets)
            assert counter.get_total_flops() == 2 * 8 * 16 * 24


def test_operators_by_which_dtensor_learns_shapes_are_not_counted() -> None:
    with fake_group(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        x_TD = distribute_tensor(torch.ones(6, 10), mesh, [Replicate()])
        weight_DF = distribute_tensor(torch.ones(10, 14), mesh, [Shard(1)])
        for _ in range(2):  # new shapes, then known ones
            with LocalFlopCounter() as counter:
                assert isinstance(x_TD @ weight_DF, DTensor)
            assert counter.get_total_flops() == 2 * 6 * 10 * 14 // 2
