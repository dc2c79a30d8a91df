"""The pulsed load multiplies in every format that a device has, and sees one wrong element of one product or sum."""

from __future__ import annotations

import itertools

import pytest
import torch

from suite.execute.probe import load
from tests.support.launches import probe_job

CPU = torch.device("cpu")
ELEMENTS = 2048  # of a sum


class Pair:
    """Two ranks as the second sees them: the first one has the same work, and decides nothing else."""

    def __init__(self, world: int = 2) -> None:
        self.world, self.sums, self.spoiled = world, 0, -1

    def get_rank(self):
        return self.world - 1

    def get_world_size(self):
        return self.world

    def barrier(self, group):
        assert group == "control"

    def broadcast(self, word, src, group):
        assert (word.numel(), src, group) == (2, 0, "control")

    def all_reduce(self, buffer, *, async_op):
        assert async_op
        ranks, self.sums = self.world, self.sums + 1
        buffer.mul_(ranks).add_(ranks * (ranks - 1) // 2 - ranks * self.get_rank())
        buffer[7] += self.sums - 1 == self.spoiled
        return self

    def wait(self):
        """The sum is there."""


@pytest.fixture
def ranks(monkeypatch):
    made = Pair()
    monkeypatch.setattr(load, "dist", made)
    return made


@pytest.fixture
def job(tmp_path):
    parts = {"load_seconds": 0.1, "load_size": 48, "load_bytes": 4 * ELEMENTS, "pulse_seconds": 0.02}
    return probe_job(tmp_path, ranks=2, **parts)


def wrong(done):
    return {one.format: one.wrong for one in done.formats}


def test_formats_take_turns_each_product_beside_a_sum_and_all_are_right(ranks, job):
    reported = []
    done = load.loaded(job, CPU, "control", reported.append)
    assert (wrong(done), done.wrong_sums, done.first) == ({"bf16": 0, "fp32": 0}, 0, "")
    assert done.sums == ranks.sums == sum(one.products for one in done.formats) // load.GROUP
    assert done.pulses == len(reported) >= 4
    assert [phase.name for phase in reported[:3]] == [f"load pulse {n}, {('bf16', 'fp32')[n % 2]}" for n in range(3)]
    assert min(one.flop_per_second for one in done.formats) > 0
    assert set(done.missing) == {"fp8", "tf32", "fp64"}


def test_a_rank_alone_has_no_sums(ranks, job):
    ranks.world = 1
    done = load.loaded(job, CPU, "control", lambda _event: None)
    assert (done.sums, done.sum_bytes, wrong(done)) == (0, 0, {"bf16": 0, "fp32": 0})


def test_a_wrong_element_of_a_sum_is_seen(ranks, job):
    ranks.spoiled = 1
    done = load.loaded(job, CPU, "control", lambda _event: None)
    assert (done.wrong_sums, wrong(done)) == (1, {"bf16": 0, "fp32": 0})
    assert done.first == "pulse 1 on cpu: 1 elements of sums are wrong"


@pytest.mark.usefixtures("ranks")
def test_a_wrong_element_of_a_product_is_seen_and_its_format_named(job, monkeypatch):
    right, count = load._FormatProducts._product, itertools.count()

    def product(self):
        out = right(self)
        if self.format.name == "fp32" and next(count) == load.GROUP:  # the first of the second pulse
            out[3, 5] += 1
        return out

    monkeypatch.setattr(load._FormatProducts, "_product", product)
    done = load.loaded(job, CPU, "control", lambda _event: None)
    assert (wrong(done), done.wrong_sums) == ({"bf16": 0, "fp32": 1}, 0)
    assert done.first == "pulse 3 on cpu: 1 elements of fp32 products are wrong"


@pytest.mark.usefixtures("ranks")
def test_a_device_that_computes_nothing_has_no_right_product(job, monkeypatch):
    monkeypatch.setattr(load._FormatProducts, "_product", lambda self: torch.full_like(self._expected, torch.nan))
    done = load.loaded(job, CPU, "control", lambda _event: None)
    assert wrong(done) == {one.format: one.products * 48 * 48 for one in done.formats}


@pytest.mark.parametrize("one", load.FORMATS, ids=lambda one: one.name)
def test_products_of_every_format_are_those_of_whole_numbers(one):
    left, right, expected = load._whole_numbers(64, 5)
    assert torch.equal(expected.long(), left.long() @ right.long())
    assert 1 < expected.abs().max() < 4 * 64
    products = load._FormatProducts(one, left, right, expected, CPU)
    products.run()
    assert products.newly_wrong() == 0
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("capability", "missing"),
    [((7, 5), {"bf16", "fp8", "tf32"}), ((8, 0), {"fp8"}), ((8, 9), set()), ((9, 0), set()), ((10, 0), set())],
)
def test_a_gpu_multiplies_in_the_formats_of_its_capability(monkeypatch, capability, missing):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    formats, why = load.formats_of(torch.device("cuda", 0))
    assert set(why) == missing
    assert {one.name for one in formats} == {"bf16", "fp8", "tf32", "fp64"} - missing
    assert all(f"{capability[0]}.{capability[1]}, " in words for words in why.values())
