"""A wrong bit in a replay, in memory, in a product or in a message is seen, and right ones repeat."""

from __future__ import annotations

import msgspec
import pytest
import torch

from suite.execute.probe import run
from suite.execute.probe.load import GROUP
from suite.execute.probe.products import Products
from suite.job.events import Status
from suite.job.probe_job import Exchanged, Loaded, Soaked
from suite.launch.launcher import launch
from tests.support.launches import probe_job

CPU = torch.device("cpu")


ZERO_WRONG = {"bf16": 0, "fp32": 0}


@pytest.fixture
def job(tmp_path):
    return probe_job(tmp_path, replays=2, replay_steps=2, samples=2, exchanges=2, exchange_bytes=4096)


def replayed(job):
    """Hashes of a replay's steps."""
    events = []
    run.run_replay(job, 0, CPU, events.append)
    return [(event.loss, event.gradients, event.parameters) for event in events]


def test_replays_repeat_each_other_to_the_bit(job):
    first = replayed(job)
    assert first == replayed(job)
    assert len({hashes for step in first for hashes in step}) == 6  # every step has hashes of its own


def test_one_bit_of_one_weight_changes_every_hash_behind_it(job, monkeypatch):
    right, update = replayed(job), run.update

    def flipping(decoder):
        update(decoder)
        weight = next(iter(decoder.parameters())).detach().view(-1).view(torch.uint8)
        weight[7] ^= 1

    monkeypatch.setattr(run, "update", flipping)
    wrong = replayed(job)
    assert wrong[0][:2] == right[0][:2]
    assert wrong[0][2] != right[0][2]


def test_the_hash_is_of_every_byte():
    tensor = torch.arange(1000, dtype=torch.float32).to(torch.bfloat16)
    before = run.digest([tensor])
    tensor.view(torch.uint8)[1999] ^= 1
    assert run.digest([tensor]) != before


@pytest.mark.parametrize("exchanges", [2, 0])
def test_processors_are_watched_during_the_exchanges_alone(job, monkeypatch, exchanges):
    """Neither replays nor the soak are timed: other processes do not disturb them, and they must not hide others."""
    seen = []

    class Watched:
        since_start = None

        def start(self):
            seen.append("start")

        def update(self):
            seen.append("update")
            self.since_start = "shared"

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _mode: None)
    monkeypatch.setattr(run, "SharedProcessors", Watched)
    for name, answer in (("new_group", None), ("barrier", None), ("get_world_size", 2), ("get_rank", 0)):
        monkeypatch.setattr(run.dist, name, lambda *_words, answer=answer, **_named: answer)
    for part in ("run_replay", "exchange_all", "multiplied", "loaded", "soaked"):
        monkeypatch.setattr(run, part, lambda *_words, part=part, **_named: seen.append(part))
    seconds = {"soak_seconds": 1.0, "product_seconds": 1.0, "load_seconds": 1.0}
    parts = msgspec.structs.replace(job, ranks=2, replays=1, exchanges=exchanges, **seconds)
    ended = run.probe(parts, CPU, lambda _event: None)
    timed = ["start", "exchange_all", "update"] if exchanges else []
    assert (seen, ended.shared) == (
        ["run_replay", *timed, "multiplied", "loaded", "soaked"],
        "shared" if exchanges else None,
    )


def test_wrong_products_are_wrong_elements_of_the_soak():
    soak = Soaked(bytes=8, passes=2, wrong=1, first="memory from element 0", time=0.0)
    assert run.with_products(soak, None) == soak
    good = Products(800, 12.0, 8e14, 7e14, 7.5e14, 1.3e15, 0, "")
    done = run.with_products(soak, good)
    assert (done.wrong, done.first) == (1, "memory from element 0")
    assert (done.products, done.product_seconds) == (800, 12.0)
    assert (done.product_flop_per_second, done.burst_flop_per_second) == (7e14, 8e14)
    assert (done.undelayed_flop_per_second, done.fp8_flop_per_second) == (7.5e14, 1.3e15)
    bad = run.with_products(soak, good._replace(wrong=5, first="product 3 on cuda:2"))
    assert (bad.wrong, bad.first) == (6, "product 3 on cuda:2")


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_three_ranks_exchange_by_pairs_at_once_and_in_sums_and_verify_products(tmp_path):
    parts = {"exchanges": 2, "exchange_bytes": 12_288, "soak_seconds": 0.2, "product_seconds": 0.2, "product_size": 64}
    parts |= {"load_seconds": 0.2, "load_size": 64, "load_bytes": 4096, "pulse_seconds": 0.05}
    job = probe_job(tmp_path, ranks=3, **parts)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    done = launch(job, "exchanges", lambda _rank, _event: None)
    assert done.status is Status.OK, done.log_tail
    for rank, events in enumerate(done.events):
        found = [event for event in events if isinstance(event, Exchanged)]
        others = [other for other in range(3) if other != rank]
        assert [(event.peer, event.operation, event.bytes) for event in found] == [
            *((other, "", 12_288) for other in others),
            (None, "all-to-all", 8_192),
            (None, "", 12_288),
        ]
        (soak,) = [event for event in events if isinstance(event, Soaked)]
        assert sum(event.wrong for event in found) + soak.wrong == 0
        assert soak.products > 0
        (load,) = [event for event in events if isinstance(event, Loaded)]
        assert (load.first, load.wrong_sums, {one.format: one.wrong for one in load.formats}) == ("", 0, ZERO_WRONG)
        assert load.sums == sum(one.products for one in load.formats) // GROUP > load.pulses >= 4
