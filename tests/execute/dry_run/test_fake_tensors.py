"""Tensors without memory: numbers are 1, and what real tensors would free or keep is freed or kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty
from torch.nn.functional import grouped_mm

from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.fake_tensors import BUFFERS, Chunks, fake_tensors
from suite.execute.parallel.fake_group import fake_group
from suite.execute.parallel.one_bit.buckets import local

TIB = 2**40


def test_no_tensor_has_memory_and_every_number_is_1() -> None:
    allocations = Allocations(lambda: "")
    with fake_tensors(allocations):
        allocations.record()
        x = torch.randn(TIB // 4) * 2
        assert x[:2].tolist() == [1.0, 1.0]
        assert x.sum().item() == 1.0
        assert int(torch.zeros((), dtype=torch.long)) == 1
    assert allocations.peak == 2 * TIB
    assert torch.tensor([2.0, 3.0]).tolist() == [2.0, 3.0]


def test_gradients_of_two_readers_are_added_in_place_as_without_a_mode() -> None:
    allocations = Allocations(lambda: "")
    size = 4 * 1000 * 1000
    with fake_tensors(allocations):
        weight = nn.Parameter(torch.zeros(1000, 1000))
        total = weight.exp().sum() + weight.sin().sum()
        allocations.record()
        before = allocations.peak
        total.backward()
    # both gradients are products of kept and expanded ones: the second is added to the first
    assert allocations.peak - before <= 3 * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_have_the_shapes_and_strides_of_real_ones(dtype: torch.dtype) -> None:
    def gradients() -> list[tuple[torch.Size, tuple[int, ...], torch.dtype]]:
        rows_RK = torch.ones(8, 16, dtype=dtype, requires_grad=True)
        weight_EMK = torch.ones(2, 32, 16, dtype=dtype, requires_grad=True)
        ends_E = torch.tensor([4, 8], dtype=torch.int32)
        out_RM = grouped_mm(rows_RK, weight_EMK.transpose(1, 2), offs=ends_E)
        out_RM.square().sum().backward()
        found = (out_RM, rows_RK.grad, weight_EMK.grad)
        return [(each.shape, each.stride(), each.dtype) for each in found if each is not None]

    real = gradients()
    assert len(real) == 3
    with fake_tensors(Allocations(lambda: "")):
        assert gradients() == real


@pytest.mark.parametrize(("phase", "blocks"), [("backward pass", 1), (BUFFERS, 2)])
def test_no_gradient_is_added_to_a_buffer_that_a_stage_received(phase: str, blocks: int) -> None:
    allocations = Allocations(lambda: phase)
    with fake_tensors(allocations):
        middle = torch.ones(1000, requires_grad=True).exp()
        total = middle + middle.neg()
        received = torch.ones(1000)
        allocations.record()
        before = allocations.peak
        total.backward(received)
    # of neg, and the sum of both: in what was received, or in a block of its own
    assert allocations.peak - before == blocks * 4000


def test_what_python_adds_in_a_backward_pass_is_new() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros(1000)
            allocations.record()
            before.append(allocations.peak)
            return zeros + gradients[0]  # which `zeros` outlives

    allocations, before = Allocations(lambda: ""), list[int]()
    with fake_tensors(allocations):
        Doubled.apply(torch.ones(1000, requires_grad=True)).sum().backward()
    assert allocations.peak - before[0] == 4 * 1000


def test_a_message_holds_what_it_sends() -> None:
    allocations = Allocations(lambda: "")
    with fake_group(0, 2), fake_tensors(allocations):
        work = dist.isend(torch.zeros(1000), 1)
        allocations.record()
        assert allocations.peak == 4000
        assert work is not None
        del work
        allocations.record()
    assert allocations.peak == 0


def test_waiting_for_a_collective_allocates_nothing() -> None:
    with fake_group(0, 2):
        group = dist.group.WORLD
        assert group is not None

        def waited(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            reduced = torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
            return reduced, torch.ops._c10d_functional.wait_tensor(reduced)

        reduced, result = waited(torch.ones(1000))
        assert result.data_ptr() == reduced.data_ptr()
        allocations = Allocations(lambda: "")
        with fake_tensors(allocations):
            x = torch.ones(1000)
            allocations.record()
            before = allocations.peak
            waited(x)
        assert allocations.peak - before == 4000


def test_a_shorter_shard_is_padded_once() -> None:
    with fake_group(3, 4):
        mesh = init_device_mesh("cpu", (4,))
        allocations = Allocations(lambda: "")
        with fake_tensors(allocations):
            model = fully_shard(nn.Linear(1000, 5, bias=False), mesh=mesh)  # 2, 2, 1 and 0 rows
            shard = local(model.weight).untyped_storage()
            model(torch.ones(1, 1000))
            model.reshard()
            assert local(model.weight).untyped_storage()._cdata == shard._cdata
            assert shard.nbytes() == 2 * 4000


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1))
def test_chunks_are_those_of_torch_and_empty_ones(size: int, chunks: int, dim: int) -> None:
    tensor = torch.arange(3 * size).view(size, 3) if dim == 0 else torch.arange(3 * size).view(3, size)
    found = Chunks(tensor, chunks, dim)
    for number, each in enumerate(_chunk_with_empty(tensor, chunks, dim)):
        assert torch.equal(found[number], each)
        assert found[number].storage_offset() == each.storage_offset()
