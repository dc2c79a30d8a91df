"""A rank's shard of the parameter store, whose other worker is played by the test."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from suite.execute.parallel.fake_group import fake_group
from suite.execute.parallel.parameter_store import OrderOfArrival, ParameterStore
from suite.execute.parallel.scattered_gradients import scattered_gradients
from suite.execute.precision import store_weights
from suite.job.synchronisation import parse_synchronisation
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

CPU = torch.device("cpu")
STEPS = 2
TIMEOUT = timedelta(seconds=20)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_alone_forgets_every_gradient_that_an_update_took(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(order.port))
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    job = SimpleNamespace(
        recipe=recipe,
        steps=STEPS,
        synchronisation=parse_synchronisation("bsp"),
        collective_timeout_seconds=TIMEOUT.total_seconds(),
        threads=1,
        warm_up_steps=0,
    )
    with fake_group(rank, 2):
        monkeypatch.setattr(dist, "new_group", lambda *_, **__: dist.group.WORLD)
        monkeypatch.setattr(dist, "recv", lambda tensor, **_: tensor.zero_())  # the other worker's gradient
        groups = store_weights([nn.Linear(3, 4)], recipe, shards=2, device=CPU)
        gradients = scattered_gradients(groups, shards=2, shard=rank, process_group=dist.group.WORLD)
        store = ParameterStore(job, gradients, CPU)
        other = OrderOfArrival(TIMEOUT)
        for step in range(STEPS):
            store.push()
            other.announce(1 - rank)
            if step + 1 < STEPS:
                store.pull()
        store.finish(lambda: None)
    assert sorted(store.arrivals) == [0, 0, 1, 1]
    kept = [number for number in range(2 * STEPS) if order.check([f"gradient {number}"])]
    assert kept == ([] if rank == 0 else [0, 1, 2, 3])
