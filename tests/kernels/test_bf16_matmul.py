"""bf16 products through fp32: correctly rounded, and nothing else is touched.

The replacement holds for a whole process, so every check runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PREAMBLE = """
import torch
from torch import randn, bfloat16
torch.manual_seed(0)
before = [torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))]
from kernels.bf16_matmul import compute_bf16_products_through_fp32, reference
compute_bf16_products_through_fp32()
compute_bf16_products_through_fp32()

def rounded_once(got, exact, terms):
    # One rounding to bf16 moves a value by at most 2^-8 of itself; fp32 accumulation by terms * 2^-24 of the largest
    # sum of magnitudes before that.
    assert got.dtype is bfloat16
    error = (got.double() - exact).abs()
    bound = exact.abs() * 2**-8 + terms * 2**-24 * exact.abs().max().clamp(min=1) * terms
    assert bool((error <= bound).all()), (error - bound).max()
"""


def _check(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_products_are_rounded_once_at_odd_sizes_and_strides() -> None:
    _check("""
for m, k, n in [(1, 1, 1), (37, 5, 255), (3, 257, 64), (128, 96, 33)]:
    a, b, c = randn(m, k).to(bfloat16), randn(n, k).to(bfloat16).t(), randn(n).to(bfloat16)
    exact = a.double() @ b.double()
    rounded_once(a @ b, exact, k)
    rounded_once(torch.mm(a, b, out=torch.empty(m, n, dtype=bfloat16)), exact, k)
    rounded_once(torch.addmm(c, a, b), c.double() + exact, k)
    rounded_once(torch.addmm(c, a, b, beta=0.5, alpha=2.0), 0.5 * c.double() + 2 * exact, k)
    out = torch.empty(m, n, dtype=bfloat16)
    rounded_once(torch.addmm(c, a, b, out=out), c.double() + exact, k)
    a, b = randn(4, m, k).to(bfloat16), randn(4, n, k).to(bfloat16).transpose(1, 2)
    exact = a.double() @ b.double()
    rounded_once(torch.bmm(a, b), exact, k)
    rounded_once(torch.bmm(a, b, out=torch.empty(4, m, n, dtype=bfloat16)), exact, k)
    rounded_once(torch.baddbmm(torch.ones(4, m, n, dtype=bfloat16), a, b), 1 + exact, k)
    assert torch.equal((a[0] @ b[0]), reference(a[0], b[0])) or k > 64
assert (torch.empty(0, 3, dtype=bfloat16) @ torch.ones(3, 2, dtype=bfloat16)).shape == (0, 2)
empty = torch.ones(2, 0, dtype=bfloat16)
assert torch.equal(empty @ empty.t(), torch.zeros(2, 2, dtype=bfloat16))
""")


def test_the_check_of_rounding_can_fail() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PREAMBLE + "a = randn(64, 64); rounded_once((a @ a).to(bfloat16) * 1.01, (a @ a).double(), 64)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "AssertionError" in done.stderr


def test_other_dtypes_keep_their_kernels() -> None:
    _check("""
after = torch.mm(torch.arange(35.).view(5, 7), torch.arange(21.).view(7, 3))
assert torch.equal(before[0], after) and after.dtype is torch.float32
assert (torch.ones(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64)).dtype is torch.float64
""")


def test_gradients_and_flop_are_those_of_the_operator() -> None:
    _check("""
from torch.utils.flop_counter import FlopCounterMode
x, w = randn(8, 5).to(bfloat16).requires_grad_(), randn(3, 5).to(bfloat16).requires_grad_()
with FlopCounterMode(display=False) as flop:
    y = torch.nn.functional.linear(x, w)
    y.backward(torch.ones_like(y))
assert flop.get_total_flops() == 3 * 2 * 8 * 5 * 3
rounded_once(x.grad, torch.ones(8, 3).double() @ w.detach().double(), 3)
rounded_once(w.grad, torch.ones(3, 8).double() @ x.detach().double(), 8)
""")
