"""16-bit products through fp32: correctly rounded, and nothing else is touched.

The replacement holds for a whole process, so the checks of a dtype run in a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from suite.paths import ROOT

DTYPES = ("bfloat16", "float16")
PREAMBLE = """
import json, sys, traceback
import torch
from torch import bfloat16, float16, randn
before = torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))
from kernels import half_matmul
from kernels.half_matmul import compute_products_through_fp32, reference
half, other, checks = json.load(sys.stdin)
half, other = getattr(torch, half), getattr(torch, other)
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

errors = {}
for name, code in checks.items():
    torch.manual_seed(0)
    try:
        exec(code, dict(globals()))
    except Exception:  # whatever it is, the test that asked for it prints it
        errors[name] = traceback.format_exc()
print(json.dumps(errors))
"""
CHECKS = {
    "odd sizes and strides": """
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
    "a wrong rounding": "a = randn(64, 64); rounded_once((a @ a).to(half) * 1.01, (a @ a).double(), 64)",
    "beyond the range, by which loss scaling finds an overflow": """
if half is float16:
    a = torch.full((2, 3), 300.0, dtype=half)
    assert (a @ a.t()).isinf().all()
    assert not (a[:, :0] @ a[:, :0].t()).any()
    assert torch.equal((a / 3) @ (a / 3).t(), torch.full((2, 2), 30000.0, dtype=half))
""",
    "other dtypes": """
after = torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))
assert torch.equal(before, after) and after.dtype is torch.float32
assert (torch.ones(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64)).dtype is torch.float64
widened = []
wide = half_matmul._wide
half_matmul._wide = lambda value: widened.append(value) or wide(value)
try:
    torch.ones(2, 2, dtype=other) @ torch.ones(2, 2, dtype=other)
    assert not widened
    torch.ones(2, 2, dtype=half) @ torch.ones(2, 2, dtype=half)
    assert len(widened) == 2
finally:
    half_matmul._wide = wide
""",
    "gradients and flop": """
from torch.utils.flop_counter import FlopCounterMode
x, w = randn(8, 5).to(half).requires_grad_(), randn(3, 5).to(half).requires_grad_()
with FlopCounterMode(display=False) as flop:
    y = torch.nn.functional.linear(x, w)
    y.backward(torch.ones_like(y))
assert flop.get_total_flops() == 3 * 2 * 8 * 5 * 3
rounded_once(x.grad, torch.ones(8, 3).double() @ w.detach().double(), 3)
rounded_once(w.grad, torch.ones(3, 8).double() @ x.detach().double(), 8)
""",
    # the last one: from here on no 16-bit dtype has its own kernels
    "both dtypes": """
compute_products_through_fp32(other)
for dtype in (half, other):
    a = randn(9, 33).to(dtype)
    rounded_once(a @ a.t(), a.double() @ a.double().t(), 33, dtype)
""",
}


@pytest.mark.parametrize("half", DTYPES)
def test_products_are_rounded_once_and_other_dtypes_keep_their_kernels(half: str) -> None:
    other = next(dtype for dtype in DTYPES if dtype != half)
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE],
        input=json.dumps([half, other, CHECKS]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert "AssertionError" in found.pop("a wrong rounding", "")  # the check of rounding can fail
    assert found == {}
