"""Costs of a layer's operators by PyTorch's torch.distributed._tools.runtime_estimator, and by ours.

It refuses to work without a GPU, of which it takes two figures: here they are given, and nothing else of a GPU.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.utils import _runtime_estimation

from reference_runs.layout import Layout
from reference_runs.run import Precision, Workload
from suite.predict.analytic.flop import layer_forward_flop
from suite.predict.analytic.memory_bound_operators import layer_operator_bytes
from tests.support.strategies import BLOOM

HIDDEN, WIDE, TOKENS, FP32 = 64, 256, 48, 4
ENDLESS = 1e30  # so that the other figure decides
SIZES = {"hidden": HIDDEN, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn_hidden": WIDE, "sequence": TOKENS}
ARCHITECTURE = msgspec.structs.replace(BLOOM.architecture, layers=1, **SIZES)
RECIPE = msgspec.structs.replace(BLOOM.recipe, precision=Precision.FP32)
OURS = layer_operator_bytes(Workload(ARCHITECTURE, RECIPE, Layout(micro_batch=1)))
WEIGHTS = HIDDEN * WIDE


@pytest.fixture
def nanoseconds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function: of a link to memory of so many GB/s, and a peak of so many Tflop/s, the time of each operator."""
    estimate = RuntimeEstimator._roofline_estimate

    def of(gigabytes: float, teraflops: float) -> dict[str, float]:
        monkeypatch.setattr(_runtime_estimation, "get_gpu_dram_gbps", lambda: gigabytes)
        monkeypatch.setattr(_runtime_estimation, "get_device_tflops", lambda _dtype: teraflops)
        times: dict[str, float] = {}

        def noting(func: Any, args: Any, kwargs: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(torch.cuda, "is_available", lambda: True)
                result, milliseconds = estimate(func, args, kwargs)
            times[str(func)] = times.get(str(func), 0.0) + 1e6 * milliseconds
            return result, milliseconds

        monkeypatch.setattr(RuntimeEstimator, "_roofline_estimate", staticmethod(noting))
        with FakeTensorMode(), torch.no_grad():
            layers = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, WIDE), nn.GELU(), nn.Linear(WIDE, HIDDEN))
            inputs = torch.ones(TOKENS, HIDDEN)
            with RuntimeEstimator()("operator-level-cost-model"):
                layers(inputs)
        return times

    return of


def test_it_refuses_without_a_gpu() -> None:
    with FakeTensorMode():
        layer, inputs = nn.Linear(HIDDEN, WIDE), torch.ones(TOKENS, HIDDEN)
        refused = pytest.raises(AssertionError, match="needs to access CUDA")
        with torch.no_grad(), refused, RuntimeEstimator()("operator-level-cost-model"):
            layer(inputs)


def test_its_bytes_of_element_wise_operators_are_ours(nanoseconds: Any) -> None:
    times = nanoseconds(1.0, ENDLESS)
    assert times["aten.gelu.default"] == pytest.approx(OURS["activation"], rel=1e-12)
    gain_and_statistics = FP32 * (2 * HIDDEN + 2 * TOKENS)  # which ours leaves out
    assert times["aten.native_layer_norm.default"] == pytest.approx(OURS["norm"] / 2 + gain_and_statistics, rel=1e-12)


def test_it_takes_the_question_where_a_tensor_is_for_a_read_of_all_of_it(nanoseconds: Any) -> None:
    times = nanoseconds(1.0, ENDLESS)
    products = FP32 * (2 * WEIGHTS + 2 * TOKENS * (HIDDEN + WIDE) + HIDDEN + WIDE)
    assert times["aten.addmm.default"] == pytest.approx(products, rel=1e-12)
    assert times["prim.device.default"] == pytest.approx(2 * FP32 * WEIGHTS, rel=1e-12)


def test_its_products_take_two_thirds_of_the_time_that_the_peak_allows(nanoseconds: Any) -> None:
    """It divides flop by 2, as if a peak counted products and sums as one, and takes 0.75 of the peak as reached."""
    flop = layer_forward_flop(ARCHITECTURE, samples=1)["feed-forward"]
    times = nanoseconds(ENDLESS, 1.0)
    assert times["aten.addmm.default"] == pytest.approx(flop * 1e-3 * 2 / 3, rel=1e-12)
