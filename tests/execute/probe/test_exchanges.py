"""Exchanges of all ranks at once are verified by their source, and an all-reduce runs by the algorithm asked for."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from suite.execute.probe import exchanges
from suite.execute.probe.soak import pattern
from tests.support.launches import probe_job

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
RANK, RANKS = 1, 3
ELEMENTS = 100  # to each rank


class Ranks:
    """Three ranks as the second sees them."""

    ReduceOp = SimpleNamespace(MIN="min")

    def __init__(self) -> None:
        self.number = 0
        self.spoiled: tuple[int, int] | None = None  # number of the exchange, and element
        self.algorithms: list[str | None] = []
        self.refuses = ""
        self.others_refuse = False

    def get_rank(self):
        return RANK

    def get_world_size(self):
        return RANKS

    def barrier(self, group):
        pass

    def broadcast(self, word, src, group):
        pass

    def all_to_all_single(self, received, sent):
        """Receive what other ranks send, by their own numbers; the message of this rank to itself is what it sent."""
        parts = []
        for source in range(RANKS):
            salts = [(self.number * RANKS + source) * RANKS + target for target in range(RANKS)]
            parts.append(torch.cat([pattern(0, ELEMENTS, salt, CPU) for salt in salts]).view(RANKS, ELEMENTS))
        assert torch.equal(sent.view(RANKS, ELEMENTS), parts[RANK])
        received.copy_(torch.cat([part[RANK] for part in parts]))
        if self.spoiled is not None and self.spoiled[0] == self.number:
            received[self.spoiled[1]] ^= 1
        self.number += 1

    def new_group(self):
        self.algorithms.append(os.environ.get("NCCL_ALGO"))
        return "group"

    def all_reduce(self, tensor, _operation=None, *, group):
        if group == "control":
            if self.others_refuse:
                tensor.zero_()
            return
        self.algorithms.append(os.environ.get("NCCL_ALGO"))
        if self.refuses == os.environ.get("NCCL_ALGO"):
            raise RuntimeError("NCCL Error 5: invalid usage")


@pytest.fixture
def ranks(monkeypatch):
    made = Ranks()
    monkeypatch.setattr(exchanges, "dist", made)
    return made


@pytest.fixture
def job(tmp_path):
    return probe_job(tmp_path, ranks=RANKS, exchanges=3, exchange_bytes=4 * ELEMENTS * RANKS)


def test_every_rank_sends_every_other_one_a_message_of_its_own(ranks, job):
    done = exchanges.exchanged_with_all(job, CPU, "control")
    assert (done.peer, done.operation, done.algorithm) == (None, "all-to-all", "")
    assert done.bytes == 4 * ELEMENTS * (RANKS - 1)  # to the others
    assert (done.wrong, done.first, ranks.number) == (0, "", 3)


def test_one_wrong_bit_of_an_all_to_all_is_seen(ranks, job):
    ranks.spoiled = (1, 2 * ELEMENTS + 7)
    bad = exchanges.exchanged_with_all(job, CPU, "control")
    assert bad.wrong == 1
    assert bad.first.startswith(f"element {2 * ELEMENTS + 7} is ")


@pytest.mark.parametrize("before", [None, "Tree"])
@pytest.mark.parametrize(("algorithm", "word"), [("ring", "Ring"), ("nvls", "NVLS")])
def test_the_library_makes_the_communicator_with_the_algorithm_and_others_without(
    ranks, monkeypatch, before, algorithm, word
):
    if before is None:
        monkeypatch.delenv("NCCL_ALGO", raising=False)
    else:
        monkeypatch.setenv("NCCL_ALGO", before)
    assert exchanges.group_with(algorithm, CPU, "control") == "group"
    assert ranks.algorithms == [word, word]  # where it is made, and at its first collective
    assert os.environ.get("NCCL_ALGO") == before


def test_an_algorithm_that_some_rank_is_refused_is_not_timed(ranks):
    ranks.refuses = "NVLS"
    assert exchanges.group_with("nvls", CPU, "control") is None
    assert "NCCL_ALGO" not in os.environ
    assert exchanges.group_with("ring", CPU, "control") == "group"
    ranks.others_refuse = True
    assert exchanges.group_with("ring", CPU, "control") is None


@pytest.mark.parametrize(
    ("device", "capability", "algorithms"),
    [(CPU, None, []), (CUDA, (8, 0), ["ring"]), (CUDA, (9, 0), ["ring", "nvls"]), (CUDA, (10, 0), ["ring", "nvls"])],
)
def test_sums_in_the_switch_are_asked_of_gpus_that_can(monkeypatch, device, capability, algorithms):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert exchanges._algorithms(device) == algorithms


def test_each_part_is_reported_with_its_algorithm(ranks, job, monkeypatch):
    """Pairs one at a time, all at once, and an all-reduce by each algorithm, or that it is refused."""
    seen = []

    def reduced(_job, _device, _control, group=None, algorithm=""):
        return group, algorithm

    monkeypatch.setattr(exchanges, "exchanged", lambda _job, peer, *_words, **_named: peer)
    monkeypatch.setattr(exchanges, "exchanged_with_all", lambda *_words: "all-to-all")
    monkeypatch.setattr(exchanges, "reduced", reduced)
    monkeypatch.setattr(exchanges, "_algorithms", lambda _device: ["ring", "nvls"])
    ranks.refuses = "NVLS"
    exchanges.exchange_all(job, CPU, "control", seen.append)
    *reports, last = [event for event in seen if not hasattr(event, "name")]
    assert reports == [0, 2, "all-to-all", (None, ""), ("group", "ring")]
    assert (last.algorithm, last.bytes) == ("nvls", 0)
    assert last.first == "not available: NCCL refused NCCL_ALGO=NVLS to some rank"
