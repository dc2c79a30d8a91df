"""Soaks use every bit both ways, fill what is really free, end in time, and see a wrong element."""

from __future__ import annotations

import itertools
import time

import msgspec
import pytest
import torch

from suite.execute.probe import soak
from suite.job.events import Phase
from tests.support.launches import probe_job

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def job(tmp_path):
    return probe_job(tmp_path)


def bits(numbers):
    """[elements, 32] of 0 and 1."""
    return (numbers[:, None] >> torch.arange(32)) & 1


def test_patterns_are_what_integers_without_overflow_say():
    for first, salt in ((0, 0), (7, 3), (1 << 40, 12345)):
        found = soak.pattern(first, 1000, salt, CPU)
        whole = [(index * soak.FACTOR + salt * soak.SALT_FACTOR) % 2**32 for index in range(first, first + 1000)]
        assert (found.to(torch.int64) % 2**32).tolist() == whole
        turned = soak.pattern(first, 1000, salt, CPU, complement=True)
        assert torch.equal(turned, ~found)


def test_two_passes_of_a_soak_write_0_and_1_to_every_bit_of_every_place(job, monkeypatch):
    written = []
    differences = soak.differences

    def remembering(found, expected):
        if found.dtype is torch.int32:
            written.append(found.clone())
        return differences(found, expected)

    monkeypatch.setattr(soak, "differences", remembering)
    done = soak.soaked(job, CPU, None, lambda _event: None)
    assert (done.bytes, done.passes, done.wrong) == (1 << 16, 2, 0)
    _tried, first, second = written
    assert first.numel() == 1 << 13
    assert torch.equal(bits(first) + bits(second), torch.ones(1 << 13, 32, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_exact_in_any_order_of_sums(dtype):
    left, right, product = soak.factors(dtype)
    whole = left.long() @ right.long()
    assert torch.equal(product.long(), whole)
    assert {0, 1, 2, 3} == set(left.unique().tolist()) == set(right.unique().tolist())
    assert whole.max() <= 2 ** (8 if dtype is torch.bfloat16 else 24)  # below which whole numbers are exact
    assert torch.equal(left @ right, product)
    half = soak.PRODUCT // 2
    assert torch.equal((left[:, half:] @ right[half:]).add_(left[:, :half] @ right[:half]), product)
    assert (left != 0).any(dim=0).all()  # every column is used
    assert (left != 0).any(dim=1).all()


def test_differences_count_wrong_elements_and_describe_the_first():
    right = torch.zeros(5)
    wrong = torch.tensor([0.0, 0.0, float("nan"), 1.0, 0.0])
    assert soak.differences(right, right) == (0, "")
    assert soak.differences(wrong, right) == (2, "element 2 is nan, not 0.0")


def test_a_device_that_contradicts_itself_has_no_right_element(monkeypatch):
    """One that computes nothing says neither that tensors are equal nor where they differ."""
    monkeypatch.setattr(torch, "equal", lambda _actual, _expected: False)
    assert soak.differences(torch.ones(3), torch.ones(3))[0] == 3


@pytest.mark.parametrize("bit", [0, 30, 31])
def test_a_soak_sees_one_wrong_bit_of_memory(job, monkeypatch, bit):
    copy, made = torch.Tensor.copy_, itertools.count()

    def flipping(self, *arguments, **options):
        done = copy(self, *arguments, **options)
        if self.dtype is torch.int32 and self.numel() == 1 << 13 and next(made) == 1:  # after the first pass
            self.view(-1)[-1:] ^= torch.tensor([1 << bit], dtype=torch.int64).to(torch.int32)
        return done

    monkeypatch.setattr(torch.Tensor, "copy_", flipping)
    bad = soak.soaked(job, CPU, None, lambda _event: None)
    assert bad.wrong == 1
    assert bad.first.startswith("memory from element 0, pass 0: element 8191 is ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_soak_sees_a_wrong_product_and_names_its_type(job, monkeypatch, dtype):
    multiply = torch.Tensor.__matmul__

    def faulty(self, other):
        out = multiply(self, other)
        if out.dtype is dtype:
            out[3, 4] += 1
        return out

    right = soak.factors

    def exact(kind):
        with monkeypatch.context() as undone:
            undone.setattr(torch.Tensor, "__matmul__", multiply)
            return right(kind)

    monkeypatch.setattr(soak, "factors", exact)
    monkeypatch.setattr(torch.Tensor, "__matmul__", faulty)
    bad = soak.soaked(job, CPU, None, lambda _event: None)
    assert bad.wrong == 3  # of the first pass and two more
    assert bad.first.startswith(f"product in {str(dtype).removeprefix('torch.')}, pass 0: element {3 * 512 + 4} is ")


def test_a_pass_is_over_as_much_as_fits_the_time_and_says_that_it_goes_on(job, monkeypatch):
    """At a speed at which all of the memory would take long, two passes still fit about the time."""
    monkeypatch.setattr(soak, "CHUNK", 1 << 10)
    monkeypatch.setattr(soak, "TRIED", 1 << 12)
    differences = soak.differences

    def slow(found, expected):
        time.sleep(0.005)
        return differences(found, expected)

    monkeypatch.setattr(soak, "differences", slow)
    events = []
    large = msgspec.structs.replace(job, soak_seconds=2.0, soak_bytes=1 << 30)
    start = time.monotonic()
    done = soak.soaked(large, CPU, None, events.append)
    assert time.monotonic() - start < 8.0  # all of it would take 2,000 s a pass
    assert done.passes >= 2
    assert 8 << 12 <= done.bytes < 1 << 25
    assert len(events) >= 1
    assert isinstance(events[0], Phase)


@pytest.mark.parametrize(
    ("free", "ranks", "each"),
    [
        (20 * GIB, 2, int(0.9 * 20 * GIB) // 2),
        (8 * GIB, 1, 7 * GIB),  # 90 % would leave less than 1 GiB
        (1 * GIB, 2, GIB // 8),  # a quarter at least
        (0, 2, 0),
    ],
)
def test_ranks_share_what_is_free_and_leave_some(free, ranks, each):
    assert soak.fillable_bytes(free, ranks=ranks) == each


@pytest.mark.parametrize(
    ("asked", "free", "filled"),
    [
        (0, 8 * GIB, 7 * GIB - soak.WORK_BYTES),
        (1 << 20, 8 * GIB, 1 << 20),
        (8 * GIB, 8 * GIB, 7 * GIB - soak.WORK_BYTES),
        (0, 100 << 20, (100 << 20) // 4 // 2),  # half of a little: comparing takes the rest
    ],
)
def test_a_rank_fills_what_is_free_less_what_it_works_in(job, monkeypatch, asked, free, filled):
    monkeypatch.setattr(soak, "free_bytes", lambda: free)
    job = msgspec.structs.replace(job, soak_bytes=asked)
    assert soak.soak_bytes(job, CPU, None) == filled
