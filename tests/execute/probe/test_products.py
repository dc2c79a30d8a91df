"""Large products are verified to the bit, also where a device repeats its error or computes nothing, and are timed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from suite.execute.measure import system_load
from suite.execute.probe import products

CPU = torch.device("cpu")
SIZE = 64


def multiplied(seconds=0.0):
    return products.multiplied(SIZE, seconds, CPU, 7, lambda _event: None)


def test_right_products_are_all_counted_and_right():
    done = multiplied(seconds=0.3)
    assert (done.wrong, done.first) == (0, "")
    assert done.products >= 2 * products.GROUP
    assert done.products % products.GROUP == 0
    assert 0.3 <= done.seconds < 30
    assert 0 < done.flop_per_second <= done.burst_flop_per_second


@pytest.mark.parametrize("wrong", [3, 8])
def test_one_wrong_bit_of_one_product_is_seen_and_named(monkeypatch, wrong):
    multiply, made = torch.mm, itertools.count()

    def flipping(left, right, *, out):
        multiply(left, right, out=out)
        if next(made) == wrong:
            out.view(torch.int16)[1, 5] ^= 1

    monkeypatch.setattr(torch, "mm", flipping)
    monkeypatch.setattr(products, "time", SimpleNamespace(time=lambda: 0.0, perf_counter=itertools.count().__next__))
    bad = multiplied(seconds=30.0)
    assert bad.wrong == 1
    assert bad.first == f"product {wrong} on cpu: wrong from element {SIZE + 4}, 1 words of 8 bytes in all"


def test_a_product_that_is_left_out_is_seen(monkeypatch):
    """Its output holds the product before it, of the other kind."""
    multiply, made = torch.mm, itertools.count()

    def lazy(left, right, *, out):
        if next(made) != products.GROUP + 2:
            multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", lazy)
    monkeypatch.setattr(products, "time", SimpleNamespace(time=lambda: 0.0, perf_counter=itertools.count().__next__))
    bad = multiplied(seconds=30.0)
    assert bad.wrong > 0.9 * SIZE * SIZE / 4
    assert bad.first.startswith(f"product {products.GROUP + 2} on cpu: wrong from element 0, ")


def test_a_device_that_always_errs_alike_is_refused_by_the_host(monkeypatch):
    """Each later product equals the first one, which is not A B."""
    multiply, times = torch.mm, torch.Tensor.__matmul__
    monkeypatch.setattr(torch, "mm", lambda left, right, *, out: multiply(left, right, out=out).mul_(0.5))

    def halved(self, other):
        return times(self, other) * (0.5 if self.dtype is torch.bfloat16 else 1.0)

    monkeypatch.setattr(torch.Tensor, "__matmul__", halved)
    bad = multiplied()
    assert bad.wrong > 0
    assert bad.first.startswith("first product on cpu: row ")
    assert bad.first.endswith(" is not that of the host")


def test_a_device_that_computes_nothing_has_no_right_product(monkeypatch):
    """Neither products nor comparisons: their results stay what the host copied there, which is 0."""
    monkeypatch.setattr(torch, "mm", lambda _left, _right, *, out: out)
    monkeypatch.setattr(torch.Tensor, "sum", lambda _self: torch.zeros((), dtype=torch.int64))
    bad = multiplied()
    assert bad.wrong >= products.GROUP * SIZE * SIZE // products.IN_WORD


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [16, 64, 256])
def test_the_host_accepts_what_is_rounded_and_refuses_wrong_rows(size, seed):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    product = (left.float() @ right.float()).bfloat16()
    assert products.refused_rows(left, right, product, generator) == []
    unknown = product.clone()
    unknown[size // 2, 3] = float("nan")
    assert products.refused_rows(left, right, unknown, generator) == [size // 2]
    for wrong in (torch.zeros_like(product), product.roll(1, dims=1), product * 1.25):
        assert len(products.refused_rows(left, right, wrong, generator)) > size / 4


def test_the_sustained_rate_is_that_of_the_later_half(monkeypatch):
    """A GPU that slows down at its power limit: the first seconds are a burst."""
    rates = iter([4.0, 4.0, 2.0, 1.0, 1.0, 1.0])
    flop = 2.0 * SIZE**3 * products.GROUP
    monkeypatch.setattr(products._Load, "run", lambda _self, groups: [flop / next(rates)] * groups)
    monkeypatch.setattr(products._Load, "differences", lambda _self: (0, 0, 0))
    monkeypatch.setattr(products, "time", SimpleNamespace(time=lambda: 0.0, perf_counter=itertools.count().__next__))
    waits = iter([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5 * flop, 1.0 * flop, 1.5 * flop, 2.0 * flop, 9.0 * flop])
    monkeypatch.setattr(products, "waited_seconds", lambda: next(waits))
    done = multiplied(seconds=6.0)
    assert (done.burst_flop_per_second, done.flop_per_second) == (4.0, 1.0)
    assert done.undelayed_flop_per_second == pytest.approx(2.0)  # of 2, 2 and 10: the host waited half of the time
    assert done.fp8_flop_per_second is None


def test_a_thread_that_shares_its_processor_waits():
    """Two processes on one processor: this thread waits about as long as it runs, and not when it is alone."""
    if not system_load.waited_seconds():
        pytest.skip("NOT RUN: the system does not say how long a thread waited")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before, ran = system_load.waited_seconds(), time.thread_time()
        while time.thread_time() < ran + 0.3:
            pass
        waited = system_load.waited_seconds() - before
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, allowed)
    assert waited > 0.05
