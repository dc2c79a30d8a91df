"""Batches that are copied to a GPU while it computes on others: the order of calls, on streams that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from suite.execute.data.loader import PrefetchedBatches
from suite.execute.data.token_stream import TokenBatch
from suite.execute.training.step import Steps
from suite.job.options import Texts
from suite.ladder.plan import planned, target_of
from suite.ladder.rung import BASE, Track
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS

CPU = torch.device("cpu")


class _Made:
    """Batches of the number of their first sample."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        self.calls.append(f"make {first}")
        return TokenBatch(torch.full((samples, 2), float(first)), {"targets_BT": torch.zeros(samples, 2)})


class _Module(nn.Module):
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        self.calls.append(f"compute {int(tokens_BT[0, 0])}")
        return (self.weight * tokens_BT + targets_BT).sum()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    copy = TokenBatch.to

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        calls.append(f"enter {stream}")
        yield
        calls.append("leave")

    def copied(batch: TokenBatch, device: torch.device) -> TokenBatch:
        calls.append(f"copy {int(batch.tokens_BT[0, 0])}")
        return copy(batch, device)

    computing = SimpleNamespace(wait_stream=lambda stream: calls.append(f"wait for {stream}"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "side")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: computing)
    monkeypatch.setattr(Tensor, "record_stream", lambda _tensor, _stream: None)
    monkeypatch.setattr(TokenBatch, "to", copied)
    monkeypatch.setattr("suite.execute.training.step.batches", lambda _job, **_replica: _Made(calls))
    return calls


def test_the_next_batch_is_copied_behind_the_backward_pass_and_the_device_waits_only_where_it_needs_it(
    calls: list[str],
) -> None:
    """Two steps of two micro-batches of 4 samples."""
    setting = msgspec.structs.replace(BASE[Track.SPEED], micro_batch=4, tokenises=False, pinned=True)
    texts = Texts(tokenizer_file="", text_file="", documents_file="")
    plan = planned(target_of("gpt2-mini", device="cpu", seed=1), setting, "", texts)
    job = msgspec.structs.replace(job_for(plan, CORPUS, ""), steps=2)
    training: Any = SimpleNamespace(chunks=[], pipeline=None, modules=[_Module(calls)], gradient_sums=None, routers=())
    mesh: Any = SimpleNamespace(get_local_rank=lambda _axis: 0, mesh_dim_names=("dp",))
    steps = Steps(job, training, mesh, CPU)
    for _ in range(job.steps):
        steps.forward_and_backward()
        calls.append("update")
        steps.step += 1

    def copied(first: int) -> list[str]:
        return [f"make {first}", "enter side", f"copy {first}", "leave"]

    waits = "wait for side"
    assert calls == [
        *(*copied(0), waits, "compute 0"),
        *(*copied(4), waits, "compute 4"),
        *(*copied(8), "update", waits, "compute 8"),
        *(*copied(12), waits, "compute 12", "update"),
    ]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_batches_to_be_pinned_have_no_gaps_which_would_send_their_copies_through_pageable_memory() -> None:
    class Gaps:
        def micro_batch(self, first: int, samples: int) -> TokenBatch:
            both = torch.arange(first, first + 5 * samples).view(samples, 5)
            return TokenBatch(both[:, :-1], {"targets_BT": both[:, 1:]})

    stream: Any = Gaps()
    ahead = PrefetchedBatches(stream, [0, 4], samples=4, workers=0, pinned=True)
    batch = ahead.micro_batch(0, 4)
    assert batch.tokens_BT.is_contiguous()
    assert batch.arguments["targets_BT"].is_contiguous()
    assert torch.equal(batch.tokens_BT, stream.micro_batch(0, 4).tokens_BT)
