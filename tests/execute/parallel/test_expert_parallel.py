"""Experts shared out over ranks, which are threads here: together they compute what one rank with all experts does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference_runs.architecture import Activation, Architecture, Balancing, Gate
from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import RoutedExperts
from suite.execute.model.torch_operations import TorchOperations
from suite.execute.parallel import expert_parallel
from suite.execute.parallel.expert_parallel import ExpertExchange, RowCounter, share_experts
from suite.job.events import ComputedRows
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

PLAN = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
HIDDEN, WIDTH, SECONDS = 6, 4, 60


class Wire:
    """Carries the messages of ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=SECONDS)
        self._sent: dict[int, tuple[Tensor, ...]] = {}
        self.messages = 0

    def exchange(self, rank: int, out: Tensor, x: Tensor, received: list[int], sent: list[int]) -> None:
        self._sent[rank] = x.detach().split(sent)
        self._barrier.wait()
        parts = [self._sent[other][rank] for other in range(self.ranks)]
        assert [len(part) for part in parts] == received
        self.messages += rank == 0
        out.copy_(torch.cat(parts))
        self._barrier.wait()


class Group:
    """A rank of a wire, as a process group."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.wire, self._rank = wire, rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.wire.ranks


def all_to_all_single(
    out: Tensor, x: Tensor, received: list[int] | None = None, sent: list[int] | None = None, *, group: Group
) -> None:
    equal = [len(x) // group.size()] * group.size()
    group.wire.exchange(group.rank(), out, x, received or equal, sent or equal)


def shape(experts: int, *, shared: int = 0) -> Architecture:
    return msgspec.structs.replace(
        PLAN.architecture,
        hidden=HIDDEN,
        activation=Activation.SWIGLU,
        biases=False,
        experts=experts,
        experts_per_token=1,
        expert_ffn_hidden=WIDTH,
        shared_experts=shared,
        gate=Gate.SOFTMAX,
        balancing=Balancing.NONE,
    )


def random(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64)


def experts_of(weights: tuple[Tensor, Tensor], experts: int) -> RoutedExperts:
    made = RoutedExperts(shape(experts), TorchOperations(shape(experts)))
    for matrices, weight in zip((made.expansion, made.contraction), weights, strict=True):
        matrices.weight = torch.nn.Parameter(weight.clone())
    return made


def on_every_rank(ranks: int, work: Callable[[int, Group], Any]) -> list[Any]:
    wire = Wire(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return [done.result() for done in [pool.submit(work, rank, Group(wire, rank)) for rank in range(ranks)]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_ranks_compute_what_one_with_all_experts_does(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Whatever each rank's tokens choose: a rank may send and get no row, an expert may have none."""
    monkeypatch.setattr(expert_parallel.dist, "all_to_all_single", all_to_all_single)
    ranks, own = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    experts = ranks * own
    count = st.integers(0, 4)
    loads = data.draw(st.lists(st.lists(count, min_size=experts, max_size=experts), min_size=ranks, max_size=ranks))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    weights = random(experts * 2 * WIDTH, HIDDEN), random(experts * HIDDEN, WIDTH)
    rows = [random(sum(load), HIDDEN) for load in loads]
    upstream = [random(sum(load), HIDDEN) for load in loads]

    def of_rank(rank: int, group: Group) -> tuple[Tensor, Tensor, list[Tensor], ComputedRows]:
        parts = weights[0].chunk(ranks)[rank], weights[1].chunk(ranks)[rank]
        module, counter, x = experts_of(parts, own), RowCounter(), rows[rank].clone().requires_grad_()
        exchange = ExpertExchange(cast(dist.ProcessGroup, group), counter.new_layer())
        out = exchange(x, torch.tensor(loads[rank]).cumsum(0).int(), module)
        out.backward(upstream[rank])
        return out.detach(), cast(Tensor, x.grad), [cast(Tensor, p.grad) for p in module.parameters()], counter.counted

    done = on_every_rank(ranks, of_rank)
    whole = experts_of(weights, experts)
    for rank, load in enumerate(loads):
        x = rows[rank].clone().requires_grad_()
        out = whole(x, torch.tensor(load).cumsum(0).int())
        out.backward(upstream[rank])
        torch.testing.assert_close(done[rank][0], out.detach())
        torch.testing.assert_close(done[rank][1], x.grad)
        came = sum(sum(other[rank * own : (rank + 1) * own]) for other in loads)
        assert done[rank][3] == ComputedRows(came, came)
    for number, parameter in enumerate(whole.parameters()):
        joined = torch.cat([of_one[2][number] for of_one in done])
        torch.testing.assert_close(joined, parameter.grad)
    assert sum(of_one[3].forward for of_one in done) == sum(map(sum, loads))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_places_of_a_capacity_are_exchanged_without_their_numbers(
    monkeypatch: pytest.MonkeyPatch, ranks: int, own: int, each: int, seed: int
) -> None:
    monkeypatch.setattr(expert_parallel.dist, "all_to_all_single", all_to_all_single)
    torch.manual_seed(seed)
    experts = ranks * own
    weights = random(experts * 2 * WIDTH, HIDDEN), random(experts * HIDDEN, WIDTH)
    rows = [random(experts * each, HIDDEN) for _ in range(ranks)]
    ends = torch.arange(each, experts * each + 1, each, dtype=torch.int32)

    def of_rank(rank: int, group: Group) -> tuple[Tensor, int, ComputedRows]:
        parts = weights[0].chunk(ranks)[rank], weights[1].chunk(ranks)[rank]
        counter = RowCounter()
        exchange = ExpertExchange(cast(dist.ProcessGroup, group), counter.new_layer(), equal=True)
        out = exchange(rows[rank], ends, experts_of(parts, own))
        return out.detach(), group.wire.messages, counter.counted

    for x, (out, messages, counted) in zip(rows, on_every_rank(ranks, of_rank), strict=True):
        torch.testing.assert_close(out, experts_of(weights, experts)(x, ends).detach())
        assert messages == 2  # there and back
        assert counted == ComputedRows(experts * each, 0)


def decoder() -> Decoder:
    torch.manual_seed(1)
    plain = msgspec.structs.replace(shape(6, shared=1), hidden=PLAN.architecture.hidden)
    made = Decoder(plain, PLAN.recipe)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def test_ranks_keep_their_experts_alone_and_all_else_whole() -> None:
    whole = dict(decoder().named_parameters())
    parts = []
    for rank in range(3):
        model = decoder()
        names = share_experts(model, cast(dist.ProcessGroup, Group(Wire(3), rank)), RowCounter())
        assert names == {name for name in whole if ".experts." in name}
        parts.append(dict(model.named_parameters()))
    for name, parameter in whole.items():
        held = [part[name] for part in parts]
        if ".experts." in name:
            assert torch.equal(torch.cat(held), parameter)
        else:
            assert all(torch.equal(part, parameter) for part in held)


@given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 4), st.integers(1, 4), st.data())
def test_rows_of_layers_are_those_of_first_passes(
    layers: int, micro_batches: int, repeats: bool, ahead: int, group: int, data: st.DataObject
) -> None:
    """In one forward, one backward, so many micro-batches ahead; recomputed in groups of so many layers."""
    rows = st.lists(st.integers(0, 9), min_size=layers, max_size=layers)
    expected = [data.draw(rows) for _ in range(micro_batches)]
    counter = RowCounter()
    counts = [counter.new_layer() for _ in range(layers)]
    counts[0].add(5, backward=False)
    counter.clear()
    for step in range(micro_batches + ahead):
        if step < micro_batches:
            for count, number in zip(counts, expected[step], strict=True):
                count.add(number, backward=False)
        if step >= ahead:
            own = list(zip(counts, expected[step - ahead], strict=True))
            for first in reversed(range(0, layers, group)):
                members = own[first : first + group]
                for count, number in members if repeats else ():
                    count.add(number, backward=False)
                for count, number in reversed(members):
                    count.add(number, backward=True)
    whole = sum(map(sum, expected))
    assert counter.of_layers == ComputedRows(whole * (1 + repeats), whole, expected)
