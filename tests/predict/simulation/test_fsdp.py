"""ZeRO-2 and 3 as predicted, against fully_shard itself in a process group whose other ranks are imagined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from reference_runs.layout import Layout, Offload, Recomputation
from reference_runs.run import Activation, Norm, Precision, Workload
from suite.execute.measure.counters import CollectiveCounter, storage_bytes
from suite.predict.analytic.parameters import ParameterTensor, layer_tensors, outer_tensors
from suite.predict.simulation.state import ExecutedState, executed_state
from suite.predict.simulation.traffic import executed_gradient_traffic
from tests.support.strategies import BLOOM

MICRO_BATCHES = 3
SHAPE = msgspec.structs.replace(
    BLOOM.architecture,
    layers=3,
    hidden=6,
    heads=2,
    head_dim=3,
    kv_heads=2,
    ffn_hidden=10,
    padded_vocabulary=11,
    vocabulary=11,
    sequence=5,
    activation=Activation.GELU,
    norm=Norm.PRE_LAYER_NORM,
)


class Unit(nn.Module):
    """Tensors of these shapes, all of which its output needs."""

    def __init__(self, shapes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.ones(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        for tensor in self.tensors:
            x = x * tensor.mean()
        return x


class Model(nn.Module):
    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        before, after = outer_tensors(SHAPE)
        shapes = [_shape(tensor) for tensor in layer_tensors(SHAPE)]
        self.blocks = nn.ModuleList(Unit(shapes) for _ in range(SHAPE.layers))
        self.outside = Unit([_shape(tensor) for tensor in (*before, *after)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        out: Tensor = self.outside(x)
        return out


def _shape(tensor: ParameterTensor) -> tuple[int, ...]:
    return (tensor.rows, tensor.elements // tensor.rows) if tensor.matrix else (tensor.rows,)


@pytest.fixture
def rank_of(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int | None]]:
    """Rank, ranks, and with hybrid sharding those of a group."""
    rank, ranks, shard_ranks = request.param
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    yield rank, ranks, shard_ranks
    dist.destroy_process_group()


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "rank_of",
    [(0, 1, None), (0, 2, None), (1, 2, None), (3, 4, None), (7, 8, None), (3, 4, 4), (2, 4, 2), (7, 8, 4), (6, 9, 3)],
    indirect=True,
    ids=str,
)
@pytest.mark.parametrize(
    ("zero_stage", "reshard", "recompute"),
    [(2, True, False), (2, True, True), (3, True, False), (3, True, True), (3, False, True)],
)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_fully_shard_stores_and_hands_over_what_is_predicted(
    rank_of: tuple[int, int, int | None], zero_stage: int, reshard: bool, recompute: bool, precision: Precision
) -> None:
    rank, ranks, shard_ranks = rank_of
    layout = Layout(
        data_parallel=ranks,
        shard_ranks=shard_ranks,
        zero_stage=zero_stage,
        offload=Offload.STATE if ranks == 1 else Offload.NONE,  # or one rank shards nothing
        reshard_after_forward=reshard,
        recomputation=Recomputation.FULL if recompute else Recomputation.NONE,
    )
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=precision, global_batch=MICRO_BATCHES * ranks)
    dtype = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}[precision]
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32 if precision is Precision.BF16 else dtype
    )
    shape, axes = ((ranks,), ("dp",))
    if shard_ranks not in (None, ranks):
        shape, axes = (ranks // shard_ranks, shard_ranks), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    model = Model(recompute=recompute)
    dropped = zero_stage == 3 and reshard
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=dropped)
    root = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with CollectiveCounter({mesh.get_group(axis).group_name: axis for axis in axes}) as counter:
        for micro_batch in range(MICRO_BATCHES):
            last = micro_batch == MICRO_BATCHES - 1
            root.set_reshard_after_backward(zero_stage == 3 or last)
            root.set_requires_all_reduce(last)
            model(torch.ones(2, dtype=dtype, requires_grad=True)).sum().backward()
    local = [parameter.to_local() for parameter in model.parameters()]
    gradients = [parameter.grad.to_local() for parameter in model.parameters()]
    optimizer.step()
    state = [
        value.to_local() if hasattr(value, "to_local") else value
        for values in optimizer.state.values()
        for value in values.values()
    ]
    stored = ExecutedState(
        sum(tensor.numel() for tensor in local),
        storage_bytes(local),
        storage_bytes(gradients),
        sum(tensor.numel() * tensor.element_size() for tensor in state),
    )
    assert stored == executed_state(Workload(SHAPE, recipe, layout), stage=0, replica=rank)
    counted = {(c.axis, c.operation): (c.payload_bytes, c.messages) for c in counter.collectives()}
    traffic = executed_gradient_traffic(Workload(SHAPE, recipe, layout), stage=0)
    assert counted == {(t.axis, t.operation): (t.payload_bytes, t.messages) for t in traffic}
