"""Shapes of matrix multiplications as PyTorch's profiler says them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from reference_runs.training_traces.kineto import kineto_traces
from reference_runs.training_traces.products import Product, ProductTimes, product_of

BF16 = "c10::BFloat16"


@pytest.mark.parametrize(
    ("name", "dims", "types", "product"),
    [
        ("aten::mm", [[8, 16], [16, 4]], [BF16, BF16], Product(1, 8, 4, 16, "bf16", 2)),
        ("aten::addmm", [[4], [8, 16], [16, 4], [], []], ["float"] * 3, Product(1, 8, 4, 16, "fp32", 4)),
        ("aten::bmm", [[3, 8, 16], [3, 16, 4]], ["c10::Half"] * 2, Product(3, 8, 4, 16, "fp16", 2)),
        ("aten::mm", [[8, 16], [16, 4]], ["double", "double"], None),
        ("aten::mm", [[], []], [BF16, BF16], None),
        ("aten::mm", [[0, 16], [16, 4]], [BF16, BF16], None),
        ("aten::mm", [["a"]], [BF16], None),
        ("aten::mm", "none", 3, None),
        ("aten::add", [[8, 16], [8, 16]], [BF16, BF16], None),
    ],
)
def test_a_product_is_known_by_its_shapes(name: str, dims: object, types: object, product: Product | None) -> None:
    said = (msgspec.Raw(msgspec.json.encode(each)) for each in (dims, types))
    assert product_of(name, *said) == product
    assert product_of(name, msgspec.Raw(), msgspec.Raw()) is None


def test_flop_and_bytes_are_those_of_both_factors_and_the_result() -> None:
    product = Product(3, 8, 4, 16, "bf16", 2)
    assert (product.flop, product.least_bytes) == (2 * 3 * 8 * 4 * 16, 3 * 2 * (8 * 16 + 16 * 4 + 8 * 4))


def test_kernels_of_one_operator_are_added_and_the_median_call_counts() -> None:
    times, product = ProductTimes(), Product(1, 8, 4, 16, "bf16", 2)
    for number, kernels in {1: (10, 20), 2: (50,), 3: (90,), 4: ()}.items():
        times.take_operator(number, product, 1000)
        for nanoseconds in kernels:
            times.take_kernel(0, number, nanoseconds)
    times.take_kernel(0, 77, 5)
    times.take_kernel(1, 1, 7)
    assert times.timed(0) == [(product, 3, 50e-9)]
    assert times.timed(1) == [(product, 1, 7e-9)]
    assert times.timed(None) == [(product, 4, 1e-6)]


def test_of_pytorchs_own_trace_of_a_cpu_the_operators_count(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        for _ in range(3):
            torch.nn.functional.linear(torch.ones(32, 64), torch.ones(16, 64), torch.ones(16))
    recording.export_chrome_trace(str(tmp_path / "trace.json"))
    ((product, calls, seconds),) = kineto_traces(tmp_path / "trace.json")[0].products
    assert (product, calls) == (Product(1, 32, 16, 64, "fp32", 4), 3)
    assert 0 < seconds < 1
