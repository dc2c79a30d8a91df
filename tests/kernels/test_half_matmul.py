"""16-bit products through fp32: correctly rounded, and nothing else is touched.

The replacement holds for a whole process, so every check runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from suite.paths import ROOT

DTYPES = ("bfloat16", "float16")
PREAMBLE = """
import torch
from torch import bfloat16, float16, randn
torch.manual_seed(0)
half, other = {half}, {other}
before = [torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))]
from kernels.half_matmul import compute_products_through_fp32, reference
compute_products_through_fp32(half)
compute_products_through_fp32(half)

def rounded_once(got, exact, terms, dtype=half):
    # One rounding moves a value by at most 2^-8 (bf16, 8 significant bits) or 2^-11 (fp16, 11 bits) of itself, and
    # below fp16's smallest normal number by half of its smallest step 2^-24; fp32 accumulation by terms * 2^-24 of the
    # largest sum of magnitudes before that.
    assert got.dtype is dtype
    roundoff, step = (2**-8, 0.0) if dtype is bfloat16 else (2**-11, 2**-25)
    error = (got.double() - exact).abs()
    bound = exact.abs() * roundoff + step + terms * 2**-24 * exact.abs().max().clamp(min=1) * terms
    assert bool((error <= bound).all()), (error - bound).max()
"""


def _run(code: str, half: str) -> subprocess.CompletedProcess[str]:
    other = next(dtype for dtype in DTYPES if dtype != half)
    preamble = PREAMBLE.replace("{half}", half).replace("{other}", other)
    return subprocess.run(
        [sys.executable, "-c", preamble + code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def _check(code: str, half: str) -> None:
    done = _run(code, half)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("half", DTYPES)
def test_products_are_rounded_once_at_odd_sizes_and_strides(half: str) -> None:
    _check(
        """
for m, k, n in [(1, 1, 1), (37, 5, 255), (3, 257, 64), (128, 96, 33)]:
    a, b, c = randn(m, k).to(half), randn(n, k).to(half).t(), randn(n).to(half)
    exact = a.double() @ b.double()
    rounded_once(a @ b, exact, k)
    rounded_once(torch.mm(a, b, out=torch.empty(m, n, dtype=half)), exact, k)
    rounded_once(torch.addmm(c, a, b), c.double() + exact, k)
    rounded_once(torch.addmm(c, a, b, beta=0.5, alpha=2.0), 0.5 * c.double() + 2 * exact, k)
    out = torch.empty(m, n, dtype=half)
    rounded_once(torch.addmm(c, a, b, out=out), c.double() + exact, k)
    a, b = randn(4, m, k).to(half), randn(4, n, k).to(half).transpose(1, 2)
    exact = a.double() @ b.double()
    rounded_once(torch.bmm(a, b), exact, k)
    rounded_once(torch.bmm(a, b, out=torch.empty(4, m, n, dtype=half)), exact, k)
    rounded_once(torch.baddbmm(torch.ones(4, m, n, dtype=half), a, b), 1 + exact, k)
    # k products accumulated in fp32 are off by about k 2^-24, so about k 2^-13 of the values fall to the other side of
    # the border between two fp16 numbers, which are 2^-10 apart; more where terms cancel
    assert k > 64 or (a[0] @ b[0] != reference(a[0], b[0])).double().mean() <= 4 * k * 2**-13
assert (torch.empty(0, 3, dtype=half) @ torch.ones(3, 2, dtype=half)).shape == (0, 2)
empty = torch.ones(2, 0, dtype=half)
assert torch.equal(empty @ empty.t(), torch.zeros(2, 2, dtype=half))
""",
        half,
    )


@pytest.mark.parametrize("half", DTYPES)
def test_the_check_of_rounding_can_fail(half: str) -> None:
    done = _run("a = randn(64, 64); rounded_once((a @ a).to(half) * 1.01, (a @ a).double(), 64)", half)
    assert "AssertionError" in done.stderr


def test_fp16_products_beyond_its_range_become_infinite() -> None:
    # loss scaling finds an overflow by this
    _check(
        """
a = torch.full((2, 3), 300.0, dtype=half)
assert (a @ a.t()).isinf().all()
assert not (a[:, :0] @ a[:, :0].t()).any()
assert torch.equal((a / 3) @ (a / 3).t(), torch.full((2, 2), 30000.0, dtype=half))
""",
        "float16",
    )


@pytest.mark.parametrize("half", DTYPES)
def test_other_dtypes_keep_their_kernels(half: str) -> None:
    _check(
        """
after = torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))
assert torch.equal(before[0], after) and after.dtype is torch.float32
assert (torch.ones(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64)).dtype is torch.float64
from kernels import half_matmul
widened = []
wide = half_matmul._wide
half_matmul._wide = lambda value: widened.append(value) or wide(value)
torch.ones(2, 2, dtype=other) @ torch.ones(2, 2, dtype=other)
assert not widened
torch.ones(2, 2, dtype=half) @ torch.ones(2, 2, dtype=half)
assert len(widened) == 2
""",
        half,
    )


def test_both_dtypes_can_go_through_fp32_in_one_process() -> None:
    _check(
        """
compute_products_through_fp32(other)
for dtype in (half, other):
    a = randn(9, 33).to(dtype)
    rounded_once(a @ a.t(), a.double() @ a.double().t(), 33, dtype)
""",
        "bfloat16",
    )


@pytest.mark.parametrize("half", DTYPES)
def test_gradients_and_flop_are_those_of_the_operator(half: str) -> None:
    _check(
        """
from torch.utils.flop_counter import FlopCounterMode
x, w = randn(8, 5).to(half).requires_grad_(), randn(3, 5).to(half).requires_grad_()
with FlopCounterMode(display=False) as flop:
    y = torch.nn.functional.linear(x, w)
    y.backward(torch.ones_like(y))
assert flop.get_total_flops() == 3 * 2 * 8 * 5 * 3
rounded_once(x.grad, torch.ones(8, 3).double() @ w.detach().double(), 3)
rounded_once(w.grad, torch.ones(3, 8).double() @ x.detach().double(), 8)
""",
        half,
    )
